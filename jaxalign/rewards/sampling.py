"""Random context and query pairs for methods that learn to read a user from a few pairs; and fixed ones for later."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.rewards.pairs import Pairs

# Primes above any user's number of pairs. A stride by one of them visits all pairs of a user before it repeats one:
# random disjoint draws without sorting all pairs at every step.
_STRIDES = (1000003, 1000033, 1000037, 1000039, 1000081, 1000099, 1000117, 1000121, 1000133, 1000151, 1000159, 1000171)


def _take(order: Array, pairs: Pairs, size: int) -> tuple[Array, Array]:
    """The first `size` pairs of each user in `order` `[pairs]`: `[users, size]` indices, and which of them exist."""
    place = jnp.broadcast_to(jnp.arange(size)[None, :], (pairs.users, size))
    exists = place < jnp.broadcast_to(pairs.count[:, None], place.shape)
    start = jnp.broadcast_to(pairs.start[:, None], place.shape)
    return order[jnp.clip(start + place, 0, order.shape[0] - 1)], exists


def context_and_query(key: Array, pairs: Pairs, context: int, query: int) -> tuple[tuple[Array, Array], ...]:
    """Draws disjoint pairs of each user, without repetition.

    A user with n pairs gets a context of c ~ U{0, ..., min(context, n - 1)} pairs, so that reading nobody's pairs is
    learned too, and up to `query` of the others.

    Returns:
      `((context [users, context], mask), (query [users, query], mask))`: int32 indices of pairs, and what is real.
    """
    # One draw of three numbers a user: integers of a range each would triple the compiled program.
    first, second, third = jax.random.uniform(key, (3, pairs.users))
    total = context + query
    shape = (pairs.users, total)
    count = jnp.maximum(pairs.count, 1)

    def below(uniform: Array, limit: Array) -> Array:
        """A random number from 0 to `limit` - 1."""
        return jnp.minimum((uniform * limit.astype(jnp.float32)).astype(jnp.int32), limit - 1)

    def column(values: Array) -> Array:
        return jnp.broadcast_to(values[:, None], shape)

    offset = below(first, count)
    stride = jnp.asarray(_STRIDES)[below(second, jnp.full_like(count, len(_STRIDES)))] % count
    # Below 2^31: a stride is less than the count, and a place less than `total`.
    place = jnp.broadcast_to(jnp.arange(total)[None, :], shape)
    drawn = column(pairs.start) + (column(offset) + column(stride) * place) % column(count)
    drawn = jnp.clip(drawn, 0, pairs.user.shape[0] - 1)
    # The context is the first `size` draws, the query the `query` after them.
    size = below(third, jnp.minimum(context, count - 1) + 1)
    known = place < jnp.broadcast_to(size[:, None], shape)
    asked = (place < column(pairs.count)) & ~known & (place < column(size) + query)
    rank = jnp.broadcast_to(size[:, None], (pairs.users, query)) + jnp.arange(query)[None, :].repeat(pairs.users, 0)
    return (drawn[:, :context], known[:, :context]), (
        jnp.take_along_axis(drawn, rank, axis=1),
        jnp.take_along_axis(asked, rank, axis=1),
    )


def fixed_context(pairs: Pairs, context: int) -> tuple[Array, Array]:
    """Up to `context` pairs of each user, chosen by their contents: no order of pairs or users changes the choice.

    Pairs are ranked by a fixed hash-like function of their features.

    Returns:
      `[users, context]` int32 indices of pairs, and which of them exist.
    """
    width = pairs.features.shape[1]
    code = pairs.features @ np.random.default_rng(0).standard_normal(width, np.float32)
    mixed = jnp.sin(code[pairs.chosen_text] * 12.9898 + code[pairs.rejected_text] * 78.233)
    _, _, order = jax.lax.sort((pairs.user, mixed, jnp.arange(pairs.user.shape[0])), num_keys=2)
    return _take(order, pairs, context)
