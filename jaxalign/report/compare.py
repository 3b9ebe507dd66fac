"""Two runs on the same users and the same pairs: is the difference more than chance?

Accuracies are counted anew over the pairs that both runs judged, so that a run on more data does not win by easier
pairs. Everything else is compared over the users that both have. Differences are paired over users
(`jaxalign.metrics.bootstrap.paired_difference`).
"""

import dataclasses
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxalign.errors import DataError, InputError
from jaxalign.files import is_number
from jaxalign.metrics.bootstrap import paired_difference
from jaxalign.report import numbers, read, tables
from jaxalign.report.numbers import Estimate

# Scores of a pair in pairs.jsonl, and the measure that they decide.
_SCORES = {"reward": "rm_accuracy"} | dict.fromkeys(("policy", "score", "sequence"), "policy_accuracy")

# measure, group, form, length, shots
_Key = tuple[str, str, str | None, str | None, int | None]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The differences first - second, and what could not be compared, in sentences."""

    table: tables.Table
    notes: Sequence[str]

    def readable(self) -> tables.Table:
        """The table with each number as its measure is written: shares in percent, p-values rounded."""
        rows = []
        for row in self.table.rows:
            about, estimate = row["about"], row["difference"]
            written = {name: about.text(row[name]) for name in ("first", "second")}
            if estimate is not None:
                between = about.interval(estimate.low, estimate.high)
                written["difference"] = about.text(estimate.value) + (f" ({between})" if between else "")
            rows.append({**row, **written, "p": numbers.p_text(row["p"])})
        return dataclasses.replace(self.table, rows=rows)


def compare(first: Path, second: Path, methods: tuple[str, str] | None = None) -> Comparison:
    """Compares every measure of every method that both runs have.

    Args:
      first: a run folder.
      second: another one, or the same.
      methods: compare this method of the first run with that one of the second, instead of equal names.

    Raises:
      InputError: no run folder, a method that a run does not have, or no user in common.
      DataError: a file that breaks the format.
    """
    runs = [read.load(folder) for folder in (first, second)]
    there = [{row["method"] for row in (*run.metrics, *run.users)} for run in runs]
    if methods is None:
        wanted = [(m, m) for m in dict.fromkeys(r["method"] for r in runs[0].users) if m in there[1]]
    else:
        for method, own, folder in zip(methods, there, (first, second), strict=True):
            if method not in own:
                raise InputError(f"{folder}: there is no method '{method}'; there are {', '.join(sorted(own))}")
        wanted = [methods]
    if not wanted:
        raise InputError(f"{first} and {second} have no method in common; name two with --methods ONE TWO")
    pairs = [_judged(folder) for folder in (first, second)]
    values = [_values(run.users) for run in runs]
    rows: list[dict[str, Any]] = []
    for one, two in wanted:
        counted = list(_pairs(pairs[0].get(one, {}), pairs[1].get(two, {})))
        done = {key for key, *_ in counted}
        compared = [*counted, *_others(values[0].get(one, {}), values[1].get(two, {}), done)]
        name = one if one == two else f"{one} \u2212 {two}"
        rows += [_row(name, key, per_user, count) for key, per_user, count in compared]
    if not rows:
        raise InputError(f"{first} and {second} have no user in common, so there is nothing to compare")
    return Comparison(_table(rows), _notes(runs, there, methods))


def _judged(folder: Path) -> dict[str, dict[_Key, dict[Hashable, tuple[str, float]]]]:
    """By method and measure, each pair's user and credit: 1 where it is ranked as labelled, 0.5 for a tie."""
    rows = read.read_rows(folder, "pairs.jsonl") or []
    texts: dict[Any, Any] = {}
    for row in read.read_rows(folder, "texts.jsonl") or []:
        texts[row["text"]] = json.dumps([row["prompt"], row["response"]])
    found: dict[str, dict[_Key, dict[Hashable, tuple[str, float]]]] = {}
    for row in rows:
        label = row.get("label", 1.0)
        if label == 0.5:
            continue  # no side is right
        sides = [texts.get(row.get(f"text_{side}")) for side in ("chosen", "rejected")]
        # Numbers of pairs and texts are a run's own; what was written is the same in both.
        pair = (row["user"], row.get("pair")) if None in sides else (row["user"], *sides)
        for name, measure in _SCORES.items():
            chosen, rejected = row.get(f"{name}_chosen"), row.get(f"{name}_rejected")
            if chosen is None or rejected is None:
                continue
            if not all(map(is_number, (chosen, rejected, label))):
                raise DataError(f"{folder / 'pairs.jsonl'}: user {row['user']!r}: '{name}' or 'label' is not a number")
            margin = (chosen - rejected) * (1 if label > 0.5 else -1)
            credit = 0.5 if margin == 0 else float(margin > 0)
            form, length = (None, None) if name == "reward" else (name, row.get("length"))
            key: _Key = (measure, row.get("group", "seen"), form, length, None)
            found.setdefault(row["method"], {}).setdefault(key, {})[pair] = (row["user"], credit)
    return found


