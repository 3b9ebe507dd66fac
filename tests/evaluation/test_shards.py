"""Work in shards: any interruption, any damage, and the same result in the end."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxalign.errors import DataError, InputError
from jaxalign.evaluation.folder_lock import only_run
from jaxalign.evaluation.preemption import STATUS
from jaxalign.evaluation.shards import Shards, cut

ITEMS = [f"user {i}" for i in range(10)]


def work(folder, kind="arrays", stop_after=None, items=ITEMS, **settings):
    """Computes what is unfinished; gives the shards that were computed and, when all are, the result."""
    computed = []
    settings = {"config_digest": "abc", "size": 3} | settings
    with Shards(folder, "stage", items, kind=kind, **settings) as shards:
        for shard in shards.unfinished():
            if len(computed) == stop_after:
                return computed, None
            values = np.asarray([int(item.split()[1]) for item in shard.items])
            rows = [{"user": item, "n": i} for item in shard.items for i in range(len(item) % 3)]
            shards.save(shard, {"square": values**2, "half": values / 2} if kind == "arrays" else rows)
            computed.append(shard.number)
        return computed, shards.merged()


@pytest.mark.parametrize("kind", ["arrays", "rows"])
def test_interrupted_work_is_continued_and_gives_the_same(tmp_path, kind):
    computed, whole = work(tmp_path / "whole", kind)
    assert computed == [0, 1, 2, 3]
    assert work(tmp_path / "cut", kind, stop_after=2) == ([0, 1], None)
    computed, merged = work(tmp_path / "cut", kind)
    assert computed == [2, 3]
    assert work(tmp_path / "cut", kind)[0] == []
    if kind == "rows":
        assert merged == whole == [{"user": u, "n": i} for u in ITEMS for i in range(len(u) % 3)]
        return
    np.testing.assert_array_equal(merged["square"], np.arange(10) ** 2)
    for name in whole:
        np.testing.assert_array_equal(merged[name], whole[name])
    # Byte by byte, too.
    for file in (tmp_path / "whole/stage").iterdir():
        assert (tmp_path / "cut/stage" / file.name).read_bytes() == file.read_bytes()


def _flip(data):
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("00001.safetensors", lambda data: data[:-5], "bytes of"),
        ("00001.safetensors", _flip, "checksum"),
        ("00001.safetensors", None, "missing"),
        ("00001.json", lambda data: data[:7], "cannot be read"),
        ("00001.json", lambda data: data.replace(b"abc", b"xyz"), "another config"),
        ("00001.json", None, ""),
    ],
)
def test_damaged_parts_are_named_and_computed_again(tmp_path, caplog, name, damage, said):
    _, whole = work(tmp_path)
    file = tmp_path / "stage" / name
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    shards = Shards(tmp_path, "stage", ITEMS, kind="arrays", config_digest="abc", size=3)
    with pytest.raises(DataError, match=r"00001\.safetensors.*run the same command again"):
        shards.merged()
    computed, merged = work(tmp_path)
    assert computed == [1]
    assert bool(said) == ("00001.safetensors" in caplog.text)
    assert said in caplog.text
    np.testing.assert_array_equal(merged["half"], whole["half"])


def test_another_config_other_items_and_other_cuts_are_refused(tmp_path):
    work(tmp_path)
    with pytest.raises(InputError, match="config: abc there, other now"):
        work(tmp_path, config_digest="other")
    for change in ({"items": ITEMS[::-1]}, {"items": ITEMS[:-1]}, {"size": 4}, {"costs": [9] + [1] * 9}):
        with pytest.raises(InputError, match="items:"):
            work(tmp_path, **change)
    with pytest.raises(InputError, match="'a' is there twice"):
        work(tmp_path, items=["a", "b", "a"])
    with pytest.raises(InputError, match="one finite"):
        work(tmp_path, costs=[1.0])


def test_results_of_the_wrong_form(tmp_path):
    with Shards(tmp_path, "s", ITEMS, kind="arrays", config_digest="", size=10) as shards:
        shard = shards.all[0]
        with pytest.raises(ValueError, match=r"shape \(3,\).*10 items"):
            shards.save(shard, {"x": np.zeros(3)})
        with pytest.raises(ValueError, match="must be arrays"):
            shards.save(shard, [{"x": 1}])
        with pytest.raises(RuntimeError, match="shard 0 was not saved"):
            list(shards.unfinished())
    with Shards(tmp_path, "r", ITEMS, kind="rows", config_digest="", size=10) as shards:
        with pytest.raises(ValueError, match="not JSON compliant"):
            shards.save(shards.all[0], [{"x": float("nan")}])
        shards.save(shards.all[0], [{"x": "\ud800 and\u2028more"}])
        assert shards.merged() == [{"x": "? and\u2028more"}]


def test_no_items(tmp_path):
    assert work(tmp_path, items=[])[1] == {}
    assert work(tmp_path / "rows", "rows", items=[])[1] == []


@settings(max_examples=80, deadline=None)
@given(costs=st.lists(st.integers(0, 9), max_size=40), size=st.integers(1, 9))
def test_cuts_cover_all_items_in_order(costs, size):
    edges = cut(costs, size)
    assert [i for a, b in edges for i in range(a, b)] == list(range(len(costs)))
    assert all(b > a for a, b in edges)
    assert len(edges) <= -(-len(costs) // size) + 1


def test_cuts_by_cost():
    assert cut([1] * 6, 2) == [(0, 2), (2, 4), (4, 6)]
    assert cut([4, 1, 1, 1, 1], 3) == [(0, 1), (1, 5)]


SLOW = """
    import sys, time
    from pathlib import Path
    from jaxalign.evaluation.shards import Shards
    from jaxalign.errors import JaxalignError

    try:
        with Shards(Path(sys.argv[1]), "stage", list("abcdef"), kind="rows", config_digest="", size=2, grace=0.3) as s:
            for shard in s.unfinished():
                print("at", shard.number, flush=True)
                if sys.argv[2] == "patient":
                    sys.stdin.readline()
                else:
                    time.sleep(60)
                s.save(shard, [{"item": item} for item in shard.items])
            print(s.merged())
    except JaxalignError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
