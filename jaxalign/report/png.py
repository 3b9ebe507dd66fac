"""Drawings as a PNG file, for papers and slides; matplotlib serves as the painter only."""

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxalign.files import write_atomic
from jaxalign.report.clean import clean
from jaxalign.report.shapes import PALETTES, Area, Dot, Drawing, Label, Line

_POINTS = 0.75  # points per pixel, at 96 pixels an inch
_GAP = 16.0
_MARGIN = 10.0
_SIDES: Mapping[str, Literal["left", "center", "right"]] = {"start": "left", "middle": "center", "end": "right"}
_SCALE = 2.0  # 192 pixels an inch


def write(path: Path, drawings: Sequence[Drawing], columns: int, theme: str, legend: Drawing | None = None) -> None:
    """Paints `drawings` in a grid of so many columns below the legend, 192 pixels an inch, and writes the file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max(1, min(columns, len(drawings)))
    rows = math.ceil(len(drawings) / columns)
    cell = (max(one.width for one in drawings), max(one.height for one in drawings))
    top = legend.height + _GAP if legend is not None else 0.0
    width = max(columns * cell[0] + (columns - 1) * _GAP, legend.width if legend is not None else 0.0) + 2 * _MARGIN
    height = top + rows * cell[1] + (rows - 1) * _GAP + 2 * _MARGIN
    figure = Figure(figsize=(width / 96, height / 96), dpi=96 * _SCALE, facecolor=PALETTES[theme]["paper"])
    placed = [] if legend is None else [(legend, 0.0, 0.0)]
    for number, drawing in enumerate(drawings):
        row, column = divmod(number, columns)
        placed.append((drawing, column * (cell[0] + _GAP), top + row * (cell[1] + _GAP)))
    for drawing, left, above in placed:
        _paint(figure, drawing, _MARGIN + left, _MARGIN + above, height, theme)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A method or user named in a script that the painter's font lacks; the page and the CSV have the name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


def _paint(figure: Any, drawing: Drawing, left: float, top: float, height: float, theme: str) -> None:
    """Adds the shapes to the figure itself; axes would only slow it down."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, Polygon
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text
    from matplotlib.transforms import Affine2D

    colours = PALETTES[theme]
    # The painter's origin is the lower left corner.
    place = Affine2D().translate(left, top - height).scale(_SCALE, -_SCALE)
    for order, shape in enumerate(drawing.shapes):
        colour = colours[shape.tone]
        common = {"zorder": order, "transform": place}
        match shape:
            case Line():
                style = (0, (4 / shape.width, 3 / shape.width)) if shape.dashed else "-"
                xs, ys = zip(*shape.points, strict=True)
                artist = Line2D(xs, ys, color=colour, linewidth=shape.width * _POINTS, linestyle=style, **common)
                artist.set_solid_capstyle("butt")
            case Area():
                artist = Polygon(shape.points, closed=True, facecolor=colour, alpha=0.16, edgecolor="none", **common)
            case Dot():
                fill, edge = (colours["paper"], colour) if shape.hollow else (colour, "none")
                shown = {"facecolor": fill, "edgecolor": edge, "alpha": 0.45 if shape.pale else 1.0}
                artist = Circle((shape.x, shape.y), shape.radius, linewidth=1.5 * _POINTS, **shown, **common)
            case Label():
                artist = Text(
                    shape.x,
                    shape.y,
                    clean(shape.text),
                    color=colour,
                    fontsize=shape.size * _POINTS,
                    fontweight="bold" if shape.bold else "normal",
                    horizontalalignment=_SIDES[shape.anchor],
                    verticalalignment="baseline",
                    rotation=90 if shape.upward else 0,
                    rotation_mode="anchor",
                    parse_math=False,
                    **common,
                )
                if shape.halo:
                    artist.set_path_effects([withStroke(linewidth=3 * _POINTS, foreground=colours["paper"])])
        figure.add_artist(artist)
