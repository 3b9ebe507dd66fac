"""The reward models of an experiment: fitted on seen users, adapted to the others, judged by how they rank pairs."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxalign.data.blocks import PairBlocks
from jaxalign.data.schema import Preference
from jaxalign.errors import InputError
from jaxalign.evaluation import distributed
from jaxalign.evaluation.experiment import Experiment
from jaxalign.evaluation.run_folder import RunFolder
from jaxalign.evaluation.task import Task, judged_pairs
from jaxalign.metrics.accuracy import PairCounts, count
from jaxalign.progress import Progress
from jaxalign.rewards import adapt, fit, make
from jaxalign.rewards.export import ARRAYS, CONFIG, REPORT, load, save, save_report
from jaxalign.rewards.features import TextFeatures, pair_blocks
from jaxalign.rewards.protocol import RewardModel
from jaxalign.rewards.scoring import evaluate, pair_rewards

PARTS = ("validation", "seen", "unseen")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blocks:
    """The pairs of every part, over one table of texts.

    Attributes:
      train: seen users, training groups.
      tests: `validation` (seen users and validation users, validation groups), `seen` and `unseen` (test groups), of
        `test_prompts` prompts.
      support: all pairs that users who are not seen may be adapted on.
      shots: support sets of n pairs of the unseen users, by n; 0 for none.
    """

    train: PairBlocks
    choose: PairBlocks
    tests: Mapping[str, PairBlocks]
    support: PairBlocks
    shots: Mapping[int, PairBlocks]

    @classmethod
    def of(cls, task: Task, features: TextFeatures, experiment: Experiment) -> "Blocks":
        """All parts of a task; a test pair of a user of whom training knows nothing is left out."""
        split = task.split

        def blocks(rows: Sequence[Preference], users: Sequence[str] | None = None) -> PairBlocks:
            return pair_blocks(rows, features, experiment.pooling, users=users)

        seen = {row.user for row in split.train}
        known = seen | {row.user for row in split.validation.query}
        of_seen = [row for row in split.seen_validation if row.user in seen]
        judged = judged_pairs(task, experiment)
        unseen = sorted({row.user for row in judged["unseen"]})
        others = sorted({row.user for row in split.validation.query} | set(unseen))
        sizes = {0: [], **split.unseen.support}
        # Every size over the same users, those who have enough pairs for the largest: else sizes are not comparable.
        largest = [size for size in sorted(sizes, reverse=True) if size == 0 or sizes[size]]
        enough = {row.user for row in sizes[largest[0]]} & set(unseen) if largest[0] else set(unseen)
        shots = {size: [row for row in sizes[size] if row.user in enough] for size in reversed(largest)}
        return cls(
            train=blocks(split.train),
            choose=blocks(of_seen),
            tests={
                "validation": blocks([row for row in judged["validation"] if row.user in known]),
                "seen": blocks([row for row in judged["seen"] if row.user in seen]),
                "unseen": blocks(judged["unseen"]),
            },
            support=blocks([row for row in (*split.validation.pool, *split.unseen.pool) if row.user in others], others),
            shots={size: blocks(rows, sorted(enough)) for size, rows in shots.items()} if enough else {},
        )


def prepare(
    blocks: Blocks, experiment: Experiment, backbone: Mapping[str, str], folder: RunFolder, progress: Progress
) -> tuple[dict[str, RewardModel], list[dict[str, Any]]]:
    """Every method fitted on seen users, or read where an earlier run fitted it, and adapted to the other users.

    Returns:
      models by name, which know all users; and what each fit says of itself on its training and validation pairs.
    """
    models, reports = {}, []
    with progress("fit", len(experiment.methods)) as done:
        for name in experiment.methods:
            # One process fits, and the others read: on unlike machines each would get a slightly different model.
            if distributed.process_index():
                distributed.barrier(f"fit {name}", timeout=24 * 3600)
            model = _fitted(name, blocks, experiment, backbone, folder)
            if not distributed.process_index():
                distributed.barrier(f"fit {name}", timeout=24 * 3600)
            for part, pairs in (("train", blocks.train), ("validation", blocks.choose)):
                reports.append({"method": name, "part": part, **evaluate(model, pairs).as_json()})
            if blocks.support.users:
                model = joined(model, adapt(model, blocks.support))
            models[name] = model
            done(1)
    return models, reports


def _fitted(
    name: str, blocks: Blocks, experiment: Experiment, backbone: Mapping[str, str], folder: RunFolder
) -> RewardModel:
    files = [f"models/{name}/{file}" for file in (CONFIG, ARRAYS, REPORT)]
    place = folder.path / "models" / name
    if all(folder.finished(file) for file in files):
        return load(place, backbone)
    result = fit(make(name), blocks.train, blocks.choose, seeds=(experiment.seed,), backbone=backbone)
    if not distributed.process_index():
        shutil.rmtree(place, ignore_errors=True)  # damaged, or half of it
        save(result.model, place)
        save_report(place, experiment.pooling, report=result.report.as_json())
        folder.adopt(*files)
    return result.model


def joined(one: RewardModel, two: RewardModel) -> RewardModel:
    """One model with the users of both, which share everything else.

    Raises:
      InputError: a user is in both.
    """
    if both := sorted(set(one.users) & set(two.users)):
        raise InputError(f"user '{both[0]}' is in both models, so it is not clear which parameters to keep")
    params = jax.tree.map(lambda a, b: np.concatenate([np.asarray(a), np.asarray(b)]), one.user_params, two.user_params)
    return dataclasses.replace(one, user_params=params, users=(*one.users, *two.users))


def reward_counts(model: RewardModel, blocks: PairBlocks) -> PairCounts:
    """How often the reward itself ranks the pairs as labelled, per user."""
    rewards = pair_rewards(model, blocks)
    return count(rewards.chosen, rewards.rejected, blocks.mask, blocks.label)


def shot_counts(model: RewardModel, blocks: Blocks) -> dict[int, tuple[tuple[str, ...], PairCounts]]:
    """RM accuracy of unseen users adapted on n pairs each: by n, the users and their counts."""
    found = {}
    widest = max((support.mask.shape[1] for support in blocks.shots.values()), default=0)
    for size, support in blocks.shots.items():
        adapted = adapt(model, support.padded(widest))
        query = blocks.tests["unseen"]
        rows = [query.users.index(user) for user in adapted.users]
        part = dataclasses.replace(
            query,
            users=adapted.users,
            **{name: getattr(query, name)[rows] for name in ("chosen", "rejected", "mask", "label", "margin")},
        )
        found[size] = (adapted.users, reward_counts(adapted, part))
    return found
