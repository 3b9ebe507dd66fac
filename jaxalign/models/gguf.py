"""A GGUF file becomes a Hugging Face folder: config, float32 safetensors, tokenizer with its chat template.

Llama-shaped and Qwen2 files. Whatever is in the file and not understood (another architecture, rope scaling, an unknown
tokenizer, a surplus tensor) is refused by name, since a converter that guesses gives a model that looks alive and is
wrong.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxalign import files
from jaxalign.errors import ModelError

# Per GGUF architecture: the Hugging Face class and model type, and whether the q and k rows are interleaved. Llama
# files store each head's rows as (0, half, 1, half + 1, ...) for llama.cpp's rotary embedding; Qwen2 files keep the
# order.
_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama", True),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", False),
}

# How a byte-level BPE cuts text before merging, by the name in `tokenizer.ggml.pre`.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRE_TOKENIZERS: dict[str, tuple[list[dict[str, Any]], dict[str, Any] | None]] = {
    # name: (steps, normalizer)
    "smollm": (
        [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
        None,
    ),
    "qwen2": (
        [
            {"type": "Split", "pattern": {"Regex": _QWEN2_SPLIT}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        ],
        {"type": "NFC"},
    ),
}

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the interleaving of rotary pairs, per head.

    Args:
      rows: `[heads * head_dim, ...]`, the projection (or its bias) as llama.cpp stores it: row 2i + j of a head is
        row i + j * head_dim / 2 of the original.
      heads: number of query heads for q, of key/value heads for k. The wrong one scrambles silently.

    Returns:
      The same shape, each head's rows as (first half, second half).
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@dataclasses.dataclass(frozen=True)
class _File:
    """The metadata of a GGUF file, read by key with errors that name it."""

    path: Path
    values: dict[str, Any]

    @classmethod
    def of(cls, path: Path, fields: dict[str, Any]) -> "_File":
        return cls(path, {key: field.contents() for key, field in fields.items()})

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def need(self, key: str) -> Any:
        if key not in self.values:
            raise ModelError(f"{self.path}: the GGUF metadata has no '{key}'.")
        return self.values[key]

    @property
    def architecture(self) -> str:
        name = self.need("general.architecture")
        if name not in _ARCHITECTURES:
            raise ModelError(
                f"{self.path}: general.architecture is '{name}'; only {', '.join(_ARCHITECTURES)} can be converted. "
                "Give the model's Hugging Face folder instead."
            )
        return name


def _config(file: _File, tied: bool) -> dict[str, Any]:
    name = file.architecture
    model_class, model_type, _ = _ARCHITECTURES[name]
    scaling = [key for key in file.values if key.startswith(f"{name}.rope.scaling.")]
    if any(file.values[key] not in ("none", 1.0) for key in scaling):
        raise ModelError(f"{file.path}: rope scaling ({', '.join(scaling)}) cannot be converted.")
    for feature in ("expert_count", "attention.sliding_window"):
        if file.get(f"{name}.{feature}"):
            raise ModelError(f"{file.path}: '{name}.{feature}' is set; this feature cannot be converted.")
    width, heads = file.need(f"{name}.embedding_length"), file.need(f"{name}.attention.head_count")
    head_dim = file.get(f"{name}.attention.key_length", width // heads)
    if file.get(f"{name}.rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{file.path}: '{name}.rope.dimension_count' covers only a part of a head; not supported.")
    end = file.get("tokenizer.ggml.eos_token_id")
    return {
        "architectures": [model_class],
        "model_type": model_type,
        "vocab_size": len(file.need("tokenizer.ggml.tokens")),
        "hidden_size": width,
        "intermediate_size": file.need(f"{name}.feed_forward_length"),
        "num_hidden_layers": file.need(f"{name}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.get(f"{name}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": file.need(f"{name}.context_length"),
        # GGUF holds float32: 1e-5 reads as 9.99999975e-06.
        "rms_norm_eps": float(f"{file.need(f'{name}.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(f"{file.get(f'{name}.rope.freq_base', 10000.0):.6g}"),
        "rope_scaling": None,
        "attention_bias": name == "qwen2",
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end,
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id", end),
        "torch_dtype": "float32",
        "dtype": "float32",
    }


def _tensor_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, None where there is none."""
    if name in _TOP_TENSORS:
        return _TOP_TENSORS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_TENSORS and parts[3] in ("weight", "bias"):
        return f"model.layers.{parts[1]}.{_LAYER_TENSORS[parts[2]]}.{parts[3]}"
    return None


