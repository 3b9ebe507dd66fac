"""Checks a whole file of preferences or completions, in one pass and little memory.

Per row the pass keeps some numbers (hashes, a line, three lengths: about 60 bytes) and per user a counter, never the
texts, so that a million rows take well under a gigabyte. Hashes have 64 bits: in a million rows the chance of one false
report is below one in ten million.
"""

import dataclasses
import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxalign.data.prompts import REPLACEMENT, identity, prompt_text
from jaxalign.data.reader import rows_of
from jaxalign.data.row_error import RowError
from jaxalign.data.schema import (
    COMPLETION_FIELDS,
    PREFERENCE_FIELDS,
    Completion,
    Preference,
    meant,
    read_completion,
    read_preference,
)

EXAMPLES = 5
PERCENTILES = (0, 5, 50, 95, 99, 100)


@dataclasses.dataclass
class Finding:
    """One kind of thing that is wrong: how often, the first places, and the mend."""

    name: str
    mend: str
    count: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)

    def add(self, example: str) -> None:
        """Counts one more, and keeps it as an example while there are few."""
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


@dataclasses.dataclass(frozen=True)
class Report:
    """What a file holds and what is wrong with it.

    Attributes:
      kind: "preferences" or "completions".
      rows: rows read, valid or not.
      valid: rows that keep the schema.
      ties: valid rows with label 0.5.
      users: valid rows per user, the most first.
      splits: valid rows per stated split.
      lengths: percentiles of the length in characters, per field: `{"chosen": {"50": 210.0, ...}, ...}`.
      findings: what is wrong. The file is fit for use when there are none.
      notices: what is worth knowing and may be intended.
    """

    path: str
    kind: str
    rows: int
    valid: int
    ties: int
    users: dict[str, int]
    splits: dict[str, int]
    lengths: dict[str, dict[str, float]]
    findings: list[Finding]
    notices: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """The report as a JSON object, with all users."""
        return {**dataclasses.asdict(self), "ok": self.ok}

    def lines(self, shown_users: int = 5) -> list[str]:
        """The report as text, one entry a line."""
        counts = np.array(list(self.users.values()) or [0])
        noun = "pairs" if self.kind == "preferences" else "texts"
        out = [
            f"{self.path}: {self.rows:,} rows of {self.kind}, {self.valid:,} valid"
            + (f", {self.ties:,} ties" if self.kind == "preferences" else ""),
            f"users: {len(self.users):,}; {noun} per user: min {counts.min():,}, median {np.median(counts):,.0f}, "
            f"mean {counts.mean():,.1f}, max {counts.max():,}",
        ]
        for user in list(self.users)[:shown_users]:
            out.append(f"  {user!r}: {self.users[user]:,}")
        if len(self.users) > shown_users:
            out.append(f"  and {len(self.users) - shown_users:,} more users (--json has them all)")
        if self.splits:
            out.append("splits: " + ", ".join(f"{name} {count:,}" for name, count in sorted(self.splits.items())))
        out.append("length in characters" + "".join(f"{f'p{p}':>9}" for p in PERCENTILES))
        for field, values in self.lengths.items():
            out.append(f"  {field:<18}" + "".join(f"{values[str(p)]:>9,.0f}" for p in PERCENTILES))
        out += [f"note: {notice}" for notice in self.notices]
        for finding in self.findings:
            out.append(f"WRONG: {finding.name}: {finding.count:,}. {finding.mend}")
            out += [f"  {example}" for example in finding.examples]
            if finding.count > len(finding.examples):
                out.append(f"  and {finding.count - len(finding.examples):,} more")
        out.append("nothing is wrong" if self.ok else f"{sum(f.count for f in self.findings):,} things are wrong")
        return out


