"""Ranking accuracy of pairs: counts that may be summed over shards, and what is read off them at the end.

A tie (two equal rewards) counts one half and is counted apart, so that a constant reward shows as half right and all
ties. A pair whose label is 0.5 has no right answer and is left out.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PairCounts:
    """Sums over the pairs of each user; shards and batches add.

    Attributes:
      correct: `[users]` float32, pairs ranked as labelled, ties as one half.
      pairs: `[users]` float32, pairs that have a right answer.
      ties: `[users]` float32, pairs among them with two equal rewards.
    """

    correct: Any
    pairs: Any
    ties: Any

    def __add__(self, other: "PairCounts") -> "PairCounts":
        return jax.tree.map(lambda one, two: one + two, self, other)


def count(chosen: Any, rejected: Any, mask: Any, label: Any = None) -> PairCounts:
    """Counts per user.

    Args:
      chosen: `[users, pairs]` rewards of the chosen texts; traced or not.
      rejected: `[users, pairs]` rewards of the rejected texts.
      mask: `[users, pairs]` bool, false for padding.
      label: `[users, pairs]` probability that chosen is preferred; 1 where not given. Below 0.5 the rejected text is
        the right answer.
    """
    # NumPy for NumPy arrays: counting on the device would compile a program for every shape.
    np_or_jnp = jnp if any(isinstance(rows, jax.Array) for rows in (chosen, rejected, mask, label)) else np
    sign = np_or_jnp.ones(mask.shape, np.float32) if label is None else np_or_jnp.sign(2.0 * label - 1.0)
    real = mask & (sign != 0.0)
    # Compared, not subtracted: a difference may underflow, and inf - inf is not a number.
    order = (chosen > rejected).astype(np.float32) - (chosen < rejected).astype(np.float32)
    tie = chosen == rejected
    correct = 0.5 * (1.0 + sign * order)
    # A reward that is not a number compares false with everything: wrong, and not a tie.
    correct = np_or_jnp.where((order == 0.0) & ~tie, 0.0, correct)
    return PairCounts(
        correct=np_or_jnp.where(real, correct, 0.0).sum(axis=1),
        pairs=real.sum(axis=1).astype(np.float32),
        ties=(real & tie).sum(axis=1).astype(np.float32),
    )


def per_user(counts: PairCounts) -> np.ndarray:
    """`[users]` accuracies; NaN for a user without pairs, whom every mean leaves out."""
    correct, pairs = np.asarray(counts.correct, np.float64), np.asarray(counts.pairs, np.float64)
    return np.where(pairs > 0, correct / np.maximum(pairs, 1.0), np.nan)


def macro(counts: PairCounts) -> float | None:
    """Mean over users of their accuracy; None where no user has a pair."""
    accuracies = per_user(counts)
    known = accuracies[~np.isnan(accuracies)]
    return float(known.mean()) if known.size else None


def micro(counts: PairCounts) -> float | None:
    """Accuracy over all pairs; None where there is none."""
    pairs = float(np.asarray(counts.pairs, np.float64).sum())
    return float(np.asarray(counts.correct, np.float64).sum()) / pairs if pairs else None


def worst_tenth(counts: PairCounts) -> float | None:
    """Mean accuracy of the tenth of users (at least one) with the lowest; None where no user has a pair."""
    accuracies = per_user(counts)
    known = np.sort(accuracies[~np.isnan(accuracies)])
    return float(known[: max(1, len(known) // 10)].mean()) if known.size else None
