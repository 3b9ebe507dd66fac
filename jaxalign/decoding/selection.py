"""How one of the scored tokens is chosen: frozen dataclasses with one method, `choose`.

A selection sees scores only, `[rows, choices]`: the whole vocabulary in plain decoding, or the candidates of a
candidate guidance, most probable first. To add one, write a frozen dataclass with `choose` (docs/extending.md).
"""

import dataclasses
import functools
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxalign.decoding import vocabulary
from jaxalign.decoding.rows import Rows


class Selection(Protocol):
    """Chooses one of the scored tokens per row."""

    def choose(self, scores: jax.Array, rows: Rows, key: jax.Array) -> jax.Array:
        """The index of the chosen token.

        Args:
          scores: `[rows, choices]` float32, in nats; minus infinity must not be chosen.
          rows: the rows' settings.
          key: `[rows]` random keys, fresh for this token.

        Returns:
          `[rows]` int32.
        """
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Greedy:
    """The highest score; the lowest index among equals. With a reward guidance this is the published ARGS search."""

    def choose(self, scores: jax.Array, rows: Rows, key: jax.Array) -> jax.Array:
        del rows, key
        return vocabulary.argmax(scores)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sample:
    """Draws from softmax(score / temperature) with each row's temperature; a row with temperature 0 is greedy.

    Attributes:
      max_top_k: static bound of the rows' `top_k` filter, 0 when no row has one. Not used for candidates, whose number
        is `top_k` already.
      use_top_p: whether any row has `top_p` below 1 (static, since the filter costs time).
    """

    max_top_k: int = dataclasses.field(default=0, metadata={"static": True})
    use_top_p: bool = dataclasses.field(default=False, metadata={"static": True})

    def choose(self, scores: jax.Array, rows: Rows, key: jax.Array) -> jax.Array:
        greedy = rows.temperature == 0
        # Differences to the best score before dividing: a tiny temperature then gives 0 and minus infinity, not NaN.
        best = jnp.max(scores, axis=-1, keepdims=True)
        scaled = (scores - best) / jnp.where(greedy, 1.0, rows.temperature)[:, None]
        if self.max_top_k:
            scaled = vocabulary.keep_top_k(scaled, rows.top_k, self.max_top_k)
        if self.use_top_p:
            scaled = vocabulary.keep_top_p(scaled, rows.top_p)
        uniform = jax.vmap(functools.partial(jax.random.uniform, dtype=jnp.float32))(key)
        return jnp.where(greedy, vocabulary.argmax(scores), vocabulary.sample(scaled, uniform))
