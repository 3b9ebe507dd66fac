"""How a guidance's weight changes over the tokens of a response."""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp


class Schedule(Protocol):
    """A factor on a guidance's weight."""

    def at(self, position: jax.Array) -> jax.Array:
        """The factor for the response token number `position` (0 is the first): any shape, int32 -> float32."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Constant:
    """The factor 1 throughout."""

    def at(self, position: jax.Array) -> jax.Array:
        return jnp.ones(position.shape, jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Linear:
    """From `first` at the first token to `last` at token number `length - 1`, and constant after it."""

    first: float = 0.0
    last: float = 1.0
    length: int = dataclasses.field(default=32, metadata={"static": True})

    def at(self, position: jax.Array) -> jax.Array:
        share = jnp.minimum(position.astype(jnp.float32) / max(self.length - 1, 1), 1.0)
        return self.first + (self.last - self.first) * share


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FirstTokens:
    """The factor 1 for the first `count` tokens, then 0."""

    count: int = 8

    def at(self, position: jax.Array) -> jax.Array:
        return (position < self.count).astype(jnp.float32)
