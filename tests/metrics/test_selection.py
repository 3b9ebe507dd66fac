import dataclasses
import json

import numpy as np
import pytest

from jaxalign.errors import InputError
from jaxalign.metrics.regret import selection_regret
from jaxalign.metrics.selection import Setting, analyse

METHODS = ["bt", "lore", "pref", "vpl", "plain", "in_context"]
SETTING = Setting(
    candidates=METHODS[:4],
    targets=["policy", "rouge1", "style_distance"],
    headline="policy",
    criteria=["rm_accuracy", "validation policy"],
    deploy_by="validation policy",
    text_measure="rouge1",
    margins={"rouge1": 0.02},
    in_context=["in_context"],
    parameters=1.35e8,
)
NAN = float("nan")


def hand_tables():
    """Three test users with three, two and two pairs, and one validation user in the last column."""
    none = [NAN] * 3
    test = {
        "rm_accuracy": [[1, 1, 1], [2 / 3, 1 / 2, 1], [1 / 3, 1, 1 / 2], [0, 1 / 2, 1 / 2], none, none],
        "policy": [
            *([2 / 3, 1 / 2, 1], [1, 1, 1 / 2], [1, 1 / 2, 1 / 2], [1 / 3, 0, 1 / 2]),
            *([1 / 3, 1 / 2, 1 / 2], [2 / 3, 1 / 2, 1 / 2]),
        ],
        "rouge1": [
            *([0.2, 0.3, 0.1], [0.1, 0.2, 0.0], [0.2, 0.1, 0.3], [0.2, 0.3, 0.1]),
            *([0.1, 0.3, 0.2], [0.4, 0.5, 0.3]),
        ],
        "style_distance": [[1, 2, 3], [3, 3, 3], [1, 1, 1], [4, 4, 4], none, none],
    }
    tables = {label: np.asarray([[*row, NAN] for row in rows]) for label, rows in test.items()}
    tables["validation policy"] = np.asarray([[*none, value] for value in (0.5, 0.7, 0.6, 0.1, 0.2, 0.3)])
    return tables


def test_by_hand():
    found = analyse(hand_tables(), METHODS, SETTING, group="unseen")
    assert set(found) == {
        *("methods", "group", "correlations", "regret", "equivalence", "claims", "deploy", "rm_pick"),
    }
    policy, _, style = found["correlations"]
    assert (policy["x"], policy["y"], policy["n"]) == ("rm_accuracy", "policy", 4)
    assert policy["tau_b"] == pytest.approx(4 / 6)
    # Means of the distances 2, 3, 1, 4 in order of RM accuracy: 2 of 6 pairs are turned, when less is better.
    assert style["tau_b"] == pytest.approx((4 - 2) / 6)
    assert style["note"].endswith("less style_distance counts as better")

    by_rm = {row["target"]: row for row in found["regret"] if row["criterion"] == "rm_accuracy"}
    assert by_rm["policy"]["picked"] == "bt"
    assert by_rm["policy"]["regret"] == pytest.approx(2 / 18)
    assert (by_rm["style_distance"]["best"], by_rm["style_distance"]["value_best"]) == ("pref", 1.0)
    assert (by_rm["style_distance"]["value_picked"], by_rm["style_distance"]["regret"]) == (2.0, 1.0)
    by_validation = {row["target"]: row for row in found["regret"] if row["criterion"] == "validation policy"}
    assert (by_validation["policy"]["picked"], by_validation["policy"]["regret"]) == ("lore", 0.0)

    widest = found["equivalence"][0]
    assert (widest["one"], widest["two"], widest["measure"]) == ("bt", "vpl", "rouge1")
    assert widest["rm_gap"] == pytest.approx(2 / 3)
    assert (widest["difference"], widest["equivalent"]) == (0.0, True)
    assert found["equivalence"] == sorted(found["equivalence"], key=lambda row: -row["rm_gap"])

    assert found["rm_pick"] == {"method": "bt", "regret": pytest.approx(2 / 18)}
    assert (found["deploy"]["method"], found["deploy"]["criterion"]) == ("lore", "validation policy")
    assert "RM accuracy would have picked bt; lore is +0.111" in found["deploy"]["why"]
    assert "Against in_context, without a reward model, lore is -0.300" in found["deploy"]["why"]


