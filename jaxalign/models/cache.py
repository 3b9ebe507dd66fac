"""Keys and values of the tokens so far, in static buffers with one write slot for the whole batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# One layer's keys and values, or all layers stacked in front: [layers, ...].
KV = tuple[jax.Array, jax.Array]


class Cache(NamedTuple):
    """Key/value buffers of a batch whose prompts are padded on the left, so that all rows write the same slot.

    Attributes:
      layers: a tuple with one pair per layer, keys and values `[batch, kv_heads, slots, head_dim]`; or, for scanned
        layers, a single pair with `[layers, ...]` in front.
      start: `[batch]` int32, the row's first real slot (the number of left padding tokens).
      slot: int32, the next slot to be written; slots from here on hold nothing.
    """

    layers: tuple[KV, ...] | KV
    start: jax.Array
    slot: jax.Array

    @property
    def scanned(self) -> bool:
        """Whether the layers are stacked in one pair of arrays."""
        return not isinstance(self.layers[0], tuple)

    @property
    def slots(self) -> int:
        """The number of slots of the buffers."""
        return jax.tree.leaves(self.layers)[0].shape[-2]

    def extend(self, slots: int) -> "Cache":
        """The same cache with room for `slots` slots in all."""
        missing = slots - self.slots

        def pad(x):
            return jnp.pad(x, ((0, 0),) * (x.ndim - 2) + ((0, missing), (0, 0)))

        return self._replace(layers=jax.tree.map(pad, self.layers))

    def take(self, rows: jax.Array) -> "Cache":
        """The cache of the rows `rows` `[n]` int32, which may repeat: best-of-n keeps winners by it."""
        axis = 1 if self.scanned else 0
        return self._replace(
            layers=jax.tree.map(lambda x: jnp.take(x, rows, axis=axis), self.layers), start=self.start[rows]
        )

    def write(self, new: "tuple[KV, ...] | KV", advance: int = 1, after: jax.Array | None = None) -> "Cache":
        """Writes `new` (laid out as `layers`, with `advance` slots) at `slot` and moves the slot on.

        The caller makes sure that there is room: a write past the end would move back onto earlier slots.

        Args:
          new: keys and values.
          advance: slots that are written.
          after: `[batch, width]`, hidden states that were computed from this very cache. XLA on CPUs would otherwise
            write first and copy the whole buffers for those who still read them. Rows whose hidden states are not
            finite are written as zeros.
        """
        if after is not None:
            sound = jnp.all(jnp.isfinite(after), axis=1)[:, None, None, None]
            new = jax.tree.map(lambda x: jnp.where(sound.reshape((1,) * (x.ndim - 4) + sound.shape), x, 0), new)

        def put(buffer, piece):
            return jax.lax.dynamic_update_slice_in_dim(buffer, piece.astype(buffer.dtype), self.slot, axis=-2)

        return self._replace(layers=jax.tree.map(put, self.layers, new), slot=self.slot + advance)


def select(new: "tuple[KV, ...] | KV", choice: jax.Array) -> "tuple[KV, ...] | KV":
    """The keys and values of one query per row: `[..., batch, kv_heads, queries, d]` -> `[..., batch, kv_heads, 1, d]`.

    Args:
      new: keys and values of `queries` sibling candidates.
      choice: `[batch]` int32, the candidate that won in each row.
    """

    def take(x):
        index = choice.reshape((1,) * (x.ndim - 4) + (-1, 1, 1, 1))
        return jnp.take_along_axis(x, index, axis=-2)

    return jax.tree.map(take, new)
