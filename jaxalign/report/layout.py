"""From data to shapes: axes, ticks, marks and labels that do not overlap."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from jaxalign.report.clean import cells, line
from jaxalign.report.shapes import Area, Dot, Drawing, Label, Line, Shape, Tone

_LETTER = 6.1  # pixels of an average letter of 11 pixels


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high` with (place, text) ticks.

    A `categorical` vertical axis has its first category on top and no grid across.
    """

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    categorical: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, 0 at `low` and 1 at `high`; outside is held at the edge."""
        return min(1.0, max(0.0, (value - self.low) / ((self.high - self.low) or 1.0)))


@dataclasses.dataclass(frozen=True)
class Mark:
    """A value with its intervals. `name` stands beside it, `title` appears when it is pointed at."""

    x: float
    y: float
    x_interval: tuple[float, float] | None = None
    y_interval: tuple[float, float] | None = None
    tone: Tone = "ink"
    hollow: bool = False
    name: str = ""
    title: str = ""
    radius: float = 4.0


@dataclasses.dataclass(frozen=True)
class Curve:
    """A line through (x, y) with an optional band of (x, low, high)."""

    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    tone: Tone = "ink"
    dashed: bool = False
    width: float = 1.75


@dataclasses.dataclass(frozen=True)
class Rule:
    """A straight line for reference: from one (x, y) to another, or across at x or y."""

    start: tuple[float | None, float | None]
    end: tuple[float | None, float | None]
    tone: Tone = "faint"
    dashed: bool = True


@dataclasses.dataclass(frozen=True)
class Spread:
    """The distribution of values in a row: 10-90 % thin, 25-75 % thick, the median, and below it `values` as dots."""

    row: float
    quantiles: tuple[float, float, float, float, float]
    values: Sequence[float]
    tone: Tone = "ink"


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot: axes and what is in them."""

    x: Axis
    y: Axis
    title: str = ""
    title_tone: Tone = "ink"
    width: float = 300.0
    height: float = 200.0
    rules: Sequence[Rule] = ()
    bands: Sequence[tuple[float, float]] = ()
    curves: Sequence[Curve] = ()
    spreads: Sequence[Spread] = ()
    marks: Sequence[Mark] = ()