def _values(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[_Key, dict[str, float]]]:
    found: dict[str, dict[_Key, dict[str, float]]] = {}
    for row in rows:
        if row["value"] is not None:
            key: _Key = (row["measure"], row["group"], row.get("form"), row.get("length"), row.get("shots"))
            found.setdefault(row["method"], {}).setdefault(key, {})[row["user"]] = row["value"]
    return found


def _pairs(
    one: Mapping[_Key, Mapping[Hashable, tuple[str, float]]], two: Mapping[_Key, Mapping[Hashable, tuple[str, float]]]
) -> Iterator[tuple[_Key, np.ndarray, int]]:
    """(key, `[2, users]` accuracies over the common pairs, number of pairs)."""
    for key in (key for key in one if key in two):
        common = [pair for pair in one[key] if pair in two[key]]
        users = sorted({one[key][pair][0] for pair in common})
        if not users:
            continue
        place = {user: number for number, user in enumerate(users)}
        sums, counts = np.zeros((2, len(users))), np.zeros(len(users))
        for pair in common:
            row = place[one[key][pair][0]]
            sums[:, row] += one[key][pair][1], two[key][pair][1]
            counts[row] += 1
        yield key, sums / counts, len(common)


def _others(
    one: Mapping[_Key, Mapping[str, float]], two: Mapping[_Key, Mapping[str, float]], done: set[_Key]
) -> Iterator[tuple[_Key, np.ndarray, int | None]]:
    for key in one:
        if key in two and key not in done and key[1] != "validation":
            users = sorted(set(one[key]) & set(two[key]))
            if users:
                yield key, np.array([[own[key][user] for user in users] for own in (one, two)]), None


def _row(method: str, key: _Key, per_user: np.ndarray, count: int | None) -> dict[str, Any]:
    measure, group, form, length, shots = key
    found = paired_difference(per_user[0], per_user[1])
    about = numbers.measure(measure)
    detail = ", ".join(
        str(part) for part in (form, length, None if shots is None else f"{shots} pairs") if part is not None
    )
    return {
        "method": method,
        "group": group,
        "measure": about.axis + (f": {detail}" if detail else ""),
        "first": float(per_user[0].mean()),
        "second": float(per_user[1].mean()),
        "difference": None if found.value is None else Estimate(found.value, found.low, found.high),
        "about": about,
        "p": found.p,
        "users": found.users,
        "pairs": count,
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> tables.Table:
    keys = ("method", "group", "measure", "first", "second", "difference", "p", "users", "pairs")
    return tables.Table("compare", "First run minus second run", [tables.Column(key, key) for key in keys], rows)


def _notes(runs: Sequence[read.Run], there: Sequence[set[str]], methods: tuple[str, str] | None) -> list[str]:
    notes = ["Intervals are 95 %, paired over users; p-values are not corrected for their number."]
    hashes = [(run.config.get("data") or {}).get("sha256") for run in runs]
    if None not in hashes and hashes[0] != hashes[1]:
        notes.append("The runs were made on different data: only the users and pairs that both have are compared.")
    if methods is None:
        for name, own, other in (("first", there[0], there[1]), ("second", there[1], there[0])):
            if alone := sorted(own - other):
                notes.append(f"Only in the {name} run: {', '.join(alone)}.")
    if not all((run.folder / "pairs.jsonl").is_file() for run in runs):
        notes.append("A run has no pairs.jsonl: accuracies are those of all its pairs, not of the pairs in common.")
    return notes
