"""Exact skipping: candidates that cannot win under a bound on the reward are not encoded.

With rewards within plus or minus b (weighted, in nats), candidate i of a greedy step cannot win when
log p_i + b < log p_0 - b, whatever the rewards turn out to be. Rounding keeps this order, so the output is the same to
the last bit of the choice. What is left of all rows is packed into one line of slots, so that the body's matrix
products have fewer rows; attention alone is done in the batch's own layout, against the one cache. It pays when the
step is bound by arithmetic (many rows), and costs a little where it is bound by reading the weights.

A broken (NaN or infinite) reward of a candidate that is skipped is never seen.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxalign.models.attention import Packed
from jaxalign.models.cache import Cache
from jaxalign.models.transformer import Decoder, step


def can_win(base: jax.Array, valid: jax.Array, bound: jax.Array) -> jax.Array:
    """Which candidates may still have the highest score.

    Args:
      base: `[batch, k]` float32, scores before the rewards, largest first.
      valid: `[batch, k]` bool, candidates within the row's own k.
      bound: `[batch]` float32, largest absolute value of a weighted reward.
    """
    return valid & (base + bound[:, None] >= base[:, :1] - bound[:, None])


def packed_step(
    model: Decoder, candidates: jax.Array, alive: jax.Array, cache: Cache, budgets: tuple[int, ...]
) -> tuple[jax.Array, Any]:
    """As `step`, for the candidates that are alive: the others' hidden states, keys and values are zeros.

    Args:
      model: the bound module.
      candidates: `[batch, k]` int32.
      alive: `[batch, k]` bool.
      cache: the prefix.
      budgets: static numbers of slots, rising; the smallest one that holds all is used, or all candidates are encoded.
    """
    count = jnp.sum(alive, dtype=jnp.int32)
    branches = [lambda slots=slots: _packed(model, candidates, alive, cache, slots) for slots in budgets]
    number = sum((count > slots).astype(jnp.int32) for slots in budgets)
    return jax.lax.switch(number, [*branches, lambda: step(model, candidates, cache)])


def _packed(model: Decoder, candidates: jax.Array, alive: jax.Array, cache: Cache, slots: int) -> tuple[jax.Array, Any]:
    batch, k = candidates.shape
    place = jnp.flatnonzero(alive, size=slots, fill_value=batch * k).astype(jnp.int32)
    real = jnp.minimum(place, batch * k - 1)
    position = (cache.slot - cache.start)[real // k]
    stop = jnp.broadcast_to(cache.slot, (batch, k))
    hidden, new = model(
        candidates.reshape(-1)[real][None], position[None], cache, cache.start, Packed(place=place, stop=stop)
    )

    def spread(x: jax.Array, axis: int) -> jax.Array:
        """One line of slots along `axis`, after a batch axis of 1, to `[batch, k, ...]`."""
        x = jnp.moveaxis(x, axis, 0)
        empty = jnp.zeros((batch * k, *x.shape[1:]), x.dtype)
        return empty.at[place].set(x, mode="drop").reshape(batch, k, *x.shape[1:])

    def keys(x: jax.Array) -> jax.Array:
        """`[..., 1, kv_heads, slots, d]` to `[..., batch, kv_heads, k, d]`."""
        wide = spread(jnp.squeeze(x, -4), -2)  # [batch, k, ..., kv_heads, d]
        return jnp.moveaxis(wide, (0, 1), (-4, -2))

    return spread(hidden[0], 0), jax.tree.map(keys, new)
