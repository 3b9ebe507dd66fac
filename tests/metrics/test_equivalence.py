import numpy as np
import pytest
from scipy import stats

from jaxalign.errors import InputError
from jaxalign.metrics.equivalence import equivalence


def test_by_hand():
    # Differences 0, 0.1, 0.2: mean 0.1, error 0.1 / sqrt(3). With two degrees of freedom P(T < -t) is
    # 1/2 - t / (2 sqrt(2 + t^2)), and 5 % lie beyond 2.919986.
    found = equivalence([0.5, 0.6, 0.7], [0.5, 0.5, 0.5], 0.3)
    error = 0.1 / np.sqrt(3)
    t = 0.2 / error
    assert found.difference == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.1 - 2.919986 * error, 0.1 + 2.919986 * error))
    assert found.p == pytest.approx(0.5 - t / (2 * np.sqrt(2 + t**2)))
    assert found.equivalent
    assert found.users == 3


@pytest.mark.parametrize("shift", [-0.3, -0.08, 0.0, 0.05, 0.3])
def test_agrees_with_two_tests_of_scipy_and_with_the_interval(shift):
    random = np.random.default_rng(7)
    one, two = random.normal(size=(2, 40))
    one = two + 0.2 * one + shift
    found = equivalence(one, two, 0.1)
    below = stats.ttest_1samp(one - two, -0.1, alternative="greater").pvalue
    above = stats.ttest_1samp(one - two, 0.1, alternative="less").pvalue
    assert found.p == pytest.approx(max(below, above))
    peer = stats.ttest_1samp(one - two, 0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx(tuple(peer))
    assert found.equivalent == (found.p < 0.05) == (found.low > -0.1 and found.high < 0.1)


def test_it_is_paired_and_leaves_out_users_who_lack_one():
    random = np.random.default_rng(0)
    users = random.normal(size=30)
    one = np.append(users + random.normal(0, 0.01, 30), [np.nan, 9.0])
    two = np.append(users, [1.0, np.nan])
    order = random.permutation(32)
    assert equivalence(one, two, 0.02).equivalent
    assert equivalence(one, two, 0.02) == equivalence(one[order], two[order], 0.02)
    assert equivalence(one, two, 0.02).users == 30


def test_few_or_constant_users():
    same = np.asarray([0.25, 0.5])
    found = equivalence(same, same, 0.1)
    assert (found.difference, found.low, found.high, found.p, found.equivalent) == (0, 0, 0, 0, True)
    found = equivalence(same + 0.5, same, 0.5)
    assert (found.p, found.equivalent) == (1, False)
    assert equivalence([0.5], [0.25], 0.1).equivalent is None
    assert equivalence([0.5], [0.25], 0.1).difference == 0.25
    nobody = equivalence([np.nan], [0.25], 0.1)
    assert (nobody.difference, nobody.p, nobody.users) == (None, None, 0)


@pytest.mark.parametrize("margin", [0.0, -0.1, float("nan")])
def test_a_margin_must_be_positive(margin):
    with pytest.raises(InputError, match="must be positive"):
        equivalence([1.0, 2.0], [1.0, 2.0], margin)
