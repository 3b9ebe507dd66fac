"""Figures of what the methods write: quality with intervals, and tests of equality."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxalign.report import layout, numbers, tables
from jaxalign.report.figure import Figure, Subject, extent, interval
from jaxalign.report.layout import Axis, Mark, Panel, Rule
from jaxalign.report.shapes import Tone


def quality(subject: Subject) -> Figure | None:
    """Generation quality with intervals, a plot per measure."""
    found, group = subject.numbers, subject.numbers.group
    panels, rows = [], []
    for name in found.quality(group):
        if name in ("changed", "own_reward"):  # no quality; the table has them
            continue
        measure = numbers.measure(name)
        values = [(method, e) for method in found.methods if (e := found.get(name, method, group))]
        if not values:
            continue
        values.sort(key=lambda pair: pair[1].value * (-1 if measure.better != "low" else 1))
        x_axis = layout.numeric("", extent([e for _, e in values]), target=4, percent=measure.percent)
        marks = [
            Mark(e.value, float(i), interval(e), None, subject.tone(method), title=f"{method}: {measure.text(e.value)}")
            for i, (method, e) in enumerate(values)
        ]
        arrow = {"high": " (higher is better)", "low": " (lower is better)", None: ""}[measure.better]
        axis: Axis = dataclasses.replace(x_axis, label=measure.axis + arrow)
        height = 54 + 22 * len(values)
        panels.append(Panel(axis, layout.categories([m for m, _ in values]), "", width=340, height=height, marks=marks))
        rows += [{"measure": name, "method": method, "value": e} for method, e in values]
    if not panels:
        return None
    caption = (
        f"Texts written for {group} users, each measure with its 95 % interval over users. Methods are in the order of "
        "each measure."
    )
    table = tables.Table("quality", "", tables.columns(rows), rows)
    return Figure("quality", "Quality of what the methods write", caption, panels, 3, subject.picks(), table)


def equivalence(subject: Subject) -> Figure | None:
    """Differences in quality of pairs of methods whose RM accuracies differ, against the margin; a plot per measure."""
    panels, rows = [], []
    tests = [test for test in subject.selection.get("equivalence") or [] if test.get("difference") is not None]
    for label in dict.fromkeys(test["measure"] for test in tests):
        own = [test for test in tests if test["measure"] == label]
        percent = numbers.points(label)
        reach = [test["margin"] for test in own if test.get("margin") is not None]
        values = [v for test in own for v in (test["difference"], test.get("low"), test.get("high")) if v is not None]
        unit = " (points)" if percent else ""
        name = tables.label_text(label)
        include = [*reach, *(-margin for margin in reach), 0.0]
        x_axis = layout.numeric(f"difference in {name}{unit}", values, include=include, percent=percent)
        names = [f"{layout.line(t['one'], 14)} \u2212 {layout.line(t['two'], 14)}" for t in own]
        marks = [
            Mark(t["difference"], float(i), _bounds(t), None, "policy" if t.get("equivalent") else "ink",
                 hollow=not t.get("equivalent"))
            for i, t in enumerate(own)
        ]  # fmt: skip
        bands = [(-max(reach), max(reach))] if reach else []
        panels.append(
            Panel(x_axis, layout.categories(names), "", width=460, height=58 + 26 * len(own), bands=bands,
                  rules=[Rule((0.0, None), (0.0, None), dashed=False)], marks=marks)
        )  # fmt: skip
        rows += own
    if not panels:
        return None
    caption = (
        "Pairs of methods whose RM accuracies differ by much: does the quality of their texts differ? The shaded band "
        "is the margin that counts as no difference, fixed beforehand. A filled blue mark: its 90 % interval lies "
        "within the band, so the two are equivalent."
    )
    legend: list[tuple[str, Tone, str]] = [("dot", "policy", "equivalent"), ("ring", "ink", "not shown to be")]
    title = "Methods with different RM accuracy, compared by their texts"
    table = tables.Table("equivalence", "", tables.columns(rows), rows)
    return Figure("equivalence", title, caption, panels, 2, legend, table)


def _bounds(test: Mapping[str, Any]) -> tuple[float, float] | None:
    low, high = test.get("low"), test.get("high")
    return None if low is None or high is None else (low, high)
