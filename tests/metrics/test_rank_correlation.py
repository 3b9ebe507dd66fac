import dataclasses
import itertools
import json

import numpy as np
import pytest
from scipy import stats

from jaxalign.errors import InputError
from jaxalign.metrics.bootstrap import in_canonical_order, resample_counts, tail
from jaxalign.metrics.rank_correlation import permutation_p, rank_correlation, spearman, tau_b, tau_deviation

# Four methods and three users with seven pairs (three, two and two): accuracies per user.
RM = np.asarray([[1, 1, 1], [2 / 3, 1 / 2, 1], [1 / 3, 1, 1 / 2], [0, 1 / 2, 1 / 2]])
POLICY = np.asarray([[2 / 3, 1 / 2, 1], [1, 1, 1 / 2], [1, 1 / 2, 1 / 2], [1 / 3, 0, 1 / 2]])


def test_by_hand():
    # Means: RM 1, 13/18, 11/18, 1/3; policy 13/18, 15/18, 12/18, 5/18. Ranks 4 3 2 1 and 3 4 2 1: one of six pairs is
    # turned. tau = (5 - 1)/6, rho = 1 - 6 * 2 / (4 * 15).
    found = rank_correlation(RM, POLICY)
    assert (found.n, found.tau_b, found.spearman) == (4, pytest.approx(4 / 6), pytest.approx(0.8))
    # Of 24 orders 1 has no turned pair and 3 have one; as many have six or five turned. Sums of squared rank
    # differences up to 2 (or from 18): again 4 of each.
    assert (found.tau_p, found.spearman_p) == (8 / 24, 8 / 24)
    assert found.note == "without any relation, tau over 4 methods has a standard deviation of 0.49"


