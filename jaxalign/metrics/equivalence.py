"""Are two methods equally good within a margin? Two one-sided tests, paired over users.

    equivalence(one, two, margin)  -> Equivalence

A difference that is not significant is no evidence of equality; this is. Source: Schuirmann 1987 (Journal of
Pharmacokinetics and Biopharmaceutics 15), on the differences per user with Student's t.
"""

import dataclasses
import math

import numpy as np

from jaxalign.errors import InputError


@dataclasses.dataclass(frozen=True)
class Equivalence:
    """Result of the two tests.

    Attributes:
      difference: mean over users of one - two.
      low, high: bounds of the 1 - 2 alpha interval (90 % for alpha = 0.05): the methods are equivalent exactly when it
        lies within the margin.
      margin: the largest difference that counts as none.
      p: the larger p-value of the two tests.
      equivalent: p < alpha; None where it cannot be tested.
      users: users who have both.
    """

    difference: float | None
    low: float | None
    high: float | None
    margin: float
    p: float | None
    equivalent: bool | None
    users: int


def equivalence(one: np.ndarray, two: np.ndarray, margin: float, *, alpha: float = 0.05) -> Equivalence:
    """Tests whether the mean of one - two lies within (-margin, margin).

    Args:
      one: `[users]` of one method, NaN where a user has no data.
      two: `[users]` of the other, the same users.
      margin: positive, in the unit of the measure; to be fixed before looking at the data.
      alpha: level of each test.

    Returns:
      The result; with fewer than two users nothing can be tested and only the difference is given.

    Raises:
      InputError: when the margin is not positive.
    """
    if not margin > 0:
        raise InputError(f"the margin of an equivalence test must be positive, not {margin}")
    differences = np.asarray(one, np.float64) - np.asarray(two, np.float64)
    # Sorted, so that rounding does not depend on the order of users.
    differences = np.sort(differences[~np.isnan(differences)])
    users = differences.size
    if users < 2:
        mean = float(differences.mean()) if users else None
        return Equivalence(mean, None, None, margin, None, None, users)
    from scipy import special

    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(users)
    nearest = margin - abs(mean)  # the test at the nearer bound has the larger p-value
    if error == 0:  # every user has the same difference
        return Equivalence(mean, mean, mean, margin, 0.0 if nearest > 0 else 1.0, nearest > 0, users)
    p = float(special.stdtr(users - 1, -nearest / error))
    reach = float(special.stdtrit(users - 1, 1 - alpha)) * error
    return Equivalence(mean, mean - reach, mean + reach, margin, p, p < alpha, users)
