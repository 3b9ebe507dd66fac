"""Figures of a run: throughput over batch, the ratio to plain decoding over k, cost over length. Needs matplotlib."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


def decode(records: Sequence[Record], folder: Path) -> list[Path]:
    """Draws every figure whose axis was swept; returns the files. Without matplotlib it says so and draws nothing."""
    ours = [record for record in records if "peer" not in record]
    figures = [
        _lines(ours, "batch", "tokens_per_second", "tokens per second", folder / "throughput_over_batch.png"),
        _lines(
            [record for record in ours if record["case"]["kind"] in ("head", "separate", "ensemble")],
            "top_k",
            "ratio_to_plain",
            "speed, as a share of plain decoding",
            folder / "ratio_over_k.png",
        ),
        _lines(ours, "new_tokens", _total, "seconds in all", folder / "cost_over_new_tokens.png"),
        _lines(
            ours,
            "prompt",
            "milliseconds_to_first_token",
            "milliseconds to first token",
            folder / "cost_over_prompt.png",
        ),
    ]
    return [figure for figure in figures if figure is not None]


def _total(record: Record) -> dict[str, float]:
    """Seconds of a whole run, from its rate."""
    case, rate = record["case"], record["metrics"]["tokens_per_second"]
    tokens = case["batch"] * case["new_tokens"]
    return {"median": tokens / rate["median"], "low": tokens / rate["high"], "high": tokens / rate["low"]}


def _lines(
    records: Sequence[Record], axis: str, value: "str | Callable[[Record], dict]", label: str, path: Path
) -> Path | None:
    """One line per kind, with the quartiles as a band; settings beside `axis` and kind must be the first record's."""
    if not records:
        return None
    fixed = {key: item for key, item in records[0]["case"].items() if key not in (axis, "kind")}
    series: dict[str, dict[float, dict[str, float]]] = {}
    for record in records:
        case = record["case"]
        if all(case[key] == item for key, item in fixed.items()):
            spread = value(record) if callable(value) else record["metrics"][value]
            series.setdefault(case["kind"], {})[case[axis]] = spread
    series = {kind: points for kind, points in series.items() if len(points) > 1}
    if not series:
        return None
    try:
        import matplotlib.figure
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed", file=sys.stderr)
        return None
    figure = matplotlib.figure.Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for kind, points in series.items():
        x = sorted(points)
        axes.plot(x, [points[at]["median"] for at in x], marker="o", label=kind)
        axes.fill_between(x, [points[at]["low"] for at in x], [points[at]["high"] for at in x], alpha=0.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(x := sorted({at for points in series.values() for at in points}), [f"{at:g}" for at in x])
    axes.set_xlabel(axis.replace("_", " "))
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    setting = ", ".join(f"{key.replace('_', ' ')} {item}" for key, item in fixed.items() if item != "")
    axes.set_title(f"{records[0]['model']} on {records[0]['machine']['kind']}\n{setting}", fontsize=8)
    axes.legend()
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
