"""What holds for every input: bounds, symmetry, and no effect of the order of users, texts or methods."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jaxalign.metrics.bootstrap import bootstrap_mean, bootstrap_worst_tenth, paired_difference
from jaxalign.metrics.diversity import distinct, repetition
from jaxalign.metrics.equivalence import equivalence
from jaxalign.metrics.quality import text_quality
from jaxalign.metrics.rank_correlation import permutation_p, rank_correlation, spearman, tau_b
from jaxalign.metrics.regret import selection_regret
from jaxalign.metrics.similarity import cosine
from jaxalign.metrics.text_overlap import MEASURES, overlap
from jaxalign.metrics.words import words

few = settings(max_examples=25, deadline=None)
# Any text, and text of few words, where n-grams are shared.
texts = st.text(max_size=40) | st.lists(st.sampled_from(["ab", "the", "猫", "é", "😀"]), max_size=12).map(" ".join)
values = arrays.arrays(np.float64, st.integers(0, 9), elements=st.floats(-100, 100, width=32) | st.just(float("nan")))
TOP = {"bleu": 100.0, "chrf": 100.0}


def two_tables(max_methods=6, max_users=7):
    """Two tables of the same methods and users, of few different values, so that there are ties."""
    elements = st.sampled_from([0.0, 0.1, 0.25, 0.5, 2 / 3, 1.0, float("nan")])
    shape = st.tuples(st.integers(1, max_methods), st.integers(1, max_users))
    return shape.flatmap(lambda of: st.tuples(*[arrays.arrays(np.float64, of, elements=elements)] * 2))


@few
@given(texts, texts)
def test_text_measures_are_bounded(prediction, reference):
    measures = text_quality(prediction, reference)
    for name, value in measures.items():
        assert value is None or 0 <= value <= (np.inf if name == "length_ratio" else TOP.get(name, 1.0)), name
    nothing, itself = overlap("", prediction), overlap(prediction, prediction)
    assert itself == {name: None if nothing[name] is None else TOP.get(name, 1.0) for name in MEASURES}
    assert set(nothing.values()) <= {0.0, None}


@few
@given(texts, texts)
def test_rouge_is_symmetric_where_both_have_ngrams(one, two):
    there, back = overlap(one, two), overlap(two, one)
    for name in ("rouge1", "rouge2", "rougeL"):
        if there[name] is not None and back[name] is not None:
            assert there[name] == pytest.approx(back[name])
    if there["rouge1"] is not None:
        assert there["rougeL"] <= there["rouge1"] + 1e-12


@few
@given(texts)
def test_words_are_words_of_the_same_text_in_any_case_and_spacing(text):
    found = words(text)
    assert all(found)
    assert words(" ".join(found)) == found
    assert words(f"  {text}\n") == found


@few
@given(st.lists(texts, max_size=5), st.randoms())
def test_distinct_does_not_depend_on_the_order_of_texts(several, random):
    shuffled = random.sample(several, len(several))
    assert distinct(several, 2) == distinct(shuffled, 2)
    for text in several:
        twice = repetition(f"{text} {text}", 1)
        assert twice is None or twice >= 0.5


@few
@given(values, st.randoms())
def test_intervals_are_within_the_values_and_ignore_the_order_of_users(numbers, random):
    known = numbers[~np.isnan(numbers)]
    shuffled = np.asarray(random.sample(list(numbers), len(numbers)))
    for bootstrap in (bootstrap_mean, bootstrap_worst_tenth):
        found = bootstrap(numbers, resamples=50)
        assert found == bootstrap(shuffled, resamples=50)
        if len(known) > 1:
            assert known.min() - 1e-9 <= found.low <= found.high <= known.max() + 1e-9
        assert (found.value is None) == (not known.size)


@few
@given(two_tables())
def test_differences_turn_their_sign_with_their_sides(tables):
    one, two = tables[0][0], tables[1][0]
    there, back = paired_difference(one, two, resamples=50), paired_difference(two, one, resamples=50)
    assert there.users == back.users
    if there.users:
        assert there.value == pytest.approx(-back.value)
    forth, reverse = equivalence(one, two, 0.2), equivalence(two, one, 0.2)
    assert forth.equivalent == reverse.equivalent
    if forth.p is not None:
        assert forth.p == pytest.approx(reverse.p)
        assert forth.low == pytest.approx(-reverse.high)
        assert forth.low <= forth.difference <= forth.high


@few
@given(two_tables(), st.randoms())
def test_rank_correlations_are_bounded_symmetric_and_ignore_order(tables, random):
    x, y = tables[0][:, 0], tables[1][:, 0]
    order = random.sample(range(len(x)), len(x))
    for coefficient in (tau_b, spearman):
        found = coefficient(x, y)
        assert found == coefficient(y, x) == coefficient(x[order], y[order])
        if found is not None:
            assert -1 - 1e-12 <= found <= 1 + 1e-12
            assert found == pytest.approx(-coefficient(-x, y))
            assert found == coefficient(np.exp(x), y)
    assert permutation_p(x, y) == permutation_p(y, x) == permutation_p(x[order], -y[order])


@few
@given(two_tables(), st.randoms())
def test_tables_ignore_the_order_of_users(tables, random):
    x, y = tables
    order = random.sample(range(x.shape[1]), x.shape[1])
    names = [f"m{row}" for row in range(len(x))]
    found = rank_correlation(x, y, resamples=40)
    assert found == rank_correlation(x[:, order], y[:, order], resamples=40)
    if found.tau_low is not None:
        assert -1 - 1e-12 <= found.tau_low <= found.tau_high <= 1 + 1e-12
        assert 0 < found.tau_p <= 1
    assert (found.tau_b is None) == (found.spearman is None)
    regret = selection_regret(x, y, names, resamples=40)
    assert regret == selection_regret(x[:, order], y[:, order], names, resamples=40)
    if regret is not None:
        assert regret.regret >= 0
        assert regret.low is None or 0 <= regret.low <= regret.high
        assert selection_regret(y, y, names, resamples=40).regret == 0


@few
@given(two_tables(), st.floats(0.01, 100))
def test_cosines_are_bounded_symmetric_and_free_of_scale(tables, scale):
    one, two = tables
    found = cosine(one, two)
    np.testing.assert_array_equal(found, cosine(two, one))
    np.testing.assert_allclose(found, cosine(scale * one, two), atol=1e-12)
    assert np.all(np.isnan(found) | (np.abs(found) <= 1))
