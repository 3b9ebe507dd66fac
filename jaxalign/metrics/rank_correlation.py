"""Do two measures rank the methods alike? Kendall's tau-b and Spearman's rho over methods.

    tau_b(x, y), spearman(x, y)          -> float | None of two lists of numbers
    permutation_p(x, y)                  -> (p of tau_b, p of Spearman), two-sided
    rank_correlation(x, y)               -> RankCorrelation of two tables [methods, users]
    tau_deviation(methods)               -> standard deviation of tau when there is no relation

Two doubts are kept apart. The interval says how much the coefficient of *these* methods would move with other users
(bootstrap over users). The p-value says how often as strong an agreement comes up when methods are matched at random
(permutations of methods; all of them when they are few). With eight methods tau has a standard deviation of 0.29
without any relation: no number of users mends that.

A coefficient is None where one side is constant. Values that differ by less than a part in 10^10 of the largest are
tied: means of the same numbers in another order must be.
"""

import dataclasses
import itertools
import math

import numpy as np

from jaxalign.errors import InputError
from jaxalign.metrics.bootstrap import LEVEL, RESAMPLES, in_canonical_order, interval, resampled_means

# All orders of 8 methods are 40,320; above that as many as this are drawn.
_EXACT_UP_TO = 8
_PERMUTATIONS = 20_000


@dataclasses.dataclass(frozen=True)
class RankCorrelation:
    """Agreement of two measures over methods; None where it is undefined, which `note` then explains.

    Attributes:
      n: methods that both measures know.
      tau_b, tau_low, tau_high, tau_p: Kendall's tau-b, its bounds over users, its p-value over methods.
      spearman, spearman_low, spearman_high, spearman_p: the same of Spearman's rho.
      note: what to know before reading them.
    """

    n: int
    tau_b: float | None = None
    tau_low: float | None = None
    tau_high: float | None = None
    tau_p: float | None = None
    spearman: float | None = None
    spearman_low: float | None = None
    spearman_high: float | None = None
    spearman_p: float | None = None
    note: str | None = None


def tau_deviation(methods: int) -> float | None:
    """Standard deviation of tau over so many methods when the measures are unrelated and untied.

    sqrt(2 (2n + 5) / (9 n (n - 1))), Kendall 1938; None for fewer than two methods.
    """
    return math.sqrt(2 * (2 * methods + 5) / (9 * methods * (methods - 1))) if methods > 1 else None


def _orders(values: np.ndarray) -> np.ndarray:
    """Sign of every difference, `[..., methods, methods]` int8 from `[..., methods]`."""
    values = np.asarray(values, np.float64)
    tolerance = 1e-10 * np.abs(values).max(axis=-1, keepdims=True, initial=0.0)[..., None]
    differences = values[..., :, None] - values[..., None, :]
    return ((differences > tolerance).astype(np.int8) - (differences < -tolerance).astype(np.int8)).astype(np.int8)


