"""The cache of features: whole or absent, checked, shared by processes, keyed by all that matters."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from jaxalign.data.feature_cache import FeatureCache, Origin, text_key
from jaxalign.data.prompts import Message
from jaxalign.errors import DataError

ORIGIN = Origin(model="m", tokenizer="t", template="c")


def arrays(*numbers):
    return {
        "last": np.array([[n, n + 0.5] for n in numbers], np.float32),
        "tokens": np.array(numbers, np.int64),
    }


def keys(*numbers):
    return [text_key("p", f"text {n}") for n in numbers]


def test_what_is_put_is_got_in_any_order(tmp_path):
    cache = FeatureCache(tmp_path, ORIGIN)
    assert cache.missing(keys(1, 2, 1, 3)) == [0, 1, 3]
    cache.put(keys(1, 2), arrays(1, 2))
    cache.put(keys(3), arrays(3))
    for reader in (cache, FeatureCache(tmp_path, ORIGIN)):
        assert reader.missing(keys(1, 2, 3)) == []
        assert len(reader) == 3
        got = reader.get(keys(3, 1, 1, 2))
        for name, expected in arrays(3, 1, 1, 2).items():
            np.testing.assert_array_equal(got[name], expected)
            assert got[name].dtype == expected.dtype
    with pytest.raises(KeyError):
        cache.get(keys(9))


def test_each_part_of_the_origin_is_part_of_the_key(tmp_path):
    FeatureCache(tmp_path, ORIGIN).put(keys(1), arrays(1))
    for field in dataclasses.fields(Origin):
        other = dataclasses.replace(ORIGIN, **{field.name: "other"})
        assert FeatureCache(tmp_path, other).missing(keys(1)) == [0]


def test_keys_tell_texts_apart():
    chat = (Message("user", "p"),)
    texts = [("p", "a"), ("pa", ""), ("p", "b"), (chat, "a"), ("", "pa"), ("p", "a "), ("p", "\ud83d")]
    assert len({text_key(*text) for text in texts}) == len(texts)
    assert text_key("p", "a") == text_key("p", "a")


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-3], lambda b: b[:20], lambda b: b"", lambda b: b[:-1] + b"\xff", lambda b: b"x" + b]
)
def test_a_damaged_file_is_set_aside_and_made_again(tmp_path, damage, caplog):
    cache = FeatureCache(tmp_path, ORIGIN)
    cache.put(keys(1), arrays(1))
    cache.put(keys(2), arrays(2))
    path = next(path for path in cache.folder.glob("*.features") if len(path.read_bytes()))
    path.write_bytes(damage(path.read_bytes()))
    again = FeatureCache(tmp_path, ORIGIN)
    assert len(again.missing(keys(1, 2))) == 1
    assert "damaged" in caplog.text
    again.put(keys(1, 2), arrays(1, 2))
    np.testing.assert_array_equal(FeatureCache(tmp_path, ORIGIN).get(keys(1, 2))["last"], arrays(1, 2)["last"])


def test_a_write_that_was_killed_leaves_nothing(tmp_path, monkeypatch):
    cache = FeatureCache(tmp_path, ORIGIN)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        cache.put(keys(1), arrays(1))
    monkeypatch.undo()
    assert FeatureCache(tmp_path, ORIGIN).missing(keys(1)) == [0]


def test_what_cannot_be_kept_is_refused(tmp_path):
    cache = FeatureCache(tmp_path, ORIGIN)
    with pytest.raises(DataError, match="1 rows of 'last' were given for 2 texts"):
        cache.put(keys(1, 2), arrays(1))
    with pytest.raises(DataError, match="not finite"):
        cache.put(keys(1), {"last": np.array([[np.nan]])})
    assert cache.missing(keys(1)) == [0]


def test_refresh_sees_what_others_have_finished(tmp_path):
    first, second = FeatureCache(tmp_path, ORIGIN), FeatureCache(tmp_path, ORIGIN)
    first.put(keys(1), arrays(1))
    assert second.missing(keys(1)) == [0]
    second.refresh()
    assert second.missing(keys(1)) == []
    second.put(keys(1), arrays(1))  # the same again does no harm


def test_two_processes_over_one_cache(tmp_path):
    code = """
import sys, numpy as np
from jaxalign.data.feature_cache import FeatureCache, Origin, text_key
cache = FeatureCache(sys.argv[1], Origin(model="m", tokenizer="t", template="c"))
for n in range(0, 200, 5):
    numbers = range(n, n + 5)
    cache.put([text_key("p", f"text {n}") for n in numbers],
              {"last": np.array([[n, n + 0.5] for n in numbers], np.float32), "tokens": np.array(numbers, np.int64)})
"""
    runs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    cache = FeatureCache(tmp_path, ORIGIN)
    got = cache.get(keys(*range(200)))
    np.testing.assert_array_equal(got["last"], arrays(*range(200))["last"])
