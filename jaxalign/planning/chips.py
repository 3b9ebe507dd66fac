"""TPU chips, as published, and topologies of them that a CPU machine can compile for."""

import dataclasses
import math
import os
import re
from typing import Any

from jaxalign.errors import InputError, JaxalignError


class PlanError(JaxalignError):
    """A plan cannot be made here."""


@dataclasses.dataclass(frozen=True)
class Chip:
    """Limits of one chip (cloud.google.com/tpu/docs/system-architecture-tpu-vm, read as peak values).

    Attributes:
      hbm: bytes of memory.
      flops: bfloat16 operations per second.
      bandwidth: bytes per second of the memory.
      links: bytes per second between chips, all links of a chip together.
      dimensions: of the network's mesh or torus.
    """

    hbm: float
    flops: float
    bandwidth: float
    links: float
    dimensions: int


CHIPS = {
    "v4": Chip(hbm=32 * 2**30, flops=275e12, bandwidth=1228e9, links=2400e9 / 8, dimensions=3),
    "v5e": Chip(hbm=16 * 2**30, flops=197e12, bandwidth=819e9, links=1600e9 / 8, dimensions=2),
    "v5p": Chip(hbm=95 * 2**30, flops=459e12, bandwidth=2765e9, links=4800e9 / 8, dimensions=3),
    "v6e": Chip(hbm=32 * 2**30, flops=918e12, bandwidth=1640e9, links=3584e9 / 8, dimensions=2),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A chip and the shape in which so many are connected, such as `v5e:4x4` or `v5p:2x2x4`."""

    kind: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """Reads `kind:AxB` or `kind:AxBxC`.

        Raises:
          InputError: an unknown chip, or a shape of the wrong number of dimensions.
        """
        kind, _, shape = text.partition(":")
        if kind not in CHIPS:
            raise InputError(f"topology {text!r}: {kind!r} is none of {', '.join(CHIPS)}; write for instance v5e:4x4")
        dimensions = CHIPS[kind].dimensions
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape) or shape.count("x") + 1 != dimensions:
            example = "4x4" if dimensions == 2 else "2x2x4"
            raise InputError(
                f"topology {text!r}: {kind} has {dimensions} dimensions; write for instance {kind}:{example}"
            )
        return cls(kind, tuple(int(n) for n in shape.split("x")))

    def __str__(self) -> str:
        return f"{self.kind}:{'x'.join(map(str, self.shape))}"

    @property
    def chip(self) -> Chip:
        """Limits of one of its chips."""
        return CHIPS[self.kind]

    @property
    def chips(self) -> int:
        """How many there are."""
        return math.prod(self.shape)

    def devices(self) -> list[Any]:
        """The topology's devices as the TPU compiler sees them; no hardware is asked.

        Raises:
          PlanError: libtpu is not installed, or it knows no such topology.
        """
        from importlib.util import find_spec

        if find_spec("libtpu") is None:
            raise PlanError(
                "compiling for a TPU needs libtpu, also on a machine without one: pip install 'jaxalign[tpu]' "
                "(Linux x86-64)"
            )
        # Without it libtpu asks a cloud's metadata server for a TPU that is not there, for minutes.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        # A TPU has one user at a time, and a lock file says whose it is; compilers need no TPU.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        from jax.experimental import topologies

        try:
            described = topologies.get_topology_desc(topology_name=str(self), platform="tpu")
        except Exception as error:  # libtpu raises several kinds
            raise PlanError(f"libtpu knows no topology {self}: {str(error).splitlines()[0]}") from error
        return list(described.devices)
