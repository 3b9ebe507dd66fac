"""`jaxalign fit`: a personal reward model from preference pairs, saved for `generate`, `score` and `adapt`."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from jaxalign.cli import flags
from jaxalign.cli.runtime import progress
from jaxalign.errors import InputError
from jaxalign.tracking import Tracker


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Fits one reward model on cached hidden states and writes it to a folder.

    Rows with a `split` are used as they say: train, validation, and others are left alone. Without any, a share of the
    groups is held out to choose by. The summary goes to standard output as one JSON line.
    """

    model: str
    """The frozen language model: smollm2-135m-instruct, a hub id, or a Hugging Face folder."""

    data: Path
    """Preferences: .jsonl, .jsonl.gz or .parquet."""

    out: Path
    """Folder for the reward model."""

    method: str = "lore"
    """See `jaxalign methods`."""

    set: tuple[str, ...] = ()
    """Hyper-parameters as name=value, for instance rank=5."""

    grid: tuple[str, ...] = ()
    """Values to choose from by validation loss, as name=value,value; the method's own grid where none is given."""

    pooling: Literal["last", "mean"] = "last"
    """Which hidden state stands for a text. Guided decoding reads the last token."""

    validation: float = 0.1
    """Share of the groups held out to choose by, where no row states its split; 0 chooses nothing."""

    seeds: tuple[int, ...] = (0,)
    """One fit each; the best by validation loss is written."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the language model's parameters."""

    batch_size: int = 8
    """Texts per batch of the language model."""

    checkpoints: Path | None = None
    """Folder for the state of training; the same command resumes from it."""

    track: tuple[Tracker, ...] = ()
    """Also write the curves for TensorBoard (OUT/tensorboard) or Weights & Biases; each is an extra of jaxalign."""

    plugins: tuple[Path, ...] = ()
    """Python files that add reward models; installed packages that do need no naming."""

    overwrite: bool = False
    """Replace a reward model that is in the folder."""


def main(arguments: Sequence[str]) -> int:
    """Fits, writes, and returns the exit status."""
    options = flags.parse("fit", Options, arguments)
    if options.out.exists() and not options.overwrite:
        raise InputError(f"{options.out} exists. Give another folder, or --overwrite.")
    if not 0.0 <= options.validation < 1.0:
        raise InputError(f"--validation is a share of the groups, from 0 to below 1, not {options.validation}.")
    from jaxalign import plugins, tracking
    from jaxalign.rewards.registry import make

    tracking.check(options.track)
    plugins.load(options.plugins)
    method = make(options.method, **dict(assignment(text) for text in options.set))
    grid = {name: values(text) for name, text in map(split_assignment, options.grid)} or None
    train, validation = _rows(options)
    lm, features = read_features(options.model, [*train, *validation], options.dtype, options.batch_size)

    from contextlib import nullcontext

    from jaxalign.rewards.checkpoint import Checkpoints
    from jaxalign.rewards.export import save, save_report
    from jaxalign.rewards.features import pair_blocks
    from jaxalign.rewards.fitting import fit

    blocks = pair_blocks(train, features, options.pooling)
    held = pair_blocks(validation, features, options.pooling) if validation else None
    saver = nullcontext() if options.checkpoints is None else Checkpoints(options.checkpoints)
    with saver as checkpoints, progress(f"fitting {method.name}", method.steps) as advance:
        done = 0

        def tell(steps: int, total: int) -> None:
            nonlocal done
            advance(steps - done)
            done = steps

        result = fit(
            method,
            blocks,
            held,
            seeds=options.seeds,
            grid=grid,
            backbone=lm.fingerprint,
            checkpoints=checkpoints,
            progress=tell,
        )
    save(result.model, options.out, overwrite=options.overwrite)
    report = result.report.as_json()
    save_report(options.out, options.pooling, report=report)
    told = {"name": options.out.name, "config": dataclasses.asdict(options)}
    tracking.write(options.track, options.out, **told, points=tracking.fit_points(report))
    kept = ("method", "chosen", "best_step", "train", "validation", "seconds")
    print(json.dumps({"out": str(options.out), **{name: report[name] for name in kept}}, ensure_ascii=False))
    return 0


def split_assignment(text: str) -> tuple[str, str]:
    """ "name=value" in two."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InputError(f"'{text}' is not name=value.")
    return name.strip().replace("-", "_"), value.strip()


def assignment(text: str) -> tuple[str, Any]:
    """A hyper-parameter: "rank=5" a whole number, "strength=1.0" or "strength=inf" a number, "centre=false" a bool."""
    name, value = split_assignment(text)
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    try:
        return name, int(value)
    except ValueError:
        pass
    try:
        return name, float(value)
    except ValueError:
        raise InputError(f"'{text}': {value} is not a number.") from None


def values(text: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(value) for value in text.split(",")]
    except ValueError:
        raise InputError(f"--grid: '{text}' is not a list of numbers separated by commas.") from None


def read_features(model: str, rows: Sequence[Any], dtype: Any, batch_size: int) -> tuple[Any, Any]:
    """The language model, and the features of all texts in `rows`, computed or read from the cache folder."""
    from jaxalign import models
    from jaxalign.cli.runtime import prepare_jax
    from jaxalign.files import cache_dir
    from jaxalign.rewards.features import extract

    prepare_jax()
    lm = models.load(model, dtype=dtype)
    pairs = [(row.prompt, text) for row in rows for text in (row.chosen, row.rejected)]
    # Prompts may be lists of messages: distinct texts are those that `extract` counts.
    with progress("features", len({(repr(prompt), text) for prompt, text in pairs})) as advance:
        features = extract(lm, pairs, cache=cache_dir() / "features", batch_size=batch_size, progress=advance)
    return lm, features


def _rows(options: Options) -> tuple[list[Any], list[Any]]:
    """Training and validation rows; validation rows of users without training rows cannot be used, and are refused."""
    from jaxalign.data.reader import load_preferences
    from jaxalign.data.splits import by_group

    rows = load_preferences(options.data)
    if any(row.split for row in rows):
        train = [row for row in rows if row.split == "train"]
        validation = [row for row in rows if row.split == "validation"]
    elif options.validation:
        parts = by_group(rows, test=0.0, validation=options.validation)
        train, validation = parts.train, parts.validation
    else:
        train, validation = rows, []
    if not train:
        raise InputError(f'{options.data} has no rows to fit on. Mark them with split "train", or mark no rows at all.')
    seen = {row.user for row in train}
    return train, [row for row in validation if row.user in seen]