def _tensors(file: _File, tensors: list[Any], config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Dequantised float32 tensors by Hugging Face name."""
    import gguf

    unknown = [tensor.name for tensor in tensors if _tensor_name(tensor.name) is None]
    if unknown:
        raise ModelError(f"{file.path}: these tensors have no place in a {config['model_type']} model: {unknown}.")
    interleaved = _ARCHITECTURES[file.architecture][2]
    result = {}
    for tensor in tensors:
        name = _tensor_name(tensor.name)
        assert name is not None
        values = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if interleaved and ".q_proj." in name:
            values = unpermute(values, config["num_attention_heads"])
        elif interleaved and ".k_proj." in name:
            values = unpermute(values, config["num_key_value_heads"])
        result[name] = np.ascontiguousarray(values)
    return result


def _tokenizer(file: _File) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tokenizer.json, tokenizer_config.json) of a byte-level BPE."""
    model, pre = file.need("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "default")
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise ModelError(
            f"{file.path}: the tokenizer (tokenizer.ggml.model '{model}', tokenizer.ggml.pre '{pre}') is unknown; "
            f"known are 'gpt2' with {', '.join(_PRE_TOKENIZERS)}. Give the model's Hugging Face folder instead."
        )
    steps, normalizer = _PRE_TOKENIZERS[pre]
    tokens, types = file.need("tokenizer.ggml.tokens"), file.need("tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind == _CONTROL,
            }
            for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            # A merge is "left right"; byte-level symbols never contain a space.
            "merges": [merge.split(" ") for merge in file.need("tokenizer.ggml.merges")],
        },
    }
    if file.get("tokenizer.ggml.add_bos_token"):
        start = file.need("tokenizer.ggml.bos_token_id")
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": tokens[start], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {tokens[start]: {"id": tokens[start], "ids": [start], "tokens": [tokens[start]]}},
        }
    settings: dict[str, Any] = {
        # The generic class keeps tokenizer.json as it is; a family's own class may build another pre-tokenizer.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.need(f"{file.architecture}.context_length"),
    }
    for field, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = file.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            settings[f"{field}_token"] = tokens[index]
    if template := file.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return tokenizer, settings


def convert(path: Path, folder: Path) -> None:
    """Writes the model of the GGUF file `path` as a Hugging Face folder into the existing, empty `folder`.

    Weights are float32, since the values of a quantised block (scale times integer plus offset) are not exact in 16
    bits: 4 bytes a parameter on disk and, while converting, in memory.

    Raises:
      ModelError: the file is not a GGUF file, or has something that is not understood (named in the message).
    """
    import gguf
    from safetensors.numpy import save_file

    try:
        reader = gguf.GGUFReader(os.fspath(path))
        file = _File.of(path, reader.fields)
    except (ValueError, IndexError, KeyError) as error:
        raise ModelError(f"{path}: not a readable GGUF file ({error}).") from error
    # A file without an output matrix uses the embedding for both.
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = _config(file, tied)
    tokenizer, tokenizer_config = _tokenizer(file)
    save_file(_tensors(file, reader.tensors, config), folder / "model.safetensors", metadata={"format": "pt"})
    ends = {f"{key}_token_id": config[f"{key}_token_id"] for key in ("bos", "eos", "pad")}
    files.write_json(folder / "config.json", config)
    files.write_json(folder / "generation_config.json", ends)
    files.write_json(folder / "tokenizer_config.json", tokenizer_config)
    files.write_atomic(folder / "tokenizer.json", json.dumps(tokenizer, ensure_ascii=False))
