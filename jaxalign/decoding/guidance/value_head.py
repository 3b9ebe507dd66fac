"""A value for every token of the vocabulary, off the language model's own hidden state."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxalign.decoding.guidance.base import Step, VocabularyGuidance, pytree


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyValue(VocabularyGuidance):
    """The value of every next token at once, off the language model's hidden state at the prefix: h B A^T.

    Cost per generated token: one pass of the language model, 1 wide, and one product of the size of its output matrix,
    or `rank / width` of that with the low-rank form.

    Attributes:
      up: A, `[vocab, rank]`; in the full form `[vocab, width]`, shared by all users.
      down: B, `[users, rank, width]`, gathered by `Rows.user`; None for the full form.
    """

    up: jax.Array
    down: jax.Array | None = None

    def bonus(self, step: Step, carry: Any) -> jax.Array:
        hidden = step.hidden
        if self.down is not None:
            hidden = jnp.einsum("bqd,brd->bqr", hidden, self.down[step.rows.user], precision="highest")
        return jnp.einsum("bqr,vr->bqv", hidden, self.up, precision="highest")
