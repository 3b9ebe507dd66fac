"""`jaxalign fit`, `adapt` and `methods` on a tiny random language model: what they write, print and refuse."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxalign import cli, files
from jaxalign.rewards import export

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny

WORDS = ("red", "blue", "a longer answer", "no", "yes indeed")


def row(user, prompt, chosen, rejected, **more):
    return {"user": user, "prompt": prompt, "chosen": chosen, "rejected": rejected, **more}


def write(path, rows):
    path.write_text("".join(json.dumps(line) + "\n" for line in rows))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder, and pairs of three users with their splits."""
    from jaxalign.models.config import DecoderConfig

    root = tmp_path_factory.mktemp("fit")
    config = DecoderConfig(
        family="llama",
        vocab_size=258,
        hidden_size=16,
        intermediate_size=24,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        max_position=64,
        rope_theta=10000.0,
        tie_embeddings=True,
    )
    tiny.save(root / "lm", config, bos_token_id=0, eos_token_id=1)
    tiny.save_tokenizer(root / "lm")
    rows = []
    for user in ("ann", "bob", "cy"):
        for number in range(12):
            first, second = WORDS[number % 5], WORDS[(number * 2 + 1) % 5]
            if first != second:
                split = "validation" if number % 4 == 0 else "train"
                rows.append(row(user, f"Q{number % 3}", first, second, split=split))
    write(root / "pairs.jsonl", rows)
    return root


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    """Caches in a temporary folder."""
    monkeypatch.setenv(files.CACHE_VARIABLE, str(tmp_path / "cache"))


def test_fit_then_adapt(folder, tmp_path, capsys):
    arguments = ["--model", str(folder / "lm"), "--data", str(folder / "pairs.jsonl"), "--set", "steps=5", "rank=2"]
    fitted = ["fit", *arguments, "--method", "lore", "--grid", "strength=0.1,1.0", "--out", str(tmp_path / "m")]
    assert cli.main(fitted) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["method"] == "lore"
    assert summary["chosen"].keys() == {"strength"}
    assert 0.0 <= summary["train"]["macro"] <= 1.0
    model = export.load(tmp_path / "m")
    assert model.users == ("ann", "bob", "cy")
    assert model.method.rank == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert cli.main(fitted) == 2
    assert "--overwrite" in capsys.readouterr().err

    support = write(tmp_path / "support.jsonl", [row("dee", "Q0", "red", "blue")])
    adapt = ["adapt", "--model", str(folder / "lm"), "--rewards", str(tmp_path / "m"), "--data", support]
    assert cli.main([*adapt, "--users", "eve", "dee", "--out", str(tmp_path / "a")]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["user"], line["pairs"]) for line in lines] == [("dee", 1), ("eve", 0)]
    assert lines[1]["accuracy"] is None
    adapted = export.load(tmp_path / "a", model.backbone)
    assert adapted.users == ("dee", "eve")
    jax.tree.map(np.testing.assert_array_equal, adapted.user("eve"), model.prior)


def test_requests_that_cannot_be_carried_out(folder, tmp_path, capsys):
    base = ["fit", "--model", str(folder / "lm"), "--data", str(folder / "pairs.jsonl"), "--out", str(tmp_path / "m")]
    for more, words in (
        (["--method", "lroe"], "Did you mean 'lore'"),
        (["--set", "rank"], "'rank' is not name=value"),
        (["--set", "rank=many"], "many is not a number"),
        (["--grid", "strength=1,x"], "not a list of numbers"),
        (["--validation", "1.5"], "share of the groups"),
    ):
        assert cli.main([*base, *more]) == 2
        assert words in capsys.readouterr().err
    only = write(tmp_path / "only.jsonl", [row("ann", "Q", "a", "b", split="test")])
    assert cli.main(["fit", "--model", "x", "--data", only, "--out", str(tmp_path / "m")]) == 2
    assert "no rows to fit on" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_methods_are_listed_and_described(capsys):
    assert cli.main(["methods"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("reference", "per_user", "gpo"))
    assert cli.main(["methods", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"name", "hyper", "loss", "summary", "cost", "grid", "from"} == lines[0].keys()
    assert cli.main(["methods", "--name", "lore"]) == 0
    assert "arXiv 2504.14439" in capsys.readouterr().out
    assert cli.main(["methods", "--name", "nothing"]) == 2
