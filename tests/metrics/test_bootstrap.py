import itertools

import numpy as np
import pytest
from scipy import stats

from jaxalign.errors import InputError
from jaxalign.metrics.bootstrap import (
    bootstrap_mean,
    bootstrap_ratio,
    bootstrap_worst_tenth,
    interval,
    paired_difference,
    resample_counts,
    resampled_means,
    tail,
)


def test_by_hand():
    # Three users with seven pairs: 2 of 3, 1 of 2, 0 of 2 right. With three users the bounds are at 7e-8 and so the
    # lowest and the highest resample: the same user three times.
    correct, pairs = np.asarray([2.0, 1.0, 0.0]), np.asarray([3.0, 2.0, 2.0])
    assert bootstrap_mean(correct / pairs) == pytest.approx((7 / 18, 0.0, 2 / 3), abs=1e-5)
    assert bootstrap_ratio(correct, pairs) == pytest.approx((3 / 7, 0.0, 2 / 3), abs=1e-5)
    assert bootstrap_worst_tenth(correct / pairs) == pytest.approx((0.0, 0.0, 2 / 3), abs=1e-5)
    found = paired_difference(correct / pairs, np.asarray([0.5, 0.5, 0.25]))
    assert found[:3] == pytest.approx((-1 / 36, -0.25, 1 / 6), abs=1e-5)
    assert found.users == 3


def test_frequencies_are_those_of_all_resamples():
    values = np.asarray([[1.0, 4.0, 16.0], [2.0, np.nan, 3.0]])
    every = [np.asarray(drawn) for drawn in itertools.product(range(3), repeat=3)]
    expected = np.asarray([[values[0, drawn].mean(), _mean(values[1, drawn])] for drawn in every])
    found = resampled_means(values, resamples=200_000, seed=1)
    for row in range(2):
        for mean in np.unique(np.round(expected[:, row], 9)):  # NaN too, where only the second user is drawn
            share = np.isclose(expected[:, row], mean, equal_nan=True).mean()
            assert np.isclose(found[:, row], mean, equal_nan=True).mean() == pytest.approx(share, abs=0.004)


def _mean(values):
    known = values[~np.isnan(values)]
    return known.mean() if known.size else np.nan


def test_interval_agrees_with_scipy_at_the_widened_level():
    values = np.random.default_rng(0).gamma(2.0, size=40)
    low, high = bootstrap_mean(values, resamples=20_000)[1:]
    level = 1 - 2 * tail(40)
    peer = stats.bootstrap((values,), np.mean, n_resamples=20_000, confidence_level=level, method="percentile", rng=0)
    assert (low, high) == pytest.approx(tuple(peer.confidence_interval), abs=0.02)
    assert 0.02 < tail(40) < 0.025
    assert tail(10_000) == pytest.approx(0.025, abs=1e-4)


def test_few_users_are_covered_as_promised():
    random = np.random.default_rng(0)
    inside = plain = 0
    for seed in range(400):
        values = random.normal(size=6)
        _, low, high = bootstrap_mean(values, resamples=400, seed=seed)
        inside += low <= 0 <= high
        low, high = np.quantile(resampled_means(values[None], resamples=400, seed=seed), [0.025, 0.975])
        plain += low <= 0 <= high
    assert 0.9 < inside / 400 < 0.98
    assert plain / 400 < 0.88


def test_worst_tenth_agrees_with_sorting_every_resample():
    values = np.random.default_rng(3).uniform(size=34)
    counts = resample_counts(34, resamples=300, seed=5)
    slow = [np.sort(np.repeat(np.sort(values), row.astype(int)))[:3].mean() for row in counts]
    found = bootstrap_worst_tenth(values, resamples=300, seed=5)
    assert found == pytest.approx((np.sort(values)[:3].mean(), *interval(np.asarray(slow), 34)))


def test_deterministic_in_the_seed_and_independent_of_the_order_of_users_and_of_users_without_data():
    random = np.random.default_rng(0)
    one, two = random.uniform(size=30), random.uniform(size=30)
    order = random.permutation(33)
    spread = [np.append(values, [np.nan] * 3)[order] for values in (one, two)]
    assert bootstrap_mean(one, seed=4) == bootstrap_mean(spread[0], seed=4)
    assert bootstrap_mean(one, seed=4) != bootstrap_mean(one, seed=5)
    assert bootstrap_worst_tenth(one) == bootstrap_worst_tenth(spread[0])
    assert paired_difference(one, two) == paired_difference(*spread)
    assert bootstrap_ratio(one, two) == bootstrap_ratio(*spread)


def test_rows_share_their_resamples():
    values = np.random.default_rng(0).normal(size=20)
    means = resampled_means(np.stack([values, values + 3.0]))
    np.testing.assert_allclose(means[:, 1] - means[:, 0], 3.0)


def test_a_paired_difference_sees_what_an_unpaired_one_does_not():
    users = np.random.default_rng(0).normal(size=25)
    found = paired_difference(users + 0.1, users)
    assert found.value == pytest.approx(0.1)
    assert found.low > 0.09
    assert found.p == pytest.approx(2 / 2001)
    assert paired_difference(users, users).p == 1.0


def test_one_user_has_no_interval_and_none_no_value():
    nobody = np.asarray([np.nan, np.nan])
    assert bootstrap_mean(np.asarray([np.nan, 0.5])) == (0.5, None, None)
    assert bootstrap_mean(nobody) == bootstrap_worst_tenth(nobody) == bootstrap_mean([]) == (None, None, None)
    assert bootstrap_ratio([1.0, 0.0], [2.0, 0.0]) == (0.5, None, None)
    assert bootstrap_ratio([0.0], [0.0]) == (None, None, None)
    assert paired_difference([1.0, np.nan], [0.5, 1.0]) == (0.5, None, None, None, 1)
    assert paired_difference(nobody, nobody) == (None, None, None, None, 0)


def test_bad_input():
    with pytest.raises(InputError, match="infinite"):
        bootstrap_mean([1.0, np.inf])
    with pytest.raises(InputError, match="at least 1, not 0"):
        bootstrap_mean([1.0, 2.0], resamples=0)
