import numpy as np
import pytest

from jaxalign.errors import InputError
from jaxalign.metrics.similarity import cosine


def test_by_hand():
    one = np.asarray([[1.0, 0.0], [1.0, 1.0], [3.0, 4.0], [1.0, 2.0]])
    two = np.asarray([[0.0, 2.0], [1.0, 0.0], [6.0, 8.0], [-1.0, -2.0]])
    np.testing.assert_allclose(cosine(one, two), [0.0, np.sqrt(0.5), 1.0, -1.0], atol=1e-15)


def test_a_common_direction_is_taken_off():
    centre = np.asarray([100.0, 100.0])
    one, two = centre + np.asarray([[1.0, 0.0]]), centre + np.asarray([[0.0, 1.0]])
    assert cosine(one, two)[0] > 0.9999
    assert cosine(one, two, centre)[0] == pytest.approx(0.0)


def test_large_and_tiny_embeddings_and_those_without_direction():
    one = np.asarray([[1e200, 1e200], [1e-200, 0.0], [0.0, 0.0], [np.nan, 1.0], [1.0, 1.0]])
    two = np.asarray([[1e-200, 1e-200], [1e200, 0.0], [1.0, 1.0], [1.0, 1.0], [np.inf, 1.0]])
    np.testing.assert_allclose(cosine(one, two), [1.0, 1.0, np.nan, np.nan, np.nan])


def test_rows_must_match():
    with pytest.raises(InputError, match=r"\(2, 3\) and \(1, 3\)"):
        cosine(np.ones((2, 3)), np.ones((1, 3)))
