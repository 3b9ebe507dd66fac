"""The streaming check against what was planted, and against a slow count over loaded rows."""

import json
from collections import Counter

import numpy as np
import pytest

from jaxalign.cli import main
from jaxalign.cli.data import main as data_command
from jaxalign.data.check import check_file
from jaxalign.data.reader import load_preferences


def row(user="u", prompt="p", chosen="a", rejected="b", **more):
    return {"user": user, "prompt": prompt, "chosen": chosen, "rejected": rejected, **more}


@pytest.fixture
def check(tmp_path):
    def run(rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(json.dumps(one) for one in rows), encoding="utf-8")
        return check_file(path)

    return run


def found(report):
    return {finding.name: finding for finding in report.findings}


def test_a_good_file(check):
    report = check([row(), row(user="v"), row(prompt="q", label=0.5), row(prompt="q", chosen="c")])
    assert report.ok
    assert (report.rows, report.valid, report.ties) == (4, 4, 1)
    assert report.users == {"u": 3, "v": 1}
    assert report.lines()[-1] == "nothing is wrong"


@pytest.mark.parametrize(
    ("rows", "name", "line"),
    [
        ([row(), row()], "duplicate rows", "line 2: repeats line 1"),
        (
            [row(), row(chosen="b", rejected="a")],
            "contradictory pairs",
            "line 2: prefers the response rejected in line 1",
        ),
        ([row(), row(label=0.2)], "contradictory pairs", "line 2"),
        ([row(), row(chosen="b", rejected="b")], "identical chosen and rejected", "line 2, field 'rejected'"),
        ([row(), row(chosen="")], "empty responses", "line 2, field 'chosen'"),
        ([row(), row(rejected=" \t")], "empty responses", "line 2, field 'rejected'"),
        ([row(), row(user=None)], "rows that break the schema", "line 2, field 'user'"),
        (
            [row(group="g", split="train"), row(prompt="q", group="g", split="test")],
            "groups that cross splits",
            "line 2 (test) and line 1 (train)",
        ),
        # Without a group the pair is the group, whoever judged it and in whichever order.
        (
            [row(split="train"), row(user="v", chosen="b", rejected="a", split="test")],
            "groups that cross splits",
            "line 2 (test) and line 1 (train)",
        ),
        ([], "no rows", "holds no row"),
    ],
)
def test_each_wrong_thing_is_found_and_placed(check, rows, name, line):
    report = check(rows)
    assert not report.ok
    assert list(found(report)) == [name]
    (finding,) = report.findings
    assert finding.count == 1
    assert line in finding.examples[0]
    assert finding.mend


def test_what_looks_wrong_and_is_not(check):
    assert check([row(), row(user="v", chosen="b", rejected="a")]).ok  # people differ
    assert check([row(label=0.5), row(label=1.0)]).ok  # a tie, then a choice
    assert check([row(group="g", split="train"), row(prompt="q", group="g", split="train")]).ok
    assert check([row(), row(prompt=[{"role": "user", "content": "p"}])]).ok  # another prompt


def test_notices(check):
    rows = [row(user="Ann", groups="x"), row(user="ann"), row(user="\u00e9"), row(user="e\u0301", chosen="\ud83d")]
    notices = "\n".join(check(rows).notices)
    assert "'groups'" in notices
    assert "did you mean 'group'" in notices
    assert "2 sets of user ids look alike" in notices
    assert "U+FFFD" in notices
    assert "ties" in "\n".join(check([row(label=0.5)]).notices)


def test_counts_equal_a_slow_count(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "rows.jsonl"
    rows = []
    for _ in range(500):
        texts = rng.choice(["a", "bb", "ccc"], size=2, replace=False)
        user, prompt, split = (str(rng.integers(n)) for n in (4, 10, 2))
        rows.append(row(user, prompt, *map(str, texts), label=float(rng.choice([0.5, 1.0])), split=split))
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    report, loaded = check_file(path), load_preferences(path)
    votes = Counter((r.user, r.prompt, r.chosen, r.rejected) for r in loaded if not r.is_tie)
    ties = Counter((r.user, r.prompt, frozenset((r.chosen, r.rejected))) for r in loaded if r.is_tie)
    # The first row that goes against earlier ones is contradictory; a row that also repeats one is a duplicate.
    duplicates = sum(n - 1 for n in votes.values()) + sum(n - 1 for n in ties.values())
    contradictory = sum(1 for u, p, a, b in votes if (u, p, b, a) in votes) // 2
    splits = {}
    for r in loaded:
        splits.setdefault((r.prompt, frozenset((r.chosen, r.rejected))), set()).add(r.split)
    assert {name: finding.count for name, finding in found(report).items()} == {
        "duplicate rows": duplicates,
        "contradictory pairs": contradictory,
        "groups that cross splits": sum(len(names) > 1 for names in splits.values()),
    }
    assert report.users == dict(Counter(r.user for r in loaded))
    assert report.splits == dict(Counter(r.split for r in loaded))
    assert report.ties == sum(r.is_tie for r in loaded)
    assert report.lengths["chosen"]["50"] == np.percentile([len(r.chosen) for r in loaded], 50)


def test_completions_are_recognised(check):
    rows = [{"user": "u", "prompt": "p", "completion": "c"}, {"user": "u", "prompt": "p", "completion": "c"}]
    report = check(rows)
    assert report.kind == "completions"
    assert list(found(report)) == ["duplicate rows"]


def test_command(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row()) + "\n", encoding="utf-8")
    assert data_command(["check", str(path)]) == 0
    assert "1 rows of preferences, 1 valid" in capsys.readouterr().out
    path.write_text(json.dumps(row()) + '\n{"user": "u", "prompt": ', encoding="utf-8")
    assert data_command(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "rows.jsonl, line 2: is cut off" in out
    assert data_command(["check", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["users"] == {"u": 1}


def test_command_refuses_what_it_cannot_do(tmp_path, capsys):
    assert data_command([]) == 2
    assert data_command(["chek"]) == 2
    assert "check and prepare" in capsys.readouterr().err
    if "data" in __import__("jaxalign.cli", fromlist=["COMMANDS"]).COMMANDS:
        assert main(["data", "check", str(tmp_path / "absent.jsonl")]) == 2
        assert "There is no file" in capsys.readouterr().err
