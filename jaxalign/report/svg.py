"""A drawing as inline SVG: colours are those of the page, so that it follows light and dark.

Only classes and attributes are used, no style attributes: the page's policy allows one style sheet, known by its hash.
"""

from html import escape

from markupsafe import Markup

from jaxalign.report.clean import clean
from jaxalign.report.shapes import Area, Dot, Drawing, Label, Line, Shape


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _points(points: object) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)  # type: ignore[attr-defined]


def _text(text: str) -> str:
    return escape(clean(text), quote=True)


def _shape(shape: Shape) -> str:
    match shape:
        case Line():
            dash = ' stroke-dasharray="4 3"' if shape.dashed else ""
            width = _number(shape.width)
            return f'<polyline class="s-{shape.tone}" points="{_points(shape.points)}" stroke-width="{width}"{dash}/>'
        case Area():
            return f'<polygon class="a-{shape.tone}" points="{_points(shape.points)}"/>'
        case Dot():
            kind = ("r" if shape.hollow else "p" if shape.pale else "f") + f"-{shape.tone}"
            place = f'cx="{_number(shape.x)}" cy="{_number(shape.y)}" r="{_number(shape.radius)}"'
            if not shape.title:
                return f'<circle class="{kind}" {place}/>'
            return f'<circle class="{kind}" {place}><title>{_text(shape.title)}</title></circle>'
        case Label():
            x, y = _number(shape.x), _number(shape.y)
            kind = f"t-{shape.tone}" + " b" * shape.bold + " h" * shape.halo
            more = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
            more += f' font-size="{_number(shape.size)}"' if shape.size != 11 else ""
            more += f' transform="rotate(-90 {x} {y})"' if shape.upward else ""
            return f'<text class="{kind}" x="{x}" y="{y}"{more}>{_text(shape.text)}</text>'


def render(drawing: Drawing, alt: str) -> Markup:
    """The drawing as an `<svg>` element that scales down with the page; `alt` is what a screen reader says."""
    width, height = _number(drawing.width), _number(drawing.height)
    body = "".join(map(_shape, drawing.shapes))
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{_text(alt)}">{body}</svg>'
    )
