"""A weight that is the sum of a matrix and a low-rank one, kept apart: what a LoRA adapter makes of a parameter."""

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LowRank:
    """`base + up down`, which `transformer.project` applies without ever forming it.

    It may stand for any projection in a parameter tree. Training then computes no gradient of the size of `base`, and
    several adapters share one `base`.

    Attributes:
      base: `[*out, *in]`, with `[layers]` in front where layers are scanned, as have the other two.
      up: `[*out, rank]`.
      down: `[rank, *in]`.
    """

    base: jax.Array
    up: jax.Array
    down: jax.Array

    @property
    def dtype(self):
        """That of `base`."""
        return self.base.dtype

    def __getitem__(self, key) -> "LowRank":
        # `parameter[...]` is how a module reads its value; anything else would have to slice three arrays.
        if key is not Ellipsis:
            raise TypeError("a low-rank weight can be read as a whole only: merge it first")
        return self

    def merge(self, inputs: int) -> jax.Array:
        """The sum as one matrix, of the shape and dtype of `base`; `inputs` is the number of its trailing input axes.

        Added in float32 and rounded once.
        """
        rank_axis = self.down.ndim - inputs - 1
        out = self.up.shape[rank_axis:-1]
        flat_up = self.up.reshape(*self.up.shape[:rank_axis], -1, self.up.shape[-1])
        flat_down = self.down.reshape(*self.down.shape[: rank_axis + 1], -1)
        product = jnp.matmul(flat_up, flat_down, precision="highest", preferred_element_type=jnp.float32)
        product = product.reshape(*self.up.shape[:rank_axis], *out, *self.down.shape[rank_axis + 1 :])
        return (self.base.astype(jnp.float32) + product).astype(self.base.dtype)
