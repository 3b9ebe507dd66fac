"""Loading a model as a whole, its refusals before any long work, and the reference outputs of a real one."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import Mesh

from jaxalign import models
from jaxalign.errors import ModelError
from jaxalign.models import language_model
from jaxalign.models.tokenizer import left_pad
from jaxalign.models.transformer import bind, layers_of, prefill

CONFIG = dataclasses.replace(tiny.CONFIGS["qwen2"], vocab_size=260, num_heads=8, intermediate_size=48)


@pytest.fixture
def folder(tmp_path):
    return tiny.save_tokenizer(tiny.save(tmp_path / "model", CONFIG))


@pytest.fixture
def no_weights(monkeypatch):
    """Reading weights is the long work that an error must come before."""

    def fail(*_, **__):
        raise AssertionError("weights were read before the input was checked")

    monkeypatch.setattr(language_model, "load_params", fail)


def test_a_folder_gives_config_parameters_and_tokenizer(folder):
    model = models.load(str(folder))
    assert model.config == CONFIG
    assert model.name == str(folder)
    np.testing.assert_array_equal(model.params["embed"], tiny.tensors(CONFIG)["model.embed_tokens.weight"])
    assert model.tokenizer.decode(model.tokenizer.encode("fox")) == "fox"


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_dtype_layers_and_mesh(layers, folder):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("users", "model"))
    model = models.load(str(folder), dtype="bfloat16", layers=layers, mesh=mesh)
    assert layers_of(model.params) == layers
    for leaf in jax.tree.leaves(model.params):
        assert leaf.dtype == jnp.bfloat16
        assert leaf.sharding.mesh == mesh
    assert model.params["embed"].sharding.shard_shape((260, 72)) == (65, 72)


def test_the_digest_of_weights_does_not_depend_on_how_they_lie(folder):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("users", "model"))
    plain = models.load(str(folder))
    others = [models.load(str(folder), layers="scanned"), models.load(str(folder), layers="scanned", mesh=mesh)]
    assert {plain.weights_digest, plain.reader.weights_digest, *(m.weights_digest for m in others)} == {
        plain.weights_digest
    }
    assert others[0].reader is others[0]
    assert models.load(str(folder), dtype="bfloat16").weights_digest != plain.weights_digest
    swapped = dataclasses.replace(
        plain, params=plain.params | {"blocks": dict(enumerate([plain.params["blocks"][1], plain.params["blocks"][0]]))}
    )
    assert swapped.weights_digest != plain.weights_digest


def test_the_fingerprint_follows_config_and_tokenizer_but_not_the_place(folder, tmp_path):
    first = models.load(str(folder)).fingerprint
    elsewhere = tiny.save_tokenizer(tiny.save(tmp_path / "other" / "model", CONFIG))
    assert models.load(str(elsewhere)).fingerprint == first
    other = dataclasses.replace(CONFIG, rope_theta=1e4)
    changed = tiny.save_tokenizer(tiny.save(tmp_path / "changed" / "model", other))
    assert models.load(str(changed)).fingerprint["config"] != first["config"]
    (elsewhere / "tokenizer_config.json").write_text('{"chat_template": "x", "eos_token": "</s>"}')
    assert models.load(str(elsewhere)).fingerprint["tokenizer"] != first["tokenizer"]


def test_random_weights_of_a_config():
    sizes = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), 64)
    small = dataclasses.replace(CONFIG, num_heads=8, num_kv_heads=8, head_dim=8, **sizes)
    model = models.random(small, dtype="bfloat16")
    assert (model.tokenizer, model.name) == (None, "random")
    assert model.fingerprint["tokenizer"] == "none"
    assert {leaf.dtype for leaf in jax.tree.leaves(model.params)} == {jnp.dtype(jnp.bfloat16)}


# Refusals before any weight is read.


@pytest.mark.usefixtures("no_weights")
def test_a_tokenizer_with_more_ids_than_the_embedding_has_rows(tmp_path):
    small = dataclasses.replace(CONFIG, vocab_size=257)
    folder = tiny.save_tokenizer(tiny.save(tmp_path / "model", small))
    with pytest.raises(ModelError, match="ids up to 257, but the embedding has 257 rows"):
        models.load(str(folder))


@pytest.mark.usefixtures("no_weights")
def test_a_folder_without_config_or_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        models.load(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        models.load(str(folder))


@pytest.mark.usefixtures("no_weights")
def test_an_unsupported_architecture(tmp_path):
    folder = tiny.save(tmp_path / "model", CONFIG, model_type="mamba", architectures=["MambaForCausalLM"])
    with pytest.raises(ModelError, match="model_type = 'mamba'"):
        models.load(str(folder))


@pytest.mark.usefixtures("no_weights")
def test_a_mesh_that_does_not_divide_the_heads(folder):
    mesh = Mesh(np.array(jax.devices()[:3]), ("model",))
    with pytest.raises(ModelError, match="heads = 8"):
        models.load(str(folder), mesh=mesh)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("dtype", ["float16", "int8", ""])
def test_another_dtype(dtype, folder):
    with pytest.raises(ModelError, match="use float32 or bfloat16"):
        models.load(str(folder), dtype=dtype)


@pytest.mark.usefixtures("no_weights")
def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(ModelError, match="there is no such folder"):
        models.load(str(tmp_path / "nowhere"))


def test_weights_that_were_cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match=r"model\.safetensors: damaged or cut short"):
        models.load(str(folder))


# A real model.


@pytest.fixture(scope="module")
def cases(shared):
    return json.loads((shared / "golden" / "smollm2_135m.json").read_text(encoding="utf-8"))["cases"]


def test_ids_likelihoods_and_next_tokens_of_smollm2(smollm2, cases):
    """All texts in one left-padded batch."""
    rows = [smollm2.tokenizer.raw(case["prompt"]) for case in cases]
    assert rows == [case["ids"] for case in cases]
    tokens, lengths = left_pad(rows, max(map(len, rows)), smollm2.tokenizer.pad_id)

    @jax.jit
    def judge(params):
        model = bind(smollm2.config, params)
        logits = model.logits(prefill(model, tokens, lengths)[0])
        log_prob = jax.nn.log_softmax(logits[:, :-1])
        nll = -jnp.take_along_axis(log_prob, tokens[:, 1:, None], axis=-1)[..., 0]
        return nll, *jax.lax.top_k(logits[:, -1], 10)

    nll, top, top_ids = judge(smollm2.params)
    for row, case in enumerate(cases):
        np.testing.assert_allclose(nll[row, 1 - len(rows[row]) :], case["nll"], rtol=0, atol=1e-3)
        assert top_ids[row].tolist() == case["top10_ids"]
        np.testing.assert_allclose(top[row], case["top10_logits"], rtol=0, atol=1e-3)


def test_the_size_of_smollm2(smollm2):
    assert smollm2.config == models.DecoderConfig.smollm2_135m()
    assert sum(leaf.size for leaf in jax.tree.leaves(smollm2.params)) == smollm2.config.num_params
