"""`jaxalign env`: complete, machine-readable on request, and silent about secrets."""

import json

import jax
import pytest

from jaxalign import __version__, cli, files


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "a").write_bytes(b"x" * 1500)
    (folder / "b").write_bytes(b"x" * 500)
    monkeypatch.setenv(files.CACHE_VARIABLE, str(folder))
    return folder


def test_json(cache, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hidden-value")
    monkeypatch.setenv("TFDS_DATA_DIR", "some_folder")
    monkeypatch.setenv("UNRELATED", "1")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(cache / "nowhere"))
    assert cli.main(["env", "--json"]) == 0
    text = capsys.readouterr().out
    assert "hidden-value" not in text
    report = json.loads(text)
    assert report["versions"]["jaxalign"] == __version__
    assert report["versions"]["jax"] == jax.__version__
    assert {"python", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy"} <= report[
        "versions"
    ].keys()
    assert report["devices"] == {"backend": jax.default_backend(), "processes": 1, "kinds": {"cpu": 8}}
    assert report["caches"]["jaxalign"] == {"path": str(cache), "bytes": 2000}
    assert report["caches"]["compiled programs"]["bytes"] is None
    assert report["variables"]["HF_TOKEN"] == "(set)"
    assert report["variables"]["TFDS_DATA_DIR"] == "some_folder"
    assert "UNRELATED" not in report["variables"]


def test_table(cache, capsys):
    assert cli.main(["env"]) == 0
    text = capsys.readouterr().out
    assert "8 x cpu" in text
    assert f"{cache} (0.0 MB)" in text
    for section in ("versions", "system", "devices", "caches", "variables"):
        assert f"\n{section}\n" in "\n" + text


def test_devices_that_cannot_be_listed_do_not_hide_the_rest(monkeypatch, capsys):
    def fail():
        raise RuntimeError("the TPU is in use by process 12")

    monkeypatch.setattr(jax, "devices", fail)
    assert cli.main(["env"]) == 1
    text = capsys.readouterr().out
    assert "RuntimeError: the TPU is in use by process 12" in text
    assert f"jaxalign             {__version__}" in text
