"""`jaxalign report RUN`: the report of a run, made again from what its folder holds."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxalign.cli import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Writes report.html, figures/ and tables/ into the folder of a run, also of one that is not finished."""

    run: Annotated[Path, tyro.conf.Positional]
    """The folder of the run."""


def main(arguments: Sequence[str]) -> int:
    """Writes the files, prints the verdict and the table of methods, and returns the exit status."""
    options = flags.parse("report", Options, arguments)
    from rich.console import Console

    from jaxalign import report
    from jaxalign.report import clean, read, tables, verdict

    page = report.write(options.run)
    run = read.load(options.run)
    about = report.subject(run)
    console = Console()
    console.print(
        clean.clean(verdict.judge(about.selection, about.numbers, run.others).text()), markup=False, highlight=False
    )
    table = tables.brief(about.numbers)
    if table.rows:
        tables.to_console(table, console)
    if run.missing:
        console.print(f"The run has no {', '.join(run.missing)}: the report says what is missing.", highlight=False)
    print(f"Report: {page}")
    return 0
