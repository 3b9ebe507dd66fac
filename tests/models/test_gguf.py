"""GGUF to Hugging Face folders: a round trip for every shape, and a refusal for everything not understood."""

import json

import gguf as library
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxalign.errors import ModelError
from jaxalign.models.gguf import convert, unpermute

HIDDEN, MIDDLE, LAYERS, VOCAB = 32, 64, 2, 12
TOKENS = ["<|end|>", "<|im_start|>", "a", "b", "c", "1", "2", "Ġ", "Ġa", "bc", "Ċ", "<think>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|end|>{% endfor %}"
# Query heads, key/value heads, head width: wide enough that the wrong head count scrambles without an error.
SHAPES = {"8/2": (8, 2, 8), "9/3": (9, 3, 12), "4/4": (4, 4, 8)}


def interleave(rows, heads):
    """What llama.cpp's converter does to q and k, row by row: row i + j * half of a head goes to row 2 i + j."""
    stored = np.empty_like(rows)
    size = rows.shape[0] // heads
    half = size // 2
    for head in range(heads):
        for i in range(half):
            for j in range(2):
                stored[head * size + 2 * i + j] = rows[head * size + i + j * half]
    return stored


def model(architecture="llama", shape="8/2", tied=True, biases=False, seed=0):
    """Random weights of a tiny model by Hugging Face name."""
    heads, groups, size = SHAPES[shape]
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    weights = {"model.embed_tokens.weight": draw(VOCAB, HIDDEN), "model.norm.weight": draw(HIDDEN)}
    if not tied:
        weights["lm_head.weight"] = draw(VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", heads * size), ("k", groups * size), ("v", groups * size)):
            weights[f"{prefix}self_attn.{name}_proj.weight"] = draw(rows, HIDDEN)
            if biases:
                weights[f"{prefix}self_attn.{name}_proj.bias"] = draw(rows)
        weights[f"{prefix}self_attn.o_proj.weight"] = draw(HIDDEN, heads * size)
        weights[f"{prefix}mlp.gate_proj.weight"] = draw(MIDDLE, HIDDEN)
        weights[f"{prefix}mlp.up_proj.weight"] = draw(MIDDLE, HIDDEN)
        weights[f"{prefix}mlp.down_proj.weight"] = draw(HIDDEN, MIDDLE)
        weights[f"{prefix}input_layernorm.weight"] = draw(HIDDEN)
        weights[f"{prefix}post_attention_layernorm.weight"] = draw(HIDDEN)
    return weights


STORED_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write(path, weights, architecture="llama", shape="8/2", pre="smollm", change=None, quantise=()):
    """A GGUF file of `weights`, as llama.cpp's converter writes it. `change` may add to or spoil the metadata."""
    heads, groups, size = SHAPES[shape]
    writer = library.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_key_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, *[1] * 9, 4])
    writer.add_token_merges(["Ġ a", "b c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    if change:
        change(writer)
    for name, values in weights.items():
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            values = interleave(values, heads if "q_proj" in name else groups)
        for ours, theirs in STORED_NAMES.items():
            name = name.replace(ours, theirs)
        kind = library.GGMLQuantizationType.Q8_0 if name in quantise else None
        writer.add_tensor(name, values if kind is None else library.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(tmp_path, *args, **kwargs):
    folder = tmp_path / "folder"
    folder.mkdir()
    convert(write(tmp_path / "model.gguf", *args, **kwargs), folder)
    return folder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("architecture", "shape"),
    [("llama", "8/2"), ("llama", "9/3"), ("llama", "4/4"), ("qwen2", "8/2"), ("qwen2", "9/3")],
)
def test_every_tensor_survives_the_round_trip(tmp_path, architecture, shape, tied):
    weights = model(architecture, shape, tied, biases=architecture == "qwen2")
    folder = converted(tmp_path, weights, architecture, shape)
    loaded = load_file(folder / "model.safetensors")
    assert loaded.keys() == weights.keys()
    for name in weights:
        np.testing.assert_array_equal(loaded[name], weights[name], err_msg=name)
    config = json.loads((folder / "config.json").read_text())
    heads, groups, size = SHAPES[shape]
    expected = {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[architecture]],
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": size,
        "hidden_size": HIDDEN,
        "intermediate_size": MIDDLE,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "max_position_embeddings": 256,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    assert {key: config[key] for key in expected} == expected


def test_attention_scores_are_those_of_the_interleaved_form():
    """Rotary embedding of neighbouring rows on stored weights equals that of halves on converted weights."""
    heads, size, position, theta = 3, 8, 20, 100.0
    rng = np.random.default_rng(0)
    stored = {name: rng.standard_normal((heads * size, HIDDEN)) for name in "qk"}
    x = rng.standard_normal((2, HIDDEN))  # at positions 0 and 20
    angles = position * theta ** (-np.arange(0, size, 2) / size)

    def score(rotate, rows):
        q, k = rows["q"] @ x[1], rows["k"] @ x[0]
        return np.array([rotate(a) @ b for a, b in zip(q.reshape(heads, size), k.reshape(heads, size), strict=True)])

    def neighbours(v):
        pairs = v[0::2] + 1j * v[1::2]
        turned = pairs * np.exp(1j * angles)
        return np.stack([turned.real, turned.imag], 1).reshape(-1)

    def halves(v):
        turned = (v[: size // 2] + 1j * v[size // 2 :]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag])

    ours = {name: unpermute(rows, heads) for name, rows in stored.items()}
    np.testing.assert_allclose(score(halves, ours), score(neighbours, stored), rtol=1e-12)
    assert np.abs(score(halves, stored) - score(neighbours, stored)).max() > 0.1  # what forgetting would give


def test_quantised_blocks(tmp_path):
    weights = model(shape="8/2")
    name = "model.layers.1.self_attn.q_proj.weight"
    folder = converted(tmp_path, weights, quantise=("blk.1.attn_q.weight",))
    loaded = load_file(folder / "model.safetensors")[name]
    step = np.abs(weights[name]).max() / 127  # of the 8-bit scale
    assert loaded.dtype == np.float32
    np.testing.assert_allclose(loaded, weights[name], atol=step)
    assert (loaded != weights[name]).any()


def test_the_tokenizer(tmp_path):
    from jaxalign.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(converted(tmp_path, model()))
    assert [TOKENS[token] for token in tokenizer.encode("a abc12")] == ["a", "Ġa", "bc", "1", "2"]
    assert tokenizer.decode(tokenizer.encode("a abc12\n")) == "a abc12\n"
    assert tokenizer.prompt("a") == [1, 2, 0]
    assert tokenizer.end_ids == (0,)
    assert tokenizer.raw("a") == [2]


def test_a_tokenizer_that_adds_bos(tmp_path):
    from jaxalign.models.tokenizer import Tokenizer

    folder = converted(tmp_path, model(), change=lambda writer: writer.add_add_bos_token(True))
    assert Tokenizer.from_folder(folder).raw("a") == [1, 2]


REFUSED = {
    "rope scaling": lambda w: w.add_rope_scaling_type(library.RopeScalingType.YARN),
    "expert_count": lambda w: w.add_expert_count(4),
    "sliding_window": lambda w: w.add_sliding_window(64),
    r"tokenizer\.ggml\.pre 'gpt-4o'": lambda w: w.add_tokenizer_pre("gpt-4o"),
}


@pytest.mark.filterwarnings("ignore:Duplicated key name")  # the test overwrites a key that `write` has set
@pytest.mark.parametrize("feature", REFUSED)
def test_what_is_not_understood_is_refused_by_name(tmp_path, feature):
    with pytest.raises(ModelError, match=feature):
        converted(tmp_path, model(), change=REFUSED[feature])


def test_other_architectures_and_surplus_tensors_are_refused(tmp_path):
    with pytest.raises(ModelError, match=r"general\.architecture is 'gemma'"):
        converted(tmp_path, model(), architecture="gemma")
    (tmp_path / "folder").rmdir()
    with pytest.raises(ModelError, match=r"no place in a llama model: \['rope_freqs\.weight'\]"):
        converted(tmp_path, {**model(), "rope_freqs.weight": np.ones(2, np.float32)})


@pytest.mark.parametrize("cut", [0, 3, 100, -10])
def test_a_damaged_file(tmp_path, cut):
    path = write(tmp_path / "model.gguf", model())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelError, match="not a readable GGUF file"):
        convert(path, tmp_path)
    path.write_bytes(b"not a model at all" * 10)
    with pytest.raises(ModelError, match="not a readable GGUF file"):
        convert(path, tmp_path)
