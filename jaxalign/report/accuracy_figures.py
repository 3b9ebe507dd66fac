"""Figures of accuracy: one number against the other, over the weight, over k, over shots, and user by user."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxalign.report import layout, numbers, tables
from jaxalign.report.figure import LENGTHS, Figure, Subject, extent, interval
from jaxalign.report.layout import Curve, Mark, Panel, Rule, Spread
from jaxalign.report.numbers import Estimate
from jaxalign.report.shapes import Tone

# Of more users than this single dots tell nothing that the quantiles do not.
MOST_DOTS = 150


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
    x_axis = layout.numeric("RM accuracy (%)", extent(xs), percent=True)
    y_values = extent(ys)
    for length, points in data.items():
        if not points:
            continue
        marks = [
            Mark(x.value, y.value, interval(x), interval(y), subject.tone(method), name=method,
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
    values = extent(estimates) + [rm.value for rm in rms.values() if rm]
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
        legend.append(("ring", "policy", "chosen weight"))
        legend.append(("line", "rm", "RM accuracy"))
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
    y_axis = layout.numeric("", extent(estimates), target=6, percent=True)
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
        value, length = row["value"], row.get("length")
        same = row["measure"] == "policy_accuracy" and row["group"] == group and length in LENGTHS
        leading = row.get("shots") is None and row.get("top_k") in (None, subject.numbers.top_k)
        if value is None or not (same and leading):
            continue
        if row.get("form") == subject.numbers.form(row["method"], group):
            every.setdefault(str(length), {}).setdefault(row["method"], []).append((row["user"], float(value)))
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
