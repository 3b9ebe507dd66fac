"""How fast the chips' published limits allow a program to be."""

import dataclasses
from collections.abc import Sequence

from jaxalign.models.config import DecoderConfig
from jaxalign.planning.chips import Chip
from jaxalign.planning.hlo import Collective

ASSUMPTIONS = (
    "A limit, not a forecast: peak rates, products of bfloat16, each weight read once per step, the cache once and "
    "at its full length, no overlap of memory and links, collectives as rings over all links of a chip, no "
    "time for anything else. Real programs reach a part of it."
)


@dataclasses.dataclass(frozen=True)
class Time:
    """Seconds of one step on one chip, by what limits it.

    Attributes:
      products: matrix products at the peak rate.
      memory: weights and cache at the memory's rate.
      links: collectives at the links' rate.
    """

    products: float
    memory: float
    links: float

    @property
    def total(self) -> float:
        """Products and memory traffic overlap; collectives wait for both."""
        return max(self.products, self.memory) + self.links

    @property
    def bound(self) -> str:
        """What takes most of the time: `products`, `memory` or `links`."""
        return max(("products", "memory", "links"), key=lambda name: getattr(self, name))


def ring_bytes(one: Collective) -> float:
    """Bytes that a chip sends in a ring of the group's size."""
    share = (one.size - 1) / one.size
    factor = {"all-reduce": 2 * share, "reduce-scatter": one.size * share, "collective-permute": 1.0}
    return one.bytes * one.times * factor.get(one.kind, share)


def cache_bytes(config: DecoderConfig, rows: int, slots: int, itemsize: int, parts: int) -> float:
    """Bytes of keys and values on one chip; heads that do not divide over `parts` are there whole."""
    heads = config.num_kv_heads / (parts if config.num_kv_heads % parts == 0 else 1)
    return 2.0 * config.num_layers * rows * heads * slots * config.head_dim * itemsize


def step_time(chip: Chip, flops: float, read: float, exchanged: Sequence[Collective]) -> Time:
    """Time of one step.

    Args:
      chip: its limits.
      flops: of the chip's matrix products.
      read: bytes that the chip reads from its memory.
      exchanged: collectives of the step.
    """
    return Time(flops / chip.flops, read / chip.bandwidth, sum(map(ring_bytes, exchanged)) / chip.links)