def test_claims_are_all_there_and_only_what_can_be_said_is_said():
    found = analyse(hand_tables(), METHODS, SETTING, group="unseen")
    assert [claim["met"] for claim in found["claims"]] == [None, None, True, None, None, None]
    # 20 points further and a model of 7 B: what is said of in-context learning can be said.
    large = dataclasses.replace(SETTING, parameters=7.6e9)
    assert [claim["met"] for claim in analyse(hand_tables(), METHODS, large, group="")["claims"]][4:] == [True, False]
    silent = dataclasses.replace(SETTING, text_measure=None, margins={})
    assert len(analyse(hand_tables(), METHODS, silent, group="")["claims"]) == 2


@pytest.mark.parametrize(
    "change",
    [
        "one_method",
        "constant",
        "no_texts",
        "one_user",
        "no_users",
        "no_rm",
        "no_validation",
    ],
)
def test_poor_data_gives_valid_json_with_reasons(change):
    tables, methods, setting = hand_tables(), METHODS, SETTING
    if change == "one_method":
        tables = {label: table[[0, 4]] for label, table in tables.items()}
        methods, setting = ["bt", "plain"], dataclasses.replace(SETTING, candidates=["bt"], in_context=[])
    elif change == "constant":
        tables["rm_accuracy"][:] = 0.5
    elif change == "no_texts":
        tables["rouge1"][:] = NAN
    elif change == "one_user":
        tables = {label: table[:, [0, 3]] for label, table in tables.items()}
    elif change == "no_users":
        tables = {label: table[:, :0] for label, table in tables.items()}
    elif change == "no_rm":
        tables["rm_accuracy"][:] = NAN
    else:
        tables["validation policy"][:] = NAN
    found = json.loads(json.dumps(analyse(tables, methods, setting, group="unseen"), allow_nan=False))
    reasons = {
        "one_method": "one method only",
        "constant": "the same for all 4 methods",
        "one_user": "one user only",
        "no_users": "no method has both",
        "no_rm": "no method has both",
    }
    if change in reasons:
        assert reasons[change] in found["correlations"][0]["note"]
    assert found["correlations"][0]["tau_b"] is None or change in ("no_texts", "one_user", "no_validation")
    if change in ("no_users", "no_validation"):
        assert found["deploy"] == {
            "method": None,
            "criterion": "validation policy",
            "why": "No candidate has validation policy.",
        }
    if change in ("no_users", "no_rm"):
        assert found["rm_pick"] == {"method": None, "regret": None}
    if change == "one_method":
        assert found["rm_pick"] == {"method": "bt", "regret": 0.0}


def test_same_seed_same_numbers_in_any_order_of_users():
    random = np.random.default_rng(0)
    tables = {label: random.uniform(size=(6, 30)) for label in hand_tables()}
    order = random.permutation(33)
    spread = {label: np.pad(table, ((0, 0), (0, 3)), constant_values=NAN)[:, order] for label, table in tables.items()}
    first = analyse(tables, METHODS, SETTING, group="seen", seed=1)
    assert first == analyse(spread, METHODS, SETTING, group="seen", seed=1)
    assert first != analyse(tables, METHODS, SETTING, group="seen", seed=2)


def test_control_rows_do_not_change_the_ranks():
    tables = hand_tables()
    tables["rm_accuracy"][4] = 0.5
    found = analyse(tables, METHODS, SETTING, group="unseen")
    assert found["correlations"][0]["n"] == 4
    expected = selection_regret(hand_tables()["rm_accuracy"][:4], hand_tables()["policy"][:4], METHODS[:4])
    assert found["regret"][0]["regret"] == expected.regret


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": ["policy", "chrf"]}, "no table for chrf"),
        ({"candidates": ["bt", "mrm"]}, "candidates mrm are not among the methods"),
        ({"margins": {}}, "no margin for the text measure 'rouge1'"),
        ({"headline": "style_distance"}, "style_distance counts as better when less"),
    ],
)
def test_what_is_missing_is_named(change, message):
    with pytest.raises(InputError, match=message):
        analyse(hand_tables(), METHODS, dataclasses.replace(SETTING, **change), group="unseen")


def test_rows_that_do_not_match_are_refused():
    tables = hand_tables()
    tables["rouge1"] = tables["rouge1"][:, :3]
    with pytest.raises(InputError, match=r"rouge1 has the shape \(6, 3\), the first one \(6, 4\)"):
        analyse(tables, METHODS, SETTING, group="unseen")
    with pytest.raises(InputError, match="listed twice"):
        analyse(hand_tables(), ["bt", *METHODS[:5]], SETTING, group="unseen")
