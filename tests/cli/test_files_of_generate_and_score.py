"""Prompt and response files, reward heads: what `generate` and `score` make of them, and what they refuse."""

import dataclasses
import json
import re

import numpy as np
import pytest
import tiny

from jaxalign import models
from jaxalign.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    config = dataclasses.replace(tiny.CONFIGS["llama3"], vocab_size=320)
    tiny.save(folder / "model", config, tiny.tensors(config))
    tiny.save_tokenizer(folder / "model")
    return folder / "model"


def write(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_the_same_words_as_in_python(folder, tmp_path, capsys):
    """generate and score from the command line against the functions of the same names."""
    from jaxalign.decoding import RewardHead, generate, score

    lm = models.load(str(folder))
    vector = np.random.default_rng(0).normal(size=lm.config.hidden_size).astype(np.float32)
    np.save(tmp_path / "head.npy", vector)
    prompts = write(tmp_path / "p.jsonl", [{"prompt": "Hello."}, {"ids": [5, 6, 7]}])
    flags = ["--model", str(folder), "--reward-head", str(tmp_path / "head.npy"), "--weight", "0.7", "--top-k", "4"]
    assert main(["generate", *flags, "--prompts", str(prompts), "--max-new-tokens", "3", "--ignore-eos"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    want = generate(
        lm,
        ["Hello.", [5, 6, 7]],
        guidance=RewardHead.linear(vector, weight=0.7),
        top_k=4,
        max_new_tokens=3,
        ignore_eos=True,
    )
    assert [line["tokens"] for line in lines] == [result.tokens for result in want]
    assert {line["stop_reason"] for line in lines} == {"length"}

    items = [{"prompt": "Hello.", "response": "Good day."}, {"prompt_ids": [5, 6], "response_ids": [7, 8, 9]}]
    out = tmp_path / "scores.jsonl"
    arguments = [*flags, "--responses", str(write(tmp_path / "r.jsonl", items)), "--out", str(out)]
    assert main(["score", *arguments]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    judged = score(
        lm, ["Hello.", [5, 6]], ["Good day.", [7, 8, 9]], guidance=RewardHead.linear(vector, weight=0.7), top_k=4
    )
    for line, result in zip(lines, judged, strict=True):
        for name in ("log_prob", "policy_log_prob", "score", "sequence", "reward", "num_tokens"):
            assert line[name] == pytest.approx(getattr(result, name), abs=1e-4)
        assert "token_reward" not in line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ("[1]", "line 1: a JSON object is needed"),
        ('{"prompt": "a", "ids": [1]}', "exactly one of 'prompt' and 'ids'"),
        ("{}", "exactly one of 'prompt' and 'ids'"),
        ('{"prompt": ""}', "'prompt' is empty"),
        ('{"ids": [1.5]}', "'ids' must be a list of integers"),
        ('{"prompt": 5}', "'prompt' must be text or a list of messages"),
        ("", "there are no lines"),
    ],
)
def test_prompt_files_are_checked_before_the_model_is_loaded(line, message, tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    path.write_text(line + "\n")
    assert main(["generate", "--model", "/nowhere", "--prompts", str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate", "score", "compare", "data prepare"])
def test_a_file_that_is_there_is_replaced_on_request_only(command, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    out.write_text("of an earlier run")
    flags = {
        "generate": ["--model", "./absent", "--prompt", "a", "--out"],
        "score": ["--model", "./absent", "--responses", str(tmp_path / "absent.jsonl"), "--out"],
        "compare": [str(tmp_path / "one"), str(tmp_path / "two"), "--csv"],
        "data prepare": ["nothing", "--out"],
    }[command]
    assert main([*command.split(), *flags, str(out)]) == 2
    assert f"{out} exists. Give another file, or --overwrite." in capsys.readouterr().err
    # With it, the next thing that is wrong is found; nothing was written.
    assert main([*command.split(), *flags, str(out), "--overwrite"]) == 2
    assert "exists" not in capsys.readouterr().err
    assert out.read_text() == "of an earlier run"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3, np.float32), r"a float vector \[\d+\] is needed"),
        (np.full(tiny.CONFIGS["llama3"].hidden_size, np.nan, np.float32), "entry 0 is not finite"),
    ],
)
def test_reward_heads_that_cannot_be_used(array, message, folder, tmp_path, capsys):
    np.save(tmp_path / "head.npy", array)
    assert main(["generate", "--model", str(folder), "--prompt", "a", "--reward-head", str(tmp_path / "head.npy")]) == 2
    assert re.search(message, capsys.readouterr().err)