def check_file(path: str | Path, progress: Callable[[int], None] | None = None) -> Report:
    """Reads a file once and reports.

    Args:
      path: `.jsonl`, `.jsonl.gz` or `.parquet`; preferences, or completions where the first object has `completion`.
      progress: called with the number of rows now and then.

    Raises:
      DataError: the file cannot be read at all.
    """
    path = Path(path)
    check: _Check | None = None
    early: list[tuple[int, RowError]] = []
    for line, row in rows_of(path):
        if check is None:
            if isinstance(row, RowError):
                early.append((line, row))
                continue
            check = _Check(path.name, completions=isinstance(row, dict) and "completion" in row)
        check.add(line, row)
        if progress and check.rows % 10_000 == 0:
            progress(check.rows)
    check = check or _Check(path.name, completions=False)
    for line, error in early:
        check.add(line, error)
    return check.report()


class _Check:
    """What one pass keeps."""

    def __init__(self, source: str, completions: bool):
        self.source = source
        self.completions = completions
        self.parse = read_completion if completions else read_preference
        self.known = frozenset(COMPLETION_FIELDS if completions else PREFERENCE_FIELDS)
        self.rows = self.ties = self.broken_halves = self.nul = 0
        self.users: Counter[str] = Counter()
        self.splits: dict[str | None, int] = {None: 0}
        self.split_counts: Counter[int] = Counter()
        self.ignored: Counter[str] = Counter()
        self.line = array("q")
        self.pair = array("q")  # hash of user, prompt and the two responses in either order
        self.side = array("b")  # which of the two was preferred: 0 or 1; 2 a tie
        self.group = array("q")
        self.split = array("q")
        fields = ("prompt", "completion") if completions else ("prompt", "chosen", "rejected")
        self.lengths = {field: array("q") for field in fields}
        self.invalid = Finding("rows that break the schema", "Mend or remove each.")
        self.empty = Finding("empty responses", "Give each its text, or remove the row.")
        self.identical = Finding("identical chosen and rejected", "Remove the rows: they say nothing.")

    def add(self, line: int, row: Any) -> None:
        self.rows += 1
        try:
            if isinstance(row, RowError):
                raise row
            item = self.parse(row)
        except RowError as error:
            empty = error.problem == "is empty" and error.field in self.lengths
            (self.empty if empty else self.invalid).add(str(error.at(self.source, line)))
            return
        if unknown := row.keys() - self.known:
            self.ignored.update(map(str, unknown))
        self.users[item.user] += 1
        self.line.append(line)
        self.split.append(self.splits.setdefault(item.split, len(self.splits)))
        self.lengths["prompt"].append(len(prompt_text(item.prompt)))
        prompt = identity(item.prompt)
        if isinstance(item, Completion):
            low, high, side = item.completion, "", 0
            self.lengths["completion"].append(len(item.completion))
        else:
            low, high, side = self._ordered(line, item)
        self.pair.append(hash((item.user, prompt, low, high)))
        self.side.append(side)
        self.group.append(hash((prompt, low, high) if item.group is None else item.group))
        text = prompt + low + high
        self.broken_halves += REPLACEMENT in text
        self.nul += "\0" in text

    def _ordered(self, line: int, item: Preference) -> tuple[str, str, int]:
        """The two responses in a fixed order, and which of them was preferred."""
        self.lengths["chosen"].append(len(item.chosen))
        self.lengths["rejected"].append(len(item.rejected))
        if item.chosen == item.rejected:
            self.identical.add(f"{self.source}, line {line}, field 'rejected': is the same text as 'chosen'")
        if item.is_tie:
            self.ties += 1
            return min(item.chosen, item.rejected), max(item.chosen, item.rejected), 2
        preferred, other = (item.chosen, item.rejected) if item.label > 0.5 else (item.rejected, item.chosen)
        return (preferred, other, 0) if preferred <= other else (other, preferred, 1)

    def report(self) -> Report:
        lines = np.asarray(self.line, dtype=np.int64)
        findings = [self.invalid, self.empty, self.identical, *self._repeated(lines), self._crossing(lines)]
        if not self.line and not any(finding.count for finding in findings):
            findings = [Finding("no rows", "Write one JSON object a line.", 1, [f"{self.source}: holds no row"])]
        names = {number: name for name, number in self.splits.items() if name is not None}
        codes, counts = np.unique(np.asarray(self.split, dtype=np.int64), return_counts=True)
        return Report(
            path=self.source,
            kind="completions" if self.completions else "preferences",
            rows=self.rows,
            valid=len(self.line),
            ties=self.ties,
            users=dict(sorted(self.users.items(), key=lambda entry: (-entry[1], entry[0]))),
            splits={names[int(code)]: int(n) for code, n in zip(codes, counts, strict=True) if int(code) in names},
            lengths={field: _percentiles(values) for field, values in self.lengths.items()},
            findings=[finding for finding in findings if finding.count],
            notices=self._notices(),
        )

    def _repeated(self, lines: np.ndarray) -> tuple[Finding, Finding]:
        """Rows whose user, prompt and responses occurred before: in the same order, or in the other one."""
        same = Finding("duplicate rows", "Remove the repetitions: each would count twice, and may cross a split.")
        opposite = Finding(
            "contradictory pairs", "The user preferred either response at some time: keep one row, or label it 0.5."
        )
        pair, side = np.asarray(self.pair, dtype=np.int64), self.side
        for rows in _shared(pair):
            first: dict[int, int] = {}
            for row in rows.tolist():
                if side[row] in first:
                    same.add(f"{self.source}, line {lines[row]}: repeats line {lines[first[side[row]]]}")
                elif side[row] < 2 and 1 - side[row] in first:
                    before = lines[first[1 - side[row]]]
                    opposite.add(f"{self.source}, line {lines[row]}: prefers the response rejected in line {before}")
                first.setdefault(side[row], row)
        return same, opposite

    def _crossing(self, lines: np.ndarray) -> Finding:
        """Groups with rows in several of the splits that the file states."""
        found = Finding(
            "groups that cross splits",
            "Put all rows of a group in one split, or drop the field 'split'.",
        )
        if len(self.splits) == 1:
            return found
        split, names = np.asarray(self.split, dtype=np.int64), {code: name for name, code in self.splits.items()}
        for rows in _shared(np.asarray(self.group, dtype=np.int64)):
            for row in rows[1:]:
                if split[row] != split[rows[0]]:
                    place = f"line {lines[row]} ({names[int(split[row])]})"
                    found.add(f"{self.source}, {place} and line {lines[rows[0]]} ({names[int(split[rows[0]])]})")
                    break
        return found

    def _notices(self) -> list[str]:
        notices = []
        for name, count in sorted(self.ignored.items(), key=lambda entry: (-entry[1], entry[0]))[:EXAMPLES]:
            near = meant(name)
            hint = f"; did you mean '{near}'?" if near in self.known else ""
            notices.append(f"field '{name}' is not of the schema and was ignored in {count:,} rows{hint}")
        alike: dict[str, list[str]] = defaultdict(list)
        for user in self.users:
            alike[unicodedata.normalize("NFKC", user).casefold().strip()].append(user)
        twins = [users for users in alike.values() if len(users) > 1]
        if twins:
            shown = "; ".join(", ".join(map(ascii, sorted(users))) for users in twins[:EXAMPLES])
            notices.append(f"{len(twins):,} sets of user ids look alike and are kept apart: {shown}")
        if self.ties * 2 > len(self.line):
            notices.append("more than half of the rows are ties: they train and test nothing")
        if self.broken_halves:
            notices.append(f"{self.broken_halves:,} rows hold U+FFFD, or half of a surrogate pair that is read as it")
        if self.nul:
            notices.append(f"{self.nul:,} rows hold a NUL character in a text")
        return notices


def _percentiles(values: array) -> dict[str, float]:
    data = np.asarray(values, dtype=np.int64) if values else np.zeros(1)
    return {str(p): float(v) for p, v in zip(PERCENTILES, np.percentile(data, PERCENTILES), strict=True)}


def _shared(keys: np.ndarray):
    """The row numbers of each key that several rows have, in order of the first row."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.r_[True, keys[order][1:] != keys[order][:-1]]) if len(keys) else np.zeros(0, np.int64)
    runs = np.diff(np.r_[starts, len(keys)])
    several = [order[start : start + run] for start, run in zip(starts[runs > 1], runs[runs > 1], strict=True)]
    return sorted(several, key=lambda rows: rows[0])
