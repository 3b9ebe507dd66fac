"""The whole job on a tiny model: files, numbers that can be recomputed, reruns, refusals."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tiny

from jaxalign import models
from jaxalign.cli import main
from jaxalign.data.schema import Preference
from jaxalign.errors import DataError, InputError
from jaxalign.evaluation.experiment import Experiment
from jaxalign.evaluation.pipeline import run
from jaxalign.metrics import accuracy
from jaxalign.rewards.features import extract, pair_blocks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    config = dataclasses.replace(tiny.CONFIGS["llama3"], vocab_size=320)
    tiny.save(folder / "model", config, tiny.tensors(config))
    tiny.save_tokenizer(folder / "model")
    return folder / "model"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield
    # Commands keep compiled programs in the cache folder, which vanishes with the test.
    jax.config.update("jax_compilation_cache_dir", None)


def rows(users=3, pairs=12):
    words = ["the", "sea", "is", "deep", "and", "wide", "while", "hills", "are", "green", "far", "away", "from", "here"]
    rng = np.random.default_rng(0)
    text = [" ".join(rng.choice(words, size=int(n))) + f" {i}" for i, n in enumerate(rng.integers(2, 6, 30))]
    made = []
    for user in range(users):
        for pair in range(pairs):
            a, b = rng.choice(30, size=2, replace=False)
            a, b = (a, b) if len(text[a]) > len(text[b]) else (b, a)
            made.append({"user": f"u{user}", "prompt": f"Say {pair}.", "chosen": text[a], "rejected": text[b]})
    return made


def write(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def settings(tmp_path, **changes):
    data = write(tmp_path / "pairs.jsonl", rows())
    values = {"data": data, "min_pairs": 5, "test": 0.3, "validation": 0.2, "response_tokens": 3, "batch_size": 8}
    return Experiment(**(values | {"out": tmp_path / "out", "guided_users": 1, "guided_prompts": 1} | changes))


def quiet(what, total):
    import contextlib

    return contextlib.nullcontext(lambda count: None)


def test_files_agree_with_each_other_and_a_rerun_gives_the_same(folder, tmp_path):
    lm = models.load(str(folder))
    experiment = settings(tmp_path)
    first = run(experiment, lm, quiet)
    assert [row["method"] for row in first.rows] == ["reference", "bt", "per_user"]

    def read(name):
        return [json.loads(line) for line in (tmp_path / "out" / name).read_text().splitlines()]

    pairs = read("pairs.jsonl")
    for row in read("metrics.jsonl"):
        own = [pair for pair in pairs if pair["method"] == row["method"]]
        per_user = {}
        for pair in own:
            right = np.sign(pair["reward_chosen"] - pair["reward_rejected"]) / 2 + 0.5
            gap = pair["log_prob_chosen"] - pair["log_prob_rejected"]
            gap += row["weight_sum"] * (pair["reward_chosen"] - pair["reward_rejected"])
            per_user.setdefault(pair["user"], []).append((right, np.sign(gap) / 2 + 0.5))
        macro = np.mean([np.mean(values, axis=0) for values in per_user.values()], axis=0)
        np.testing.assert_allclose([row["rm_accuracy"], row["policy_accuracy_sum"]], macro, atol=1e-6)
    assert {row["method"] for row in read("generations.jsonl")} == {"plain", "bt", "per_user"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["config"]["min_pairs"] == 5
    before = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    again = run(experiment, lm, quiet)
    assert again.rows == first.rows
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == before


def test_another_config_in_the_same_folder_is_refused(folder, tmp_path):
    lm = models.load(str(folder))
    run(settings(tmp_path, methods=("reference",), guided_users=0), lm, quiet)
    with pytest.raises(InputError, match=r"another config \(.*seed: 0 there, 7 now"):
        run(settings(tmp_path, methods=("reference",), guided_users=0, seed=7), lm, quiet)


def test_bad_requests(folder, tmp_path):
    lm = models.load(str(folder))
    with pytest.raises(InputError, match="methods is empty"):
        run(settings(tmp_path, methods=()), lm, quiet)
    with pytest.raises(InputError, match="best_method"):
        run(settings(tmp_path, methods=("best_method",)), lm, quiet)
    with pytest.raises(DataError, match="no user has 500 pairs"):
        run(settings(tmp_path, min_pairs=500), lm, quiet)
    with pytest.raises(DataError, match="no such file"):
        run(settings(tmp_path, data=tmp_path / "absent.jsonl", out=tmp_path / "other"), lm, quiet)


def test_limits_of_the_sequence_form(folder):
    """w = 0 is the language model's ranking; a huge w is RM accuracy."""
    from jaxalign.evaluation.sequence import sequence_counts

    lm = models.load(str(folder))
    pairs = [Preference(**row) for row in rows()]
    features = extract(lm, [(row.prompt, text) for row in pairs for text in (row.chosen, row.rejected)])
    blocks = pair_blocks(pairs, features)
    rng = np.random.default_rng(1)
    chosen, rejected = rng.normal(size=(2, *blocks.mask.shape)).astype(np.float32)
    gap = features.log_prob[blocks.chosen] - features.log_prob[blocks.rejected]
    plain = accuracy.micro(sequence_counts(blocks, features, chosen, rejected, 0.0, "sum"))
    assert plain == pytest.approx((gap[blocks.mask] > 0).mean())
    large = sequence_counts(blocks, features, chosen, rejected, 1e9, "mean")
    ranked = accuracy.count(chosen, rejected, blocks.mask)
    np.testing.assert_array_equal(large.correct, ranked.correct)


