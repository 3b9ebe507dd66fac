"""Hugging Face folders to parameters and back: exactly, by slices, and with every mistake reported at once."""

import dataclasses
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import Mesh
from safetensors.numpy import load_file, save_file

from jaxalign.errors import ModelError
from jaxalign.models import load_params, read_config, save_params, weights
from jaxalign.models.sharding import param_shardings

HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"
QUERY = "model.layers.1.self_attn.q_proj.weight"
UNTIED, TIED = tiny.CONFIGS["llama_biases"], tiny.CONFIGS["smollm2"]


def all_tensors(folder):
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype == second[name].dtype, name
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def error_of(folder, config):
    with pytest.raises(ModelError) as raised:
        load_params(folder, config)
    return str(raised.value)


# Right folders.


@pytest.mark.parametrize(
    ("dtype", "files", "layers"), [("float32", 1, "unrolled"), ("bfloat16", 3, "scanned"), ("float16", 3, "unrolled")]
)
@pytest.mark.parametrize("name", ["llama_biases", "smollm2", "mistral", "qwen2", "qwen3_biases"])
def test_round_trip_is_exact(name, dtype, files, layers, tmp_path):
    config = tiny.CONFIGS[name]
    source = {key: value.astype(jnp.dtype(dtype)) for key, value in tiny.tensors(config).items()}
    params = load_params(tiny.save(tmp_path / "in", config, source, files), config, dtype=dtype, layers=layers)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
    save_params(tmp_path / "out", config, params, max_file_bytes=1 << 30 if files == 1 else 20_000)
    assert read_config(tmp_path / "out") == config
    assert (tmp_path / "out" / "model.safetensors").is_file() == (files == 1)
    assert_same(all_tensors(tmp_path / "out"), source)
    again = load_params(tmp_path / "out", config, dtype=dtype, layers=layers)
    jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.parametrize("source", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("target", ["float32", "bfloat16"])
def test_files_of_any_precision_are_converted(source, target, tmp_path):
    tensors = {name: value.astype(jnp.dtype(source)) for name, value in tiny.tensors(UNTIED).items()}
    params = load_params(tiny.save(tmp_path, UNTIED, tensors), UNTIED, dtype=target)
    bias = params["blocks"][1]["attention"]["query_bias"]
    expected = tensors["model.layers.1.self_attn.q_proj.bias"].astype(jnp.dtype(target))
    assert bias.dtype == jnp.dtype(target)
    np.testing.assert_array_equal(bias.reshape(-1), expected)


def test_a_precision_that_is_mixed_within_a_folder(tmp_path):
    tensors = tiny.tensors(UNTIED)
    mixed = {name: value.astype(jnp.bfloat16) if value.ndim == 2 else value for name, value in tensors.items()}
    params = load_params(tiny.save(tmp_path, UNTIED, mixed), UNTIED)
    np.testing.assert_array_equal(params["norm"]["scale"], tensors["model.norm.weight"])
    np.testing.assert_array_equal(params["head"], mixed[HEAD].astype(np.float32))


def test_heads_go_where_they_belong(tmp_path):
    params = load_params(tiny.save(tmp_path, UNTIED), UNTIED)
    scanned = load_params(tmp_path, UNTIED, layers="scanned")
    tensor = tiny.tensors(UNTIED)[QUERY]
    output = tiny.tensors(UNTIED)["model.layers.1.self_attn.o_proj.weight"]
    for attention in (params["blocks"][1]["attention"], jax.tree.map(lambda x: x[1], scanned["blocks"]["attention"])):
        np.testing.assert_array_equal(attention["query"][2, 3], tensor[2 * UNTIED.head_dim + 3])
        np.testing.assert_array_equal(attention["output"][:, 2, 3], output[:, 2 * UNTIED.head_dim + 3])


DIVISIBLE = dataclasses.replace(UNTIED, vocab_size=64, intermediate_size=48, num_heads=8, num_kv_heads=4)
MESHES = {"model=8": ((8,), ("model",)), "users=2, model=4": ((2, 4), ("users", "model"))}


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
@pytest.mark.parametrize("mesh", MESHES)
def test_each_device_reads_only_its_slices(mesh, layers, tmp_path, monkeypatch):
    sizes, names = MESHES[mesh]
    mesh = Mesh(np.array(jax.devices()).reshape(sizes), names)
    shardings = param_shardings(DIVISIBLE, mesh, layers=layers)
    tensors = tiny.tensors(DIVISIBLE)
    whole = load_params(tiny.save(tmp_path, DIVISIBLE), DIVISIBLE, layers=layers)
    largest = {}
    original = weights._Files.slice

    def record(self, name, index=()):
        data = original(self, name, index)
        largest[name] = max(largest.get(name, 0), data.size)
        return data

    monkeypatch.setattr(weights._Files, "slice", record)
    params = load_params(tmp_path, DIVISIBLE, layers=layers, shardings=shardings)
    jax.tree.map(np.testing.assert_array_equal, params, whole)
    assert jax.tree.map(lambda leaf: leaf.sharding, params) == shardings
    devices = mesh.shape["model"]
    kv = 1 if DIVISIBLE.num_kv_heads % devices else devices
    split = {"q_proj": devices, "k_proj": kv, "v_proj": kv, "embed_tokens": devices, "lm_head": devices}
    split |= {"gate_proj": devices, "up_proj": devices}
    for name, tensor in tensors.items():
        part = name.split(".")[-2]
        of = split.get(part, devices if name.endswith(("o_proj.weight", "down_proj.weight")) else 1)
        assert largest[name] == tensor.size // of, name


def test_saving_sharded_parameters(tmp_path):
    mesh = Mesh(np.array(jax.devices()), ("model",))
    tiny.save(tmp_path / "in", DIVISIBLE)
    params = load_params(tmp_path / "in", DIVISIBLE, shardings=param_shardings(DIVISIBLE, mesh))
    save_params(tmp_path / "out", DIVISIBLE, params)
    assert_same(all_tensors(tmp_path / "out"), tiny.tensors(DIVISIBLE))


# The output matrix, tied or not.


def test_tied_with_an_equal_output_matrix_is_said_and_ignored(tmp_path, caplog):
    tensors = tiny.tensors(TIED)
    tiny.save(tmp_path, TIED, tensors | {HEAD: tensors[EMBED].copy()})
    with caplog.at_level(logging.WARNING, "jaxalign"):
        params = load_params(tmp_path, TIED)
    assert "head" not in params
    assert f"{HEAD} equals the embedding and is ignored" in caplog.text


@pytest.mark.parametrize("change", ["last value", "shape", "dtype"])
def test_tied_with_another_output_matrix_is_refused(change, tmp_path):
    tensors = tiny.tensors(TIED)
    head = tensors[EMBED].copy()
    head[-1, -1] += 1e-3
    head = {"last value": head, "shape": head[:-1], "dtype": tensors[EMBED].astype(np.float16)}[change]
    message = error_of(tiny.save(tmp_path, TIED, tensors | {HEAD: head}), TIED)
    assert f"{HEAD}: differs from the embedding" in message
    assert "tie_word_embeddings" in message


def test_untied_without_an_output_matrix_is_refused(tmp_path):
    tensors = tiny.tensors(UNTIED)
    del tensors[HEAD]
    assert f"{HEAD}: missing" in error_of(tiny.save(tmp_path, UNTIED, tensors), UNTIED)


def test_untied_with_an_output_matrix_uses_it(tmp_path):
    params = load_params(tiny.save(tmp_path, UNTIED), UNTIED)
    np.testing.assert_array_equal(params["head"], tiny.tensors(UNTIED)[HEAD])
    assert not np.array_equal(params["head"], params["embed"])


# Files that are missing or damaged.


@pytest.fixture
def folder(tmp_path):
    """Three files and their index."""
    return tiny.save(tmp_path / "model", UNTIED, files=3)


def test_a_missing_file_comes_first_and_then_what_it_held(folder):
    lost = load_file(folder / "model-00002-of-00003.safetensors")
    (folder / "model-00002-of-00003.safetensors").unlink()
    lines = error_of(folder, UNTIED).splitlines()
    assert lines[0].startswith(f"{folder}: ")
    assert lines[1].strip() == "model-00002-of-00003.safetensors: named in the index, and absent"
    assert {line.strip().removesuffix(": missing") for line in lines[2:]} == set(lost)


def test_a_renamed_file(folder):
    (folder / "model-00002-of-00003.safetensors").rename(folder / "model-2.safetensors")
    assert "model-00002-of-00003.safetensors: named in the index, and absent" in error_of(folder, UNTIED)


def test_an_index_that_names_a_tensor_its_file_lacks(folder):
    path = folder / "model-00001-of-00003.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[0]
    del tensors[name]
    save_file(tensors, path)
    message = error_of(folder, UNTIED)
    assert f"{name}: the index puts it in {path.name}, which does not hold it" in message
    assert f"{name}: missing" in message


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_a_broken_index(text, folder):
    (folder / "model.safetensors.index.json").write_text(text)
    assert "index.json: not a safetensors index" in error_of(folder, UNTIED)


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("kept", [-10, 100, 5, 0])
def test_a_file_that_was_cut_short(files, kept, tmp_path):
    folder = tiny.save(tmp_path, UNTIED, files=files)
    path = sorted(folder.glob("*.safetensors"))[-1]
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path.name}: damaged or cut short" in error_of(folder, UNTIED)


