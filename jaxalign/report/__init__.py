"""The report of a run: one HTML file, every figure as PNG with its numbers as CSV, and the tables as CSV.

    write(run_folder) -> path of report.html

`jaxalign report RUN` calls it, also on a run that is not finished: what is missing is said in its place.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from jaxalign.files import write_atomic
from jaxalign.report import accuracy_figures, html, numbers, read, tables, text_figures
from jaxalign.report.figure import Figure, Subject

__all__ = ["write"]

# By the name of their files; a figure is None where the run has no numbers for it.
FIGURES: Mapping[str, Callable[[Subject], Figure | None]] = {
    "accuracy": accuracy_figures.scatter,
    "weight": accuracy_figures.weights,
    "candidates": accuracy_figures.candidates,
    "shots": accuracy_figures.shots,
    "spread": accuracy_figures.spread,
    "quality": text_figures.quality,
    "equivalence": text_figures.equivalence,
}


def subject(run: read.Run) -> Subject:
    """The numbers of a run, with the methods that the selection analysis picked."""
    selection = run.selection or {}
    # The first k is the one that choices are made by.
    tried = run.config["config"].get("top_ks")
    top_k = tried[0] if isinstance(tried, list) and tried else run.config["config"].get("top_k")
    return Subject(
        numbers=numbers.Numbers(
            run.metrics,
            selection.get("group"),
            run.config["config"].get("length"),
            top_k if isinstance(top_k, int) else None,
        ),
        users=run.users,
        selection=selection,
        deploy=(selection.get("deploy") or {}).get("method"),
        rm_pick=(selection.get("rm_pick") or {}).get("method"),
    )


def build_tables(found: numbers.Numbers) -> dict[str, tables.Table]:
    """The tables that have rows, by name."""
    made = (tables.accuracy(found), tables.forms(found), tables.quality(found))
    return {table.name: table for table in made if table.rows}


def write(run_folder: Path) -> Path:
    """Writes report.html, figures/ and tables/ into a run folder and returns the path of the page.

    Files of an earlier report are replaced; a figure that can no longer be drawn is removed with its numbers.

    Raises:
      InputError: this is no run folder, or of another schema version.
      DataError: a file of it breaks the format; the message names line and field.
    """
    run = read.load(run_folder)
    about = subject(run)
    drawn: dict[str, Figure] = {}
    for name, build in FIGURES.items():
        figure = build(about)
        if figure is not None:
            drawn[name] = figure
            figure.save(run_folder / "figures")
            continue
        for file in (f"{name}.png", f"{name}_dark.png", f"{name}.csv"):
            (run_folder / "figures" / file).unlink(missing_ok=True)
    shown = build_tables(about.numbers)
    for table in shown.values():
        tables.write_csv(run_folder / "tables" / f"{table.name}.csv", table)
    if run.metrics:
        rows = list(run.metrics)
        tables.write_csv(run_folder / "tables" / "metrics.csv", tables.Table("metrics", "", tables.columns(rows), rows))
    page = run_folder / "report.html"
    # Half a surrogate pair is no UTF-8; `clean` has replaced those of texts, and this is for what is to come.
    write_atomic(page, html.render(run, about, drawn, shown).encode("utf-8", "replace"))
    return page
