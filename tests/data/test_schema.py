"""Every accepted form of a row, and every refused one with its field and mend."""

import json

import pytest

from jaxalign.data.prompts import Message, identity, split_texts
from jaxalign.data.row_error import RowError
from jaxalign.data.schema import Completion, Preference, as_row, read_completion, read_preference

ROW = {"user": "u", "prompt": "p", "chosen": "a", "rejected": "b"}


def turn(role, content):
    return {"role": role, "content": content}


def test_plain_row_with_defaults():
    assert read_preference(ROW) == Preference(user="u", prompt="p", chosen="a", rejected="b")
    assert read_preference(ROW).label == 1.0
    assert read_preference(ROW).margin == 0.0


def test_null_optional_fields_are_absent():
    assert read_preference({**ROW, "group": None, "label": None, "margin": None, "split": None}) == read_preference(ROW)


def test_completion():
    row = {"user": 3, "prompt": [turn("user", "Hi")], "completion": "Hello", "group": 12}
    expected = Completion(user="3", prompt=(Message("user", "Hi"),), completion="Hello", group="12")
    assert read_completion(row) == expected
    assert read_completion({**row, "completion": [turn("assistant", "Hello")]}) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("007", "007"),
        (7, "7"),
        ("7", "7"),
        (7.0, "7"),
        ("nan", "nan"),
        ("NA", "NA"),
        ("Ann", "Ann"),
        ("ann", "ann"),
        ("\u00e9", "\u00e9"),
        ("e\u0301", "e\u0301"),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_user_ids_are_exact_strings(value, expected):
    assert read_preference({**ROW, "user": value}).user == expected


@pytest.mark.parametrize("value", [None, "", "  ", True, 7.5, float("nan"), [1], "a\ud83d", "a\0"])
def test_user_ids_that_are_none_are_refused(value):
    with pytest.raises(RowError) as error:
        read_preference({**ROW, "user": value})
    assert error.value.field == "user"
    assert error.value.mend


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"label": 1.2}, "label"),
        ({"label": "1.0"}, "label"),
        ({"label": True}, "label"),
        ({"label": float("nan")}, "label"),
        ({"margin": -1}, "margin"),
        ({"margin": float("inf")}, "margin"),
        ({"margin": 10**400}, "margin"),
        ({"chosen": ""}, "chosen"),
        ({"rejected": " \n"}, "rejected"),
        ({"rejected": None}, "rejected"),
        ({"rejected": 5}, "chosen"),
        ({"chosen": 5, "rejected": 6}, "chosen"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [{"role": "user"}]}, "prompt"),
        ({"group": ""}, "group"),
        ({"split": " "}, "split"),
    ],
)
def test_broken_fields_are_named(change, field):
    with pytest.raises(RowError) as error:
        read_preference({**ROW, **change})
    assert error.value.field == field


def test_misspelled_fields_are_pointed_out():
    with pytest.raises(RowError, match="Rename 'choosen' to 'chosen'"):
        read_preference({"user": "u", "prompt": "p", "choosen": "a", "rejected": "b"})
    # Without this, the row would pass for one with an implicit, empty prompt.
    with pytest.raises(RowError, match="Rename 'promt' to 'prompt'"):
        read_preference({"user": "u", "promt": "p", "chosen": "a", "rejected": "b"})


def test_identical_responses_are_a_tie():
    assert read_preference({**ROW, "rejected": "a"}).is_tie


def test_half_a_surrogate_pair_becomes_a_replacement_character():
    row = read_preference({**ROW, "chosen": "x \ud83d y"})
    assert row.chosen == "x \ufffd y"
    json.dumps(as_row(row), ensure_ascii=False).encode()


