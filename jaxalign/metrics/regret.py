"""Selection regret: what is lost by deploying the method that a criterion picks, instead of the best one.

    selection_regret(criterion, target, methods)  -> Regret

Both tables are `[methods, users]`, NaN where a user has no data, and more is better in both (negate a distance). The
criterion may be measured on other users (validation) than the target (test): they share one axis.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxalign.errors import InputError
from jaxalign.metrics.bootstrap import LEVEL, RESAMPLES, in_canonical_order, interval, resampled_means


@dataclasses.dataclass(frozen=True)
class Regret:
    """Regret of one criterion on one target.

    Attributes:
      picked: the method with the highest criterion; the first in the given order among equals.
      best: the method with the highest target.
      value_picked: mean target of `picked`.
      value_best: mean target of `best`.
      regret: value_best - value_picked, at least 0.
      low, high: bounds when picking *and* judging are repeated on resampled users; the best of several noisy means is
        overrated, so the lower bound is 0 unless the loss is plain. None with fewer than two users.
    """

    picked: str
    best: str
    value_picked: float
    value_best: float
    regret: float
    low: float | None
    high: float | None


def highest(means: np.ndarray) -> np.ndarray:
    """Index of the highest of `[..., methods]`, the first among equals up to rounding; NaN is lowest."""
    means = np.where(np.isnan(means), -np.inf, means)
    tolerance = 1e-10 * np.abs(means, where=np.isfinite(means), out=np.zeros_like(means)).max(-1, keepdims=True)
    return (means >= means.max(-1, keepdims=True) - tolerance).argmax(-1)


def selection_regret(
    criterion: np.ndarray,
    target: np.ndarray,
    methods: Sequence[str],
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Regret | None:
    """Regret over the methods that have both criterion and target; None where there is no such method.

    Args:
      criterion: `[methods, users]`, what the choice is made by; more is better.
      target: `[methods, users]`, what counts; more is better.
      methods: `[methods]` names.
      resamples: bootstrap resamples of users.
      level: of the interval.
      seed: of the resamples.

    Raises:
      InputError: when the shapes differ.
    """
    criterion, target = np.asarray(criterion, np.float64), np.asarray(target, np.float64)
    if criterion.shape != target.shape or len(methods) != len(criterion):
        raise InputError(
            f"{len(methods)} methods, criterion {criterion.shape} and target {target.shape}: all need the same "
            "methods and users"
        )
    kept = np.flatnonzero(~np.isnan(criterion).all(axis=1) & ~np.isnan(target).all(axis=1))
    if not kept.size:
        return None
    both, n = in_canonical_order(np.concatenate([criterion[kept], target[kept]])), kept.size
    criteria, targets = np.split(np.nanmean(both, axis=1), 2)
    picked, best = int(highest(criteria)), int(highest(targets))

    means = resampled_means(both, resamples=resamples, seed=seed)
    means = means[~np.isnan(means).any(axis=1)]
    picks = highest(means[:, :n])
    losses = means[:, n:].max(axis=1) - np.take_along_axis(means[:, n:], picks[:, None], axis=1)[:, 0]
    users = min(int((~np.isnan(table)).any(axis=0).sum()) for table in np.split(both, 2))
    return Regret(
        methods[int(kept[picked])],
        methods[int(kept[best])],
        float(targets[picked]),
        float(targets[best]),
        max(0.0, float(targets[best] - targets[picked])),
        *interval(losses, users, level),
    )
