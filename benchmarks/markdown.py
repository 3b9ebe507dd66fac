"""The table of a decode run for a document, with the command that made it.

python -m benchmarks.markdown results/decode/results.jsonl
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import flags, table
from jaxalign.errors import InputError


def render(records: Sequence[Mapping[str, Any]]) -> str:
    """The runs among the records, each with its command, machine and ceilings above its table."""
    blocks = []
    runs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        runs.setdefault((record["command"], record["time"]), []).append(record)
    for (command, _), own in runs.items():
        first = own[0]
        top = next((record["ceilings"] for record in own if "ceilings" in record), None)
        versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
        head = [f"`{command}`", "", f"{first['machine']['kind']}; {versions}; commit {str(first['commit'])[:12]}."]
        if top is not None:
            products = ", ".join(f"{name} {value / 1e9:.0f} GFLOP/s" for name, value in top["flops_per_second"].items())
            head.append(f"Ceilings: copy {top['bytes_per_second'] / 1e9:.1f} GB/s, product {products}.")
        titles = [title for title, _ in table.DECODE_COLUMNS]
        lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
        lines += [f"| {' | '.join(table.decode_cells(record))} |" for record in own]
        blocks.append("\n".join([*head, "", *lines]))
    return "\n\n".join(blocks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; returns 0."""
    parser = argparse.ArgumentParser(
        prog="jaxalign bench markdown", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="results.jsonl of a decode benchmark")
    options = parser.parse_args(arguments)
    if not options.results.is_file():
        raise InputError(f"{options.results}: there is no such file; 'decode --out FOLDER' writes one")
    print(render([record for record in table.read(options.results) if record.get("benchmark") == "decode"]))
    return 0


if __name__ == "__main__":
    flags.script("markdown", main)
