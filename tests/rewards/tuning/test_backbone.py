"""LoRA, full fine-tuning and a frozen backbone: what step 0 is, what a low-rank weight computes, where arrays live."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jaxalign.errors import InputError
from jaxalign.models import transformer
from jaxalign.models.low_rank import LowRank
from jaxalign.models.sharding import ShardingRules, param_shardings
from jaxalign.rewards.tuning import Frozen, Full, Lora
from jaxalign.rewards.tuning.backbone import for_layers

TOKENS = np.arange(2, 14, dtype=np.int32).reshape(2, 6)
LENGTHS = np.asarray([6, 4], np.int32)


@pytest.fixture(scope="module")
def hidden(lm):
    """A function from parameters to hidden states, compiled once per structure."""
    return jax.jit(lambda params: transformer.prefill(transformer.bind(lm.config, params), TOKENS, LENGTHS)[0])


def moved(trained, key):
    """Trained arrays that are no longer those of step 0."""
    leaves, structure = jax.tree.flatten(trained)
    return jax.tree.unflatten(structure, [leaf + 0.1 * jax.random.normal(key(), leaf.shape) for leaf in leaves])


@pytest.mark.parametrize("backbone", [Lora(rank=3), Full(), Frozen()])
def test_step_zero_is_the_language_model(lm, hidden, backbone, key):
    trained = backbone.init(key(), lm.params)
    # `up` is zero: what is added is exactly zero.
    np.testing.assert_array_equal(hidden(backbone.apply(lm.params, trained)), hidden(lm.params))
    jax.tree.map(np.testing.assert_array_equal, backbone.merged(lm.params, trained), lm.params)


def test_adapters_applied_apart_equal_adapters_merged(lm, hidden, key):
    lora = Lora(rank=3)
    trained = moved(lora.init(key(), lm.params), key)
    apart, merged = hidden(lora.apply(lm.params, trained)), hidden(lora.merged(lm.params, trained))
    base = hidden(lm.params)
    real = np.arange(6)[None] >= 6 - LENGTHS[:, None]
    np.testing.assert_allclose(apart[real], merged[real], rtol=2e-4, atol=2e-4)
    assert np.abs(apart[real] - base[real]).max() > 0.1


def test_merging_one_weight_is_the_sum_of_outer_products(key):
    base, up, down = (jax.random.normal(key(), shape) for shape in ((2, 5, 3, 4), (2, 5, 2), (2, 2, 3, 4)))
    merged = LowRank(base, up, down).merge(inputs=2)
    by_hand = np.asarray(base) + np.einsum("lor,lrij->loij", up, down)
    np.testing.assert_allclose(merged, by_hand, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="merge it first"):
        LowRank(base, up, down)[0]


def test_full_fine_tuning_shares_no_buffer_with_the_model(lm, key):
    trained = Full().init(key(), lm.params)
    pointers = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(lm.params)}
    assert not pointers & {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(trained)}


@pytest.mark.slow
def test_what_was_trained_scanned_serves_unrolled_layers_and_back(lm, key):
    trained = moved(Lora(rank=2).init(key(), lm.params), key)
    apart = for_layers(trained, "unrolled")
    assert apart["blocks/1/mlp/gate"]["up"].shape == trained["blocks/mlp/gate"]["up"].shape[1:]
    np.testing.assert_array_equal(apart["blocks/1/mlp/gate"]["up"], trained["blocks/mlp/gate"]["up"][1])
    jax.tree.map(np.testing.assert_array_equal, for_layers(apart, "scanned"), trained)
    full = Full().init(key(), lm.params)
    unrolled = transformer.init_params(lm.config, layers="unrolled")
    assert for_layers(full, "unrolled").keys() == Full().init(key(), unrolled).keys()


def test_targets_choose_projections(lm, key):
    trained = Lora(targets=("query", "down")).init(key(), lm.params)
    assert set(trained) == {"blocks/attention/query", "blocks/mlp/down"}
    for fields, words in (
        ({"targets": ("quary",)}, "no projection 'quary'"),
        ({"targets": ()}, "targets is empty"),
        ({"rank": 0}, "rank 0"),
    ):
        with pytest.raises(InputError, match=words):
            Lora(**fields)


@pytest.mark.parametrize("layers", ["scanned", "unrolled"])
def test_what_is_trained_is_split_as_the_weights_are(lm, key, layers):
    config = dataclasses.replace(lm.config, num_heads=4, num_kv_heads=2, vocab_size=256)
    params = transformer.init_params(config, layers=layers)
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("model",), axis_types=(AxisType.Auto,))
    lora = Lora(rank=2)
    where = lora.shardings(config, mesh, ShardingRules(), layers)
    trained = jax.device_put(lora.init(key(), params), where)  # a wrong number of axes, or an odd size, fails here
    prefix = "blocks/" if layers == "scanned" else "blocks/0/"
    split = lambda leaf: leaf.sharding.shard_shape(leaf.shape) != leaf.shape  # noqa: E731
    # Heads and the MLP's inner width are split, on whichever side of the weight they are; the rank never is.
    for name, up, down in (
        ("attention/query", True, False),
        ("attention/output", False, True),
        ("mlp/gate", True, False),
        ("mlp/down", False, True),
    ):
        pair = trained[prefix + name]
        assert (split(pair["up"]), split(pair["down"])) == (up, down), name
    full = Full().shardings(config, mesh, None, layers)
    assert list(full.values()) == jax.tree.leaves(param_shardings(config, mesh, None, layers))
    assert jnp.ndim(trained[prefix + "mlp/gate"]["up"]) == (3 if layers == "scanned" else 2)
