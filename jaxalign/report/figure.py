"""What a figure of the report is, and what it is made from.

One colour has one meaning throughout: blue is the method to deploy (and policy accuracy), orange the one that RM
accuracy picks (and RM accuracy). Everything else is black or grey.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxalign.report import layout, png, tables
from jaxalign.report.layout import Panel
from jaxalign.report.numbers import Estimate, Numbers
from jaxalign.report.shapes import Drawing, Tone

LENGTHS = {"sum": "sum over tokens", "mean": "mean per token"}


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


def interval(estimate: Estimate) -> tuple[float, float] | None:
    """Its bounds, or None."""
    return None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)


def extent(estimates: Sequence[Estimate]) -> list[float]:
    """All values and bounds, to lay out an axis."""
    return [v for e in estimates for v in (e.value, e.low, e.high) if v is not None]
