"""Hugging Face `config.json` files to `DecoderConfig` and back.

What the transformer does not compute (sliding windows, other rotary scalings, experts, quantised weights) is refused by
field and value: a feature that is silently ignored gives a model that runs and is wrong.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxalign.errors import ModelError, shown
from jaxalign.files import is_number, read_json
from jaxalign.models.config import FAMILIES, DecoderConfig, RopeScaling

# Fields of config.json that change nothing in the forward pass of an evaluated (not trained) model.
_HARMLESS = frozenset(
    """_name_or_path architectures attention_dropout attn_implementation _attn_implementation
    _attn_implementation_autoset auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward
    classifier_dropout cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id hidden_dropout id2label initializer_range is_decoder is_llama_config
    label2id length_penalty max_length max_window_layers min_length model_type no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix
    problem_type pruned_heads remove_invalid_values repetition_penalty resid_pdrop return_dict
    return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
    tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache use_return_dict""".split()  # noqa: SIM905
)
_READ = frozenset(
    """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters tie_word_embeddings attention_bias
    mlp_bias hidden_act sliding_window use_sliding_window layer_types partial_rotary_factor pretraining_tp
    rope_interleaved quantization_config""".split()  # noqa: SIM905
)


def from_hugging_face(values: Mapping[str, Any], source: str = "config.json") -> DecoderConfig:
    """Reads the contents of a Hugging Face `config.json`.

    Args:
      values: the parsed JSON object.
      source: named in errors.

    Raises:
      ModelError: a field is missing, or asks for something that is not supported; the message names field and value.
    """

    def refuse(field: str, value: Any, why: str) -> ModelError:
        return ModelError(f"{source}: {field} = {shown(value)} is not supported: {why}")

    def names(field: str) -> list[str]:
        value = values.get(field) or []
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise ModelError(f"{source}: {field} = {shown(value)}, a list of names is needed")
        return value

    def switch(field: str, default: bool = False) -> bool:
        # Read as a truth value, "false" would be true.
        value = default if values.get(field) is None else values[field]
        if not isinstance(value, bool):
            raise ModelError(f"{source}: {field} = {shown(value)}, true or false is needed")
        return value

    family = values.get("model_type")
    if family not in FAMILIES:
        raise refuse("model_type", family, f"jaxalign runs {', '.join(FAMILIES)}")
    if not all(name.endswith("ForCausalLM") for name in names("architectures")):
        raise refuse("architectures", values["architectures"], "only language models (...ForCausalLM) are")
    for field, value in values.items():
        if field not in _HARMLESS and field not in _READ and value not in (None, False):
            raise refuse(field, value, "the field is not known; remove it if it does not change the forward pass")

    def need(field: str) -> int:
        value = values.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ModelError(f"{source}: {field} = {shown(value)}, a positive integer is needed")
        if value > _LARGEST.get(field, 2**31 - 1):
            raise ModelError(f"{source}: {field} = {shown(value)} is more than any model has")
        return value

    if values.get("hidden_act", "silu") != "silu":
        raise refuse("hidden_act", values["hidden_act"], "only silu is")
    if values.get("pretraining_tp", 1) not in (None, 1):
        raise refuse("pretraining_tp", values["pretraining_tp"], "only 1 is")
    if values.get("quantization_config"):
        raise refuse("quantization_config", values["quantization_config"], "only plain floating-point weights are")
    if values.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
        raise refuse("partial_rotary_factor", values["partial_rotary_factor"], "only 1.0 is")
    if switch("rope_interleaved"):
        raise refuse("rope_interleaved", values["rope_interleaved"], "only split halves are")
    max_position = need("max_position_embeddings")
    # Qwen writes a window that is switched off by use_sliding_window; Mistral's is on unless null, 4096 unless stated.
    window = values.get("sliding_window", 4096 if family == "mistral" else None)
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 0):
        raise ModelError(f"{source}: sliding_window = {shown(window)}, a number of tokens or null is needed")
    if window and switch("use_sliding_window", family == "mistral") and window < max_position:
        raise refuse("sliding_window", window, f"it is shorter than max_position_embeddings = {max_position}")
    if other := set(names("layer_types")) - {"full_attention"}:
        raise refuse("layer_types", sorted(other), "only full_attention is")

    num_heads, hidden_size = need("num_attention_heads"), need("hidden_size")
    if not values.get("head_dim") and hidden_size % num_heads:
        raise ModelError(f"{source}: hidden_size = {hidden_size} is not a multiple of {num_heads} heads")
    # Where a field is absent, the families fill in different numbers (8 or 32 key/value heads, a head_dim of 128).
    kv_default = num_heads if family == "llama" and values.get("num_key_value_heads") is None else None
    bias, mlp_bias = switch("attention_bias"), switch("mlp_bias")
    if bias and family == "mistral":
        raise refuse("attention_bias", True, "Mistral has no biases")
    if mlp_bias and family != "llama":
        raise refuse("mlp_bias", True, f"{family} has no biases in its MLP")
    eps = values.get("rms_norm_eps", 1e-6)
    if not isinstance(eps, float) or not 0 < eps < math.inf:
        raise ModelError(f"{source}: rms_norm_eps = {shown(eps)}, a positive number is needed")
    theta, scaling = _rope(values, source, refuse)
    sizes: dict[str, int] = {
        "vocab_size": need("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": need("intermediate_size"),
        "num_layers": need("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": kv_default or need("num_key_value_heads"),
        "head_dim": need("head_dim") if values.get("head_dim") or family == "qwen3" else hidden_size // num_heads,
        "max_position": max_position,
    }
    try:
        return DecoderConfig(
            family=family,
            **sizes,
            rope_theta=theta,
            rope_scaling=None if scaling is None else RopeScaling(*scaling),
            norm_eps=eps,
            # Absent means untied in all four families.
            tie_embeddings=switch("tie_word_embeddings"),
            qkv_bias=bias or family == "qwen2",
            output_bias=bias and family != "qwen2",
            mlp_bias=mlp_bias,
            qk_norm=family == "qwen3",
        )
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None


_LARGEST = {"num_hidden_layers": 10_000, "num_attention_heads": 10_000}
_LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _rope(values, source, refuse) -> tuple[float, tuple[float, float, float, int] | None]:
    """Base and Llama 3 scaling of the rotary frequencies.

    They are said by `rope_theta`, `rope_scaling` (old) and `rope_parameters` (new). Each place may say each thing; two
    that say different things are an error, never a choice.
    """
    said: dict[str, tuple[str, Any]] = {}

    def say(place: str, key: str, value: Any) -> None:
        if key != "rope_type" and not is_number(value):
            raise refuse(place, value, "a number is needed")
        if key == "original_max_position_embeddings" and value != int(value):
            raise refuse(place, value, "a whole number is needed")
        if key in said and said[key][1] != value:
            other, before = said[key]
            raise ModelError(f"{source}: {other} = {before!r} and {place} = {value!r} contradict each other")
        said[key] = (place, value)

    if values.get("rope_theta") is not None:
        say("rope_theta", "rope_theta", values["rope_theta"])
    for place in ("rope_scaling", "rope_parameters"):
        given = values.get(place) or {}
        if not isinstance(given, Mapping):
            raise refuse(place, given, "an object is needed")
        if not given:
            continue
        kind = given.get("rope_type", given.get("type", "default"))
        if kind not in ("default", "llama3"):
            raise refuse(place, dict(given), "only the types default and llama3 are")
        # A rope_parameters that holds the theta alone does not speak about the scaling of an older field.
        if set(given) - {"rope_theta"}:
            say(f"{place}.rope_type", "rope_type", kind)
        for key, value in given.items():
            known = key in ("rope_type", "type", "rope_theta") or (kind == "llama3" and key in _LLAMA3_ROPE)
            if key == "partial_rotary_factor" and value in (None, 1):
                continue
            if not known and value is not None:
                raise refuse(f"{place}.{key}", value, f"it is not part of type {kind}")
            if known and key not in ("rope_type", "type"):
                say(f"{place}.{key}", key, value)
    theta = float(said.get("rope_theta", ("", 10000.0))[1])
    if said.get("rope_type", ("", "default"))[1] == "default":
        return theta, None
    if missing := [key for key in _LLAMA3_ROPE if key not in said]:
        raise ModelError(f"{source}: rope_scaling lacks {', '.join(missing)}")
    factor, low, high, original = (said[key][1] for key in _LLAMA3_ROPE)
    return theta, (float(factor), float(low), float(high), int(original))


def read_config(folder: Path) -> DecoderConfig:
    """Reads `folder/config.json`; raises `ModelError` when it is absent, not JSON, or not supported."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder}: there is no config.json; a Hugging Face model folder is needed")
    values = read_json(path, ModelError)
    if not isinstance(values, dict):
        raise ModelError(f"{path}: a JSON object is needed")
    return from_hugging_face(values, str(path))


def to_hugging_face(config: DecoderConfig) -> dict[str, Any]:
    """The `config.json` contents that `from_hugging_face` reads back to the same config."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if s := config.rope_scaling:
        rope |= {
            "rope_type": "llama3",
            "factor": s.factor,
            "low_freq_factor": s.low_freq_factor,
            "high_freq_factor": s.high_freq_factor,
            "original_max_position_embeddings": s.original_max_position,
        }
    architecture = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[config.family]
    values = {
        "model_type": config.family,
        "architectures": [f"{architecture}ForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_act": "silu",
    }
    if config.output_bias:
        values["attention_bias"] = True
    if config.mlp_bias:
        values["mlp_bias"] = True
    if config.family == "mistral":
        values["sliding_window"] = None
    return values
