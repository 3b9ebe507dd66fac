"""Where the time of decoding goes, by operation: one profiled run of the decode loop.

    python -m benchmarks.profile --kind none --batch 8
    python -m benchmarks.profile --kind head --batch 8 --out results/profile      # keeps the trace for a viewer

The names of the compiled program's operations are looked up in its text, so that a line says which result it makes
(`dot float32[80,3072]`); time is summed over the threads, so with two cores it can be twice the time that passed.
"""

import argparse
import collections
import re
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks import flags, kinds, table
from benchmarks.cases import Case, prepare

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(")
_LAYOUT = re.compile(r"\{[^}]*\}")
_SOURCE = re.compile(r'op_name="([^"]*)"')


class Operation(NamedTuple):
    """One line of the compiled program: what it is, the type that it makes, and the JAX operation that it came from."""

    code: str
    shape: str
    source: str


def operations(text: str) -> dict[str, Operation]:
    """The instructions of a compiled program's text by name."""
    found = {}
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            name, shape, code = match.groups()
            source = _SOURCE.search(line)
            found[name] = Operation(code, _LAYOUT.sub("", shape), source.group(1).split("/")[-1] if source else "")
    return found


def events(folder: Path) -> Iterable[tuple[str, float, str]]:
    """(name, nanoseconds, line) of every event in the traces under `folder`."""
    from jax.profiler import ProfileData

    for path in sorted(folder.rglob("*.xplane.pb")):
        for plane in ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    yield event.name, event.duration_ns, f"{plane.name}/{line.name}"


def by_operation(found: Iterable[tuple[str, float, str]], known: dict[str, Operation]) -> list[tuple[str, int, float]]:
    """(operation, calls, seconds), the largest first, of the events that are instructions of the program.

    Seconds are the median of an operation's calls times their number: where other jobs interrupt the process, a few
    calls take seconds and say nothing.
    """
    spent = collections.defaultdict(list)
    for name, nanoseconds, _ in found:
        operation = known.get(name)
        # Loops and calls contain the others.
        if operation is None or operation.code in ("while", "call", "conditional"):
            continue
        label = f"{operation.code} {operation.shape} {operation.source}".strip()
        spent[label].append(nanoseconds / 1e9)
    totals = [(label, len(calls), statistics.median(calls) * len(calls)) for label, calls in spent.items()]
    return sorted(totals, key=lambda item: -item[2])


def main(arguments: Sequence[str] | None = None) -> int:
    """Profiles one case and prints its operations; returns 0."""
    parser = argparse.ArgumentParser(
        prog="jaxalign bench profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_model(parser)
    parser.add_argument("--kind", choices=list(kinds.KINDS), default="none")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--lines", type=int, default=25, help="operations to print (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder to keep the trace in")
    options = parser.parse_args(arguments)
    dtype = options.dtype[0]
    lm = flags.load_model(options.model, random=options.random, dtype=dtype, layers=options.layers)
    case = Case(
        kind=options.kind,
        batch=options.batch,
        prompt=options.prompt,
        new_tokens=options.new_tokens,
        top_k=options.top_k,
        dtype=dtype,
    )
    prepared = prepare(case, lm)
    prepared.warm()
    known = operations(prepared.decode.program.as_text())
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        # The host's Python frames are of no interest, and recording them can take minutes.
        recorded = jax.profiler.ProfileOptions()
        recorded.python_tracer_level = 0
        with jax.profiler.trace(str(folder), profiler_options=recorded):
            seconds: Any = prepared.run()
        spent = by_operation(events(folder), known)
    total = sum(s for _, _, s in spent)
    steps = case.new_tokens - 1
    print(
        f"{case.name}: first token {1e3 * seconds['first']:.0f} ms, then {1e3 * seconds['rest'] / steps:.1f} ms a step"
    )
    columns = (("share", 6), ("ms a step", 9), ("calls a step", 12), ("operation", 9))
    print(table.cells((title for title, _ in columns), columns))
    for label, calls, s in spent[: options.lines]:
        print(f"{s / total:6.1%}  {1e3 * s / steps:9.2f}  {calls / steps:12.0f}  {label}")
    return 0


if __name__ == "__main__":
    flags.script("profile", main)