"""


def start(folder, how):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW), str(folder), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_runs_on_one_folder_and_the_lock_of_a_dead_one(tmp_path):
    first = start(tmp_path, "stuck")
    assert first.stdout.readline() == "at 0\n"
    said = rf"in use by another run \(host .*, pid {first.pid}, since"
    with pytest.raises(InputError, match=said), only_run(tmp_path):
        pass
    first.kill()
    first.communicate()
    with only_run(tmp_path), only_run(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == ""


def test_sigterm_gives_up_a_shard_that_takes_too_long(tmp_path):
    run = start(tmp_path, "stuck")
    assert run.stdout.readline() == "at 0\n"
    run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=120)
    assert run.returncode == STATUS
    assert "stopping after shard 0 of stage, or in 0.3 s without it" in said
    assert "shard 0 of stage is given up" in said
    assert sorted(os.listdir(tmp_path / "stage")) == ["manifest.json"]


def test_sigterm_finishes_the_shard_at_hand(tmp_path):
    run = start(tmp_path, "patient")
    assert run.stdout.readline() == "at 0\n"
    run.send_signal(signal.SIGTERM)
    assert "stopping after shard 0" in run.stderr.readline()
    _, said = run.communicate("\n", timeout=120)
    assert run.returncode == STATUS
    assert re.search("1 of 3 shards of stage .* are finished and saved; the same command continues", said)
    assert json.loads((tmp_path / "stage/00000.jsonl").read_text().split("\n")[0]) == {"item": "a"}
    again = start(tmp_path, "patient")
    out, _ = again.communicate("\n\n\n", timeout=120)
    assert out.startswith("at 1\nat 2\n[{'item': 'a'}")
