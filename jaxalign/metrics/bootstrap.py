"""Bootstrap over users: how much a number would move with other users of the same kind.

    bootstrap_mean(values)                 -> Interval(value, low, high) of the mean over users (macro)
    bootstrap_ratio(numerators, counts)    -> ... of a sum over a sum (micro)
    bootstrap_worst_tenth(values)          -> ... of the mean of the lowest tenth of users
    paired_difference(one, two)            -> Difference(value, low, high, p, users) of two methods on the same users
    resampled_means(table)                 -> [resamples, rows], the means of all rows of `[rows, users]` under the
                                              same resamples; `interval` reads the bounds off any statistic of them

Users with NaN are left out. Intervals are percentile intervals with the levels widened for few users, from Hesterberg
2015 (The American Statistician 69(4), "expanded percentile"): the plain percentiles of 5 users cover too little. With
fewer than two users there is no interval (None). The same values, seed and number of resamples give the same interval,
in whatever order users come.
"""

from typing import NamedTuple

import numpy as np

from jaxalign.errors import InputError

RESAMPLES = 2000
LEVEL = 0.95


class Interval(NamedTuple):
    """A value with the bounds of its interval; None where it is undefined."""

    value: float | None
    low: float | None
    high: float | None


class Difference(NamedTuple):
    """A paired difference one - two.

    Attributes:
      value: mean over users.
      low: lower bound.
      high: upper bound.
      p: two-sided bootstrap p-value of no difference.
      users: number of users who have both.
    """

    value: float | None
    low: float | None
    high: float | None
    p: float | None
    users: int


def resample_counts(users: int, *, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """How often each user is drawn, `[resamples, users]` float64; every row sums to `users`."""
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, not {resamples}")
    drawn = np.random.default_rng(seed).integers(users, size=(resamples, users))
    drawn += users * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * users).reshape(resamples, users).astype(np.float64)


def in_canonical_order(table: np.ndarray) -> np.ndarray:
    """The columns of `[rows, users]` that have data, sorted by their values: the order of users is of no effect."""
    table = np.asarray(table, np.float64)
    if np.isinf(table).any():
        raise InputError("a table over users has an infinite value; leave NaN where a user has no data")
    table = table[:, ~np.isnan(table).all(axis=0)]
    return table[:, np.lexsort(table[::-1])]


def resampled_means(table: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Means over users of every row, under the same resamples of users for all rows.

    Args:
      table: `[rows, users]`, NaN where a user has no data.
      resamples: number of resamples.
      seed: of the draws.

    Returns:
      `[resamples, rows]` float64; NaN where a resample has no user with data.
    """
    table = in_canonical_order(table)
    if not table.shape[1]:
        return np.full((resamples, table.shape[0]), np.nan)
    counts = resample_counts(table.shape[1], resamples=resamples, seed=seed)
    known = ~np.isnan(table)
    sums, sizes = counts @ np.where(known, table, 0.0).T, counts @ known.T.astype(np.float64)
    return np.where(sizes > 0, sums / np.maximum(sizes, 1.0), np.nan)


def tail(users: int, level: float = LEVEL) -> float:
    """The share of resamples beyond each bound: Phi(-sqrt(n / (n - 1)) t), t the quantile of Student's t of n - 1."""
    from scipy import special

    quantile = special.stdtrit(users - 1, 0.5 + level / 2)
    return float(special.ndtr(-np.sqrt(users / (users - 1)) * quantile))


def interval(statistics: np.ndarray, users: int, level: float = LEVEL) -> tuple[float | None, float | None]:
    """Bounds from the values of a statistic `[resamples]` over resamples of so many users; undefined ones (NaN) do
    not count."""
    defined = statistics[~np.isnan(statistics)]
    if users < 2 or not defined.size:
        return None, None
    beyond = tail(users, level)
    low, high = np.quantile(defined, [beyond, 1.0 - beyond])
    return float(low), float(high)


def _known(values: np.ndarray) -> np.ndarray:
    return in_canonical_order(np.asarray(values, np.float64)[None])[0]


def bootstrap_mean(values: np.ndarray, *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0) -> Interval:
    """Mean over users of `[users]` values with its interval."""
    known = _known(values)
    if not known.size:
        return Interval(None, None, None)
    means = resampled_means(known[None], resamples=resamples, seed=seed)[:, 0]
    return Interval(float(known.mean()), *interval(means, known.size, level))


def bootstrap_ratio(
    numerators: np.ndarray,
    denominators: np.ndarray,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Sum of numerators over sum of denominators, both `[users]`: accuracy over pairs when they are correct and pairs.

    Users whose denominator is 0 or NaN are left out.
    """
    table = np.stack([np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)])
    table = in_canonical_order(table[:, table[1] > 0])
    users = table.shape[1]
    if not users:
        return Interval(None, None, None)
    sums = resample_counts(users, resamples=resamples, seed=seed) @ table.T
    return Interval(float(table[0].sum() / table[1].sum()), *interval(sums[:, 0] / sums[:, 1], users, level))


def bootstrap_worst_tenth(
    values: np.ndarray, *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0
) -> Interval:
    """Mean of the tenth of users (at least one) with the lowest of `[users]` values."""
    known = _known(values)
    if not known.size:
        return Interval(None, None, None)
    size = max(1, known.size // 10)
    counts = resample_counts(known.size, resamples=resamples, seed=seed)
    # Values are sorted: the lowest `size` of a resample are its first `size` draws, cut off within a user.
    upto = np.minimum(np.cumsum(counts, axis=1), size)
    means = np.diff(upto, axis=1, prepend=0.0) @ known / size
    return Interval(float(known[:size].mean()), *interval(means, known.size, level))


def paired_difference(
    one: np.ndarray, two: np.ndarray, *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0
) -> Difference:
    """Mean over users of one - two, both `[users]`, over users who have both.

    p is twice the smaller share of resamples on either side of no difference (a difference of exactly 0 counts on
    both), with one resample added so that it is never 0.
    """
    differences = _known(np.asarray(one, np.float64) - np.asarray(two, np.float64))
    users = differences.size
    if not users:
        return Difference(None, None, None, None, 0)
    means = resampled_means(differences[None], resamples=resamples, seed=seed)[:, 0]
    low, high = interval(means, users, level)
    smaller = min((means <= 0).sum(), (means >= 0).sum())
    p = float(min(1.0, 2 * (1 + smaller) / (1 + resamples))) if users > 1 else None
    return Difference(float(differences.mean()), low, high, p, users)
