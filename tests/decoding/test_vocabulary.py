"""Top-k, argmax, filters and sampling over a vocabulary, against JAX's own and against sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxalign.decoding import vocabulary

RNG = np.random.default_rng(0)
WIDE = 6 * 256 + 37  # seven blocks, the last one not full
# Compiled whole: operation by operation, each would be a program of its own.
ARGMAX, USABLE, SAMPLE = (jax.jit(f) for f in (vocabulary.argmax, vocabulary.usable, vocabulary.sample))
TOP_K = jax.jit(vocabulary.top_k, static_argnames="k")
KEEP_TOP_P = jax.jit(vocabulary.keep_top_p)
KEEP_TOP_K = jax.jit(vocabulary.keep_top_k, static_argnames="largest")


def rows(kind, n):
    x = RNG.standard_normal((9, n)).astype(np.float32)
    if kind == "ties":
        x = np.round(x)
    elif kind == "one_value":
        x = np.zeros_like(x)
    elif kind == "mostly_minus_infinity":
        x = np.where(RNG.random(x.shape) < 0.999, -np.inf, x).astype(np.float32)
    elif kind == "all_minus_infinity":
        x = np.full_like(x, -np.inf)
    return x


KINDS = ["distinct", "ties", "one_value", "mostly_minus_infinity", "all_minus_infinity"]


@pytest.mark.parametrize("kind", KINDS)
def test_top_k_and_argmax_are_those_of_jax(kind):
    for n, ks in ((5, (1, 5)), (256, (1,)), (300, (3,)), (WIDE, (1, 2, 3, 10))):
        x = rows(kind, n)
        np.testing.assert_array_equal(ARGMAX(x), jnp.argmax(x, axis=-1))
        for k in ks:
            for ours, theirs in zip(TOP_K(x, k), jax.lax.top_k(x, k), strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_usable_rows_have_a_finite_maximum_and_no_nan():
    x = np.zeros((5, WIDE), np.float32)
    x[0] = -np.inf
    x[1, 5] = np.inf
    x[2, 1000] = np.nan
    x[3, :-1] = -np.inf
    np.testing.assert_array_equal(USABLE(x), [False, False, False, True, True])


def test_exactly_k_and_the_lowest_ids_first_among_ties():
    scores = jnp.array([[9.0, 5.0, 5.0, 5.0, 0.0]] * 3)
    kept = np.isfinite(KEEP_TOP_K(scores, jnp.array([2, 1, 0]), 2))
    np.testing.assert_array_equal(kept, [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_ties_are_drawn_the_same_alone_and_among_others(dtype):
    """Half precision makes ties common: two equal maxima with k = 1 give the lower id, whatever is drawn."""
    tied = np.zeros(WIDE, np.float32)
    tied[[700, 1200]] = 3.0
    others = RNG.standard_normal((8, WIDE)).astype(np.float32)
    batch = jnp.asarray(np.concatenate([others[:4], tied[None], others[4:]]), dtype).astype(jnp.float32)
    keep = jax.jit(
        lambda x, uniform: vocabulary.sample(vocabulary.keep_top_k(x, jnp.ones(len(x), jnp.int32), 1), uniform)
    )
    for seed in range(50):
        uniform = np.random.default_rng(seed).random(9).astype(np.float32)
        drawn = keep(batch, uniform)
        np.testing.assert_array_equal(drawn, np.asarray(batch).argmax(axis=-1))
        assert int(keep(batch[4:5], uniform[4:5])[0]) == int(drawn[4]) == 700


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_nucleus_is_the_one_found_by_sorting(temperature):
    logits = RNG.standard_normal((20, WIDE)).astype(np.float32) / np.float32(temperature)
    top_p = np.linspace(0.01, 0.99, 20).astype(np.float32)
    kept = np.isfinite(KEEP_TOP_P(logits, top_p))
    for row in range(20):
        p = np.asarray(jax.nn.softmax(logits[row]), np.float64)
        order = np.argsort(-p, kind="stable")
        # The smallest prefix of the sorted probabilities that reaches top_p.
        wanted = np.zeros(WIDE, bool)
        wanted[order[: np.searchsorted(np.cumsum(p[order]), top_p[row]) + 1]] = True
        # The sums are rounded in float32: the prefix may end one entry earlier or later.
        assert (kept[row] != wanted).sum() <= 1
        assert p[kept[row]].sum() == pytest.approx(max(top_p[row], p.max()), abs=p[kept[row]].min() + 1e-5)


def test_nucleus_by_hand():
    logits = jnp.log(jnp.array([[0.5, 0.25, 0.125, 0.125]] * 5))
    kept = np.isfinite(KEEP_TOP_P(logits, jnp.array([0.1, 0.5, 0.7, 0.8, 1.0])))
    # Equal probabilities are kept together.
    np.testing.assert_array_equal(kept.sum(axis=-1), [1, 1, 2, 4, 4])


def test_samples_follow_the_probabilities():
    n, draws = 700, 200_000
    logits = RNG.standard_normal(n).astype(np.float32)
    logits[RNG.random(n) < 0.3] = -np.inf
    logits[3] = 5.0
    uniform = jax.random.uniform(jax.random.key(0), draws)
    same = jnp.broadcast_to(jnp.asarray(logits), (2000, n))
    drawn = np.concatenate([SAMPLE(same, part) for part in uniform.reshape(-1, 2000)])
    counts = np.bincount(drawn, minlength=n)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum()
    assert counts[p == 0].sum() == 0
    expected = p[p > 0] * draws
    chi_square = ((counts[p > 0] - expected) ** 2 / expected).sum()
    degrees = (p > 0).sum() - 1
    # Five standard deviations of the statistic.
    assert abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)


def test_the_ends_of_the_unit_interval_draw_only_what_has_weight():
    logits = np.full((2, WIDE), -np.inf, np.float32)
    logits[:, [300, 900]] = 0.0
    drawn = SAMPLE(logits, jnp.array([0.0, np.nextafter(np.float32(1), np.float32(0))]))
    np.testing.assert_array_equal(drawn, [300, 900])
