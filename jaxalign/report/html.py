"""The report as one HTML file that needs nothing else: no network, no script, one style sheet known by its hash.

Every text passes through `clean` (nothing invisible, nothing that reorders) and the template's escaping.
"""

import base64
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any

from jaxalign.report import numbers, svg, tables, texts, verdict
from jaxalign.report.clean import clean, line
from jaxalign.report.figure import Figure, Subject
from jaxalign.report.read import Run
from jaxalign.report.shapes import PALETTES

MOST_ROWS = 60


def style() -> str:
    """The style sheet: both palettes as variables, the tones of figures, and page.css."""

    def variables(theme: str) -> str:
        return "".join(f"--{tone}:{colour};" for tone, colour in PALETTES[theme].items())

    tones = "".join(
        f".s-{t}{{stroke:var(--{t})}}.f-{t},.p-{t},.a-{t},.t-{t}{{fill:var(--{t})}}"
        f".r-{t}{{stroke:var(--{t})}}.c-{t}{{color:var(--{t})}}"
        for t in PALETTES["light"]
    )
    page = files("jaxalign.report").joinpath("page.css").read_text(encoding="utf-8")
    dark = f"@media (prefers-color-scheme:dark){{:root{{{variables('dark')}}}}}"
    return f":root{{{variables('light')}}}\n{dark}\n{tones}\n{page}"


@functools.cache
def _template() -> Any:
    import jinja2

    def finalize(value: Any) -> Any:
        # Markup is what this package made itself; any other string may be anybody's.
        return clean(value) if isinstance(value, str) and not hasattr(value, "__html__") else value

    environment = jinja2.Environment(
        autoescape=True, finalize=finalize, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "prose": _prose,
        "breakable": _breakable,
        "line": lambda text, limit=80: line(str(text), limit),
        "label": tables.label_text,
        "p": numbers.p_text,
        "amount": lambda value, label: verdict.amount(label, value),
        "two": numbers.Measure("", digits=2).text,
        "heads": _heads,
        "words": tables.plain_words,
        "value": _value,
    }
    return environment.from_string(files("jaxalign.report").joinpath("page.html.j2").read_text(encoding="utf-8"))


def render(run: Run, subject: Subject, figures: Mapping[str, Figure], shown: Mapping[str, tables.Table]) -> str:
    """The page.

    Args:
      run: what the folder holds.
      subject: its numbers and picks.
      figures: by name; a figure whose numbers are missing is absent, and the page says so.
      shown: tables by name.
    """
    css = style()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    tasks, all_tasks = texts.tasks(run.generations)
    from markupsafe import Markup

    return _template().render(
        run=run,
        subject=subject,
        group=subject.numbers.group,
        css=Markup(css),
        digest=digest,
        verdict=verdict.judge(subject.selection, subject.numbers, run.others),
        picks=verdict.scoreboard(subject.selection, subject.numbers),
        agreement=verdict.agreement(subject.selection),
        figures={name: _figure(figure) for name, figure in figures.items()},
        tables=shown,
        selection=subject.selection,
        tasks=tasks,
        all_tasks=all_tasks,
        settings=_flat(run.config["config"]),
        versions=run.config.get("versions") or {},
        hashes=_flat(run.config.get("data") or {}),
        most_rows=MOST_ROWS,
    )


def _prose(text: str) -> Any:
    """Text with `code` in backticks, escaped."""
    from markupsafe import Markup, escape

    parts = re.split(r"`([^`]+)`", clean(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )


def _breakable(text: str) -> Any:
    """A name that may break after an underscore, a plus or a slash."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[_+/])", line(text, 300)))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _figure(figure: Figure) -> Mapping[str, Any]:
    drawings = figure.drawings
    alts = [f"{figure.title}: {panel.title or panel.x.label}" for panel in figure.panels]
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "legend": figure.legend,
        "small": figure.panels[0].width < 250,
        "svgs": [svg.render(drawing, alt) for drawing, alt in zip(drawings, alts, strict=True)],
        "table": figure.table,
    }


def _heads(columns: Sequence[tables.Column]) -> list[tuple[str, int]]:
    return [(head, len(list(own))) for head, own in groupby(columns, key=lambda column: column.head)]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat
