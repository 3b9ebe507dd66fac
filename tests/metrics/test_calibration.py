import numpy as np
import pytest

from jaxalign.metrics.calibration import expected_calibration_error


def logit(p):
    return np.log(p / (1 - np.asarray(p)))


def test_by_hand():
    # Two pairs of confidence 0.8, one right; one of confidence 0.6 on the wrong side of a label 0: right.
    margin, label = logit([0.8, 0.8, 0.4]), np.asarray([1.0, 0.0, 0.0])
    # |0.8 - 0.5| for two pairs and |0.6 - 1| for one.
    assert expected_calibration_error(margin, label) == pytest.approx((2 * 0.3 + 0.4) / 3)


def test_a_calibrated_model_has_none_and_overconfidence_shows():
    random = np.random.default_rng(0)
    probability = random.uniform(0.02, 0.98, 20000)
    label = (random.uniform(size=20000) < probability).astype(float)
    assert expected_calibration_error(logit(probability), label) < 0.02
    assert expected_calibration_error(5.0 * logit(probability), label) > 0.1


def test_swapping_a_pair_changes_nothing():
    random = np.random.default_rng(1)
    margin, label = random.normal(size=50), random.uniform(size=50)
    swapped = expected_calibration_error(-margin, 1.0 - label)
    assert expected_calibration_error(margin, label) == pytest.approx(swapped)


def test_extremes():
    assert expected_calibration_error(np.zeros(0), np.zeros(0)) is None
    assert expected_calibration_error(np.asarray([1e4, -1e4]), np.asarray([1.0, 0.0])) == 0.0
    assert expected_calibration_error(np.zeros(4), np.ones(4)) == 0.0
