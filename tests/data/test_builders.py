"""TFDS builders: prepared, read back, and the same as the source itself, in a process without TensorFlow."""

import hashlib
import subprocess
import sys

import official
import pytest

from jaxalign.cli.data import main as data_command
from jaxalign.data.builders import NAMES, prepare, read
from jaxalign.data.builders.prepare import fetch
from jaxalign.data.reader import load_completions, load_preferences, write_rows
from jaxalign.data.sources import acl, lamp, prism, tldr, ukp
from jaxalign.data.sources.source import Download
from jaxalign.errors import DataError, DownloadError, InputError

SOURCES = {
    "tldr": (official.tldr, tldr.preferences),
    "prism": (official.prism, prism.preferences),
    "lamp4": (lambda folder: official.lamp(folder, 4), lambda folder: lamp.completions(folder, 4)),
    "lamp5": (lambda folder: official.lamp(folder, 5), lambda folder: lamp.completions(folder, 5)),
    "lamp7": (lambda folder: official.lamp(folder, 7), lambda folder: lamp.completions(folder, 7)),
    "ukp": (official.ukp_xml, ukp.preferences),
    "acl_titles": (official.anthology, acl.completions),
}


def key(row):
    return repr(row)


@pytest.mark.parametrize("name", SOURCES)
def test_builder_gives_the_rows_of_its_source(tmp_path, name):
    write, rows = SOURCES[name]
    folder = write(tmp_path / "official")
    builder = prepare(name, data=folder, data_dir=tmp_path / "prepared")
    assert builder.info.name == name
    assert sorted(read(builder), key=key) == sorted(rows(folder), key=key)
    splits = {row.split or "train" for row in rows(folder)}
    assert set(builder.info.splits) == splits
    for split in splits:
        assert read(builder, split) == [row for row in rows(folder) if (row.split or "train") == split]
    assert builder.info.citation.startswith("@")


def test_builder_of_ones_own_files(tmp_path):
    rows = list(prism.preferences(official.prism(tmp_path / "prism")))
    path = tmp_path / "mine.jsonl"
    write_rows(path, rows)
    builder = prepare("preference_jsonl", data=path, data_dir=tmp_path / "prepared")
    assert read(builder) == rows
    # A changed file is prepared anew, not answered from the old one.
    write_rows(path, rows[:1])
    assert read(prepare("preference_jsonl", data=path, data_dir=tmp_path / "prepared")) == rows[:1]
    assert len(builder.as_data_source("train")) == len(rows)


def test_builder_reads_the_manual_directory_of_tfds(tmp_path):
    import tensorflow_datasets as tfds

    from jaxalign.data.builders.ukp import Ukp

    official.ukp_tables(tmp_path / "manual")
    builder = Ukp(data_dir=str(tmp_path / "prepared"))
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=tmp_path / "manual"))
    assert read(builder) == list(ukp.preferences(tmp_path / "manual"))


def test_no_tensorflow(tmp_path):
    official.prism(tmp_path / "prism")
    code = (
        "import sys; from jaxalign.data.builders import prepare, read;"
        f"read(prepare('prism', data={str(tmp_path / 'prism')!r}, data_dir={str(tmp_path / 'out')!r}));"
        "assert 'tensorflow' not in sys.modules and 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_import_of_data_is_light():
    code = (
        "import sys, jaxalign.data, jaxalign.data.builders;"
        "assert not {'jax', 'scipy', 'pyarrow', 'tensorflow_datasets', 'tyro'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_errors(tmp_path):
    with pytest.raises(InputError, match="There is no source 'tldr2'"):
        prepare("tldr2")
    with pytest.raises(DataError, match=r"conversations\.jsonl"):
        prepare("prism", data=tmp_path)
    builder = prepare("prism", data=official.prism(tmp_path / "prism"), data_dir=tmp_path / "out")
    with pytest.raises(InputError, match="has no split 'test'; it has train"):
        read(builder, "test")


@pytest.mark.parametrize("name", ["lamp4", "ukp", "acl_titles", "preference_jsonl"])
def test_sources_without_a_pinned_download_say_so(name):
    assert name in NAMES
    with pytest.raises(DownloadError, match="give their folder with --data"):
        prepare(name)


def test_fetch_checks_what_arrives(tmp_path):
    published = tmp_path / "conversations.jsonl"
    published.write_bytes(b"content")
    good = Download(name=published.name, url=published.as_uri(), sha256=hashlib.sha256(b"content").hexdigest(), size=7)
    fetch(good, tmp_path / "cache")
    assert (tmp_path / "cache" / published.name).read_bytes() == b"content"
    for content in (b"changed", b"content, and more", b"cut"):
        published.write_bytes(content)
        with pytest.raises(DownloadError, match="published are 7 bytes"):
            fetch(good, tmp_path / "other")
    published.unlink()
    with pytest.raises(DownloadError, match="cannot be reached"):
        fetch(good, tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def test_prepare_command(tmp_path, capsys):
    folder = official.ukp_tables(tmp_path / "ukp")
    out = tmp_path / "rows.jsonl.gz"
    arguments = ["prepare", "ukp", "--data", str(folder), "--data-dir", str(tmp_path / "out"), "--out", str(out)]
    assert data_command(arguments) == 0
    printed = capsys.readouterr().out
    assert "UKPConvArg1: train 5" in printed
    assert "CC BY 4.0" in printed
    assert load_preferences(out) == list(ukp.preferences(folder))
    folder = official.acl_tables(tmp_path / "acl")
    arguments = ["prepare", "acl_titles", "--data", str(folder), "--data-dir", str(tmp_path / "out"), "--out", str(out)]
    assert data_command([*arguments, "--overwrite"]) == 0
    assert load_completions(out) == list(acl.completions(folder))
