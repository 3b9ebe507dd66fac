import numpy as np
import pytest

from jaxalign.errors import InputError
from jaxalign.metrics.bootstrap import in_canonical_order, resample_counts, tail
from jaxalign.metrics.regret import selection_regret

METHODS = ["bt", "lore", "pref", "vpl"]
# Three users with seven pairs (three, two and two).
RM = np.asarray([[1, 1, 1], [2 / 3, 1 / 2, 1], [1 / 3, 1, 1 / 2], [0, 1 / 2, 1 / 2]])
POLICY = np.asarray([[2 / 3, 1 / 2, 1], [1, 1, 1 / 2], [1, 1 / 2, 1 / 2], [1 / 3, 0, 1 / 2]])


def test_by_hand():
    found = selection_regret(RM, POLICY, METHODS)
    assert (found.picked, found.best) == ("bt", "lore")
    assert (found.value_picked, found.value_best) == pytest.approx((13 / 18, 15 / 18))
    assert found.regret == pytest.approx(2 / 18)
    # With three users the bounds are the extreme resamples: the third user alone has no regret, the second alone 1/2
    # (bt and pref are tied in RM accuracy there, and bt comes first).
    assert (found.low, found.high) == pytest.approx((0.0, 0.5), abs=1e-4)


def test_the_interval_repeats_picking_and_judging():
    random = np.random.default_rng(0)
    criterion, target = random.uniform(size=(2, 4, 12))
    both = in_canonical_order(np.concatenate([criterion, target]))
    slow = []
    for counts in resample_counts(12, resamples=300, seed=2):
        means = np.average(both, axis=1, weights=counts)
        slow.append(means[4:].max() - means[4 + means[:4].argmax()])
    found = selection_regret(criterion, target, METHODS, resamples=300, seed=2)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(slow, [tail(12), 1 - tail(12)])))


def test_a_criterion_of_other_users_is_used():
    criterion, target = np.full((2, 2, 6), np.nan)
    criterion[:, :3], target[:, 3:] = [[0.9], [0.1]], [[0.4], [0.6]]
    found = selection_regret(criterion, target, METHODS[:2])
    assert found.picked == "bt"
    assert (found.regret, found.low, found.high) == pytest.approx((0.2, 0.2, 0.2))


def test_equal_criteria_pick_the_first_also_up_to_rounding():
    criterion = np.asarray([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])
    for rows in ([0, 1], [1, 0]):
        assert selection_regret(criterion[rows], POLICY[:2], METHODS[:2]).picked == "bt"


def test_methods_that_lack_either_are_not_picked_and_not_best():
    criterion, target = RM.copy(), POLICY.copy()
    criterion[1], target[0] = np.nan, np.nan
    found = selection_regret(criterion, target, METHODS)
    assert (found.picked, found.best) == ("pref", "pref")
    assert selection_regret(np.full_like(RM, np.nan), POLICY, METHODS) is None


def test_one_method_and_one_user_lose_nothing():
    found = selection_regret(RM[:1, :1], POLICY[:1, :1], ["bt"])
    assert (found.regret, found.low, found.high) == (0.0, None, None)


def test_order_of_users_and_users_without_data_are_of_no_effect():
    random = np.random.default_rng(1)
    x, y = random.uniform(size=(2, 4, 20))
    order = random.permutation(22)
    spread = [np.pad(table, ((0, 0), (0, 2)), constant_values=np.nan)[:, order] for table in (x, y)]
    assert selection_regret(x, y, METHODS) == selection_regret(*spread, METHODS)


def test_shapes_must_match():
    with pytest.raises(InputError, match="3 methods"):
        selection_regret(RM, POLICY, METHODS[:3])