def test_one_tensor_in_two_files(tmp_path):
    tiny.save(tmp_path, UNTIED)
    save_file({QUERY: tiny.tensors(UNTIED)[QUERY]}, tmp_path / "more.safetensors")
    assert f"{QUERY}: in two files" in error_of(tmp_path, UNTIED)


def test_a_folder_without_weights(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"no pickle is read")
    assert "no .safetensors file; other weight formats are not read" in error_of(tmp_path, UNTIED)


# Tensors that do not fit.


def test_everything_wrong_is_reported_at_once(tmp_path):
    tensors = tiny.tensors(UNTIED)
    wide = tensors["model.norm.weight"]
    tensors["model.norm.weight"] = np.concatenate([wide, wide])
    tensors[QUERY] = tensors[QUERY].T.copy()
    tensors[EMBED] = tensors[EMBED].astype(np.float64)
    del tensors["model.layers.0.mlp.up_proj.weight"], tensors["model.layers.0.mlp.down_proj.bias"]
    tensors["model.layers.2.mlp.up_proj.weight"] = wide
    tensors["score.weight"] = wide
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = wide  # recomputed, so ignored
    lines = {line.strip() for line in error_of(tiny.save(tmp_path, UNTIED, tensors), UNTIED).splitlines()[1:]}
    assert lines == {
        "model.norm.weight: shape [144], and config.json asks for [72]",
        f"{QUERY}: shape [72, 36], and config.json asks for [36, 72]",
        f"{EMBED}: dtype F64; F32, F16 and BF16 are read",
        "model.layers.0.mlp.up_proj.weight: missing",
        "model.layers.0.mlp.down_proj.bias: missing",
        "model.layers.2.mlp.up_proj.weight: not part of a llama model with this config",
        "score.weight: not part of a llama model with this config",
    }


