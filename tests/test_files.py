"""JSON files that anyone may have written, and files that are whole or absent."""

import pytest

from jaxalign import files
from jaxalign.errors import DataError, ModelError, shown
from jaxalign.files import is_number, read_json


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"{", "not valid JSON"),
        (b"\xff", "can't decode byte 0xff"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the field 'c' occurs twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5000, "Exceeds the limit"),
    ],
)
@pytest.mark.parametrize("kind", [DataError, ModelError])
def test_what_is_no_json_is_the_callers_error(tmp_path, content, message, kind):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(kind, match=message) as error:
        read_json(path, kind)
    assert str(error.value).startswith(str(path))


def test_what_cannot_be_opened_is_the_callers_error_too(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path, tmp_path / ("x" * 300)):
        with pytest.raises(DataError, match="not valid JSON"):
            read_json(path, DataError)


def test_a_byte_order_mark_makes_no_difference(tmp_path):
    (tmp_path / "file.json").write_bytes(b'\xef\xbb\xbf{"a": [1, null]}')
    assert read_json(tmp_path / "file.json", DataError) == {"a": [1, None]}


def test_numbers_are_those_that_a_float_can_hold():
    assert all(map(is_number, (0, -1, 1.5, 10**300)))
    assert not any(map(is_number, (True, None, "1", 10**400, float("nan"), float("inf"), [1])))


def test_values_are_shown_in_one_short_piece():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert shown("a\n\x1b") == r"'a\n\x1b'"
    assert shown("x" * 1000, 20) == "'" + "x" * 16 + "..."
    assert shown(deep) == "a deeply nested list"
    while deep:  # freeing it at once would recurse as deeply
        deep = deep.pop()


def test_a_name_in_an_index_leads_to_no_other_folder(tmp_path):
    """Stands for every file that names others: the index of a model's weights."""
    from jaxalign.models.weights import _index

    for name in ("../other.safetensors", "/etc/passwd", "a/b.safetensors", "", "..", 3, None):
        files.write_json(tmp_path / "index.json", {"weight_map": {"tensor": name}})
        with pytest.raises(ModelError, match="not a safetensors index"):
            _index(tmp_path / "index.json")
