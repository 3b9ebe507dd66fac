"""`jaxalign data check FILE` and `jaxalign data prepare SOURCE`: look at preference data, get the field's data sets."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxalign.cli import flags
from jaxalign.cli.runtime import check_output

_USAGE = """usage: jaxalign data COMMAND [ARGUMENTS]

commands:
  check    what a file of preferences or completions holds, and what is wrong with it
  prepare  a public data set, from its folder or its pinned download, as TFDS and JSON lines

jaxalign data COMMAND --help describes a command."""


@dataclasses.dataclass(frozen=True)
class Check:
    """Checks a file of preferences or completions and prints what it holds.

    Exit status: 0 nothing is wrong, 1 something is wrong, 2 the file cannot be read.
    """

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """.jsonl, .jsonl.gz or .parquet."""

    json: bool = False
    """Print one JSON object, with the pairs of every user."""


@dataclasses.dataclass(frozen=True)
class Prepare:
    """Prepares a public data set: from a local folder, or by download where the licence allows one."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """tldr, prism, lamp4, lamp5, lamp7, ukp, acl_titles, preference_jsonl, or a source of a plugin."""

    data: Path | None = None
    """The folder with the files of the source, in the official layout."""

    data_dir: Path | None = None
    """Where prepared data sets are kept; by default in jaxalign's cache folder."""

    out: Path | None = None
    """Also write the rows as JSON lines (.jsonl or .jsonl.gz)."""

    plugins: tuple[Path, ...] = ()
    """Python files that add sources; installed packages that do need no naming."""

    overwrite: bool = False
    """Replace a file that is there."""


def main(arguments: Sequence[str]) -> int:
    """Runs one of the two commands and returns its exit status."""
    rest = list(arguments)
    if not rest or rest[0] in ("-h", "--help"):
        print(_USAGE)
        return 0 if rest else 2
    if rest[0] == "check":
        return _check(flags.parse("data check", Check, rest[1:]))
    if rest[0] == "prepare":
        return _prepare(flags.parse("data prepare", Prepare, rest[1:]))
    print(f"jaxalign data: there is no command '{rest[0]}'. It has check and prepare.", file=sys.stderr)
    return 2


def _check(options: Check) -> int:
    from jaxalign.data.check import check_file

    watched = sys.stderr.isatty()

    def progress(rows: int) -> None:
        print(f"\r{rows:,} rows", end="", file=sys.stderr, flush=True)

    report = check_file(options.file, progress if watched else None)
    if watched:
        print("\r\033[K", end="", file=sys.stderr)
    if options.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        # A text may hold what this terminal cannot show.
        encoding = sys.stdout.encoding or "utf-8"
        print("\n".join(report.lines()).encode(encoding, "backslashreplace").decode(encoding))
    return 0 if report.ok else 1


def _prepare(options: Prepare) -> int:
    from jaxalign import plugins
    from jaxalign.data.builders import prepare, read
    from jaxalign.data.builders.prepare import describe

    plugins.load(options.plugins)
    check_output(options.out, options.overwrite)
    builder = prepare(options.source, data=options.data, data_dir=options.data_dir)
    print("\n".join(describe(options.source, builder)))
    if options.out is not None:
        from jaxalign.data.reader import write_rows

        rows = read(builder)
        write_rows(options.out, rows)
        print(f"wrote {len(rows):,} rows to {options.out}")
    return 0
