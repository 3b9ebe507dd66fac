"""Files of every form: bytes that make no difference, and bytes that are refused with their line."""

import contextlib
import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxalign.data import reader
from jaxalign.data.reader import load_completions, load_preferences, rows_of, write_rows
from jaxalign.data.row_error import RowError
from jaxalign.data.schema import Completion, Preference
from jaxalign.errors import DataError, JaxalignError

ROWS = [
    {"user": "a", "prompt": "p", "chosen": "x", "rejected": "y"},
    {
        "user": "b",
        "prompt": "p",
        "chosen": "\u4f60\u597d \u0645\u0631\u062d\u0628\u0627",
        "rejected": "y",
        "group": "g",
    },
    {"user": "a", "chosen": "x", "rejected": "z", "label": 0.5, "note": 1},
]
LINES = [json.dumps(row, ensure_ascii=False) for row in ROWS]


@pytest.fixture
def write(tmp_path):
    def write(content, name="rows.jsonl"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def expected(write):
    return load_preferences(write("\n".join(LINES) + "\n", "plain.jsonl"))


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + ("\n".join(LINES) + "\n").encode(),
        "\r\n".join(LINES) + "\r\n",
        "\n".join(LINES),
        "\n\n" + "\n \n".join(LINES) + "\n\n\n",
        b"\xef\xbb\xbf" + "\r\n\r\n".join(LINES).encode(),
    ],
    ids=["bom", "windows", "no final newline", "blank lines", "all of them"],
)
def test_the_same_rows_however_they_are_saved(write, expected, content):
    assert load_preferences(write(content)) == expected
    assert (
        load_preferences(
            write(gzip.compress(content if isinstance(content, bytes) else content.encode()), "r.jsonl.gz")
        )
        == expected
    )


def test_parquet(tmp_path, expected):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    # One column for all rows: the absent group and label of a row are null there.
    table = pyarrow.Table.from_pylist([{**dict.fromkeys(("prompt", "group", "label")), **row} for row in ROWS])
    pyarrow.parquet.write_table(table, path)
    assert load_preferences(path) == expected


def test_parquet_with_messages(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    chosen, rejected = ([{"role": "user", "content": "q"}, {"role": "assistant", "content": c}] for c in "ab")
    table = pyarrow.Table.from_pylist([{"user": 7, "chosen": chosen, "rejected": rejected}])
    pyarrow.parquet.write_table(table, path)
    (row,) = load_preferences(path)
    assert (row.user, row.prompt[0].content, row.chosen, row.rejected) == ("7", "q", "a", "b")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"user": "a", "prompt": "p", "chosen": "x", "rejec', "cut off"),
        (b'{"user": "a",\x00\x00', "NUL"),
        (b'{"user": "\xff"}', "not UTF-8 at byte 11"),
        (b'{"user": "a", "user": "b"}', "field 'user': occurs twice"),
        (b"[1]", "not a JSON object"),
        (b"nonsense\n", "not JSON"),
        (b"[" * 100_000, "nested too deeply|cut off|not JSON"),
        (b'{"user": ' + b"9" * 5000 + b"}", "not JSON|cut off"),
    ],
)
def test_what_cannot_be_read_is_refused_by_line(write, line, message):
    path = write(LINES[0].encode() + b"\n\n" + line)
    with pytest.raises(RowError, match=message) as error:
        load_preferences(path)
    assert error.value.line == 3
    assert str(error.value).startswith("rows.jsonl, line 3")


def test_a_long_line_is_read_and_an_endless_one_refused(write, monkeypatch):
    long = json.dumps({**ROWS[0], "chosen": "x" * 10_000_000})
    path = write("\n".join([long, *LINES]))
    assert len(load_preferences(path)[0].chosen) == 10_000_000
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 1000)
    read = list(rows_of(path))
    assert "longer than" in str(read[0][1])
    assert [line for line, _ in read] == [1, 2, 3, 4]
    assert [row for _, row in read[1:]] == ROWS


def test_other_rows_survive_invalid_ones_when_asked(write, expected, caplog):
    path = write("\n".join([LINES[0], "{", LINES[1], '{"user": 1}', LINES[2]]))
    with pytest.raises(RowError):
        load_preferences(path)
    assert load_preferences(path, drop_invalid=True) == expected
    assert "2 rows were dropped" in caplog.text


def test_half_surrogate_escape_does_not_kill_the_file(write, tmp_path):
    path = write("\n".join([json.dumps({**ROWS[0], "chosen": "bad \ud83d"}), LINES[1]]))
    rows = load_preferences(path)
    assert [row.chosen for row in rows] == ["bad \ufffd", ROWS[1]["chosen"]]
    write_rows(tmp_path / "out.jsonl", rows)
    assert load_preferences(tmp_path / "out.jsonl") == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", b"", "no valid row"),
        ("rows.jsonl", b"\n\n", "no valid row"),
        ("rows.jsonl", "{}".encode("utf-16"), "UTF-16"),
        ("rows.txt", b"", "no known ending"),
        ("rows.jsonl.gz", gzip.compress(LINES[0].encode() * 1000)[:-20], "damaged or cut off"),
        ("rows.jsonl.gz", b"{}", "damaged or cut off"),
        ("rows.parquet", b"{}", "cannot be read as Parquet"),
        ("rows.json", b"[\n {}\n]", "one JSON array"),
    ],
)
def test_files_that_cannot_be_used(write, name, content, message):
    with pytest.raises(DataError, match=message):
        load_preferences(write(content, name))


def test_missing_file_and_wrong_folder(tmp_path):
    with pytest.raises(DataError, match="There is no file"):
        load_preferences(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match=r"arguments\.jsonl and votes\.csv"):
        load_preferences(tmp_path)
    with pytest.raises(DataError, match=r"papers\.jsonl and authorship\.csv"):
        load_completions(tmp_path)


def test_write_and_read(tmp_path):
    rows = [
        Preference(user="u", prompt="p\n\u2028", chosen="a\0", rejected="b"),
        Preference(user="v", prompt="", chosen="c", rejected="d"),
    ]
    for name in ("out.jsonl", "out.jsonl.gz"):
        write_rows(tmp_path / name, rows)
        assert load_preferences(tmp_path / name) == rows
    texts = [Completion(user="u", prompt="p", completion="c")]
    write_rows(tmp_path / "texts.jsonl", texts)
    assert load_completions(tmp_path / "texts.jsonl") == texts


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_rows_or_a_typed_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "rows.jsonl"
    path.write_bytes(content)
    with contextlib.suppress(JaxalignError):
        load_preferences(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


FIELDS = ["user", "prompt", "chosen", "rejected", "label", "margin", "group", "split", "kind", "promt"]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_any_object_gives_a_row_or_a_typed_error(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("fuzz") / "rows.jsonl"
    path.write_text(json.dumps(value), encoding="utf-8")
    try:
        (row,) = load_preferences(path)
    except RowError:
        return
    write_rows(path, [row])
    assert load_preferences(path) == [row]