def test_ties_by_hand():
    # One pair of three tied in x: (2 - 0) / sqrt(2 * 3).
    assert tau_b([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / np.sqrt(6))
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(np.sqrt(3) / 2)


@pytest.mark.parametrize("levels", [3, 1000])
def test_coefficients_and_p_values_agree_with_scipy(levels):
    random = np.random.default_rng(levels)
    for methods in (2, 3, 5, 8, 15):
        x, y = random.integers(levels, size=(2, methods))
        if len(set(x)) == 1 or len(set(y)) == 1:
            continue
        assert tau_b(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
        if levels > 3 and methods <= 8:
            assert permutation_p(x, y)[0] == pytest.approx(stats.kendalltau(x, y, method="exact").pvalue)


def test_p_values_agree_with_all_matchings_also_with_ties():
    x, y = [0.5, 0.5, 0.7, 0.8, 0.9], [0.1, 0.3, 0.3, 0.2, 0.9]
    for which, peer in enumerate((stats.kendalltau, stats.spearmanr)):
        every = [peer(x, matched).statistic for matched in itertools.permutations(y)]
        share = np.mean(np.abs(every) >= abs(peer(x, y).statistic) - 1e-9)
        assert permutation_p(x, y)[which] == pytest.approx(share)


def test_drawn_matchings_come_close_to_all_of_them():
    random = np.random.default_rng(2)
    x = np.arange(12.0)
    y = x + random.normal(0, 6, size=12)
    exact = stats.kendalltau(x, y, method="exact").pvalue
    assert 0.005 < exact < 0.5
    assert permutation_p(x, y)[0] == pytest.approx(exact, abs=0.01)
    assert permutation_p(x, x)[0] == pytest.approx(1 / 20_001)


def test_intervals_agree_with_one_correlation_per_resample():
    random = np.random.default_rng(4)
    x, y = random.uniform(size=(2, 6, 15)).round(1)
    y[2, :5] = np.nan
    both = in_canonical_order(np.concatenate([x, y]))
    slow = []
    for counts in resample_counts(15, resamples=200, seed=3):
        means = [np.average(row[~np.isnan(row)], weights=counts[~np.isnan(row)]).round(9) for row in both]
        slow.append((stats.kendalltau(means[:6], means[6:])[0], stats.spearmanr(means[:6], means[6:])[0]))
    bounds = np.quantile(slow, [tail(15), 1 - tail(15)], axis=0)
    found = rank_correlation(x, y, resamples=200, seed=3)
    assert [found.tau_low, found.tau_high] == pytest.approx(bounds[:, 0])
    assert [found.spearman_low, found.spearman_high] == pytest.approx(bounds[:, 1])


def test_order_of_users_and_users_without_data_are_of_no_effect():
    random = np.random.default_rng(1)
    x, y = random.uniform(size=(2, 12, 20))
    order = random.permutation(22)
    spread = [np.pad(table, ((0, 0), (0, 2)), constant_values=np.nan)[:, order] for table in (x, y)]
    assert rank_correlation(x, y) == rank_correlation(*spread)
    assert rank_correlation(x, y) != rank_correlation(x, y, seed=1)


def test_measures_of_different_users_are_compared():
    x, y = np.full((2, 3, 8), np.nan)
    x[:, :4] = np.asarray([[0.2], [0.5], [0.8]])
    y[:, 4:] = np.asarray([[0.3], [0.4], [0.9]])
    found = rank_correlation(x, y)
    assert (found.tau_b, found.tau_low, found.tau_high) == (1, 1, 1)


@pytest.mark.parametrize(
    ("x", "y", "note"),
    [
        (RM[:1], POLICY[:1], "one method only"),
        (RM[:0], POLICY[:0], "no method has both"),
        (np.full_like(RM, np.nan), POLICY, "no method has both"),
        (np.full_like(RM, 0.5), POLICY, "the first measure is the same for all 4 methods"),
        (RM, np.full_like(RM, 0.5), "the second measure is the same for all 4 methods"),
        (np.ones_like(RM), np.full_like(RM, 0.5), "both measures are the same for all 4 methods"),
        # Means are equal, though not the numbers, which come in another order.
        (np.asarray([[0.1, 0.2, 0.3], [0.3, 0.1, 0.2]]), POLICY[:2], "the first measure is the same"),
    ],
)
def test_undefined_has_a_note_and_is_not_nan(x, y, note):
    found = rank_correlation(x, y)
    assert note in found.note
    assert found.tau_b is found.tau_low is found.tau_p is found.spearman is found.spearman_high is None
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_one_user_and_undefined_resamples_are_told():
    alone = rank_correlation(RM[:, :1], POLICY[:, :1])
    assert alone.tau_b is not None
    assert alone.tau_low is None
    assert "one user only" in alone.note
    # The second method differs from the first for one user of two, who is missing in a quarter of the resamples.
    found = rank_correlation(np.asarray([[0.5, 0.5], [0.5, 1.0]]), np.asarray([[0.1, 0.2], [0.3, 0.4]]))
    assert 20 < float(found.note.split("undefined in ")[1].split(" %")[0]) < 30
    assert (found.tau_low, found.tau_high) == (1, 1)
    assert tau_b([1, 1], [1, 2]) is None
    assert permutation_p([1, 1], [1, 2]) == (None, None)
    assert tau_b([1, 2, np.nan], [1, 2, 0]) == 1


def test_deviation_of_tau_is_that_over_all_orders():
    for methods in (2, 4, 6):
        taus = [tau_b(np.arange(methods), order) for order in itertools.permutations(range(methods))]
        assert tau_deviation(methods) == pytest.approx(np.std(taus))
    assert tau_deviation(8) == pytest.approx(0.29, abs=0.005)
    assert tau_deviation(1) is None


def test_shapes_must_match():
    with pytest.raises(InputError, match=r"\(4, 3\) and \(3, 3\)"):
        rank_correlation(RM, POLICY[:3])
    with pytest.raises(InputError, match="one value a method"):
        tau_b([1, 2], [1, 2, 3])
