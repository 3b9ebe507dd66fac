"""Collectives of a compiled program, read from its text: how large, in which loop, over which axis of the mesh."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16}
_BITS |= {"s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64}

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+)(?: \(.*\))? (?:->.*)?\{$")
_CALLED = re.compile(
    r"(?:body|condition|calls|to_apply|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_OPERATION = re.compile(r"^(?:ROOT )?%?[\w.\-]+ = (.*?) (" + "|".join(KINDS) + r")(-start)?\(")
_SHAPE = re.compile(r"\b(" + "|".join(_BITS) + r")\[([\d,]*)\]")
_TRIPS = re.compile(r'"?known_trip_count"?:\{"?n"?:"?(\d+)')


@dataclasses.dataclass(frozen=True)
class Collective:
    """One exchange between devices.

    Attributes:
      kind: one of `KINDS`.
      axis: mesh axis or axes that it goes over, such as `model` or `users+model`.
      size: devices per group.
      bytes: of its result on one device.
      in_loop: whether it is inside the outermost loop of unknown length: the decode loop.
      times: how often it runs, per step of that loop where it is inside.
    """

    kind: str
    axis: str
    size: int
    bytes: int
    in_loop: bool
    times: int


def collectives(text: str, axes: Sequence[tuple[str, int]]) -> list[Collective]:
    """Every collective of a compiled program.

    Args:
      text: `compiled.as_text()`.
      axes: names and sizes of the mesh's axes, slowest first. Devices are numbered along the last axis first, which is
        how a program's logical devices are assigned to a mesh.
    """
    computations, entry = _computations(text)
    found = []

    def visit(name: str, in_loop: bool, times: int) -> None:
        for line in computations.get(name, ()):
            if match := _OPERATION.match(line):
                result, kind, begun = match.groups()
                sizes = _sizes(result)
                # The start of an asynchronous one gives operand and result: the result is the last.
                size = sizes[-1] if begun and len(sizes) > 1 and kind != "all-reduce" else sum(sizes)
                groups = _groups(line, math.prod(n for _, n in axes))
                axis = _axis(groups, axes)
                if axis:
                    found.append(Collective(kind, axis, max(map(len, groups)), size, in_loop, times))
            loop = re.search(r"\bwhile\(", line) is not None
            trips = _trips(line, computations) if loop else None
            for called in _CALLED.findall(line):
                for part in called.strip("{}").split(","):
                    unknown = loop and trips is None
                    visit(part.strip().lstrip("%"), in_loop or unknown, times * (trips or 1))

    visit(entry, False, 1)
    return found


def _trips(line: str, computations: dict[str, list[str]]) -> int | None:
    """How often a loop runs, where that is known: noted by the compiler, or a counter from 0 below a constant."""
    if match := _TRIPS.search(line):
        return int(match[1])
    condition = re.search(r"condition=%?([\w.\-]+)", line)
    lines = list(computations.get(condition[1], ())) if condition else []
    for one in list(lines):
        for called in re.findall(r"calls=%?([\w.\-]+)", one):
            lines += computations.get(called, ())
    bounds = [int(n) for one in lines for n in re.findall(r"\bs32\[\]\S* constant\((\d+)\)", one)]
    below = any(re.search(r"\bcompare\(.*direction=LT", one) for one in lines)
    return bounds[0] if below and len(bounds) == 1 and bounds[0] > 0 else None


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation, and the name of the entry."""
    computations: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if not line.startswith(" ") and (match := _HEADER.match(line.strip())):
            current = computations.setdefault(match[2], [])
            entry = match[2] if match[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None:
            current.append(line.strip())
    return computations, entry


def _sizes(result: str) -> list[int]:
    return [
        math.prod(int(n) for n in shape.split(",") if n) * _BITS[kind] // 8 for kind, shape in _SHAPE.findall(result)
    ]


def _groups(line: str, devices: int) -> list[list[int]]:
    """Groups of devices: `{{0,1},{2,3}}`, `[2,2]<=[4]`, `[2,2]<=[2,2]T(1,0)`, or pairs of source and target."""
    if match := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}", line):
        return [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d, ]+)\}", match[1])]
    if match := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        shape, dims = ([int(n) for n in part.split(",")] for part in match.groups()[:2])
        order = np.arange(math.prod(dims)).reshape(dims)
        if match[3]:
            order = order.transpose([int(n) for n in match[3].split(",")])
        return order.reshape(shape).tolist()
    return [list(range(devices))]  # no groups: all devices together


def _axis(groups: list[list[int]], axes: Sequence[tuple[str, int]]) -> str:
    """The axes along which members of a group differ; empty where no group has two members."""
    different = set()
    for group in groups:
        places = np.stack(np.unravel_index(group, [n for _, n in axes]))
        different |= {name for (name, _), row in zip(axes, places, strict=True) if len(set(row.tolist())) > 1}
    return "+".join(name for name, _ in axes if name in different)


def summary(found: Sequence[Collective]) -> Iterator[tuple[Collective, int]]:
    """Equal collectives together, with their number."""

    def key(c: Collective) -> tuple:
        return (c.in_loop, c.axis, c.kind, c.bytes, c.size, c.times)

    for _, same in itertools.groupby(sorted(found, key=key), key=key):
        listed = list(same)
        yield listed[0], len(listed)
