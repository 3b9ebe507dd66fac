"""`jaxalign tune`: what it writes, prints and refuses; and training on several devices."""

import contextlib
import dataclasses
import json
import sys
import types

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from letters import planted

from jaxalign import cli, files, models
from jaxalign.data.schema import as_row
from jaxalign.errors import InputError
from jaxalign.models.sharding import param_shardings
from jaxalign.rewards import tuning
from jaxalign.rewards.tuning import Arm, Recipe, export


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    """Caches in a temporary folder."""
    monkeypatch.setenv(files.CACHE_VARIABLE, str(tmp_path / "cache"))


def test_tune_writes_a_model_that_generate_uses(folder, tmp_path, capsys, monkeypatch):
    told = []
    writer = types.SimpleNamespace(add_text=lambda *_: None, add_scalar=lambda *point: told.append(point))
    fake = types.SimpleNamespace(SummaryWriter=lambda place: contextlib.nullcontext(writer))
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(as_row(row)) + "\n" for row in planted({"ann": "xq", "bob": "qx"}, 10)))
    base = ["tune", "--model", str(folder), "--data", str(data), "--out", str(tmp_path / "m"), "--max-length", "32"]
    sizes = ["--rank", "2", "--batch-size", "8", "--micro-batch", "8", "--no-remat", "--test", "0.2"]
    method = ["--method", "personal_arm", "--set", "rank=2", "--backbone", "frozen"]
    assert cli.main([*base, *sizes, *method, "--track", "tensorboard"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["method"] == "personal_arm"
    assert summary["test"]["pairs"] > 0
    report = json.loads((tmp_path / "m" / "tune_report.json").read_text())
    assert len(report["train_loss"]) == -(-report["pairs"] // 8)
    losses = [value for name, value, _ in told if name == "tune/personal_arm/train_loss"]
    assert losses == report["train_loss"]
    assert export.load(tmp_path / "m").users == ("ann", "bob")

    guided = ["--rewards", str(tmp_path / "m"), "--user", "bob", "--max-new-tokens", "2"]
    assert cli.main(["generate", "--model", str(folder), "--prompt", "p0", *guided]) == 0
    capsys.readouterr()
    for more, words in (
        ([], "--overwrite"),
        (["--overwrite", "--test", "1.0"], "share of the groups"),
        (["--overwrite", "--set", "rnak=2"], "Did you mean 'rank'"),
        (["--overwrite", "--epochs", "0"], "epochs must be at least 1"),
    ):
        assert cli.main([*base, "--method", "personal_arm", *more]) == 2
        assert words in capsys.readouterr().err


def test_methods_that_tune_are_listed_and_not_fitted_by_fit(capsys, tmp_path):
    assert cli.main(["methods"]) == 0
    assert "p_dpo" in capsys.readouterr().out
    assert cli.main(["methods", "--name", "arm"]) == 0
    assert "arXiv 2410.08193" in capsys.readouterr().out
    assert cli.main(["fit", "--model", "x", "--data", "y", "--out", str(tmp_path / "m"), "--method", "arm"]) == 2
    assert "jaxalign tune" in capsys.readouterr().err


@pytest.mark.slow
def test_a_mesh_trains_what_one_device_trains(lm):
    """Two rows of devices for the batch, two for the MLP's inner width."""
    mesh = jax.make_mesh((2, 2), ("users", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    rules = models.ShardingRules(vocab=None, heads=None, kv_heads=None)
    where = param_shardings(lm.config, mesh, rules, "scanned")
    spread = dataclasses.replace(lm, params=jax.device_put(lm.params, where))
    rows = planted({"ann": "xq"}, 8)
    recipe = Recipe(epochs=2, batch_size=8, micro_batch=4, learning_rate=1e-2, max_length=32)
    one = tuning.tune(Arm(beta=0.5), lm, rows, recipe=recipe).report
    result = tuning.tune(Arm(beta=0.5), spread, rows, recipe=recipe, rules=rules)
    np.testing.assert_allclose(result.report.train_loss, one.train_loss, rtol=1e-3)
    gate = result.model.variables["backbone"]["blocks/mlp/gate"]["up"]
    assert gate.sharding.shard_shape(gate.shape)[1] == lm.config.intermediate_size // 2
    odd = dataclasses.replace(recipe, micro_batch=3)
    with pytest.raises(InputError, match="do not divide over 2 devices"):
        tuning.tune(Arm(), spread, rows, recipe=odd, rules=rules)
