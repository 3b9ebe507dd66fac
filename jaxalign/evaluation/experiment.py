"""An experiment: preferences in, a table of reward models out, stage by stage.

data -> features -> fit -> score -> generate -> report. Sampled responses are kept in the run folder and features in the
cache folder; the same command reads them and computes the rest.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from jaxalign.data import splits
from jaxalign.data.schema import Preference
from jaxalign.data.simulated import SimulatedUsers, load_prompts
from jaxalign.decoding import RewardHead, generate
from jaxalign.errors import DataError, InputError
from jaxalign.evaluation.run_folder import RunFolder
from jaxalign.evaluation.sequence import sequence_counts
from jaxalign.files import cache_dir
from jaxalign.metrics import accuracy
from jaxalign.models.language_model import LanguageModel
from jaxalign.rewards import fit, make
from jaxalign.rewards.export import save
from jaxalign.rewards.features import Pooling, TextFeatures, chat_prompt, extract, pair_blocks
from jaxalign.rewards.protocol import RewardModel
from jaxalign.rewards.scoring import pair_rewards

# (name of the stage, number of items) -> a context that gives "so many more are done"
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """The config of an experiment; each field is also a flag of `jaxalign run`."""

    name: str = "quickstart"
    """Names the folder of results."""

    model: str = "smollm2-135m-instruct"
    """The frozen language model: a name, a hub id or a folder."""

    data: Path | None = None
    """Preferences: a JSON-lines or Parquet file, or a folder with UKPConvArg1. None: simulated users."""

    methods: tuple[str, ...] = ("reference", "bt", "per_user")
    """Reward models that are compared; see `jaxalign.rewards.methods()`."""

    pooling: Pooling = "mean"
    """What stands for a response: the mean of its hidden states, or its last one. Guidance reads each token's own."""

    weights: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """Weights w that are tried on validation pairs; the best one is used."""

    test: float = 0.2
    """Share of the groups of pairs that is kept for the test."""

    validation: float = 0.1
    """Share of the groups of pairs by which strengths and weights are chosen."""

    min_pairs: int = 50
    """Users of `data` with fewer pairs that have a preferred side are left out."""

    users: int = 16
    """Simulated users."""

    common_taste: float = 1.0
    """Weight of a taste that all simulated users share, beside 1 for their own."""

    pairs_per_user: int = 120
    """Pairs that each simulated user judges."""

    prompts: int = 100
    """Prompts that simulated users see responses to."""

    responses: int = 4
    """Responses that the language model writes to each prompt."""

    response_tokens: int = 24
    """Length limit of responses and of guided texts, in tokens."""

    guided_users: int = 3
    """Users for whom texts are generated."""

    guided_prompts: int = 2
    """Prompts per user that texts are generated for."""

    top_k: int = 10
    """Candidates of guided decoding."""

    batch_size: int = 32
    """Rows that are decoded together; a quarter of it is encoded together."""

    seed: int = 0
    """Of everything that is random."""

    limit: int | None = None
    """At most so many users: a smoke run."""

    out: Path | None = None
    """Folder of results; default results/NAME."""


@dataclasses.dataclass(frozen=True)
class Table:
    """What an experiment prints: one row per reward model, and texts of some users."""

    rows: list[dict[str, Any]]
    texts: list[dict[str, Any]]
    notes: list[str]