@pytest.mark.parametrize("tensor", ["self_attn.q_proj.bias", "self_attn.o_proj.bias", "mlp.up_proj.bias"])
@pytest.mark.parametrize("name", ["smollm2", "mistral", "qwen3"])
def test_a_bias_that_the_config_does_not_have_is_not_dropped(name, tensor, tmp_path):
    config, key = tiny.CONFIGS[name], f"model.layers.1.{tensor}"
    tensors = tiny.tensors(config) | {key: np.ones(3, np.float32)}
    assert f"{key}: not part of a {config.family} model" in error_of(tiny.save(tmp_path, config, tensors), config)


def test_a_reward_model_is_not_a_language_model(tmp_path):
    tensors = tiny.tensors(TIED) | {"score.weight": np.ones((1, TIED.hidden_size), np.float32)}
    tiny.save(tmp_path, TIED, tensors, architectures=["LlamaForSequenceClassification"])
    with pytest.raises(ModelError, match="LlamaForSequenceClassification"):
        read_config(tmp_path)
    assert "score.weight: not part of" in error_of(tmp_path, TIED)


@pytest.mark.parametrize("layers", [1, 3])
def test_another_number_of_layers(layers, tmp_path):
    config = dataclasses.replace(TIED, num_layers=layers)
    message = error_of(tiny.save(tmp_path, TIED), config)
    assert ("model.layers.1" in message) == (layers == 1)
    assert ("model.layers.2" in message) == (layers == 3)


def test_a_long_list_of_mistakes_is_cut_and_counted(tmp_path):
    tiny.save(tmp_path, UNTIED, {"model.norm.weight": np.ones(72, np.float32)})
    lines = error_of(tmp_path, UNTIED).splitlines()
    assert len(lines) == 22
    assert lines[-1].strip() == f"... and {len(tiny.tensors(UNTIED)) - 1 - 20} more"


# Saving.


def test_an_existing_folder_is_not_overwritten(tmp_path):
    params = load_params(tiny.save(tmp_path / "in", TIED), TIED)
    with pytest.raises(ModelError, match="exists already"):
        save_params(tmp_path / "in", TIED, params)


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    params = load_params(tiny.save(tmp_path / "in", TIED), TIED)

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "write_json", fail)
    with pytest.raises(KeyboardInterrupt):
        save_params(tmp_path / "out", TIED, params)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_the_index_of_a_saved_folder_is_complete(tmp_path):
    params = load_params(tiny.save(tmp_path / "in", UNTIED), UNTIED)
    save_params(tmp_path / "out", UNTIED, params, max_file_bytes=20_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    for file in files:
        held = load_file(tmp_path / "out" / file)
        assert sum(value.nbytes for value in held.values()) <= 20_000 or len(held) == 1
        assert {name for name, place in index["weight_map"].items() if place == file} == set(held)
    assert index["metadata"]["total_size"] == 4 * UNTIED.num_params
