"""A run against the baseline: what moved, what did not, and what cannot be read."""

import json

import pytest

from benchmarks import compare, table
from benchmarks.cases import Case
from jaxalign.errors import InputError


def record(kind, ratio, low=None, high=None, machine="a machine", **extra):
    value = {"median": ratio, "low": low or ratio, "high": high or ratio, "count": 3}
    return table.as_json(
        {
            "schema": 1,
            "benchmark": "decode",
            "machine": {"kind": machine},
            "model": "tiny",
            "case": Case(kind=kind, batch=8),
            "metrics": {"ratio_to_plain": value},
            **extra,
        }
    )


def write(path, *records):
    for item in records:
        table.append(path, item)
    return path


def run(tmp_path, *records, baseline):
    results = tmp_path / "now.jsonl"
    results.unlink(missing_ok=True)
    write(results, *records)
    return compare.main([str(results), "--baseline", str(baseline)])


@pytest.fixture
def baseline(tmp_path):
    path = tmp_path / "baseline.json"
    before = write(tmp_path / "before.jsonl", record("none", 1.0), record("head", 0.5, 0.45, 0.55))
    assert compare.main([str(before), "--baseline", str(path), "--store"]) == 0
    return path


def test_the_baseline_holds_ratios_by_machine(baseline):
    stored = json.loads(baseline.read_text())
    name = f"tiny: {Case(kind='head', batch=8).name}: of plain"
    assert stored == {"a machine": {name: {"median": 0.5, "low": 0.45, "high": 0.55}}}


@pytest.mark.parametrize(
    ("now", "status", "said"),
    [
        (record("head", 0.42, 0.40, 0.46), 0, "0 moved"),  # the intervals overlap
        (record("head", 0.35, 0.34, 0.36), 1, "worse: tiny: head b8"),
        (record("head", 0.80, 0.70, 0.90), 0, "better: tiny: head b8"),
        (record("head", 0.43), 0, "0 moved"),  # 5 % either side, whatever the rounds say
        (record("head", 0.1, machine="another"), 0, "0 of 1 ratios have a baseline"),
        (record("value", 0.1), 0, "0 of 1 ratios have a baseline"),
    ],
)
def test_what_moved(tmp_path, baseline, capsys, now, status, said):
    capsys.readouterr()
    assert run(tmp_path, now, baseline=baseline) == status
    assert said in capsys.readouterr().out


def test_storing_again_keeps_other_machines(tmp_path, baseline):
    other = write(tmp_path / "other.jsonl", record("head", 0.9, machine="another"))
    compare.main([str(other), "--baseline", str(baseline), "--store"])
    assert json.loads(baseline.read_text()).keys() == {"a machine", "another"}


def test_peers_are_compared_by_our_speed_over_theirs():
    value = {"median": 40.0, "low": 39.0, "high": 41.0}
    found = compare.ratios([record("none", 0.1, peer="ARGS", rows=1, metrics={"head_over_peer": value})])
    assert found == {"a machine": {f"tiny: {Case(batch=8).name}: head over ARGS": value}}


def test_what_cannot_be_compared(tmp_path, baseline):
    with pytest.raises(InputError, match="no such file"):
        compare.main([str(tmp_path / "nothing.jsonl")])
    with pytest.raises(InputError, match="no baseline"):
        run(tmp_path, record("head", 0.5), baseline=tmp_path / "nothing.json")
    with pytest.raises(InputError, match="schema 7"):
        run(tmp_path, {"schema": 7}, baseline=baseline)


def test_the_committed_baseline_can_be_read():
    for ratios in json.loads(compare.BASELINE.read_text()).values():
        for value in ratios.values():
            assert 0 < value["low"] <= value["median"] <= value["high"]