def run(experiment: Experiment, lm: LanguageModel, progress: Progress) -> Table:
    """Runs all stages.

    Raises:
      InputError: a config that cannot work, or a results folder of another config.
      DataError: data that breaks the schema, or too little of it.
    """
    for name in experiment.methods:
        make(name)  # an unknown method is refused before any work
    if not experiment.methods:
        raise InputError("methods is empty: name at least one reward model")
    folder = RunFolder(experiment.out or Path("results") / experiment.name, experiment)
    simulated, rows = _preferences(experiment, lm, folder, progress)
    split = splits.by_group(rows, test=experiment.test, validation=experiment.validation, seed=experiment.seed)
    for part in ("train", "validation", "test"):
        if not getattr(split, part):
            raise DataError(f"no pair is left for {part}: give more pairs, or another share for test and validation")
    pairs = [(row.prompt, text) for row in rows for text in (row.chosen, row.rejected)]
    with progress("features", len({(str(p), t) for p, t in pairs})) as done:
        features = extract(
            lm, pairs, cache=cache_dir() / "features", batch_size=max(1, experiment.batch_size // 4), progress=done
        )
    # Users without pairs for training are not seen users; this job compares on seen users.
    seen = {row.user for row in split.train}
    blocks = {
        part: pair_blocks([row for row in getattr(split, part) if row.user in seen], features, experiment.pooling)
        for part in ("train", "validation", "test")
    }
    models: dict[str, RewardModel] = {}
    with progress("fit", len(experiment.methods)) as done:
        for name in experiment.methods:
            result = fit(
                make(name), blocks["train"], blocks["validation"], seeds=(experiment.seed,), backbone=lm.fingerprint
            )
            models[name] = result.model
            save(result.model, folder.path / "models" / name, overwrite=True)
            done(1)
    table = _judge(experiment, models, blocks, features, folder, simulated, split.test)
    texts = _texts(experiment, lm, models, table, split.test, simulated, folder, progress)
    counts = {part: int(block.mask.sum()) for part, block in blocks.items()}
    notes = [
        f"{len(seen)} users, {counts['train']} pairs to fit, {counts['validation']} to choose, {counts['test']} to test"
    ]
    return Table(table, texts, notes)


def _preferences(
    experiment: Experiment, lm: LanguageModel, folder: RunFolder, progress: Progress
) -> tuple[SimulatedUsers | None, list[Preference]]:
    """The pairs: of `data`, or of simulated users who judge what the language model really wrote."""
    if experiment.data is not None:
        rows = [row for row in _load(experiment.data) if not row.is_tie]
        rows = splits.at_least(rows, experiment.min_pairs)
        if not rows:
            raise DataError(f"{experiment.data}: no user has {experiment.min_pairs} pairs with a preferred side")
        kept = sorted({row.user for row in rows})[: experiment.limit]
        return None, [row for row in rows if row.user in set(kept)]
    written = folder.read_lines("responses.jsonl")
    if written is None:
        prompts = [prompt for prompt in load_prompts(experiment.prompts) for _ in range(experiment.responses)]
        with progress("responses", len(prompts)) as done:
            results = generate(
                lm,
                prompts,
                max_new_tokens=experiment.response_tokens,
                temperature=1.0,
                seed=experiment.seed,
                batch_size=experiment.batch_size,
                progress=done,
            )
        written = [{"prompt": p, "response": r.text} for p, r in zip(prompts, results, strict=True)]
        folder.write_lines("responses.jsonl", written)
    responses: dict[str, list[str]] = {}
    for row in written:
        responses.setdefault(row["prompt"], []).append(row["response"])
    everything = [text for texts in responses.values() for text in texts]
    simulated = SimulatedUsers.create(
        experiment.limit or experiment.users, everything, shared=experiment.common_taste, seed=experiment.seed
    )
    return simulated, simulated.preferences(responses, experiment.pairs_per_user, seed=experiment.seed)


def _load(path: Path) -> list[Preference]:
    from jaxalign.data.reader import load_preferences
    from jaxalign.data.sources import ukp

    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    return list(ukp.preferences(path)) if path.is_dir() else load_preferences(path)


def _judge(
    experiment: Experiment,
    models: dict[str, RewardModel],
    blocks: dict[str, Any],
    features: TextFeatures,
    folder: RunFolder,
    simulated: SimulatedUsers | None,
    test: Sequence[Preference],
) -> list[dict[str, Any]]:
    """RM accuracy and policy accuracy of every model on the test pairs; per-pair scores are written out."""
    table, pairs = [], []
    for name, model in models.items():
        rewards = {part: pair_rewards(model, blocks[part]) for part in ("validation", "test")}
        own = rewards["test"]
        counts = accuracy.count(own.chosen, own.rejected, blocks["test"].mask, blocks["test"].label)
        row = {"method": name, "rm_accuracy": accuracy.macro(counts), "rm_accuracy_micro": accuracy.micro(counts)}
        for length in ("sum", "mean"):
            tried = {
                weight: accuracy.macro(
                    sequence_counts(
                        blocks["validation"],
                        features,
                        rewards["validation"].chosen,
                        rewards["validation"].rejected,
                        weight,
                        length,
                    )
                )
                for weight in experiment.weights
            }
            weight = max(tried, key=lambda w: (tried[w] or 0.0, -w))
            sums = sequence_counts(blocks["test"], features, own.chosen, own.rejected, weight, length)
            row[f"policy_accuracy_{length}"] = accuracy.macro(sums)
            row[f"weight_{length}"] = weight
        table.append(row)
        for user, place in zip(*np.nonzero(blocks["test"].mask), strict=True):
            chosen, rejected = int(blocks["test"].chosen[user, place]), int(blocks["test"].rejected[user, place])
            pairs.append(
                {
                    "method": name,
                    "user": blocks["test"].users[user],
                    "chosen": chosen,
                    "rejected": rejected,
                    "reward_chosen": float(own.chosen[user, place]),
                    "reward_rejected": float(own.rejected[user, place]),
                    "log_prob_chosen": float(features.log_prob[chosen]),
                    "log_prob_rejected": float(features.log_prob[rejected]),
                    "tokens_chosen": int(features.tokens[chosen]),
                    "tokens_rejected": int(features.tokens[rejected]),
                }
            )
    if simulated is not None:
        table.append({"method": "oracle (true taste)", "rm_accuracy_micro": simulated.oracle_accuracy(test)})
    folder.write_lines("metrics.jsonl", table)
    folder.write_lines("pairs.jsonl", pairs)
    names = sorted(features.row, key=features.row.__getitem__)
    folder.write_lines("texts.jsonl", ({"text": i, "prompt": p, "response": r} for i, (p, r) in enumerate(names)))
    return table


def _texts(
    experiment: Experiment,
    lm: LanguageModel,
    models: dict[str, RewardModel],
    table: list[dict[str, Any]],
    test: Sequence[Preference],
    simulated: SimulatedUsers | None,
    folder: RunFolder,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Texts of some users: plain, and guided by each reward model at the weight that its validation chose."""
    first = next(iter(models.values()))
    users = [user for user in first.users if any(row.user == user for row in test)][: experiment.guided_users]
    jobs = []
    for user in users:
        prompts = list(dict.fromkeys(row.prompt for row in test if row.user == user))[: experiment.guided_prompts]
        jobs += [(user, prompt) for prompt in prompts]
    if not jobs:
        return []
    asked = [chat_prompt(prompt) for _, prompt in jobs]
    write = functools.partial(
        generate,
        lm,
        asked,
        max_new_tokens=experiment.response_tokens,
        batch_size=experiment.batch_size,
        seed=experiment.seed,
    )
    guided = {row["method"]: row for row in table if row["method"] in models and row["method"] != "reference"}
    texts: dict[str, Sequence[Any]] = {}
    with progress("guided texts", len(jobs) * (1 + len(guided))) as done:
        texts["plain"] = write(progress=done)
        for name, row in guided.items():
            model = models[name]
            head = RewardHead(
                function=model.reward, shared=model.shared, users=model.user_params, weight=row["weight_sum"]
            )
            who = [model.index(user) for user, _ in jobs]
            texts[name] = write(guidance=head, user=who, top_k=experiment.top_k, progress=done)
    rows = []
    for number, (user, prompt) in enumerate(jobs):
        for name, results in texts.items():
            result = results[number]
            row = {
                "user": user,
                "prompt": str(prompt),
                "method": name,
                "text": result.text,
                "stop_reason": result.stop_reason,
            }
            if simulated is not None:
                row["true_utility"] = float(simulated.reward(user, [result.text or ""])[0])
            rows.append(row)
    folder.write_lines("generations.jsonl", rows)
    return rows
