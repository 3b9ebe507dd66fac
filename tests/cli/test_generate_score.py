"""`jaxalign generate` and `jaxalign score` from files to lines."""

import json

import numpy as np
import pytest
import tiny

from jaxalign import cli

CONFIG = tiny._config("llama", vocab_size=258, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, max_position=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with its tokenizer, a reward head, and three prompts of ids."""
    folder = tmp_path_factory.mktemp("lm")
    tiny.save_tokenizer(tiny.save(folder / "lm", CONFIG))
    np.save(folder / "head.npy", np.random.default_rng(0).standard_normal(32).astype(np.float32))
    prompts = tiny.tokens(CONFIG, 3, 5)
    (folder / "p.jsonl").write_text("".join(json.dumps({"ids": row.tolist()}) + "\n" for row in prompts))
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    def run(command, *arguments, status=0):
        flags = ["--model", str(folder / "lm"), "--reward-head", str(folder / "head.npy"), *map(str, arguments)]
        assert cli.main([command, *flags]) == status
        out, err = capsys.readouterr()
        return [json.loads(line) for line in out.splitlines()] if status == 0 else err

    return run


@pytest.mark.slow
def test_the_best_of_several_has_the_larger_reward(run, folder):
    settings = ["--prompts", folder / "p.jsonl", "--max-new-tokens", 8, "--ignore-eos", "--records"]
    best = run("generate", *settings, "--best-of", 4, "--block", 4, "--seed", 3)
    first = run("generate", *settings, "--best-of", 1, "--seed", 3)
    assert [line["stop_reason"] for line in best] == ["length"] * 3
    assert all(a["reward"][3] >= b["reward"][3] for a, b in zip(best, first, strict=True))
    assert [line["tokens"] for line in best] != [line["tokens"] for line in first]


def test_flags_that_do_not_go_together(run, folder):
    settings = ["--prompts", folder / "p.jsonl"]
    assert "--block goes with --best-of" in run("generate", *settings, "--block", 4, status=2)
    message = run("generate", *settings, "--best-of", 2, "--temperature", 0, status=2)
    assert "temperature = 0 in row 0: all samples would be equal" in message


@pytest.mark.slow
def test_sums_over_given_responses_of_the_real_model(smollm2, shared, tmp_path, monkeypatch, capsys):
    cases = json.loads((shared / "golden" / "smollm2_135m_policy.json").read_text())["cases"]
    lines = [json.dumps({"prompt": case["prompt"], "response": case["response"]}) + "\n" for case in cases]
    (tmp_path / "r.jsonl").write_text("".join(lines))
    np.save(tmp_path / "head.npy", (np.random.RandomState(1).randn(576) * 0.05).astype(np.float32))
    for weight in (0.5, 2.0):
        flags = ["--model", smollm2.name, "--reward-head", str(tmp_path / "head.npy"), "--weight", str(weight)]
        assert cli.main(["score", *flags, "--responses", str(tmp_path / "r.jsonl")]) == 0
        results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        for result, case in zip(results, cases, strict=True):
            wanted = {"log_prob": case["log_prob"], "reward": case["reward"]} | case[f"w{weight}"]
            for name, value in wanted.items():
                assert result[name] == pytest.approx(value, abs=5e-3 if result["num_tokens"] < 60 else 2e-2), name
