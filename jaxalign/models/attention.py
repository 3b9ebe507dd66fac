"""The one attention primitive: every query sees a range of cache slots, and itself.

With one query it is a decode step. With k queries at one position it scores k candidate tokens against a shared prefix
(siblings), without copying the cache. With T * k queries it scores every candidate of every position of a known
response (teacher forcing). With the prompt's own keys as the cache, and query i seeing the slots before i, it is the
causal attention of prefill.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Finite, so that a row that sees nothing but itself has no NaN, and no two masks can add up to -inf.
_MASKED = -1e30

# Queries are processed in pieces so that no piece has more scores than this (256 MiB in float32).
_MAX_SCORES = 1 << 26


class Packed(NamedTuple):
    """Queries of several rows in one line, for `attend` in the place of `stop`.

    Everything else in a transformer sees a batch of one row; here each query goes to its own row's cache.

    Attributes:
      place: `[slots]` int32, row * k + column of each query in the batch's own layout; rows * k for an empty slot.
      stop: `[rows, k]` int32, as in `attend`, in the batch's own layout.
    """

    place: jax.Array
    stop: jax.Array


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    cache_keys: jax.Array,
    cache_values: jax.Array,
    start: jax.Array,
    stop: jax.Array | Packed,
) -> jax.Array:
    """Attention of each query over the cache slots `start <= slot < stop` and the query's own key.

    Scores and their softmax are float32, whatever the inputs are.

    Args:
      query: `[batch, queries, heads, head_dim]`, already rotated and scaled by `head_dim ** -0.5`.
      key: `[batch, queries, kv_heads, head_dim]`, the queries' own keys, rotated.
      value: `[batch, queries, kv_heads, head_dim]`.
      cache_keys: `[batch, kv_heads, slots, head_dim]`.
      cache_values: `[batch, kv_heads, slots, head_dim]`.
      start: `[batch]` int32, first slot that a row may see (its left padding).
      stop: `[batch, queries]` int32, first slot that a query may not see. Or `Packed`: the queries, their keys and
        values are then `[1, slots, ...]`, and so is the result.

    Returns:
      `[batch, queries, heads, head_dim]` float32.
    """
    if isinstance(stop, Packed):
        return _packed(query, key, value, cache_keys, cache_values, start, stop)
    batch, queries, heads, head_dim = query.shape
    slots = cache_keys.shape[2]
    piece = max(1, _MAX_SCORES // (batch * heads * slots))
    if queries <= piece:
        return _attend(query, key, value, cache_keys, cache_values, start, stop)
    pieces = -(-queries // piece)
    piece = -(-queries // pieces)
    padding = pieces * piece - queries

    def split(x):
        x = jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(batch, pieces, piece, *x.shape[2:]), 1, 0)

    def one(inputs):
        q, k, v, limit = inputs
        return _attend(q, k, v, cache_keys, cache_values, start, limit)

    out = jax.lax.map(one, jax.tree.map(split, (query, key, value, stop)))
    return jnp.moveaxis(out, 0, 1).reshape(batch, pieces * piece, heads, head_dim)[:, :queries]


def _packed(query, key, value, cache_keys, cache_values, start, packed: Packed):
    rows, width = packed.stop.shape

    def spread(x):
        empty = jnp.zeros((rows * width, *x.shape[2:]), x.dtype)
        return empty.at[packed.place].set(x[0], mode="drop").reshape(rows, width, *x.shape[2:])

    out = attend(spread(query), spread(key), spread(value), cache_keys, cache_values, start, packed.stop)
    return out.reshape(rows * width, *out.shape[2:]).at[packed.place].get(mode="clip")[None]


def _attend(query, key, value, cache_keys, cache_values, start, stop):
    batch, queries, heads, head_dim = query.shape
    kv_heads = key.shape[2]
    precision = jax.lax.Precision.HIGHEST if cache_keys.dtype == jnp.float32 else None

    def product(equation, a, b):
        return jnp.einsum(equation, a, b, precision=precision, preferred_element_type=jnp.float32)

    # Heads of one group share their keys: [batch, kv_heads, queries, group, head_dim].
    grouped = query.reshape(batch, queries, kv_heads, heads // kv_heads, head_dim).transpose(0, 2, 1, 3, 4)
    grouped = grouped.astype(cache_keys.dtype)
    key = key.transpose(0, 2, 1, 3)[:, :, :, None]
    value = value.transpose(0, 2, 1, 3)[:, :, :, None]
    scores = product("bnqgd,bnsd->bnqgs", grouped, cache_keys)
    own = jnp.sum(grouped.astype(jnp.float32) * key.astype(jnp.float32), axis=-1, keepdims=True)
    slot = jnp.arange(cache_keys.shape[2], dtype=jnp.int32)[None, None]
    visible = (slot >= start[:, None, None]) & (slot < stop[:, :, None])
    scores = jnp.where(visible[:, None, :, None, :], scores, _MASKED)
    # A softmax over cache and self, without joining the two into one array.
    top = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), own)
    weights, own = jnp.exp(scores - top), jnp.exp(own - top)
    total = jnp.sum(weights, axis=-1, keepdims=True) + own
    out = product("bnqgs,bnsd->bnqgd", weights.astype(cache_values.dtype), cache_values)
    out = (out + own * value.astype(jnp.float32)) / total
    return out.transpose(0, 2, 1, 3, 4).reshape(batch, queries, heads, head_dim)
