"""`jaxalign tune`: a reward model that tunes the language model, with LoRA or in full, from preference pairs."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from jaxalign.cli import flags
from jaxalign.cli.fit import assignment
from jaxalign.cli.runtime import progress
from jaxalign.errors import InputError
from jaxalign.tracking import Tracker

REPORT = "tune_report.json"
"""What `tune` writes beside the model: how training went."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Fits a reward model whose language model is trained with it, and writes it to a folder.

    Rows with a `split` are used as they say: train, validation, and test for the summary. Without any, shares of the
    groups are held out. The summary goes to standard output as one JSON line.
    """

    model: str
    """The language model: smollm2-135m-instruct, a hub id, or a Hugging Face folder."""

    data: Path
    """Preferences: .jsonl, .jsonl.gz or .parquet."""

    out: Path
    """Folder for the reward model."""

    method: Literal["arm", "personal_arm", "p_dpo", "bt_tuned"] = "arm"
    """See `jaxalign methods`."""

    set: tuple[str, ...] = ()
    """Hyper-parameters of the method as name=value, for instance beta=0.1."""

    backbone: Literal["lora", "full", "frozen"] = "lora"
    """What of the language model is trained."""

    rank: int = 8
    """Of LoRA."""

    alpha: float = 16.0
    """Of LoRA: updates are scaled by alpha / rank."""

    epochs: int = 1
    """Passes over the pairs."""

    batch_size: int = 32
    """Pairs per step."""

    micro_batch: int = 4
    """Pairs in memory at once; gradients are summed."""

    learning_rate: float | None = None
    """Peak; the method's own for LoRA and 1e-5 for full fine-tuning where not given."""

    warm_up: float = 0.1
    """Share of the steps."""

    weight_decay: float = 0.05
    """Of the backbone's matrices."""

    clip: float = 1.0
    """Largest norm of the gradients."""

    max_length: int = 512
    """Longest prompt and response in tokens; prompts are cut from the left."""

    remat: bool = True
    """Compute layers twice to save memory."""

    eval_every: int = 0
    """Steps between evaluations and between checkpoints; 0: once an epoch."""

    validation: float = 0.1
    """Share of the groups to choose the step by, where no row states its split; 0 takes the last step."""

    test: float = 0.0
    """Share of the groups for the summary's accuracy, where no row states its split."""

    seed: int = 0
    """Of initial values and order."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; what is trained is kept in float32."""

    layers: Literal["unrolled", "scanned"] = "scanned"
    """scanned compiles deep models quickly; the reward model serves both."""

    checkpoints: Path | None = None
    """Folder for the state of training; the same command resumes from it."""

    merged: Path | None = None
    """Also write the tuned language model, adapters merged, as a Hugging Face folder."""

    track: tuple[Tracker, ...] = ()
    """Also write the curves for TensorBoard (OUT/tensorboard) or Weights & Biases; each is an extra of jaxalign."""

    overwrite: bool = False
    """Replace a reward model that is in the folder."""


def main(arguments: Sequence[str]) -> int:
    """Fits, writes, and returns the exit status."""
    options = flags.parse("tune", Options, arguments)
    if options.out.exists() and not options.overwrite:
        raise InputError(f"{options.out} exists. Give another folder, or --overwrite.")
    if options.merged is not None and options.merged.exists():
        raise InputError(f"{options.merged} exists. Give --merged another folder.")
    for name in ("validation", "test"):
        if not 0.0 <= getattr(options, name) < 1.0:
            raise InputError(f"--{name} is a share of the groups, from 0 to below 1, not {getattr(options, name)}.")

    from contextlib import nullcontext

    from jaxalign import models, tracking
    from jaxalign.cli.runtime import prepare_jax
    from jaxalign.files import write_json
    from jaxalign.rewards import tuning
    from jaxalign.rewards.checkpoint import Checkpoints
    from jaxalign.rewards.tuning import export

    tracking.check(options.track)
    method = tuning.make(options.method, **dict(assignment(text) for text in options.set))
    backbone = {
        "lora": lambda: tuning.Lora(options.rank, options.alpha),
        "full": tuning.Full,
        "frozen": tuning.Frozen,
    }[options.backbone]()
    recipe = tuning.Recipe(
        epochs=options.epochs,
        batch_size=options.batch_size,
        micro_batch=options.micro_batch,
        learning_rate=options.learning_rate,
        warm_up=options.warm_up,
        weight_decay=options.weight_decay,
        clip=options.clip,
        max_length=options.max_length,
        remat=options.remat,
        eval_every=options.eval_every,
        seed=options.seed,
    )
    recipe.check()
    train, validation, test = _rows(options, method.personal)
    prepare_jax()
    lm = models.load(options.model, dtype=options.dtype, layers=options.layers)
    saver = nullcontext() if options.checkpoints is None else Checkpoints(options.checkpoints)
    steps = options.epochs * -(-len(train) // options.batch_size)
    with saver as checkpoints, progress(f"tuning {method.name}", steps) as advance:
        done = 0

        def tell(count: int, total: int) -> None:
            nonlocal done
            advance(count - done)
            done = count

        result = tuning.tune(
            method,
            lm,
            train,
            validation,
            backbone=backbone,
            recipe=recipe,
            checkpoints=checkpoints,
            progress=tell,
        )
    export.save(result.model, options.out, overwrite=options.overwrite)
    report = result.report.as_json()
    judged = tuning.evaluate(result.model, lm, test, batch_size=2 * options.micro_batch).as_json() if test else None
    write_json(options.out / REPORT, {**report, "test": judged})
    told = {"name": options.out.name, "config": dataclasses.asdict(options)}
    tracking.write(options.track, options.out, **told, points=tracking.tune_points(report))
    if options.merged is not None:
        export.save_language_model(result.model, lm, options.merged)
    kept = ("method", "pairs", "dropped", "trained", "best_step", "validation", "seconds")
    print(json.dumps({"out": str(options.out), **{name: report[name] for name in kept}, "test": judged}))
    return 0


def _rows(options: Options, personal: bool) -> tuple[list[Any], list[Any], list[Any]]:
    """Training, validation and test rows; of a personal method, those of users with training rows only."""
    from jaxalign.data.reader import load_preferences
    from jaxalign.data.splits import by_group

    rows = load_preferences(options.data)
    if any(row.split for row in rows):
        parts = [[row for row in rows if row.split == name] for name in ("train", "validation", "test")]
    else:
        split = by_group(rows, test=options.test, validation=options.validation)
        parts = [split.train, split.validation, split.test]
    if not parts[0]:
        raise InputError(f'{options.data} has no rows to fit on. Mark them with split "train", or mark no rows at all.')
    seen = {row.user for row in parts[0]}
    train, *others = parts
    return train, *([row for row in part if row.user in seen or not personal] for part in others)  # type: ignore[return-value]
