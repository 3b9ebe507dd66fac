"""Results as JSON lines and as tables of a terminal; fitted exponents of swept axes."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ceilings import Ceilings
from benchmarks.harness import growth


def as_json(value: Any) -> Any:
    """Dataclasses to dictionaries, paths to text, all the way down; numbers stay as they are."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Adds one line; a run that is interrupted keeps what it had measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def ceilings_line(origin: Mapping[str, Any], top: Ceilings) -> str:
    """Machine and ceilings, above a table."""
    machine = origin["machine"]
    parts = [f"{machine['kind']}: copy {top.bytes_per_second / 1e9:.1f} GB/s"]
    for dtype, flops in top.flops_per_second.items():
        parts.append(f"{dtype} product {flops / 1e9:.0f} GFLOP/s (ridge {top.ridge(dtype):.0f} FLOP/byte)")
    if (load := machine["load"]) is not None and machine["backend"] == "cpu" and load > 0.5:
        parts.append(f"NOT QUIET: load {load:.1f}")
    return "; ".join(parts)


DECODE_COLUMNS = (
    ("guidance", 14),
    ("batch", 5),
    ("prompt", 6),
    ("new", 5),
    ("k", 3),
    ("dtype", 8),
    ("tokens/s [quartiles]", 22),
    ("ms/step", 8),
    ("first ms", 8),
    ("MBU %", 5),
    ("MFU %", 5),
    ("memory MB", 9),
    ("of plain [quartiles]", 20),
    ("compile s", 9),
    ("notes", 0),
)


def cells(values: Iterable[str], columns: Sequence[tuple[str, int]]) -> str:
    """One line of a table whose columns are (title, width)."""
    return "  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(values, columns, strict=True)).rstrip()


def decode_header() -> str:
    """The titles of the decode table."""
    return cells((title for title, _ in DECODE_COLUMNS), DECODE_COLUMNS)


def spread(value: Mapping[str, float], digits: int = 1) -> str:
    """`median [low, high]`."""
    return f"{value['median']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def decode_row(record: Mapping[str, Any]) -> str:
    """One line of the decode table, of a record after `as_json`."""
    return cells(decode_cells(record), DECODE_COLUMNS)


def decode_cells(record: Mapping[str, Any]) -> list[str]:
    """The texts of `DECODE_COLUMNS` for one case, or one peer, of a record after `as_json`."""
    case, numbers = record["case"], record["metrics"]
    notes = [case["mesh"]] if case["mesh"] else []
    notes += [f"{share:.0%} of rows as {kind}" for kind, share in record.get("same_tokens_as", {}).items()]
    shape = [case["batch"], case["prompt"], case["new_tokens"], case["top_k"], case["dtype"]]
    rate, ratio = spread(numbers["tokens_per_second"]), spread(numbers["ratio_to_plain"], 2)
    if "peer" in record:
        shape[0] = record["rows"]
        notes += [
            f"{name.removesuffix('_over_peer')} is {value['median']:.1f} times as fast"
            for name, value in numbers.items()
            if name.endswith("_over_peer")
        ]
        return [record["peer"], *map(str, shape), rate, *[""] * 5, ratio, "", "; ".join(notes)]
    memory = numbers["memory_bytes"]
    return [
        case["kind"],
        *map(str, shape),
        rate,
        f"{numbers['milliseconds_per_step']['median']:.1f}",
        f"{numbers['milliseconds_to_first_token']['median']:.0f}",
        f"{100 * numbers['bandwidth_utilisation']:.0f}",
        f"{100 * numbers['flop_utilisation']:.0f}",
        "" if memory is None else f"{memory / 1e6:.0f}",
        ratio,
        f"{numbers['compile_seconds']:.1f}",
        "; ".join(notes),
    ]


def growth_lines(
    records: Sequence[Mapping[str, Any]],
    axes: Sequence[str],
    cost: Mapping[str, str] | None = None,
) -> list[str]:
    """For every axis with two or more values, how the cost grows along it: one line per setting of the others.

    Args:
      records: after `as_json`; peers are left out.
      axes: fields of `case` that may have been swept.
      cost: the metric (a spread) that is the cost along an axis, where it is not what `_cost` takes.
    """
    lines = []
    for axis in axes:
        series: dict[tuple, list[tuple[float, float]]] = {}
        for record in records:
            if "peer" in record:
                continue
            case = record["case"]
            others = tuple((key, value) for key, value in case.items() if key != axis)
            series.setdefault(others, []).append((case[axis], _cost(record, axis, cost or {})))
        for others, points in series.items():
            if len({x for x, _ in points}) < 2:
                continue
            fitted = growth(*zip(*sorted(points), strict=True))
            error = f" ± {fitted.error:.2f}" if fitted.points > 2 else ""
            sizes = ", ".join(f"{x:g}" for x, _ in sorted(points))
            setting = " ".join(f"{key}={value}" for key, value in others if value != "")
            lines.append(f"cost ~ {axis}^{fitted.exponent:.2f}{error} over {sizes}; {setting}")
    return lines


def _cost(record: Mapping[str, Any], axis: str, chosen: Mapping[str, str]) -> float:
    """Time: of all steps along `new_tokens`, until the first token along `prompt`, of one step along other axes."""
    numbers = record["metrics"]
    if axis in chosen:
        return numbers[chosen[axis]]["median"]
    if axis == "prompt":
        return numbers["milliseconds_to_first_token"]["median"]
    step = numbers["milliseconds_per_step"]["median"]
    return step * (record["case"]["new_tokens"] - 1) if axis == "new_tokens" else step
