"""Drawings as a PNG file, for papers and slides; matplotlib serves as the painter only."""

import io
import math
import warnings
from collections.abc import Sequence
from pathlib import Path

from jaxalign.files import write_atomic
from jaxalign.report.clean import clean
from jaxalign.report.shapes import PALETTES, Area, Dot, Drawing, Label, Line

_POINTS = 0.75  # points per pixel, at 96 pixels an inch
_GAP = 16.0


def write(path: Path, drawings: Sequence[Drawing], columns: int, theme: str, legend: Drawing | None = None) -> None:
    """Paints `drawings` in a grid of so many columns below the legend, 192 pixels an inch, and writes the file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max(1, min(columns, len(drawings)))
    rows = math.ceil(len(drawings) / columns)
    cell = (max(one.width for one in drawings), max(one.height for one in drawings))
    top = legend.height + _GAP if legend is not None else 0.0
    width = max(columns * cell[0] + (columns - 1) * _GAP, legend.width if legend is not None else 0.0)
    height = top + rows * cell[1] + (rows - 1) * _GAP
    margin = 10.0
    size = ((width + 2 * margin) / 96, (height + 2 * margin) / 96)
    figure = Figure(figsize=size, dpi=192, facecolor=PALETTES[theme]["paper"])
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(-margin, width + margin)
    axes.set_ylim(height + margin, -margin)
    if legend is not None:
        _paint(axes, legend, 0.0, 0.0, theme)
    for number, drawing in enumerate(drawings):
        row, column = divmod(number, columns)
        _paint(axes, drawing, column * (cell[0] + _GAP), top + row * (cell[1] + _GAP), theme)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A method or user named in a script that the painter's font lacks; the page and the CSV have the name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


def _paint(axes: object, drawing: Drawing, left: float, top: float, theme: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, Polygon
    from matplotlib.patheffects import withStroke

    colours = PALETTES[theme]
    add = axes.add_artist  # type: ignore[attr-defined]
    for order, shape in enumerate(drawing.shapes):
        colour = colours[shape.tone]
        match shape:
            case Line():
                xs, ys = [left + x for x, _ in shape.points], [top + y for _, y in shape.points]
                width = shape.width * _POINTS
                style = (0, (4 / shape.width, 3 / shape.width)) if shape.dashed else "-"
                add(Line2D(xs, ys, color=colour, linewidth=width, linestyle=style, zorder=order))
            case Area():
                points = [(left + x, top + y) for x, y in shape.points]
                add(Polygon(points, closed=True, facecolor=colour, alpha=0.16, edgecolor="none", zorder=order))
            case Dot():
                fill = colours["paper"] if shape.hollow else colour
                edge = colour if shape.hollow else "none"
                add(Circle((left + shape.x, top + shape.y), shape.radius, facecolor=fill, edgecolor=edge,
                           linewidth=1.5 * _POINTS, alpha=0.45 if shape.pale else 1.0, zorder=order))  # fmt: skip
            case Label():
                text = axes.text(  # type: ignore[attr-defined]
                    left + shape.x, top + shape.y, clean(shape.text), color=colour, fontsize=shape.size * _POINTS,
                    ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor], va="baseline",
                    rotation=90 if shape.upward else 0, rotation_mode="anchor", parse_math=False,
                    fontweight="bold" if shape.bold else "normal", zorder=order,
                )  # fmt: skip
                if shape.halo:
                    text.set_path_effects([withStroke(linewidth=3 * _POINTS, foreground=colours["paper"])])