def numeric(
    label: str, values: Iterable[float], *, target: int = 5, include: Iterable[float] = (), percent: bool = False
) -> Axis:
    """An axis with round ticks that holds all values with a little room; shares are written in percent."""
    known = [value for value in (*values, *include) if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    room = 0.04 * (high - low) or max(0.01, 0.1 * abs(high))
    low, high = low - room, high + room
    raw = (high - low) / target
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next((f * scale for f in (1.0, 2.0, 2.5, 5.0) if f * scale >= raw), 10.0 * scale)
    first = math.ceil(low / step - 1e-9)
    places = [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]
    shown = [100 * place if percent else place for place in places]
    # As many decimals as tell neighbours apart.
    unit = step * (100 if percent else 1)
    decimals = next((d for d in range(10) if abs(round(unit, d) - unit) < 1e-9 * unit), 0)
    texts = [f"{value + 0.0:.{decimals}f}".replace("-", "\u2212") for value in shown]
    return Axis(label, low, high, list(zip(places, texts, strict=True)))


def ordinal(label: str, names: Sequence[str]) -> Axis:
    """Evenly spaced places 0, 1, ... with these names."""
    return Axis(label, -0.3, max(len(names) - 1, 0) + 0.3, [(float(i), name) for i, name in enumerate(names)])


def categories(names: Sequence[str]) -> Axis:
    """Rows 0, 1, ... from the top, each with a name."""
    return Axis("", -0.6, len(names) - 0.4, [(float(i), name) for i, name in enumerate(names)], categorical=True)


def draw(panel: Panel) -> Drawing:
    """Lays a panel out."""
    names = [line(text, 30) for _, text in panel.y.ticks]
    left = 10 + _LETTER * max(map(cells, names), default=0.0) + (16 if panel.y.label else 0)
    top = 30.0 if panel.title else 10.0
    bottom = 40.0 if panel.x.label else 24.0
    right = 12.0
    width, height = panel.width - left - right, panel.height - top - bottom

    def at(x: float, y: float) -> tuple[float, float]:
        down = panel.y.share(y) if panel.y.categorical else 1 - panel.y.share(y)
        return left + width * panel.x.share(x), top + height * down

    shapes: list[Shape] = []
    if panel.title:
        title = line(panel.title, int(panel.width / 7.2))
        shapes.append(Label(left, 15, title, panel.title_tone, size=12, bold=True))
    for low, high in panel.bands:
        corners = [at(low, panel.y.low), at(high, panel.y.low), at(high, panel.y.high), at(low, panel.y.high)]
        shapes.append(Area(corners, "muted"))
    shapes += _axes(panel, names, at, left, top, width, height)
    for rule in panel.rules:
        ends = [
            at(panel.x.low if i == 0 and x is None else panel.x.high if x is None else x,
               panel.y.low if i == 0 and y is None else panel.y.high if y is None else y)
            for i, (x, y) in enumerate((rule.start, rule.end))
        ]  # fmt: skip
        shapes.append(Line(ends, rule.tone, dashed=rule.dashed))
    for curve in panel.curves:
        if len(curve.band) > 1:
            upper = [at(x, high) for x, _, high in curve.band]
            lower = [at(x, low) for x, low, _ in reversed(curve.band)]
            shapes.append(Area(upper + lower, curve.tone))
        shapes.append(Line([at(*point) for point in curve.points], curve.tone, curve.width, curve.dashed))
    for spread in panel.spreads:
        shapes += _spread(spread, at)
    shapes += _marks(panel, at, (left, top, width, height))
    return Drawing(panel.width, panel.height, shapes)


def _axes(panel, names, at, left, top, width, height) -> list[Shape]:
    shapes: list[Shape] = []
    floor = top + height
    for (value, _), name in zip(panel.y.ticks, names, strict=True):
        y = at(panel.x.low, value)[1]
        shapes.append(Line([(left, y), (left + width, y)], "rule"))
        shapes.append(Label(left - 7, y + 3.8, name, "ink" if panel.y.categorical else "muted", "end"))
    edge = -math.inf
    for value, text in panel.x.ticks:
        x = at(value, panel.y.low)[0]
        if panel.y.categorical:
            shapes.append(Line([(x, top), (x, floor)], "rule"))
        shapes.append(Line([(x, floor), (x, floor + 4)], "faint"))
        half = _LETTER * cells(text) / 2
        if x - half > edge + 4:
            shapes.append(Label(x, floor + 17, text, "muted", "middle"))
            edge = x + half
    shapes.append(Line([(left, floor), (left + width, floor)], "faint"))
    if panel.x.label:
        shapes.append(Label(left + width / 2, floor + 34, line(panel.x.label, 70), "muted", "middle"))
    if panel.y.label:
        shapes.append(Label(11, top + height / 2, line(panel.y.label, 50), "muted", "middle", upward=True))
    return shapes


def _spread(spread: Spread, at) -> list[Shape]:
    rise = 6.0 if spread.values else 0.0
    places = [at(value, spread.row) for value in spread.quantiles]
    low, quarter, middle, three, high = ((x, y - rise) for x, y in places)
    shapes: list[Shape] = [Line([low, high], spread.tone, 1.0), Line([quarter, three], spread.tone, 3.0)]
    shapes.append(Dot(*middle, 3.5, spread.tone, hollow=True))
    # Users with nearly equal values lie beneath each other, as close as the row has room for.
    columns: dict[int, int] = {}
    for value in spread.values:
        column = round(at(value, spread.row)[0] / 4)
        columns[column] = columns.get(column, 0) + 1
    step = min(3.5, 14.0 / max([*columns.values(), 2]))
    used: dict[int, int] = {}
    for value in sorted(spread.values):
        x, y = at(value, spread.row)
        place = used.get(round(x / 4), 0)
        used[round(x / 4)] = place + 1
        shapes.append(Dot(x, y + 2 + step * place, 1.75, spread.tone, pale=True))
    return shapes


def _marks(panel: Panel, at, frame) -> list[Shape]:
    shapes: list[Shape] = []
    for mark in panel.marks:
        pale: Tone = "faint" if mark.tone == "ink" else mark.tone
        if mark.x_interval is not None:
            shapes.append(Line([at(mark.x_interval[0], mark.y), at(mark.x_interval[1], mark.y)], pale, 1.25))
        if mark.y_interval is not None:
            shapes.append(Line([at(mark.x, mark.y_interval[0]), at(mark.x, mark.y_interval[1])], pale, 1.25))
    places = [at(mark.x, mark.y) for mark in panel.marks]
    for mark, (x, y) in zip(panel.marks, places, strict=True):
        shapes.append(Dot(x, y, mark.radius, mark.tone, mark.hollow, title=mark.title))
    named = [(mark, place) for mark, place in zip(panel.marks, places, strict=True) if mark.name]
    lines = [shape.points for shape in shapes if isinstance(shape, Line)]
    return shapes + _names(named, places, lines, frame)


def _names(named, places, lines, frame) -> list[Shape]:
    """Names beside their marks: each takes the free place with the least overlap, the highlighted ones first."""
    left, top, width, height = frame
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    crossed = [(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for (a, b), (c, d) in lines]
    shapes: list[Shape] = []
    for mark, (x, y) in sorted(named, key=lambda pair: pair[0].tone == "ink"):
        text = line(mark.name, 30)
        bold = mark.tone != "ink"
        wide = _LETTER * cells(text) * (1.08 if bold else 1.0)
        candidates = []
        for distance in (0.0, 12.0, 24.0):
            for anchor, dx, dy in (
                ("start", 6, -6 - distance), ("end", -6, -6 - distance), ("start", 6, 14 + distance),
                ("end", -6, 14 + distance), ("start", 9 + distance, 4), ("end", -9 - distance, 4),
                ("middle", 0, -9 - distance), ("middle", 0, 17 + distance),
            ):  # fmt: skip
                start = x + dx - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
                box = (start, y + dy - 9, start + wide, y + dy + 3)
                cost = sum(_overlap(box, other) for other in taken) + 2 * distance
                cost += 0.5 * sum(_overlap(box, other) for other in crossed)
                outside = box[0] < left or box[2] > left + width + 10 or box[1] < top or box[3] > top + height
                candidates.append((cost + 1e4 * outside, len(candidates), anchor, dx, dy, box))
        _, _, anchor, dx, dy, box = min(candidates)
        taken.append(box)
        if math.hypot(dx, dy - 4) > 16:
            shapes.append(Line([(x, y), (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))], "faint", 0.75))
        shapes.append(Label(x + dx, y + dy, text, mark.tone, anchor, bold=bold, halo=True))
    return shapes


def _overlap(one: Sequence[float], two: Sequence[float]) -> float:
    wide = min(one[2], two[2]) - max(one[0], two[0])
    high = min(one[3], two[3]) - max(one[1], two[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def legend(entries: Sequence[tuple[str, Tone, str]]) -> Drawing:
    """A row of keys: (kind, tone, text), kind one of `dot`, `ring`, `line`, `dashed`, `bar`."""
    shapes: list[Shape] = []
    x = 0.0
    for kind, tone, text in entries:
        match kind:
            case "dot" | "ring":
                shapes.append(Dot(x + 9, 9, 4, tone, kind == "ring"))
            case "bar":
                shapes.append(Line([(x, 9), (x + 18, 9)], tone, 3.0))
            case _:
                shapes.append(Line([(x, 9), (x + 18, 9)], tone, 1.75, kind == "dashed"))
        shapes.append(Label(x + 23, 13, text, "muted"))
        x += 23 + _LETTER * cells(text) + 18
    return Drawing(max(x, 1.0), 18.0, shapes)
