"""`jaxalign compare`: the same users, the same pairs, against numbers counted by hand."""

import csv
import json
import sys
from pathlib import Path

import pytest

from jaxalign import cli
from jaxalign.errors import InputError
from jaxalign.metrics.bootstrap import paired_difference
from jaxalign.report.compare import compare

sys.path.insert(0, str(Path(__file__).parent))
import synthetic


def pair(user, number, reward, policy, method="bt", **more):
    """Rewards and policy scores as chosen minus rejected."""
    sides = {"reward_chosen": reward, "reward_rejected": 0, "policy_chosen": policy, "policy_rejected": 0}
    return {"user": user, "group": "seen", "pair": number, "method": method, "length": "sum", **sides, **more}


def run(folder, pairs, users=(), methods=("bt",), **files):
    rows = [*users, *({"measure": "x", "method": m, "group": "seen", "user": "nobody", "value": None} for m in methods)]
    return synthetic.write(folder, ("bt",), pairs=pairs, users=rows, metrics=[], generations=None, **files)


def find(found, measure):
    return next(row for row in found.table.rows if row["measure"].startswith(measure))


def test_accuracies_are_counted_over_the_common_pairs_only(tmp_path):
    # ann: two common pairs, of which the first run ranks both and the second one; a tie of bob counts one half; the
    # pair that only the first run has does not count, and neither does the one whose label is a tie.
    one = [pair("ann", 0, 1, 1), pair("ann", 1, 1, 1), pair("ann", 9, -1, -1), pair("bob", 0, 0, 1)]
    one.append(pair("bob", 5, 1, 1, label=0.5))
    two = [pair("ann", 0, 1, 1), pair("ann", 1, -1, 1), pair("bob", 0, -1, -1), pair("cy", 0, 1, 1)]
    two.append(pair("bob", 5, -1, 1, label=0.5))
    found = compare(run(tmp_path / "1", one), run(tmp_path / "2", two))
    row = find(found, "RM accuracy")
    assert (row["first"], row["second"], row["users"], row["pairs"]) == (0.75, 0.25, 2, 3)
    assert row["difference"].value == 0.5
    policy = find(found, "Policy accuracy")
    assert (policy["first"], policy["second"]) == (1.0, 0.5)


def test_pairs_are_known_by_their_texts_not_by_their_numbers(tmp_path):
    def texts(folder, names):
        lines = [json.dumps({"text": i, "prompt": "p", "response": name}) + "\n" for i, name in enumerate(names)]
        (folder / "texts.jsonl").write_text("".join(lines))
        return folder

    one = texts(run(tmp_path / "1", [pair("ann", 0, 1, 1, text_chosen=0, text_rejected=1)]), ["good", "bad"])
    same = texts(run(tmp_path / "2", [pair("ann", 7, -1, 1, text_chosen=1, text_rejected=0)]), ["bad", "good"])
    other = texts(run(tmp_path / "3", [pair("ann", 0, -1, 1, text_chosen=0, text_rejected=1)]), ["fine", "bad"])
    assert find(compare(one, same), "RM accuracy")["difference"].value == 1.0
    with pytest.raises(InputError, match="no user in common"):
        compare(one, other)


def test_other_measures_are_compared_over_the_common_users(tmp_path):
    def users(values):
        return [
            {"measure": "rouge1", "method": "bt", "group": "seen", "user": user, "value": value, "count": 3}
            for user, value in values.items()
        ]

    one, two = {"a": 0.5, "b": 0.7, "c": 0.9, "x": 0.0}, {"a": 0.4, "b": 0.65, "c": 0.6, "y": 1.0}
    row = find(compare(run(tmp_path / "1", [], users(one)), run(tmp_path / "2", [], users(two))), "ROUGE-1")
    expected = paired_difference([0.5, 0.7, 0.9], [0.4, 0.65, 0.6])
    assert (row["difference"].value, row["difference"].low, row["p"], row["users"]) == (
        expected.value, expected.low, expected.p, 3
    )  # fmt: skip


def test_a_run_equals_itself(tmp_path):
    folder = synthetic.write(tmp_path, ("bt", "gpo"), generations=None)
    rows = compare(folder, folder).table.rows
    assert {row["method"] for row in rows} >= {"bt", "gpo", "plain"}
    assert all(row["difference"].value == 0 and row["p"] == 1 for row in rows)


def test_two_methods_of_one_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    folder = str(synthetic.write(tmp_path / "run", ("bt", "gpo"), generations=None))
    out = tmp_path / "out.csv"
    assert cli.main(["compare", folder, folder, "--methods", "gpo", "bt", "--csv", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "gpo \u2212 bt" in printed
    assert "RM accuracy (%)" in printed
    rows = {row["measure"]: row for row in csv.DictReader(out.read_text().splitlines())}
    counted = [float(r["reward_chosen"] > r["reward_rejected"]) for r in synthetic.pairs(("bt", "gpo"))]
    assert float(rows["RM accuracy (%)"]["first"]) == pytest.approx(sum(counted[200:]) / 200)
    assert cli.main(["compare", folder, folder, "--methods", "gpo", "nosuch"]) == 2
    assert "there is no method 'nosuch'; there are bt, gpo" in capsys.readouterr().err


def test_what_could_not_be_compared_is_said(tmp_path):
    one = run(tmp_path / "1", [pair("ann", 0, 1, 1)], methods=("bt", "lore"))
    two = run(tmp_path / "2", [pair("ann", 0, 1, 1)], config={**synthetic.CONFIG, "data": {"sha256": "other"}})
    notes = " ".join(compare(one, two).notes)
    assert "Only in the first run: lore." in notes
    assert "different data" in notes
    other = run(tmp_path / "3", [], methods=("pal",))
    with pytest.raises(InputError, match="no method in common"):
        compare(one, other)
