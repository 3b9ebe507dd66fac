"""Tiny random models of every family, as the tensors of a Hugging Face folder, and a tiny tokenizer.

Weights come from a numpy seed and are named and shaped here by hand, so that neither the loader's table nor its
parameter tree can hide a mistake of its own. Heads are 8/2 and 9/3, and a head is not always width / heads wide.
"""

import json
import zlib
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from jaxalign.models import DecoderConfig, RopeScaling
from jaxalign.models.config_json import to_hugging_face


def _config(family, **changes) -> DecoderConfig:
    sizes = dict(  # noqa: C408
        vocab_size=61,
        hidden_size=72,
        intermediate_size=50,
        num_layers=2,
        num_heads=8,
        num_kv_heads=2,
        head_dim=6,
        max_position=16384,
        rope_theta=10000.0,
    )
    return DecoderConfig(family=family, **(sizes | changes))


CONFIGS = {
    "llama3": _config("llama", rope_theta=500000.0, head_dim=8, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192)),
    "llama_biases": _config(
        "llama", num_heads=9, num_kv_heads=3, head_dim=4, qkv_bias=True, output_bias=True, mlp_bias=True
    ),
    "smollm2": _config("llama", num_heads=9, num_kv_heads=3, head_dim=8, rope_theta=100000.0, tie_embeddings=True),
    "mistral": _config("mistral", rope_theta=1000000.0, head_dim=4),
    "qwen2": _config("qwen2", rope_theta=1000000.0, norm_eps=1e-6, tie_embeddings=True, qkv_bias=True),
    "qwen3": _config("qwen3", rope_theta=1000000.0, norm_eps=1e-6, tie_embeddings=True, qk_norm=True),
    "qwen3_biases": _config(
        "qwen3", num_heads=9, num_kv_heads=3, head_dim=6, norm_eps=1e-6, qkv_bias=True, output_bias=True, qk_norm=True
    ),
}


def tensors(config: DecoderConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of the model's folder by name, float32. Biases are large, so that a forgotten one shows."""
    d, f, hd = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_heads * hd, config.num_kv_heads * hd
    shapes = {"model.embed_tokens.weight": (config.vocab_size, d), "model.norm.weight": (d,)}
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, d)
    for i in range(config.num_layers):
        layer = {
            "input_layernorm.weight": (d,),
            "self_attn.q_proj.weight": (q, d),
            "self_attn.k_proj.weight": (kv, d),
            "self_attn.v_proj.weight": (kv, d),
            "self_attn.o_proj.weight": (d, q),
            "post_attention_layernorm.weight": (d,),
            "mlp.gate_proj.weight": (f, d),
            "mlp.up_proj.weight": (f, d),
            "mlp.down_proj.weight": (d, f),
        }
        if config.qkv_bias:
            layer |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
        if config.output_bias:
            layer |= {"self_attn.o_proj.bias": (d,)}
        if config.mlp_bias:
            layer |= {"mlp.gate_proj.bias": (f,), "mlp.up_proj.bias": (f,), "mlp.down_proj.bias": (d,)}
        if config.qk_norm:
            layer |= {"self_attn.q_norm.weight": (hd,), "self_attn.k_norm.weight": (hd,)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}

    def draw(name, shape):
        # One stream per name: a tensor does not depend on which others there are.
        values = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
        if name.endswith("norm.weight"):
            values = 1 + 0.3 * values
        elif not name.endswith("bias"):
            values = values * 1.5 / np.sqrt(shape[-1])
        return values.astype(np.float32)

    return {name: draw(name, shape) for name, shape in shapes.items()}


def save(
    folder: Path, config: DecoderConfig, weights: dict[str, np.ndarray] | None = None, files: int = 1, **fields
) -> Path:
    """Writes a Hugging Face folder of `weights` (default: `tensors(config)`), over `files` files; returns the folder.

    `fields` replace those of `config.json`; a value of None removes one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = tensors(config) if weights is None else weights
    names = sorted(weights)
    weight_map = {}
    for number in range(files):
        file = "model.safetensors" if files == 1 else f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = {name: weights[name] for name in names[number::files]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    if files > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    values = {key: value for key, value in (to_hugging_face(config) | fields).items() if value is not None}
    if config.family == "mistral":
        values["sliding_window"] = None
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def save_tokenizer(folder: Path) -> Path:
    """Writes a byte-level tokenizer of 258 ids: `<s>`, `</s>` and one per byte."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    letters = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    library = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    library.add_special_tokens(["<s>", "</s>"])
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


# Rotary positions of 20 tokens in a row, and of two stretches that are far apart (all that counts are differences).
POSITIONS = {"near": np.arange(20, dtype=np.int32), "far": np.r_[0:10, 9000:9010].astype(np.int32)}


def tokens(config: DecoderConfig, batch: int, length: int, seed: int = 0) -> np.ndarray:
    """`[batch, length]` int32, random ids."""
    return np.random.default_rng(seed).integers(0, config.vocab_size, (batch, length)).astype(np.int32)
