"""`jaxalign compare RUN RUN`: the differences of two runs on the same users and pairs."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxalign.cli import flags
from jaxalign.cli.runtime import check_output


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Tests the difference of two runs, paired over the users that both have, on the pairs that both judged."""

    first: Annotated[Path, tyro.conf.Positional]
    """The folder of a run."""

    second: Annotated[Path, tyro.conf.Positional]
    """The folder of another run, or the same one with --methods."""

    methods: tuple[str, str] | None = None
    """Compare this method of the first run with that one of the second; default: methods of equal names."""

    csv: Path | None = None
    """Write the table here as well."""

    overwrite: bool = False
    """Replace a file that is there."""


def main(arguments: Sequence[str]) -> int:
    """Prints the table and returns the exit status."""
    options = flags.parse("compare", Options, arguments)
    check_output(options.csv, options.overwrite)
    from rich.console import Console

    from jaxalign.report import clean, tables
    from jaxalign.report.compare import compare

    found = compare(options.first, options.second, options.methods)
    console = Console()
    tables.to_console(found.readable(), console)
    for note in found.notes:
        console.print(clean.clean(note), markup=False, highlight=False)
    if options.csv is not None:
        tables.write_csv(options.csv, found.table)
    return 0
