"""The language model in training: texts to hidden states and log-probabilities, with gradients that fit into memory."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxalign.decoding.forced import piece_size
from jaxalign.models.cache import Cache
from jaxalign.models.transformer import Decoder, rope_frequencies


class TextBatch(NamedTuple):
    """Texts padded on the left: all responses end in the last slot. Arrays of NumPy on the host, of JAX inside jit.

    Attributes:
      tokens: `[rows, length]` int32, prompt and response.
      lengths: `[rows]` int32, tokens of both.
      responses: `[rows]` int32, tokens of the response.
      reference: `[rows]` float32, log-probability of the response under the language model before tuning; zeros where
        the method does not ask for it.
    """

    tokens: Any
    lengths: Any
    responses: Any
    reference: Any


def embed(model: Decoder, tokens: Array) -> Array:
    """What the first layer reads of tokens: `[..., length]` -> `[..., length, width]` float32."""
    return model.embed[...][tokens].astype(jnp.float32)


def encode(model: Decoder, x: Array, lengths: Array, *, remat: bool = False) -> tuple[Array, Cache]:
    """`transformer.prefill` from embeddings, which need not be those of tokens.

    Args:
      model: the bound module.
      x: `[rows, length, width]` float32, padded on the left.
      lengths: `[rows]` int32, real places of each row.
      remat: keep only each layer's input for the backward pass, and compute the layer again there: memory falls by an
        order of magnitude, and a step takes a third longer.

    Returns:
      hidden `[rows, length, width]` float32 after the final norm, and the cache with exactly `length` slots.
    """
    rows, length, _ = x.shape
    index = jnp.arange(length, dtype=jnp.int32)
    start = jnp.asarray(length - lengths, jnp.int32)
    stop = jnp.broadcast_to(index[None], (rows, length))
    positions = jnp.maximum(index[None] - start[:, None], 0).astype(jnp.float32)
    angles = positions[..., None] * rope_frequencies(model.config)[None, None]

    def layer(graph, params, x):
        return nnx.merge(graph, params)(x, angles, None, start, stop)

    def wrap(graph) -> Callable:
        function = functools.partial(layer, graph)
        return jax.checkpoint(function) if remat else function

    if isinstance(model.blocks, nnx.List):
        kept = []
        for block in model.blocks:
            graph, params = nnx.split(block)
            x, new = wrap(graph)(params, x)
            kept.append(new)
        layers = tuple(kept)
    else:
        graph, stacked = nnx.split(model.blocks)
        function = wrap(graph)
        x, layers = jax.lax.scan(lambda x, params: function(params, x), x, stacked)
    return model.norm(x), Cache(layers, start, jnp.asarray(length, jnp.int32))


def response_log_prob(
    model: Decoder, hidden: Array, texts: TextBatch, width: int, logits: Callable[[Array], Array] | None = None
) -> Array:
    """Sum over the response of log pi(y_t given x, y<t): `[rows]` float32, nats.

    Logits exist for a few positions at a time, in the backward pass too, where they are computed again.

    Args:
      model: the bound module.
      hidden: `[rows, length, model width]`, aligned with `texts.tokens`.
      texts: the batch.
      width: static bound of `texts.responses`.
      logits: `[rows, positions, model width]` to `[rows, positions, vocab]`; the model's own by default.
    """
    rows, length = texts.tokens.shape
    piece = piece_size(model.config, rows, width, 0)
    pieces = -(-width // piece)
    first = jnp.asarray(length - texts.responses, jnp.int32)
    function = model.logits if logits is None else logits

    @jax.checkpoint
    def one(hidden: Array, number: Array) -> Array:
        slot = length - pieces * piece + number * piece + jnp.arange(piece, dtype=jnp.int32)
        inside = slot[None] >= first[:, None]
        log_prob = jax.nn.log_softmax(function(hidden[:, jnp.clip(slot - 1, 0, length - 1)]), axis=-1)
        target = texts.tokens[:, jnp.clip(slot, 0, length - 1)]
        own = jnp.take_along_axis(log_prob, target[..., None], axis=-1)[..., 0]
        return jnp.sum(jnp.where(inside, own, 0.0), axis=1)

    def add(total: Array, number: Array) -> tuple[Array, None]:
        return total + one(hidden, number), None

    total, _ = jax.lax.scan(add, jnp.zeros(rows, jnp.float32), jnp.arange(pieces, dtype=jnp.int32))
    return total
