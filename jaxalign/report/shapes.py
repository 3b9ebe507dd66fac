"""What a figure is made of: a few shapes at fixed places, which `svg` writes into the page and `png` paints.

One layout serves both, so that page and picture cannot differ. Places are in pixels from the upper left corner at 96
pixels an inch; colours are named by role, and each theme has its own.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

Tone = Literal["ink", "muted", "faint", "rule", "policy", "rm", "paper"]

# Contrast with the paper is at least 4.5 for all that carries text: ink, muted, policy and rm.
PALETTES: Mapping[str, Mapping[Tone, str]] = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1c1e21",
        "muted": "#5d636b",
        "faint": "#b3b9c1",
        "rule": "#e3e5e8",
        "policy": "#1b5fae",
        "rm": "#b4490c",
    },
    "dark": {
        "paper": "#16181b",
        "ink": "#e7e8ea",
        "muted": "#a3a9b1",
        "faint": "#5f666f",
        "rule": "#2d3136",
        "policy": "#7fb4f2",
        "rm": "#f09a56",
    },
}


@dataclasses.dataclass(frozen=True)
class Line:
    """A line through `points`."""

    points: Sequence[tuple[float, float]]
    tone: Tone = "ink"
    width: float = 1.0
    dashed: bool = False


@dataclasses.dataclass(frozen=True)
class Area:
    """A closed area, pale in its tone."""

    points: Sequence[tuple[float, float]]
    tone: Tone = "policy"


@dataclasses.dataclass(frozen=True)
class Dot:
    """A disc, or a ring where it is `hollow`; `title` is what pointing at it tells."""

    x: float
    y: float
    radius: float = 4.0
    tone: Tone = "ink"
    hollow: bool = False
    pale: bool = False
    title: str = ""


@dataclasses.dataclass(frozen=True)
class Label:
    """One line of text; `anchor` is the side that `x` fixes, `y` is the baseline.

    `upward` text reads from below; `halo` keeps it readable over lines.
    """

    x: float
    y: float
    text: str
    tone: Tone = "ink"
    anchor: Literal["start", "middle", "end"] = "start"
    size: float = 11.0
    bold: bool = False
    upward: bool = False
    halo: bool = False


Shape = Line | Area | Dot | Label


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Shapes on a sheet of `width` x `height` pixels."""

    width: float
    height: float
    shapes: Sequence[Shape]
