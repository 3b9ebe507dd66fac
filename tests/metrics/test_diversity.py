import pytest
from metrics_by_hand import TEXTS

from jaxalign.metrics.diversity import distinct, length_ratio, repetition


def test_by_hand():
    texts = {user: [row[1] for row in TEXTS if row[0] == user] for user in ("u0", "u1", "u2")}
    # the cat sat, a b c d; b a, a a a a a (a and b of 7 words; ba and aa of 5 bigrams); c, x y.
    assert [distinct(texts[user], 1) for user in texts] == [1.0, pytest.approx(2 / 7), 1.0]
    assert [distinct(texts[user], 2) for user in texts] == [1.0, pytest.approx(2 / 5), 1.0]
    assert [repetition(row[1]) for row in TEXTS] == [None, 0.0, None, None, 0.5, None, None]


def test_words_count_in_any_case_and_texts_are_not_joined():
    assert distinct(["A a", "a"], 1) == pytest.approx(1 / 3)
    assert distinct(["a b", "a b"], 2) == 0.5
    assert distinct(["a", "b"], 2) is None
    assert distinct([], 1) is None


def test_a_loop_comes_close_to_one():
    assert repetition("and so on " * 50) == pytest.approx(1 - 3 / 147)


def test_no_words_to_compare_with():
    assert length_ratio("a b", "...") is None
    assert length_ratio("a b", None) is None
    assert length_ratio("你好吗", "好") == 3.0