def test_features_equal_one_text_at_a_time_and_row_order_changes_nothing(folder, tmp_path):
    from jaxalign.decoding import score

    lm = models.load(str(folder))
    pairs = [Preference(**row) for row in rows(1, 4)]
    texts = [(row.prompt, text) for row in pairs for text in (row.chosen, row.rejected)]
    together = extract(lm, texts, cache=tmp_path / "features")
    for prompt, response in texts:
        alone = extract(lm, [(prompt, response)], batch_size=1)
        row = together.of(prompt, response)
        for name in ("last", "mean", "prompt"):
            np.testing.assert_allclose(getattr(together, name)[row], getattr(alone, name)[0], atol=2e-5)
        want = score(lm, [prompt], [response])[0]
        assert together.log_prob[row] == pytest.approx(want.log_prob, abs=1e-4)
        assert together.tokens[row] == want.num_tokens
    cached = extract(lm, texts, cache=tmp_path / "features")
    np.testing.assert_array_equal(cached.last, together.last)
    one, other = pair_blocks(pairs, together), pair_blocks(pairs[::-1], together)
    np.testing.assert_array_equal(one.chosen, other.chosen)


def test_commands(folder, tmp_path, capsys):
    """generate, score and run from the command line, on the same words as Python."""
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

    config = tmp_path / "mine.py"
    config.write_text(
        "from jaxalign.evaluation.experiment import Experiment\n"
        f"experiment = Experiment(model={str(folder)!r}, min_pairs=5, response_tokens=3, guided_users=1)\n"
    )
    data = write(tmp_path / "pairs.jsonl", rows())
    asked = ["run", str(config), "--data", str(data), "--out", str(tmp_path / "ran"), "--methods", "reference", "bt"]
    assert main([*asked, "--test", "0.3", "--validation", "0.2"]) == 0
    printed = capsys.readouterr().out
    assert "reference" in printed
    assert "RM accuracy" in printed
    # A fitted reward model of a run guides from the command line.
    model = ["--rewards", str(tmp_path / "ran" / "models" / "bt"), "--user", "u1"]
    assert main(["generate", "--model", str(folder), *model, "--prompt", "Hi", "--max-new-tokens", "2"]) == 0
    assert main(["generate", "--model", str(folder), *model[:3], "nobody", "--prompt", "Hi"]) == 2
    assert "does not know user 'nobody'" in capsys.readouterr().err


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
    import re

    assert re.search(message, capsys.readouterr().err)


def test_features_of_other_weights_are_not_taken_for_these(tmp_path):
    """The weights of a folder are replaced in place: nothing but themselves tells the two models apart."""
    config = dataclasses.replace(tiny.CONFIGS["llama3"], vocab_size=320)
    place, cache = tiny.save_tokenizer(tmp_path / "model"), tmp_path / "features"
    read = []
    for seed in (0, 1):
        tiny.save(place, config, tiny.tensors(config, seed=seed))
        read.append(extract(models.load(str(place)), [("Hi", "there")], cache=cache).last)
    assert np.abs(read[0] - read[1]).max() > 1e-3
    np.testing.assert_array_equal(read[1], extract(models.load(str(place)), [("Hi", "there")]).last)


def test_features_continue_where_they_were_interrupted(folder, tmp_path):
    lm = models.load(str(folder))
    texts = [("Say it.", f"word {number}") for number in range(12)]
    cache, done = tmp_path / "features", []

    def interrupt(count):
        done.append(count)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(lm, texts, cache=cache, batch_size=4, progress=interrupt)
    again = []
    resumed = extract(lm, texts, cache=cache, batch_size=4, progress=again.append)
    # What was there is reported at once, as one item; then only the last batch is computed.
    assert again == [8, 4]
    np.testing.assert_allclose(resumed.last, extract(lm, texts, batch_size=4).last, atol=2e-5)
