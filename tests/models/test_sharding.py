"""Where parameters live on a mesh, and that the answers do not depend on it."""

import dataclasses
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxalign.errors import ModelError
from jaxalign.models import DecoderConfig, ShardingRules, bind, load_params
from jaxalign.models.sharding import bytes_per_device, fit_rules, param_shardings
from jaxalign.models.transformer import abstract_params, prefill, step

DIVISIBLE = dataclasses.replace(
    tiny.CONFIGS["llama_biases"], vocab_size=64, intermediate_size=48, num_heads=8, num_kv_heads=4
)


def mesh_of(**sizes):
    devices = np.array(jax.devices()[: int(np.prod(list(sizes.values())))])
    return Mesh(devices.reshape(tuple(sizes.values())), tuple(sizes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("model"), DIVISIBLE)


def answers(params, tokens, lengths, candidates):
    """Logits of a prefill and of a step with siblings."""
    model = bind(DIVISIBLE, params)
    hidden, cache = prefill(model, tokens, lengths)
    stepped, _ = step(model, candidates, cache.extend(12))
    return model.logits(hidden[:, -1]), model.logits(stepped)


@pytest.fixture(scope="module")
def batch():
    return tiny.tokens(DIVISIBLE, 8, 10), np.arange(3, 11, dtype=np.int32), tiny.tokens(DIVISIBLE, 8, 3, seed=1)


@pytest.fixture(scope="module")
def expected(folder, batch):
    return jax.jit(answers)(load_params(folder, DIVISIBLE), *batch)


@pytest.mark.parametrize(
    ("sizes", "layers"),
    [
        ({"model": 4}, "unrolled"),
        ({"model": 8}, "unrolled"),  # more devices than key/value heads
        ({"users": 4, "model": 2}, "scanned"),
    ],
)
def test_sharded_logits_equal_those_of_one_device(sizes, layers, folder, batch, expected):
    mesh = mesh_of(**sizes)
    rows = NamedSharding(mesh, ShardingRules().spec(("batch",), mesh))
    params = load_params(folder, DIVISIBLE, layers=layers, shardings=param_shardings(DIVISIBLE, mesh, layers=layers))
    query = params["blocks"]["attention" if layers == "scanned" else 0]
    query = query["query"] if layers == "scanned" else query["attention"]["query"]
    assert len({str(shard.index) for shard in query.addressable_shards}) == sizes.get("model", 1)
    results = jax.jit(answers)(params, *(jax.device_put(x, rows) for x in batch))
    for ours, whole in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, whole, rtol=0, atol=1e-5)


def test_rows_need_no_exchange_between_users(folder, batch):
    """Tensor-parallel products reduce over groups of `model` only."""
    mesh = mesh_of(users=4, model=2)
    params = load_params(folder, DIVISIBLE, shardings=param_shardings(DIVISIBLE, mesh))
    rows = NamedSharding(mesh, PartitionSpec("users"))
    text = jax.jit(answers).lower(params, *(jax.device_put(x, rows) for x in batch)).compile().as_text()
    assert "all-reduce" in text
    groups = set(re.findall(r"replica_groups=(\S+?), ", text))
    assert groups
    for group in groups:
        # {{0,1},{2,3},...} or the same in brackets: four groups of two.
        assert group.startswith(("[4,2]<=[8]", "{{0,1},{2,3},{4,5},{6,7}}")), group


@pytest.mark.parametrize("rules", [ShardingRules(), ShardingRules(embed="users"), ShardingRules(vocab=None, mlp=None)])
def test_bytes_per_device_are_those_of_the_arrays(rules, folder):
    mesh = mesh_of(users=2, model=4)
    params = load_params(folder, DIVISIBLE, dtype="bfloat16", shardings=param_shardings(DIVISIBLE, mesh, rules))
    shards = [leaf.addressable_shards[5].data for leaf in jax.tree.leaves(params)]
    assert bytes_per_device(DIVISIBLE, mesh, jnp.bfloat16, rules) == sum(shard.nbytes for shard in shards)


def test_bytes_per_device_of_a_large_model_without_allocating():
    config = DecoderConfig.llama_3_1_70b()
    eight = bytes_per_device(config, mesh_of(model=8), jnp.bfloat16)
    assert bytes_per_device(config, mesh_of(users=8), jnp.bfloat16) == 2 * config.num_params
    norms = sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config)) if leaf.ndim == 1)
    assert eight == 2 * ((config.num_params - norms) // 8 + norms)


@pytest.mark.parametrize(
    ("sizes", "rules", "config", "message"),
    [
        (
            {"model": 4},
            ShardingRules(),
            DecoderConfig.smollm2_135m(),
            r"heads = 9 over 4 devices .*1, 3\)",
        ),
        ({"model": 8}, ShardingRules(), tiny.CONFIGS["mistral"], r"mlp = 50, vocab = 61|vocab = 61, mlp = 50"),
        ({"users": 8}, ShardingRules(embed="users", head_dim="model"), DecoderConfig.qwen2_5_0_5b(), None),
        ({"users": 5, "model": 1}, ShardingRules(embed="users"), DIVISIBLE, r"embed = 72 over 5 .*1, 2, 3, 4, 6, 8, 9"),
        ({"model": 3}, ShardingRules(layers="model", heads=None, mlp=None, vocab=None), DIVISIBLE, "layers = 2 over 3"),
    ],
)
def test_a_mesh_that_does_not_divide(sizes, rules, config, message):
    mesh = mesh_of(**sizes)
    if message is None:
        fit_rules(rules, config, mesh)
        return
    with pytest.raises(ModelError, match=message):
        param_shardings(config, mesh, rules)


def test_key_value_heads_that_do_not_divide_are_kept_whole_and_it_is_said(caplog):
    with caplog.at_level(logging.WARNING, "jaxalign"):
        tree = param_shardings(DIVISIBLE, mesh_of(model=8))
    assert "4 key/value heads do not divide over 8 devices" in caplog.text
    attention = tree["blocks"][0]["attention"]
    assert attention["key"].spec == PartitionSpec(None, None, None)
    assert attention["query"].spec == PartitionSpec("model", None, None)


def test_specs():
    rules, mesh = ShardingRules(), mesh_of(users=2, model=4)
    assert rules.spec(("batch", "vocab"), mesh) == PartitionSpec("users", "model")
    assert rules.spec(("layers", "mlp", "embed"), mesh) == PartitionSpec(None, "model", None)
    assert rules.spec(("batch", "vocab"), mesh_of(model=8)) == PartitionSpec(None, "model")
    with pytest.raises(ModelError, match="two of the axes"):
        ShardingRules(embed="model").spec(("mlp", "embed"), mesh)