HUMAN = "\n\nHuman: Colour?\n\nAssistant:"


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        # No turn in common: no prompt, and the space stays.
        ("Red ", "Blue", ("", "Red ", "Blue")),
        ("Red", "Redder", ("", "Red", "Redder")),
        (HUMAN + " Red", HUMAN + " Rose", (HUMAN, " Red", " Rose")),
        # One continues the other.
        (HUMAN + " Red", HUMAN + " Red" + HUMAN + " Blue", (HUMAN, " Red", " Red" + HUMAN + " Blue")),
        (HUMAN + " Red", HUMAN + " Red", (HUMAN, " Red", " Red")),
        # They part inside the second marker: the first one counts.
        (HUMAN + " a\n\nAssistant: b", HUMAN + " a\n\nAssistance", (HUMAN, " a\n\nAssistant: b", " a\n\nAssistance")),
        (
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>",
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHe<|im_end|>",
            ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "Ho<|im_end|>", "He<|im_end|>"),
        ),
        ("<|im_start|>assis", "<|im_start|>assistant\n", ("", "<|im_start|>assis", "<|im_start|>assistant\n")),
        ("", "", ("", "", "")),
    ],
)
def test_implicit_prompt_of_strings(chosen, rejected, expected):
    assert split_texts(chosen, rejected) == expected


SHARED = [turn("user", "1"), turn("assistant", "2"), turn("user", "3")]
PROMPT = (Message("user", "1"), Message("assistant", "2"), Message("user", "3"))


@pytest.mark.parametrize("prompt", [None, SHARED, "3"])
def test_implicit_prompt_of_messages_keeps_every_shared_turn(prompt):
    row = {"user": "u", "chosen": [*SHARED, turn("assistant", "a")], "rejected": [*SHARED, turn("assistant", "b")]}
    row |= {} if prompt is None else {"prompt": prompt}
    assert read_preference(row) == Preference(user="u", prompt=PROMPT, chosen="a", rejected="b")


def test_identical_message_lists_keep_their_last_message_as_response():
    row = read_preference({"user": "u", "chosen": SHARED, "rejected": SHARED})
    assert (row.prompt, row.chosen, row.rejected, row.is_tie) == (PROMPT[:2], "3", "3", True)


def test_one_message_responses_with_an_explicit_prompt():
    row = {"user": "u", "prompt": SHARED, "chosen": [turn("assistant", "a")], "rejected": [turn("assistant", "b")]}
    assert read_preference(row) == Preference(user="u", prompt=PROMPT, chosen="a", rejected="b")
    assert read_preference({**row, "prompt": "plain"}).prompt == "plain"


@pytest.mark.parametrize(
    "rejected",
    [SHARED[:1], [*SHARED, turn("assistant", "b"), turn("user", "c")], [turn("user", "x"), turn("assistant", "b")]],
)
def test_conversations_that_part_before_their_last_message_are_refused(rejected):
    row = {"user": "u", "chosen": [*SHARED, turn("assistant", "a")], "rejected": rejected}
    with pytest.raises(RowError, match="last message only"):
        read_preference(row)


def test_a_prompt_that_is_not_the_shared_one_is_refused():
    row = {"user": "u", "chosen": [*SHARED, turn("assistant", "a")], "rejected": [*SHARED, turn("assistant", "b")]}
    for prompt in ("1", SHARED[:2]):
        with pytest.raises(RowError, match="Leave 'prompt' out"):
            read_preference({**row, "prompt": prompt})


def test_mixed_forms_are_refused():
    with pytest.raises(RowError, match="different forms"):
        read_preference({**ROW, "chosen": [turn("assistant", "a")]})


def test_as_row_is_read_back():
    rows = [
        Preference(user="u", prompt=PROMPT, chosen="a", rejected="b", group="g", label=0.7, margin=2.0, split="test"),
        Preference(user="u", prompt="", chosen="a", rejected="b", kind="lm_sample"),
    ]
    for row in rows:
        assert read_preference(json.loads(json.dumps(as_row(row)))) == row


def test_identities_tell_forms_and_borders_apart():
    prompts = ["ab", (Message("a", "b"),), (Message("", "ab"),), (Message("a", ""), Message("b", "")), "maab"]
    assert len({identity(prompt) for prompt in prompts}) == len(prompts)
