"""The attention primitive against loops over rows, queries and heads; and the cache that it reads."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxalign.models import attention
from jaxalign.models.attention import attend
from jaxalign.models.cache import Cache, select

BATCH, QUERIES, HEADS, KV_HEADS, SLOTS, WIDTH = 3, 5, 6, 2, 7, 4


def slow(query, key, value, cache_keys, cache_values, start, stop):
    """What `attend` must give, one softmax at a time, in float64."""
    out = np.zeros(query.shape)
    for b, q, h in np.ndindex(query.shape[:3]):
        n = h // (query.shape[2] // key.shape[2])
        seen = range(start[b], stop[b, q])
        keys = [cache_keys[b, n, s] for s in seen] + [key[b, q, n]]
        values = [cache_values[b, n, s] for s in seen] + [value[b, q, n]]
        scores = np.array([np.dot(query[b, q, h], k) for k in keys], np.float64)
        weights = np.exp(scores - scores.max())
        out[b, q, h] = np.average(values, axis=0, weights=weights)
    return out


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    shapes = {
        "query": (BATCH, QUERIES, HEADS, WIDTH),
        "key": (BATCH, QUERIES, KV_HEADS, WIDTH),
        "value": (BATCH, QUERIES, KV_HEADS, WIDTH),
        "cache_keys": (BATCH, KV_HEADS, SLOTS, WIDTH),
        "cache_values": (BATCH, KV_HEADS, SLOTS, WIDTH),
    }
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    start = np.array([0, 3, 6], np.int32)
    # Everything, a part, a single slot, none, and (as for padding) a stop before the start.
    stop = np.array([[7, 4, 1, 0, 3], [7, 4, 3, 0, 5], [7, 6, 7, 2, 0]], np.int32)
    return arrays | {"start": start, "stop": stop}


def test_equals_loops(inputs):
    result = attend(**inputs)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, slow(**inputs), atol=2e-6)


@pytest.mark.parametrize("piece", [1, 2, 3, 4])
def test_pieces_equal_the_whole(inputs, piece, monkeypatch):
    whole = attend(**inputs)
    monkeypatch.setattr(attention, "_MAX_SCORES", BATCH * HEADS * SLOTS * piece)
    np.testing.assert_allclose(attend(**inputs), whole, atol=1e-6)


def test_what_is_not_visible_does_not_count(inputs):
    """Slots that were never written may hold anything finite, and padding any score."""
    expected = attend(**inputs)
    slot, start, stop = np.arange(SLOTS), inputs["start"], inputs["stop"]
    never = ~((slot >= start[:, None]) & (slot < stop.max(axis=1)[:, None]))
    assert never.any()
    for name in ("cache_keys", "cache_values"):
        inputs[name] = np.where(never[:, None, :, None], np.float32(1e4), inputs[name])
    np.testing.assert_allclose(attend(**inputs), expected, atol=1e-6)


def test_a_query_that_sees_nothing_gives_its_own_value(inputs):
    inputs["stop"] = np.zeros_like(inputs["stop"])
    expected = np.repeat(inputs["value"], HEADS // KV_HEADS, axis=2)
    np.testing.assert_allclose(attend(**inputs), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(inputs, dtype):
    cast = {k: x.astype(dtype) if x.dtype == np.float32 and k != "query" else x for k, x in inputs.items()}
    result = attend(**cast)
    assert result.dtype == jnp.float32
    exact = {k: np.asarray(x, np.float64) if k not in ("start", "stop") else x for k, x in cast.items()}
    np.testing.assert_allclose(result, slow(**exact), atol=0.03)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_large_scores_stay_finite(inputs, dtype):
    cast = {k: x.astype(dtype) if x.dtype == np.float32 else x for k, x in inputs.items()}
    result = attend(**(cast | {"query": cast["query"] * dtype(300)}))
    assert np.isfinite(result).all()
    assert np.abs(result).max() < 5


def test_gradients_equal_finite_differences_and_do_not_leak(inputs):
    start, stop = inputs.pop("start"), inputs.pop("stop")

    def total(arrays):
        return jnp.sum(jnp.sin(attend(**arrays, start=start, stop=stop)))

    gradient = jax.grad(total)(inputs)
    for name, leaf in gradient.items():
        assert np.isfinite(leaf).all(), name
        place = np.unravel_index(np.argmax(np.abs(leaf)), leaf.shape)
        moved = [dict(inputs) for _ in range(2)]
        for arrays, sign in zip(moved, (1, -1), strict=True):
            arrays[name] = np.array(arrays[name])
            arrays[name][place] += sign * 1e-2
        slope = sum(
            sign * np.sum(np.sin(slow(**arrays, start=start, stop=stop)))
            for arrays, sign in zip(moved, (1, -1), strict=True)
        )
        np.testing.assert_allclose(slope / 2e-2, leaf[place], rtol=1e-2)
    for row in range(BATCH):
        assert not np.any(gradient["cache_keys"][row, :, : start[row]])
        assert not np.any(gradient["cache_values"][row, :, stop[row].max() :])


# The cache.


def random_layer(rng, *front, slots):
    return tuple(rng.standard_normal((*front, BATCH, KV_HEADS, slots, WIDTH)).astype(np.float32) for _ in range(2))


@pytest.mark.parametrize("scanned", [False, True])
def test_extend_write_and_select(scanned):
    rng = np.random.default_rng(0)

    def layers(slots):
        return random_layer(rng, 2, slots=slots) if scanned else tuple(random_layer(rng, slots=slots) for _ in range(2))

    old = layers(4)
    cache = Cache(old, jnp.array([0, 1, 3], jnp.int32), jnp.int32(4))
    assert cache.scanned == scanned
    longer = cache.extend(9)
    assert (cache.slots, longer.slots, int(longer.slot)) == (4, 9, 4)
    siblings, choice = layers(3), np.array([2, 0, 1], np.int32)
    one = select(siblings, choice)
    written = jax.jit(lambda c, new: c.write(new))(longer, one)
    written = written.write(layers(2), advance=2)
    assert int(written.slot) == 7
    triples = zip(*(jax.tree.leaves(x) for x in (old, siblings, written.layers)), strict=True)
    for before, candidates, after in triples:
        np.testing.assert_array_equal(after[..., :4, :], before)
        for row in range(BATCH):
            np.testing.assert_array_equal(after[..., row, :, 4, :], candidates[..., row, :, choice[row], :])
        assert not np.any(after[..., 7:, :])
        assert np.all(np.any(np.asarray(after[..., 5:7, :]), axis=-1))


def test_a_written_value_takes_the_dtype_of_the_cache():
    cache = Cache(((jnp.zeros((1, 1, 2, 2), jnp.bfloat16),) * 2,), jnp.zeros(1, jnp.int32), jnp.int32(0))
    new = ((jnp.full((1, 1, 1, 2), math.pi, jnp.float32),) * 2,)
    assert jax.tree.leaves(cache.write(new).layers)[0].dtype == jnp.bfloat16
