"""How sizes are rounded, and when a smaller shape is worth compiling."""

import numpy as np
import pytest
import stepwise
from hypothesis import given
from hypothesis import strategies as st

from jaxalign.decoding import RewardHead, buckets, generate, score
from jaxalign.decoding.buckets import WORTH_COMPILING, bucket, few_shapes, power_of_two


@given(st.integers(1, 100_000))
def test_rounding_up_by_less_than_a_half(size):
    assert size <= bucket(size) <= max(16, size * 1.5)
    assert bucket(bucket(size)) == bucket(size)
    assert size <= power_of_two(size) < 2 * size


def test_a_smaller_shape_is_kept_where_its_batches_save_enough():
    large, small = (8, 128, 32), (8, 64, 32)
    worth = WORTH_COMPILING // (8 * 64)
    assert few_shapes([large, *[small] * (worth - 1)]) == [large] * worth
    assert few_shapes([large, *[small] * worth]) == [large, *[small] * worth]


def test_a_shape_that_no_larger_one_holds_is_kept():
    assert few_shapes([(8, 64, 16), (8, 48, 24)]) == [(8, 64, 16), (8, 48, 24)]


@given(st.lists(st.tuples(*[st.sampled_from([1, 2, 4, 8, 16, 96, 1024])] * 3), max_size=12))
def test_every_shape_holds_what_was_wanted(wanted):
    shapes = few_shapes(wanted)
    assert len(set(shapes)) <= len(set(wanted))
    for shape, needed in zip(shapes, wanted, strict=True):
        assert all(np.greater_equal(shape, needed))
    lost = sum(s[0] * sum(s[1:]) - w[0] * sum(w[1:]) for s, w in zip(shapes, wanted, strict=True))
    assert lost < WORTH_COMPILING * max(1, len(set(wanted)))


@pytest.mark.parametrize("worth", [0, pytest.param(10**9, marks=pytest.mark.slow)])
def test_shapes_change_no_token_and_no_score(worth, monkeypatch):
    lm = stepwise.tiny_lm()
    prompts = stepwise.prompts(20, 9, 2)
    responses = stepwise.prompts(3, 20, 1, seed=1)
    head = RewardHead.linear(np.random.default_rng(0).normal(size=(2, lm.config.hidden_size)), weight=1.0)
    settings = {"guidance": head, "user": [0, 1, 1], "top_k": 4, "batch_size": 2}
    monkeypatch.setattr(buckets, "WORTH_COMPILING", worth)
    texts = generate(lm, prompts, max_new_tokens=[3, 5, 4], **settings)
    scores = score(lm, prompts, responses, **settings)
    for place, (text, judged) in enumerate(zip(texts, scores, strict=True)):
        alone = {**settings, "user": settings["user"][place]}
        (single,) = generate(lm, [prompts[place]], max_new_tokens=len(text.tokens), **alone)
        assert single.tokens == text.tokens
        (expected,) = score(lm, [prompts[place]], [responses[place]], **alone)
        for field in ("log_prob", "policy_log_prob", "score", "reward"):
            np.testing.assert_allclose(getattr(judged, field), getattr(expected, field), rtol=2e-5, atol=2e-5)
