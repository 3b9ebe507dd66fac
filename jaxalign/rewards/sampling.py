"""Random context and query pairs for methods that learn to read a user from a few pairs; and fixed ones for later."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxalign.rewards.pairs import Pairs


def _take(order: Array, pairs: Pairs, first: Array, size: int) -> tuple[Array, Array]:
    """Pairs `first` to `first + size` of each user in `order`: `[users, size]` indices, and which of them exist."""
    place = first[:, None] + jnp.arange(size)[None, :]
    exists = place < pairs.count[:, None]
    last = order.shape[0] - 1
    return order[jnp.clip(pairs.start[:, None] + place, 0, last)], exists


def context_and_query(key: Array, pairs: Pairs, context: int, query: int) -> tuple[tuple[Array, Array], ...]:
    """Draws disjoint pairs of each user, without repetition.

    A user with n pairs gets a context of c ~ U{0, ..., min(context, n - 1)} pairs, so that reading nobody's pairs is
    learned too, and up to `query` of the others.

    Returns:
      `((context [users, context], mask), (query [users, query], mask))`: int32 indices of pairs, and what is real.
    """
    order_key, size_key = jax.random.split(key)
    noise = jax.random.bits(order_key, pairs.user.shape, jnp.uint32)
    _, _, order = jax.lax.sort((pairs.user, noise, jnp.arange(pairs.user.shape[0])), num_keys=2)
    most = jnp.minimum(context, jnp.maximum(pairs.count - 1, 0))
    size = jax.random.randint(size_key, (pairs.users,), 0, most + 1)
    chosen, exists = _take(order, pairs, jnp.zeros(pairs.users, jnp.int32), context)
    exists = exists & (jnp.arange(context)[None, :] < size[:, None])
    return (chosen, exists), _take(order, pairs, size, query)


def fixed_context(pairs: Pairs, context: int) -> tuple[Array, Array]:
    """Up to `context` pairs of each user, chosen by their contents: no order of pairs or users changes the choice.

    Pairs are ranked by a fixed hash-like function of their features.

    Returns:
      `[users, context]` int32 indices of pairs, and which of them exist.
    """
    width = pairs.features.shape[1]
    code = pairs.features @ jax.random.normal(jax.random.key(0), (width,))
    mixed = jnp.sin(code[pairs.chosen_text] * 12.9898 + code[pairs.rejected_text] * 78.233)
    _, _, order = jax.lax.sort((pairs.user, mixed, jnp.arange(pairs.user.shape[0])), num_keys=2)
    return _take(order, pairs, jnp.zeros(pairs.users, jnp.int32), context)
