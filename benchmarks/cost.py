"""Bytes and operations that one decode step cannot do without, from the model's sizes alone.

The counts are of the mathematics, not of our program: weights read once, the cache of the prefix read once, two
operations per weight and row. An implementation that copies, converts or recomputes has the same count and a lower
utilisation. Norms, rotations, softmax and sampling are left out (under 1 % of the operations).
"""

import dataclasses

from benchmarks.ceilings import Ceilings
from jaxalign.models.config import DecoderConfig


@dataclasses.dataclass(frozen=True)
class Cost:
    """Bytes moved and floating-point operations done."""

    bytes: float
    flops: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes + other.bytes, self.flops + other.flops)

    def least_seconds(self, ceilings: Ceilings, dtype: str) -> float:
        """The time under which no implementation can be on this machine: the larger of the two bounds."""
        return max(self.bytes / ceilings.bytes_per_second, self.flops / ceilings.flops_per_second[dtype])


def body_weights(config: DecoderConfig) -> int:
    """Weights of the layers alone: no embedding, no output matrix."""
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
    return config.num_params - tables


def body(config: DecoderConfig, itemsize: int, batch: int, width: int, context: float) -> Cost:
    """One pass through the layers.

    Args:
      config: the model's sizes.
      itemsize: bytes of a weight and of a cached number.
      batch: rows.
      width: queries per row that share the row's cache (1, or k candidates).
      context: tokens in each row's cache.
    """
    rows = batch * width
    cached = 2 * config.num_layers * config.num_kv_heads * config.head_dim * context
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * context
    return Cost(
        itemsize * (body_weights(config) + batch * cached),
        rows * (2 * body_weights(config) + attention),
    )


def logits(config: DecoderConfig, itemsize: int, batch: int) -> Cost:
    """The product with the output matrix, for one hidden state a row."""
    size = config.vocab_size * config.hidden_size
    return Cost(itemsize * size, 2 * batch * size)


def step(
    kind: str, config: DecoderConfig, itemsize: int, batch: int, top_k: int, context: float, rank: int | None = None
) -> Cost:
    """One token for every row of the batch, under a guidance of this kind (see `kinds`).

    Args:
      kind: a name in `kinds.KINDS`; a second model is taken to have the language model's sizes.
      config: the language model's sizes.
      itemsize: bytes of a weight.
      batch: rows.
      top_k: candidates of the kinds that have any.
      context: tokens in the cache.
      rank: of a value head; None for the full form, whose matrix is float32 and as large as the output matrix.
    """
    own = logits(config, itemsize, batch)
    narrow, wide = (body(config, itemsize, batch, width, context) for width in (1, top_k))
    value = (
        4 * config.vocab_size * (rank or config.hidden_size),
        2 * batch * config.vocab_size * (rank or config.hidden_size),
    )
    return {
        "none": narrow + own,
        "head": wide + own,
        "ensemble": wide + own,
        "separate": narrow + own + wide,
        "autoregressive": narrow + own + narrow + own,
        "value": narrow + own + Cost(*value),
    }[kind]
