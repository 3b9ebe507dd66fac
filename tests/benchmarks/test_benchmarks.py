"""Every benchmark once on a tiny random model: what it writes, that its checks hold, and what it imports."""

import dataclasses
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from benchmarks import fit_growth, flags, kinds, machine, plan, profile, score, table
from benchmarks.cases import Case, parse_mesh, prepare, random_prompts
from jaxalign import cli
from jaxalign.decoding import generate
from jaxalign.errors import InputError

SMALL = ["--model", "tiny", "--random", "--repeats", "2"]


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    # One layer: the compiler, not the model, takes the time. And the cache setting is put back.
    monkeypatch.setattr(flags, "TINY", dataclasses.replace(flags.TINY, num_layers=1, vocab_size=256))
    before = jax.config.jax_enable_compilation_cache
    yield
    jax.config.update("jax_enable_compilation_cache", before)


def records(folder):
    return table.read(folder / "results.jsonl")


def test_decode(tmp_path, capsys):
    arguments = [*SMALL, "--kind", "head", "--batch", "3", "--prompt", "5", "--new-tokens", "4"]
    assert cli.main(["bench", "decode", *arguments, "--top-k", "2", "--out", str(tmp_path)]) == 0
    found = records(tmp_path)
    assert [record["case"]["kind"] for record in found] == ["none", "head"]
    for record in found:
        assert record["schema"] == 1
        assert record["command"].startswith("python -m benchmarks.decode --model tiny --random")
        assert record["machine"]["kind"] == machine.kind()
        assert record["versions"]["jax"] == jax.__version__
        assert {"bytes_per_second", "flops_per_second", "devices"} == record["ceilings"].keys()
        numbers = record["metrics"]
        rate, step = numbers["tokens_per_second"], numbers["milliseconds_per_step"]
        assert rate["count"] == 2
        assert rate["low"] <= rate["median"] <= rate["high"]
        # Three rows are real, the fourth fills the batch: tokens of three are counted.
        assert numbers["decode_tokens_per_second"]["median"] == pytest.approx(3e3 / step["median"])
        assert numbers["bandwidth_utilisation"] == pytest.approx(
            numbers["bytes_per_step"] / (step["median"] / 1e3) / record["ceilings"]["bytes_per_second"]
        )
        assert numbers["compile_seconds"] > 0
    assert found[0]["metrics"]["ratio_to_plain"]["median"] == 1.0
    assert "GB/s" in capsys.readouterr().out
    assert cli.main(["bench", "markdown", str(tmp_path / "results.jsonl")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"`{found[0]['command']}`"
    assert [line.split(" | ")[0] for line in shown if line[:2] == "| " and "---" not in line] == [
        "| guidance",
        "| none",
        "| head",
    ]
    assert {line.count("|") for line in shown if line.startswith("|")} == {16}


@pytest.mark.slow
def test_every_kind(tmp_path, capsys):
    arguments = [*SMALL, "--batch", "2", "--prompt", "5", "--new-tokens", "4", "--top-k", "2", "--out", str(tmp_path)]
    assert cli.main(["bench", "decode", *arguments]) == 0
    found = {record["case"]["kind"]: record for record in records(tmp_path)}
    assert found.keys() == kinds.KINDS.keys()
    assert found["separate"]["same_tokens_as"] == {"head": 1.0}
    assert "100% of rows as head" in capsys.readouterr().out


def test_the_tokens_are_those_of_generate():
    lm = flags.load_model("tiny", random=True, dtype="float32", layers="unrolled")
    case = Case(kind="head", batch=2, prompt=6, new_tokens=5, top_k=3, users=2)
    prepared = prepare(case, lm)
    prepared.warm()
    prepared.run()
    prompts = random_prompts(lm.config.vocab_size, 2, 6).tolist()
    expected = generate(lm, prompts, guidance=kinds.make("head", lm, users=2), user=[0, 1], top_k=3, max_new_tokens=5)
    np.testing.assert_array_equal(prepared.output, [result.tokens for result in expected])
    assert prepared.memory is None or prepared.memory > sum(x.nbytes for x in jax.tree.leaves(lm.params))


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_kind_on_a_mesh_gives_the_tokens_of_one_device(kind):
    lm = flags.load_model("tiny", random=True, dtype="float32", layers="unrolled")
    outputs = []
    for mesh in ("", "users=2,model=2"):
        prepared = prepare(Case(kind=kind, batch=4, prompt=6, new_tokens=4, top_k=3, mesh=mesh), lm)
        prepared.run()
        outputs.append(prepared.output)
    np.testing.assert_array_equal(*outputs)


def test_score(tmp_path, capsys):
    arguments = ["--kind", "reward", "--batch", "2", "--prompt", "4", "--response", "4", "--users", "1,3"]
    assert score.main([*SMALL, *arguments, "--out", str(tmp_path)]) == 0
    found = records(tmp_path)
    assert [record["case"]["users"] for record in found] == [1, 3]
    assert found[0]["metrics"]["of_first"]["median"] == 1.0
    assert "cost ~ users^" in capsys.readouterr().out


def test_policy_scores_are_those_of_the_library():
    from jaxalign.decoding import RewardHead
    from jaxalign.decoding import score as library

    lm = flags.load_model("tiny", random=True, dtype="float32", layers="unrolled")
    case = score.Case(kind="policy", batch=2, prompt=4, response=4, top_k=3, users=2, methods=1)
    prepared = score.Prepared(case, lm)
    prepared.run()
    own = prepared.texts
    rows = [own.tokens[row, -length:].tolist() for row, length in enumerate(own.lengths)]
    head = RewardHead.linear(kinds.vectors(lm.config.hidden_size, 2), weight=0.5)
    for user in (0, 1):
        expected = library(lm, [r[:4] for r in rows], [r[4:] for r in rows], guidance=head, user=user, top_k=3)
        ours = np.asarray(prepared.output[0])[:, user]
        np.testing.assert_allclose(ours, [item.policy_log_prob for item in expected], rtol=1e-5)


def test_plan(tmp_path):
    assert (
        plan.main(["--model", "tiny", "--kind", "head", "--batch", "2", "--prompt", "4", "--out", str(tmp_path)]) == 0
    )
    (record,) = records(tmp_path)
    assert record["metrics"]["compile_seconds"] > 0


def test_fit_growth(tmp_path, capsys):
    arguments = ["--methods", "reference", "--users", "2,4", "--pairs", "3", "--width", "5", "--repeats", "2"]
    assert fit_growth.main([*arguments, "--out", str(tmp_path)]) == 0
    assert [record["case"]["users"] for record in records(tmp_path)] == [2, 4]
    assert "cost ~ users^" in capsys.readouterr().out


def test_profile_finds_the_operations_of_a_program():
    text = """
  %dot.1 = f32[80,3072]{1,0} dot(%a, %b), lhs_contracting_dims={1}, metadata={op_name="jit(f)/while/body/dot_general"}
  ROOT %fusion.2 = (f32[8]{0}, s32[]) fusion(%c), kind=kLoop
  while.3 = f32[8]{0} while(%d), condition=%e"""
    known = profile.operations(text)
    assert known["dot.1"] == ("dot", "f32[80,3072]", "dot_general")
    assert known["fusion.2"].shape == "(f32[8], s32[])"
    spent = profile.by_operation(
        [
            ("dot.1", 2e9, ""),
            ("fusion.2", 1e9, ""),
            ("dot.1", 2e9, ""),
            ("dot.1", 40e9, ""),
            ("while.3", 9e9, ""),
            ("other", 9e9, ""),
        ],
        known,
    )
    assert spent == [("dot f32[80,3072] dot_general", 3, 6.0), ("fusion (f32[8], s32[])", 1, 1.0)]


def line(**case):
    step = {"median": 2.0 * case.get("batch", 1)}
    return {"case": {"kind": "none", "new_tokens": 5, **case}, "metrics": {"milliseconds_per_step": step}}


def test_growth_lines_are_per_setting():
    lines = table.growth_lines([line(batch=1), line(batch=4), line(batch=2), line(batch=2, kind="head")], ("batch",))
    assert lines == ["cost ~ batch^1.00 ± 0.00 over 1, 2, 4; kind=none new_tokens=5"]
    # Steps cost the same: the time of all of them grows as their number, not as the number of tokens.
    (grown,) = table.growth_lines([line(new_tokens=2), line(new_tokens=11)], ("new_tokens",))
    assert grown.startswith(f"cost ~ new_tokens^{np.log(10) / np.log(5.5):.2f} over")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode", "--kind", "magic"], "magic"),
        (["decode", "--batch", "0"], "--batch"),
        (["decode", "--new-tokens", "1"], "--new-tokens"),
        (["decode", "--mesh", "users=99"], "needs 99 devices"),
        (["decode", "--mesh", "rows=2"], "unknown axis 'rows'"),
        (["decode", "--repeats", "0"], "--repeats"),
        (["decode", *SMALL, "--dtype", "int4"], "int4"),
        (["score", "--kind", "magic"], "magic"),
        (["plan", "--layers", "folded"], "folded"),
        (["fit-growth", "--methods", "magic"], "magic"),
        (["magic"], "no benchmark 'magic'"),
    ],
)
def test_bad_requests(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr("benchmarks.ceilings.measure", lambda dtypes: None)
    monkeypatch.setattr("benchmarks.table.ceilings_line", lambda *_: "")
    assert cli.main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_context_that_is_too_short_is_refused_before_compiling():
    lm = flags.load_model("tiny", random=True, dtype="float32", layers="unrolled")
    with pytest.raises(InputError, match="exceed the model's context of 512"):
        prepare(Case(prompt=500, new_tokens=20), lm)


def test_meshes():
    assert parse_mesh("") is None
    mesh = parse_mesh("users=4,model=2")
    assert mesh is not None
    assert dict(mesh.shape) == {"users": 4, "model": 2}


def test_the_list_of_benchmarks(capsys):
    assert cli.main(["bench", "--help"]) == 0
    assert "tokens per second" in capsys.readouterr().out
    assert cli.main(["bench"]) == 2


def test_importing_needs_no_optional_package():
    """In a fresh process: what a benchmark machine may lack is not imported, not even indirectly."""
    code = """
import sys
from benchmarks import (cases, ceilings, compare, cost, decode, flags, harness, kinds, machine, markdown, plan, plots,
                        profile, score, table)
unwanted = ("torch", "tensorflow", "tensorflow_datasets", "rouge_score", "tyro", "matplotlib", "platformdirs",
            "gguf", "pyarrow", "array_record")
import json
print(json.dumps([name for name in unwanted if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
