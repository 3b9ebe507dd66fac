import numpy as np
import pytest

from jaxalign.data.attributes import NAMES, Standardiser, attribute_table
from jaxalign.metrics.style import style_distance


def test_by_hand():
    # Standardised texts: (0, 0), (3, 4), (6, 8) cut at 5; history at (1, 0) and (-1, 0), whose mean is (0, 0).
    standardiser = Standardiser(np.asarray([10.0, 20.0]), np.asarray([2.0, 5.0]))
    texts = np.asarray([[10.0, 20.0], [16.0, 40.0], [22.0, 60.0]])
    history = np.asarray([[12.0, 20.0], [8.0, 20.0]])
    np.testing.assert_allclose(style_distance(texts, history, standardiser), [0.0, np.sqrt(12.5), 5.0])


def test_a_user_without_own_texts_has_none():
    standardiser = Standardiser.of(attribute_table(["a b", "c!"]))
    assert np.isnan(style_distance(attribute_table(["x"]), attribute_table([]), standardiser)).all()
    assert style_distance(attribute_table([]), attribute_table(["x"]), standardiser).shape == (0,)


def test_text_in_the_users_manner_is_nearer():
    calm = [f"The committee considered proposal {n}, and it was accepted." for n in range(4)]
    loud = [f"WOW!!! I love number {n}! You must see it!" for n in range(4)]
    standardiser = Standardiser.of(attribute_table(calm + loud))
    generated = attribute_table(["The board discussed the plan, and it was adopted.", "Great! I really want it!"])
    assert generated.shape == (2, len(NAMES))
    to_calm, to_loud = (style_distance(generated, attribute_table(own), standardiser) for own in (calm, loud))
    assert to_calm[0] < to_loud[0]
    assert to_calm[1] > to_loud[1]
    turned = style_distance(generated, attribute_table(calm[::-1]), standardiser)
    assert to_calm == pytest.approx(turned, rel=1e-6)
