"""The figures of the report: what each shows, its caption, and the numbers behind it.

One colour has one meaning throughout: blue is the method to deploy (and policy accuracy), orange the one that RM
accuracy picks (and RM accuracy). Everything else is black or grey.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxalign.report import layout, numbers, png, tables
from jaxalign.report.layout import Axis, Curve, Mark, Panel, Rule, Spread
from jaxalign.report.numbers import Estimate, Numbers
from jaxalign.report.shapes import Drawing, Tone

LENGTHS = {"sum": "sum over tokens", "mean": "mean per token"}
# Of more users than this single dots tell nothing that the quantiles do not.
MOST_DOTS = 150


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
      name: of its files.
      title: heading.
      caption: what it shows and how to read it.
      panels: plots, in reading order.
      columns: plots in a row of the PNG.
      legend: (kind, tone, text) of each key.
      table: its numbers.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: int
    legend: Sequence[tuple[str, Tone, str]]
    table: tables.Table

    @property
    def drawings(self) -> list[Drawing]:
        """The laid-out panels."""
        return [layout.draw(panel) for panel in self.panels]

    @property
    def key(self) -> Drawing | None:
        """The laid-out legend."""
        return layout.legend(self.legend) if self.legend else None

    def save(self, folder: Path) -> None:
        """Writes NAME.png, NAME_dark.png and NAME.csv."""
        for theme, suffix in (("light", ""), ("dark", "_dark")):
            png.write(folder / f"{self.name}{suffix}.png", self.drawings, self.columns, theme, self.key)
        tables.write_csv(folder / f"{self.name}.csv", self.table)


@dataclasses.dataclass(frozen=True)
class Subject:
    """What figures are made of: the numbers, and which method is deployed and which RM accuracy picks."""

    numbers: Numbers
    users: Sequence[Mapping[str, Any]]
    selection: Mapping[str, Any]
    deploy: str | None = None
    rm_pick: str | None = None

    def tone(self, method: str) -> Tone:
        """The colour of a method."""
        return "policy" if method == self.deploy else "rm" if method == self.rm_pick else "ink"

    def picks(self) -> list[tuple[str, Tone, str]]:
        """The keys of the two highlighted methods."""
        keys: list[tuple[str, Tone, str]] = [("dot", "policy", "to deploy")] if self.deploy else []
        if self.rm_pick and self.rm_pick != self.deploy:
            keys.append(("dot", "rm", "what RM accuracy picks"))
        return keys

    def guided(self) -> list[str]:
        """Methods whose policy accuracy was measured under guidance."""
        group = self.numbers.group
        return [
            method
            for method in self.numbers.methods
            if any(self.numbers.rows("policy_accuracy", method, group, "policy", length) for length in LENGTHS)
        ]


def _interval(estimate: Estimate) -> tuple[float, float] | None:
    return None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)


def _extent(estimates: Sequence[Estimate]) -> list[float]:
    return [v for e in estimates for v in (e.value, e.low, e.high) if v is not None]


def scatter(subject: Subject) -> Figure | None:
    """RM accuracy against policy accuracy, one mark per method."""
    found, group = subject.numbers, subject.numbers.group
    rm = numbers.measure("rm_accuracy")
    panels, rows = [], []
    data = {
        length: [
            (method, x, y)
            for method in found.methods
            if (x := found.get("rm_accuracy", method, group)) and (y := found.policy(method, group, length))
        ]
        for length in LENGTHS
    }
    ys = [y for points in data.values() for _, _, y in points]
    xs = [x for points in data.values() for _, x, _ in points]
    if not xs:
        return None
    x_axis = layout.numeric("RM accuracy (%)", _extent(xs), percent=True)
    y_values = _extent(ys)
    for length, points in data.items():
        if not points:
            continue
        marks = [
            Mark(x.value, y.value, _interval(x), _interval(y), subject.tone(method), name=method,
                 title=f"{method}: RM accuracy {rm.text(x.value)} %, policy accuracy {rm.text(y.value)} %")
            for method, x, y in points
        ]  # fmt: skip
        y_axis = layout.numeric("Policy accuracy (%)", y_values, percent=True)
        low, high = max(x_axis.low, y_axis.low), min(x_axis.high, y_axis.high)
        rules = [Rule((low, low), (high, high))] if low < high else []
        panels.append(
            Panel(x_axis, y_axis, LENGTHS[length].capitalize(), width=460, height=380, rules=rules, marks=marks)
        )
        rows += [{"method": m, "length": length, "rm_accuracy": x, "policy_accuracy": y} for m, x, y in points]
    caption = (
        f"Each mark is a method, on {group} users; thin lines are 95 % intervals over users. If RM accuracy told which "
        "method to deploy, the marks would rise from left to right. "
        "On the dashed line the policy ranks pairs as well as the reward does."
    )
    table = tables.Table("accuracy", "", tables.columns(rows), rows)
    return Figure("accuracy", "RM accuracy against policy accuracy", caption, panels, 2, subject.picks(), table)


def weights(subject: Subject) -> Figure | None:
    """Policy accuracy over the weight w, a small plot per method."""
    found, group = subject.numbers, subject.numbers.group
    data = {
        method: {length: found.weights(method, group, "policy", length) for length in LENGTHS}
        for method in subject.guided()
    }
    return _small_plots(
        subject,
        data,
        name="weight",
        title="Policy accuracy over the weight of the reward",
        axis="weight w",
        text=lambda value: f"{value:g}",
        caption=f"Policy accuracy (form `policy`) of {group} users as the reward gets more weight. The ring is the "
        "weight that validation users chose; the orange line is the method's RM accuracy; bands are 95 % intervals. "
        "Weights are evenly spaced on the axis.",
        reference=True,
    )


def candidates(subject: Subject) -> Figure | None:
    """Policy accuracy over the number of candidates k, where more than one was tried."""
    found, group = subject.numbers, subject.numbers.group
    if len(found.top_ks) < 2:
        return None
    data = {
        method: {length: found.candidates(method, group, length) for length in LENGTHS} for method in subject.guided()
    }
    return _small_plots(
        subject,
        data,
        name="candidates",
        title="Policy accuracy over the number of candidates",
        axis="candidates k",
        text=lambda value: f"{value:g}",
        caption=f"Policy accuracy of {group} users at the chosen weight, over the number of tokens that guidance may "
        "choose from (evenly spaced on the axis).",
        reference=False,
    )


def _small_plots(
    subject: Subject,
    data: Mapping[str, Mapping[str, Sequence[tuple[float, Estimate]]]],
    *,
    name: str,
    title: str,
    axis: str,
    text: Callable[[float], str],
    caption: str,
    reference: bool,
) -> Figure | None:
    """A plot per method, both length conventions, on axes that all share."""
    places = sorted({x for series in data.values() for points in series.values() for x, _ in points})
    if len(places) < 2:
        return None
    index = {x: float(i) for i, x in enumerate(places)}
    estimates = [e for series in data.values() for points in series.values() for _, e in points]
    rms = {m: subject.numbers.get("rm_accuracy", m, subject.numbers.group) for m in data} if reference else {}
    values = _extent(estimates) + [rm.value for rm in rms.values() if rm]
    y_axis = layout.numeric("", values, target=6, percent=True)
    x_axis = layout.ordinal(axis, [text(x) for x in places])
    panels, rows = [], []
    for method, series in data.items():
        curves, marks = [], []
        for length, points in series.items():
            if not points:
                continue
            bands = [(index[x], e.low, e.high) for x, e in points if e.low is not None and e.high is not None]
            curves.append(Curve([(index[x], e.value) for x, e in points], bands, "policy", length == "mean"))
            chosen = subject.numbers.policy(method, subject.numbers.group, length) if name == "weight" else None
            if chosen is not None and chosen.weight in index:
                marks.append(Mark(index[chosen.weight], chosen.value, tone="policy", hollow=True))
            rows += [{"method": method, "length": length, name: x, "policy_accuracy": e} for x, e in points]
        if not curves:
            continue
        rm = rms.get(method)
        rules = [Rule((None, rm.value), (None, rm.value), "rm", dashed=False)] if rm else []
        panels.append(
            Panel(x_axis, y_axis, method, subject.tone(method), 200, 185, rules=rules, curves=curves, marks=marks)
        )
    legend: list[tuple[str, Tone, str]] = [
        ("line", "policy", "policy accuracy (%), sum"),
        ("dashed", "policy", "mean per token"),
    ]
    if reference:
        legend += [("ring", "policy", "chosen weight"), ("line", "rm", "RM accuracy")]
    return Figure(name, title, caption, panels, 4, legend, tables.Table(name, "", tables.columns(rows), rows))


def shots(subject: Subject) -> Figure | None:
    """Accuracy on unseen users over the number of pairs they were adapted on."""
    found = subject.numbers
    data = {
        method: {
            "rm": found.shots("rm_accuracy", method),
            **{n: found.shots("policy_accuracy", method, found.form(method, "unseen"), n) for n in LENGTHS},
        }
        for method in found.methods
    }
    data = {method: series for method, series in data.items() if any(map(len, series.values()))}
    places = sorted({x for series in data.values() for points in series.values() for x, _ in points})
    if len(places) < 2:
        return None
    index = {x: float(i) for i, x in enumerate(places)}
    estimates = [e for series in data.values() for points in series.values() for _, e in points]
    y_axis = layout.numeric("", _extent(estimates), target=6, percent=True)
    x_axis = layout.ordinal("pairs per user", ["all" if math.isinf(x) else f"{x:g}" for x in places])
    looks: Mapping[str, tuple[Tone, bool]] = {"rm": ("rm", False), "sum": ("policy", False), "mean": ("policy", True)}
    panels, rows = [], []
    for method, series in data.items():
        curves = []
        for kind, points in series.items():
            tone, dashed = looks[kind]
            bands = [(index[x], e.low, e.high) for x, e in points if e.low is not None and e.high is not None]
            if points:
                curves.append(Curve([(index[x], e.value) for x, e in points], bands, tone, dashed))
            measure, length = ("rm_accuracy", None) if kind == "rm" else ("policy_accuracy", kind)
            for x, e in points:
                size = "all" if math.isinf(x) else int(x)
                rows.append({"method": method, "measure": measure, "length": length, "shots": size, "value": e})
        panels.append(Panel(x_axis, y_axis, method, subject.tone(method), 200, 185, curves=curves))
    caption = (
        "Unseen users, adapted on so many of their own pairs; 0 is the method without any. Bands are 95 % intervals "
        "over users."
    )
    legend: list[tuple[str, Tone, str]] = [
        ("line", "rm", "RM accuracy (%)"),
        ("line", "policy", "policy accuracy (%), sum"),
        ("dashed", "policy", "mean per token"),
    ]
    table = tables.Table("shots", "", tables.columns(rows), rows)
    return Figure("shots", "Accuracy over the number of pairs of an unseen user", caption, panels, 4, legend, table)


def spread(subject: Subject) -> Figure | None:
    """Policy accuracy of every user, a row per method."""
    group, panels, rows = subject.numbers.group, [], []
    every: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for row in subject.users:
        same = row["measure"] == "policy_accuracy" and row["group"] == group and row["value"] is not None
        if not same or row.get("length") not in LENGTHS or row.get("top_k") not in (None, subject.numbers.top_k):
            continue
        if row.get("form") == subject.numbers.form(row["method"], group) and row.get("shots") is None:
            every.setdefault(row["length"], {}).setdefault(row["method"], []).append((row["user"], row["value"]))
    for length in LENGTHS:
        found = every.get(length, {})
        if not found:
            continue
        order = sorted(found, key=lambda method: -float(np.mean([value for _, value in found[method]])))
        spreads = []
        for place, method in enumerate(order):
            values = np.array([value for _, value in found[method]])
            q = np.quantile(values, (0.1, 0.25, 0.5, 0.75, 0.9))
            quantiles = (float(q[0]), float(q[1]), float(q[2]), float(q[3]), float(q[4]))
            dots = values.tolist() if len(values) <= MOST_DOTS else []
            spreads.append(Spread(float(place), quantiles, dots, subject.tone(method)))
            rows += [
                {"length": length, "method": method, "user": user, "policy_accuracy": v} for user, v in found[method]
            ]
        every_value = [value for pairs in found.values() for _, value in pairs]
        x_axis = layout.numeric("Policy accuracy (%)", every_value, percent=True)
        height = 64 + 34 * len(order)
        panels.append(
            Panel(x_axis, layout.categories(order), LENGTHS[length].capitalize(), width=460, height=height,
                  rules=[Rule((0.5, None), (0.5, None))], spreads=spreads)
        )  # fmt: skip
    if not panels:
        return None
    caption = (
        f"Each dot is one of the {group} users. The thin line covers the middle 80 % of users, the thick one the "
        "middle half; the ring is the median; dashed is chance. A good mean can hide users whom a method serves badly."
    )
    table = tables.Table("spread", "", tables.columns(rows), rows)
    return Figure("spread", "Policy accuracy of single users", caption, panels, 2, subject.picks(), table)


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
        x_axis = layout.numeric("", _extent([e for _, e in values]), target=4, percent=measure.percent)
        marks = [
            Mark(
                e.value, float(i), _interval(e), None, subject.tone(method), title=f"{method}: {measure.text(e.value)}"
            )
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
        "is the margin that counts as no difference, fixed beforehand. A filled blue mark: its 90 % interval lies within "
        "the band, so the two are equivalent."
    )
    legend: list[tuple[str, Tone, str]] = [("dot", "policy", "equivalent"), ("ring", "ink", "not shown to be")]
    title = "Methods with different RM accuracy, compared by their texts"
    table = tables.Table("equivalence", "", tables.columns(rows), rows)
    return Figure("equivalence", title, caption, panels, 2, legend, table)


def _bounds(test: Mapping[str, Any]) -> tuple[float, float] | None:
    low, high = test.get("low"), test.get("high")
    return None if low is None or high is None else (low, high)


BUILDERS: Mapping[str, Callable[[Subject], Figure | None]] = {
    "accuracy": scatter,
    "weight": weights,
    "candidates": candidates,
    "shots": shots,
    "spread": spread,
    "quality": quality,
    "equivalence": equivalence,
}
