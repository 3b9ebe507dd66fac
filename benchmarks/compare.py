"""A run against stored ratios: what moved beyond its spread. Ratios, not times, so that they hold on a kind of machine.

    python -m benchmarks.compare results/decode/results.jsonl             # against benchmarks/baseline.json
    python -m benchmarks.compare results/decode/results.jsonl --store     # takes the run as the new baseline

Every interval is a run's quartiles, widened to at least 5 % on either side; a ratio has moved when the intervals of run
and baseline do not overlap. Exit status 1 when one has moved for the worse.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import flags, table
from benchmarks.cases import Case
from jaxalign.errors import InputError
from jaxalign.files import write_json

BASELINE = Path(__file__).with_name("baseline.json")
LEAST = 0.05
"""A ratio is not believed to be more certain than this, however close together a few rounds lie."""

Interval = Mapping[str, float]
Ratios = dict[str, dict[str, Interval]]


@dataclasses.dataclass(frozen=True)
class Moved:
    """A ratio that left its interval; larger is better for all of them."""

    machine: str
    name: str
    before: float
    now: float

    @property
    def worse(self) -> bool:
        """Whether it fell."""
        return self.now < self.before

    def __str__(self) -> str:
        direction = "worse" if self.worse else "better"
        return f"{direction}: {self.name}: {self.before:.2f} -> {self.now:.2f} ({self.machine})"


def ratios(records: Sequence[Mapping[str, Any]]) -> Ratios:
    """The ratios of a run by kind of machine and name; of a case that was measured again the last one counts.

    Raises:
      InputError: a line of another schema.
    """
    found: Ratios = {}
    for record in records:
        if record.get("schema") != 1 or "metrics" not in record:
            raise InputError(f"a line with schema {record.get('schema')!r}: this command reads schema 1")
        if record["benchmark"] != "decode":
            continue
        own = found.setdefault(record["machine"]["kind"], {})
        case = f"{record['model']}: {Case(**record['case']).name}"
        for name, value in record["metrics"].items():
            if name.endswith("_over_peer"):
                own[f"{case}: {name.removesuffix('_over_peer')} over {record['peer']}"] = value
            elif name == "ratio_to_plain" and "peer" not in record and record["case"]["kind"] != "none":
                own[f"{case}: of plain"] = value
    return found


def _interval(value: Interval) -> tuple[float, float]:
    slack = LEAST * value["median"]
    return min(value["low"], value["median"] - slack), max(value["high"], value["median"] + slack)


def moved(run: Ratios, baseline: Ratios) -> list[Moved]:
    """The ratios that both have and whose intervals do not overlap, worse ones first."""
    found = []
    for machine, own in run.items():
        for name in sorted(own.keys() & baseline.get(machine, {}).keys()):
            now, before = own[name], baseline[machine][name]
            (low, high), (lowest, highest) = _interval(now), _interval(before)
            if high < lowest or low > highest:
                found.append(Moved(machine, name, before["median"], now["median"]))
    return sorted(found, key=lambda item: (not item.worse, item.machine, item.name))


def store(run: Ratios, path: Path) -> None:
    """Adds the run's ratios to the baseline, replacing those of the same machine and name."""
    baseline = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for machine, own in run.items():
        baseline.setdefault(machine, {}).update(
            {
                name: {key: round(float(value[key]), 3) for key in ("median", "low", "high")}
                for name, value in own.items()
            }
        )
    write_json(path, baseline)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares, or stores; returns 1 when something became worse."""
    parser = argparse.ArgumentParser(
        prog="jaxalign bench compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="results.jsonl of a decode benchmark")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="default: benchmarks/baseline.json")
    parser.add_argument("--store", action="store_true", help="write the run's ratios into the baseline")
    options = parser.parse_args(arguments)
    if not options.results.is_file():
        raise InputError(f"{options.results}: there is no such file; 'decode --out FOLDER' writes one")
    run = ratios(table.read(options.results))
    if options.store:
        store(run, options.baseline)
        print(f"{sum(map(len, run.values()))} ratios stored in {options.baseline}")
        return 0
    if not options.baseline.is_file():
        raise InputError(f"{options.baseline}: there is no baseline; make one with --store")
    baseline = json.loads(options.baseline.read_text(encoding="utf-8"))
    found = moved(run, baseline)
    for item in found:
        print(item)
    for machine, own in run.items():
        known = own.keys() & baseline.get(machine, {}).keys()
        print(f"{machine}: {len(known)} of {len(own)} ratios have a baseline, {len(found)} moved beyond their spread")
    return int(any(item.worse for item in found))


if __name__ == "__main__":
    flags.script("compare", main)
