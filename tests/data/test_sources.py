"""Each source on files in its exact official layout."""

import json

import official
import pytest

from jaxalign.data.prompts import Message
from jaxalign.data.schema import Completion, Preference
from jaxalign.data.sources import acl, lamp, prism, tldr, ukp
from jaxalign.errors import DataError

POST = "SUBREDDIT: r/pets\n\nTITLE: Cats?\n\nPOST: My cat sleeps.\n\nTL;DR:"


def test_tldr(tmp_path):
    rows = list(tldr.preferences(official.tldr(tmp_path)))
    # batch10 sorts before batch3; news and empty summaries are left out.
    assert [(row.user, row.group, row.split, row.chosen) for row in rows] == [
        ("w1", "t3_2", "validation", " cats sleep"),
        ("w2", "t3_3", "validation", " dogs run"),
        ("w1", "t3_3", "train", "s"),
        ("w1", "t3_1", "train", " dogs run"),
        ("w2", "t3_1", "train", " cats sleep"),
        ("w1", "t3_9", "train", " dogs run"),
    ]
    assert rows[0].prompt == POST
    assert [row.is_tie for row in rows] == [False, False, True, False, False, False]


def test_tldr_parquet_copy(tmp_path):
    import pyarrow
    import pyarrow.parquet

    for part in ("train", "validation"):
        row = official.comparison()
        row.pop("split")
        path = tmp_path / f"summarize_from_feedback_comparisons-{part}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    assert [(row.split, row.chosen) for row in tldr.preferences(tmp_path)] == [
        ("train", " dogs run"),
        ("validation", " dogs run"),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choice": 2}, "batch3.json, line 1, field 'choice': is 2 of 2"),
        ({"worker": None}, "line 1, field 'worker'"),
        ({"split": "dev"}, "line 1, field 'split'"),
        ({"summaries": []}, "is 1 of 0"),
    ],
)
def test_tldr_in_another_layout_is_refused(tmp_path, change, message):
    official.write_lines(tmp_path / "batch3.json", [{**official.comparison(), **change}])
    with pytest.raises(DataError, match=message):
        list(tldr.preferences(tmp_path))


def test_prism(tmp_path):
    rows = list(prism.preferences(official.prism(tmp_path)))
    first = (Message("user", "Hello?"),)
    second = (*first, Message("assistant", "Hello!"), Message("user", "Tell me more."))
    common = {"user": "user1", "group": "c1"}
    assert rows == [
        Preference(**common, prompt=first, chosen="Hello!", rejected="Hi.", margin=0.5),
        Preference(**common, prompt=first, chosen="Hello!", rejected="Yes?", margin=0.0),
        Preference(**common, prompt=second, chosen="More.", rejected="Less.", margin=0.5),
        Preference(user="user2", group="c2", prompt=first, chosen="Hello!", rejected="Hi.", margin=0.5),
    ]


@pytest.mark.parametrize("nested", [False, True])
def test_lamp4(tmp_path, nested):
    rows = list(lamp.completions(official.lamp(tmp_path, 4, nested), 4))
    assert [(row.user, row.split, row.completion) for row in rows] == [
        (user, split, text)
        for user, own in (("train-01", "0"), ("train-11", "1"), ("dev-01", "0"))
        for split, text in (("support", "Wet Day"), ("support", "Open At Last"), ("query", f"Own Words {own}"))
    ]
    assert rows[2].prompt == "Write a headline for the following article.\n\nThe bridge is open."
    # The article is also in the profile, with other white space: one group, so the recipe keeps it out of the history.
    assert rows[1].group == rows[2].group != rows[0].group


def test_lamp5_and_7(tmp_path):
    rows = list(lamp.completions(official.lamp(tmp_path / "5", 5), 5, part="validation"))
    assert [(row.split, row.completion) for row in rows] == [
        ("support", "Parsing"),
        ("support", "Tagging"),
        ("query", "Own Words 0"),
    ]
    rows = list(lamp.completions(official.lamp(tmp_path / "7", 7), 7, part="validation"))
    assert [(row.split, row.completion) for row in rows] == [
        ("support", "so tired"),
        ("support", "coffee first"),
        ("query", "Own Words 0"),
    ]
    assert rows[-1].prompt.endswith("\n\ngood morning all")