def _ratio(product: np.ndarray, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    scale = np.sqrt(one.astype(np.float64) * two)
    return np.where(scale > 0, product / np.where(scale > 0, scale, 1.0), np.nan)


def _tau(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """tau-b `[...]` from the orders of two lists; NaN where one is constant."""
    product = np.einsum("...ij,...ij->...", one, two, dtype=np.int64)
    return _ratio(product, np.abs(one).sum((-2, -1), dtype=np.int64), np.abs(two).sum((-2, -1), dtype=np.int64))


def _rho(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Spearman's rho `[...]`: a row of orders sums to twice the centred (average) rank."""
    one, two = one.sum(-1, dtype=np.int64), two.sum(-1, dtype=np.int64)
    return _ratio((one * two).sum(-1), (one**2).sum(-1), (two**2).sum(-1))


def _both_known(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise InputError(f"ranks of {x.shape} and {y.shape} values cannot be compared: one value a method is needed")
    known = ~np.isnan(x) & ~np.isnan(y)
    return x[known], y[known]


def _or_none(value: np.ndarray) -> float | None:
    return None if np.isnan(value) else float(value)


def tau_b(x: np.ndarray, y: np.ndarray) -> float | None:
    """Kendall's tau-b of `[methods]` and `[methods]` numbers; methods with NaN are left out."""
    one, two = map(_orders, _both_known(x, y))
    return _or_none(_tau(one, two))


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's rank correlation with average ranks for ties; methods with NaN are left out."""
    one, two = map(_orders, _both_known(x, y))
    return _or_none(_rho(one, two))


def permutation_p(x: np.ndarray, y: np.ndarray, *, seed: int = 0) -> tuple[float | None, float | None]:
    """Two-sided p-values of tau-b and of Spearman's rho: the share of matchings of methods that agree or disagree as
    strongly as this one.

    All matchings of up to 8 methods; above, 20,000 drawn ones and this one. None where a side is constant.
    """
    x, y = _both_known(x, y)
    one, two = _orders(x), _orders(y)
    if not one.any() or not two.any():
        return None, None
    methods = len(x)
    if exact := methods <= _EXACT_UP_TO:
        matchings = np.asarray(list(itertools.permutations(range(methods))))
    else:
        random = np.random.default_rng(seed)
        matchings = random.permuted(np.tile(np.arange(methods), (_PERMUTATIONS, 1)), axis=1)
    ranks = two.sum(-1, dtype=np.int64)
    # Numerators only: ties and so denominators are the same in every matching. They are integers, compared exactly.
    agreement = np.concatenate(
        [
            np.einsum("ij,pij->p", one, two[part[:, :, None], part[:, None, :]], dtype=np.int32)
            for part in np.array_split(matchings, max(1, matchings.size * methods // 2_000_000))
        ]
    )
    products = ranks[matchings] @ one.sum(-1, dtype=np.int64)
    observed = (one * two).sum(dtype=np.int64), ranks @ one.sum(-1, dtype=np.int64)
    hits = [int((np.abs(all_) >= abs(this)).sum()) for all_, this in zip((agreement, products), observed, strict=True)]
    if exact:
        return hits[0] / len(matchings), hits[1] / len(matchings)
    return (1 + hits[0]) / (1 + len(matchings)), (1 + hits[1]) / (1 + len(matchings))


def rank_correlation(
    x: np.ndarray, y: np.ndarray, *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0
) -> RankCorrelation:
    """Agreement over methods of the means over users of two measures.

    Args:
      x: `[methods, users]`, for instance RM accuracy; NaN where a user has no data.
      y: `[methods, users]`, the same methods and users. Measures of different users (validation and test) share an
        axis with NaN in places.
      resamples: bootstrap resamples of users.
      level: of the intervals.
      seed: of resamples and permutations.

    Raises:
      InputError: when the tables differ in shape.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.shape != y.shape or x.ndim != 2:
        raise InputError(f"tables of shapes {x.shape} and {y.shape} are not [methods, users] of the same methods")
    known = ~np.isnan(x).all(axis=1) & ~np.isnan(y).all(axis=1)
    n = int(known.sum())
    if n < 2:
        return RankCorrelation(n, note="no rank correlation: " + ("one method only" if n else "no method has both"))
    both = in_canonical_order(np.concatenate([x[known], y[known]]))
    x_means, y_means = np.split(np.nanmean(both, axis=1), 2)
    one, two = _orders(x_means), _orders(y_means)
    constant = [name for name, order in (("first", one), ("second", two)) if not order.any()]
    if constant:
        which = "both measures are" if len(constant) == 2 else f"the {constant[0]} measure is"
        return RankCorrelation(n, note=f"no rank correlation: {which} the same for all {n} methods")

    means = resampled_means(both, resamples=resamples, seed=seed)
    # A method may lose all its users in a resample, which then says nothing.
    means = means[~np.isnan(means).any(axis=1)]
    ones, twos = _orders(means[:, :n]), _orders(means[:, n:])
    taus, rhos = _tau(ones, twos), _rho(ones, twos)
    users = min(int((~np.isnan(table)).any(axis=0).sum()) for table in np.split(both, 2))
    tau_p, spearman_p = permutation_p(x_means, y_means, seed=seed)
    notes = [f"without any relation, tau over {n} methods has a standard deviation of {tau_deviation(n):.2f}"]
    if users < 2:
        notes.append("one user only: no interval")
    elif undefined := resamples - int((~np.isnan(taus)).sum()):
        notes.append(f"undefined in {100 * undefined / resamples:.1f} % of resamples, which are left out")
    tau_low, tau_high = interval(taus, users, level)
    spearman_low, spearman_high = interval(rhos, users, level)
    return RankCorrelation(
        n,
        *(_or_none(_tau(one, two)), tau_low, tau_high, tau_p),
        *(_or_none(_rho(one, two)), spearman_low, spearman_high, spearman_p),
        note="; ".join(notes),
    )