def test_lamp_errors(tmp_path):
    folder = official.lamp(tmp_path, 4)
    with pytest.raises(DataError, match="not of task LaMP_5"):
        list(lamp.completions(folder, 5))
    (folder / "train_outputs.json").write_text('{"task": "LaMP_4", "golds": []}', encoding="utf-8")
    (folder / "dev_outputs.json").write_text(
        '{"task": "LaMP_4", "golds": [{"id": "9", "output": "x"}]}', encoding="utf-8"
    )
    with pytest.raises(DataError, match="question 01: there is no output"):
        list(lamp.completions(folder, 4, part="validation"))
    (folder / "dev_outputs.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="not valid JSON"):
        list(lamp.completions(folder, 4, part="validation"))
    (folder / "dev_outputs.json").unlink()
    with pytest.raises(DataError, match="lacks dev_outputs"):
        list(lamp.completions(folder, 4))


def test_ukp_both_layouts_give_the_same_rows(tmp_path):
    rows = list(ukp.preferences(official.ukp_xml(tmp_path / "xml")))
    assert rows == list(ukp.preferences(official.ukp_tables(tmp_path / "tables")))
    assert [(row.user, row.chosen, row.label) for row in rows] == [
        ("A1", "Tea is calm & warm.", 1.0),
        ("A2", "Tea is cheap.", 1.0),
        ("A3", "Tea is calm & warm.", 0.5),
        ("A1", "Tea is cheap.", 1.0),
        ("A2", "Tea is cheap.", 0.5),
    ]
    # Arguments 2 and 3 have one text: the pairs 1-2 and 3-1 are one group.
    assert len({row.group for row in rows[:4]}) == 1
    assert "Tea or coffee?" in rows[0].prompt


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("votes.csv", "user,argument_1,argument_2,vote\nA,1,9,1\n", "votes.csv, line 2, field 'argument_2': is '9'"),
        ("votes.csv", "user,argument_1,argument_2,vote\nA,1,2,3\n", "line 2, field 'vote': is '3'"),
        ("votes.csv", "user,vote\n", "no column argument_1, argument_2"),
        ("arguments.jsonl", '{"id": 1, "topic": "t"}\n', "line 1, field 'title'"),
        ("arguments.jsonl", "{\n", "line 1: is not JSON"),
    ],
)
def test_ukp_errors(tmp_path, file, text, message):
    folder = official.ukp_tables(tmp_path)
    (folder / file).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        list(ukp.preferences(folder))


def test_ukp_xml_errors(tmp_path):
    path = official.ukp_xml(tmp_path) / "tea-or-coffee_yes.xml"
    good = path.read_text(encoding="utf-8")
    for bad, message in [
        (good[:200], "is not XML"),
        (good.replace("<value>a2", "<value>a3"), "value is 'a3'"),
        (good.replace("<stance>Yes</stance>", "", 1), "arg1/stance is missing"),
        ("<list/>", "holds no annotatedArgumentPair"),
    ]:
        path.write_text(bad, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            list(ukp.preferences(tmp_path))


def test_anthology_xml(tmp_path):
    rows = list(acl.completions(official.anthology(tmp_path)))
    assert {row.user for row in rows} == {"Ann Lee", "bo-li-2"}
    assert len(rows) == 18
    assert len({row.group for row in rows}) == 15
    prompt = acl.prompt_for("We study words.")
    assert rows[0] == Completion(user="Ann Lee", prompt=prompt, completion="On Words 1", group="2020.acl-main.1")
    everyone = list(acl.completions(tmp_path, first_year=2000, min_papers=1))
    assert {row.user for row in everyone} == {"Ann Lee", "bo-li-2", "Cy"}
    assert "P15-1001" in {row.group for row in everyone}


def test_acl_tables(tmp_path):
    rows = list(acl.completions(official.acl_tables(tmp_path)))
    assert [row.completion for row in rows] == [f"T{n}" for n in range(1, 9)]
    assert {row.user for row in rows} == {"a0"}  # a1 has one paper
    with (tmp_path / "authorship.csv").open("a", encoding="utf-8") as file:
        file.write("a1,unknown,1\n")
    with pytest.raises(DataError, match="line 12, field 'paper': is 'unknown'"):
        list(acl.completions(tmp_path))


@pytest.mark.parametrize(
    ("read", "files"),
    [
        (tldr.preferences, r"batch\*\.json"),
        (prism.preferences, r"conversations\.jsonl"),
        (lambda folder: lamp.completions(folder, 4), r"train_questions\.json and train_outputs\.json"),
        (ukp.preferences, r"arguments\.jsonl and votes\.csv, or \*\.xml"),
        (acl.completions, r"papers\.jsonl and authorship\.csv, or \*\.xml"),
    ],
)
def test_a_wrong_folder_is_told_what_was_expected(tmp_path, read, files):
    with pytest.raises(DataError, match=files):
        list(read(tmp_path))
    with pytest.raises(DataError, match="is no folder"):
        list(read(tmp_path / "absent"))
    (tmp_path / "readme.txt").write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match=r"holds readme\.txt"):
        list(read(tmp_path))


def test_sources_state_where_they_come_from():
    for source in (tldr.SOURCE, prism.SOURCE, ukp.SOURCE, acl.SOURCE, *(task.source for task in lamp.TASKS.values())):
        assert source.licence
        assert source.citation.startswith("@")
        assert source.homepage.startswith("https://")
        for download in source.downloads:
            assert download.url.endswith(download.name)
            assert len(bytes.fromhex(download.sha256)) == 32


def test_objects_that_are_none(tmp_path):
    (tmp_path / "conversations.jsonl").write_text(json.dumps([1]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1: is not a JSON object"):
        list(prism.preferences(tmp_path))
