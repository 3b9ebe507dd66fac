"""The shape of a decoder-only language model, and its reader for Hugging Face `config.json` files.

One frozen dataclass covers the Llama 3, SmolLM2, Mistral, Qwen2/2.5 and Qwen3 families. What the transformer does not
compute (sliding windows, other rotary scalings, experts, quantised weights) is refused by field and value: a feature
that is silently ignored gives a model that runs and is wrong.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxalign.errors import ModelError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3's scaling of the rotary frequencies (`rope_type: llama3`).

    Wavelengths beyond `original_max_position / low_freq_factor` are stretched by `factor`, those under
    `original_max_position / high_freq_factor` are kept, and those between are interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and switches of a decoder-only transformer.

    Attributes:
      family: one of `FAMILIES`; decides the names of tensors in a Hugging Face folder.
      vocab_size: rows of the embedding (may exceed the tokenizer's ids).
      hidden_size: width of the residual stream.
      intermediate_size: width of the gated MLP.
      num_layers: transformer blocks.
      num_heads: query heads.
      num_kv_heads: key/value heads; divides `num_heads` (grouped-query attention).
      head_dim: width of one head.
      max_position: longest sequence in tokens that the model was made for.
      rope_theta: base of the rotary frequencies.
      rope_scaling: Llama 3's frequency scaling, or None.
      norm_eps: epsilon of the RMS norms.
      tie_embeddings: whether the output matrix is the embedding.
      qkv_bias: biases on the query, key and value projections (Qwen2; Llama with `attention_bias`).
      output_bias: a bias on the attention output projection (Llama with `attention_bias`).
      mlp_bias: biases in the MLP (Llama with `mlp_bias`).
      qk_norm: RMS norms over each query and key head (Qwen3).
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self):
        if self.family not in FAMILIES:
            raise ModelError(f"family {self.family!r} is not supported; known are {', '.join(FAMILIES)}")
        for field in dataclasses.fields(self):
            if field.type is int and getattr(self, field.name) <= 0:
                raise ModelError(f"{field.name} = {getattr(self, field.name)} must be positive")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"num_heads = {self.num_heads} is not a multiple of num_kv_heads = {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ModelError(f"head_dim = {self.head_dim} must be even for rotary embedding")

    @property
    def num_params(self) -> int:
        """Parameters in all, a tied output matrix counted once."""
        d, h, kv, hd, f = self.hidden_size, self.num_heads, self.num_kv_heads, self.head_dim, self.intermediate_size
        layer = d * hd * (2 * h + 2 * kv) + 3 * d * f + 2 * d
        layer += hd * (h + 2 * kv) * self.qkv_bias + d * self.output_bias + (2 * f + d) * self.mlp_bias
        layer += 2 * hd * self.qk_norm
        return self.num_layers * layer + d + self.vocab_size * d * (1 if self.tie_embeddings else 2)

    # Released sizes. Each is read off the published config.json of the model it is named after.

    @classmethod
    def smollm2_135m(cls) -> "DecoderConfig":
        """SmolLM2-135M and its Instruct model."""
        return cls(
            family="llama",
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_layers=30,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            max_position=8192,
            rope_theta=100000.0,
            tie_embeddings=True,
        )

    @classmethod
    def smollm2_360m(cls) -> "DecoderConfig":
        """SmolLM2-360M and its Instruct model."""
        return dataclasses.replace(
            cls.smollm2_135m(), hidden_size=960, intermediate_size=2560, num_layers=32, num_heads=15, num_kv_heads=5
        )

    @classmethod
    def smollm2_1_7b(cls) -> "DecoderConfig":
        """SmolLM2-1.7B and its Instruct model."""
        return dataclasses.replace(
            cls.smollm2_135m(),
            hidden_size=2048,
            intermediate_size=8192,
            num_layers=24,
            num_heads=32,
            num_kv_heads=32,
            rope_theta=130000.0,
        )

    @classmethod
    def llama_3_2_1b(cls) -> "DecoderConfig":
        """Llama 3.2 1B and its Instruct model."""
        return cls(
            family="llama",
            vocab_size=128256,
            hidden_size=2048,
            intermediate_size=8192,
            num_layers=16,
            num_heads=32,
            num_kv_heads=8,
            head_dim=64,
            max_position=131072,
            rope_theta=500000.0,
            rope_scaling=RopeScaling(32.0, 1.0, 4.0, 8192),
            tie_embeddings=True,
        )

    @classmethod
    def llama_3_2_3b(cls) -> "DecoderConfig":
        """Llama 3.2 3B and its Instruct model."""
        return dataclasses.replace(
            cls.llama_3_2_1b(), hidden_size=3072, num_layers=28, num_heads=24, num_kv_heads=8, head_dim=128
        )

    @classmethod
    def llama_3_1_8b(cls) -> "DecoderConfig":
        """Llama 3.1 8B and its Instruct model."""
        return dataclasses.replace(
            cls.llama_3_2_1b(),
            hidden_size=4096,
            intermediate_size=14336,
            num_layers=32,
            head_dim=128,
            rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
            tie_embeddings=False,
        )

    @classmethod
    def llama_3_1_70b(cls) -> "DecoderConfig":
        """Llama 3.1 70B and its Instruct model."""
        return dataclasses.replace(
            cls.llama_3_1_8b(), hidden_size=8192, intermediate_size=28672, num_layers=80, num_heads=64
        )

    @classmethod
    def mistral_7b_v0_3(cls) -> "DecoderConfig":
        """Mistral 7B v0.3 (no sliding window) and its Instruct model."""
        return cls(
            family="mistral",
            vocab_size=32768,
            hidden_size=4096,
            intermediate_size=14336,
            num_layers=32,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            max_position=32768,
            rope_theta=1000000.0,
        )

    @classmethod
    def qwen2_5_0_5b(cls) -> "DecoderConfig":
        """Qwen2.5 0.5B and its Instruct model."""
        return cls(
            family="qwen2",
            vocab_size=151936,
            hidden_size=896,
            intermediate_size=4864,
            num_layers=24,
            num_heads=14,
            num_kv_heads=2,
            head_dim=64,
            max_position=32768,
            rope_theta=1000000.0,
            norm_eps=1e-6,
            tie_embeddings=True,
            qkv_bias=True,
        )

    @classmethod
    def qwen2_5_1_5b(cls) -> "DecoderConfig":
        """Qwen2.5 1.5B and its Instruct model."""
        return dataclasses.replace(
            cls.qwen2_5_0_5b(), hidden_size=1536, intermediate_size=8960, num_layers=28, num_heads=12, head_dim=128
        )

    @classmethod
    def qwen2_5_3b(cls) -> "DecoderConfig":
        """Qwen2.5 3B and its Instruct model."""
        return dataclasses.replace(
            cls.qwen2_5_1_5b(), hidden_size=2048, intermediate_size=11008, num_layers=36, num_heads=16
        )

    @classmethod
    def qwen2_5_7b(cls) -> "DecoderConfig":
        """Qwen2.5 7B and its Instruct model."""
        return dataclasses.replace(
            cls.qwen2_5_1_5b(),
            vocab_size=152064,
            hidden_size=3584,
            intermediate_size=18944,
            num_heads=28,
            num_kv_heads=4,
            tie_embeddings=False,
        )

    @classmethod
    def qwen3_0_6b(cls) -> "DecoderConfig":
        """Qwen3 0.6B."""
        return cls(
            family="qwen3",
            vocab_size=151936,
            hidden_size=1024,
            intermediate_size=3072,
            num_layers=28,
            num_heads=16,
            num_kv_heads=8,
            head_dim=128,
            max_position=40960,
            rope_theta=1000000.0,
            norm_eps=1e-6,
            tie_embeddings=True,
            qk_norm=True,
        )

    @classmethod
    def qwen3_8b(cls) -> "DecoderConfig":
        """Qwen3 8B."""
        return dataclasses.replace(
            cls.qwen3_0_6b(),
            hidden_size=4096,
            intermediate_size=12288,
            num_layers=36,
            num_heads=32,
            tie_embeddings=False,
        )

    @classmethod
    def named(cls, name: str) -> "DecoderConfig":
        """The config of a released size by its name with dashes, such as `llama-3.2-1b` or `qwen2.5-7b`."""
        if name not in RELEASED:
            raise ModelError(f"no released size is named {name!r}; known are {', '.join(sorted(RELEASED))}")
        return RELEASED[name]()


RELEASED = {
    "smollm2-135m": DecoderConfig.smollm2_135m,
    "smollm2-360m": DecoderConfig.smollm2_360m,
    "smollm2-1.7b": DecoderConfig.smollm2_1_7b,
    "llama-3.2-1b": DecoderConfig.llama_3_2_1b,
    "llama-3.2-3b": DecoderConfig.llama_3_2_3b,
    "llama-3.1-8b": DecoderConfig.llama_3_1_8b,
    "llama-3.1-70b": DecoderConfig.llama_3_1_70b,
    "mistral-7b-v0.3": DecoderConfig.mistral_7b_v0_3,
    "qwen2.5-0.5b": DecoderConfig.qwen2_5_0_5b,
    "qwen2.5-1.5b": DecoderConfig.qwen2_5_1_5b,
    "qwen2.5-3b": DecoderConfig.qwen2_5_3b,
    "qwen2.5-7b": DecoderConfig.qwen2_5_7b,
    "qwen3-0.6b": DecoderConfig.qwen3_0_6b,
    "qwen3-8b": DecoderConfig.qwen3_8b,
}

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
    transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache use_return_dict""".split()
)
_READ = frozenset(
    """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters tie_word_embeddings attention_bias
    mlp_bias hidden_act sliding_window use_sliding_window layer_types partial_rotary_factor pretraining_tp
    rope_interleaved quantization_config""".split()
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
        return ModelError(f"{source}: {field} = {value!r} is not supported: {why}")

    family = values.get("model_type")
    if family not in FAMILIES:
        raise refuse("model_type", family, f"jaxalign runs {', '.join(FAMILIES)}")
    for field, value in values.items():
        if field not in _HARMLESS and field not in _READ and value not in (None, False):
            raise refuse(field, value, "the field is not known; remove it if it does not change the forward pass")

    def need(field: str) -> int:
        value = values.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ModelError(f"{source}: {field} = {value!r}, a positive integer is needed")
        return value

    if values.get("hidden_act", "silu") != "silu":
        raise refuse("hidden_act", values["hidden_act"], "only silu is")
    if values.get("pretraining_tp", 1) not in (None, 1):
        raise refuse("pretraining_tp", values["pretraining_tp"], "only 1 is")
    if values.get("quantization_config"):
        raise refuse("quantization_config", values["quantization_config"], "only plain floating-point weights are")
    if values.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
        raise refuse("partial_rotary_factor", values["partial_rotary_factor"], "only 1.0 is")
    if values.get("rope_interleaved"):
        raise refuse("rope_interleaved", values["rope_interleaved"], "only split halves are")
    max_position = need("max_position_embeddings")
    window = values.get("sliding_window")
    # Qwen writes a window that is switched off by use_sliding_window; Mistral's is on unless null.
    if window and values.get("use_sliding_window", family == "mistral") and window < max_position:
        raise refuse("sliding_window", window, f"it is shorter than max_position_embeddings = {max_position}")
    if other := set(values.get("layer_types") or ()) - {"full_attention"}:
        raise refuse("layer_types", sorted(other), "only full_attention is")

    num_heads, hidden_size = need("num_attention_heads"), need("hidden_size")
    if values.get("head_dim") is None and hidden_size % num_heads:
        raise ModelError(f"{source}: hidden_size = {hidden_size} is not a multiple of {num_heads} heads")
    bias = bool(values.get("attention_bias", False))
    theta, scaling = _rope(values, source, refuse)
    return DecoderConfig(
        family=family,
        vocab_size=need("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=need("intermediate_size"),
        num_layers=need("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads if values.get("num_key_value_heads") is None else need("num_key_value_heads"),
        head_dim=hidden_size // num_heads if values.get("head_dim") is None else need("head_dim"),
        max_position=max_position,
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=float(values.get("rms_norm_eps", 1e-6)),
        # The library's own default differs by family: tied only where the config says so for llama-like models.
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias and family != "qwen2",
        mlp_bias=bool(values.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
    )


def _rope(values, source, refuse) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary frequencies, from the old fields or from `rope_parameters`."""
    nested = values.get("rope_parameters") or {}
    old = values.get("rope_scaling") or {}
    top, inner = values.get("rope_theta"), nested.get("rope_theta")
    if top is not None and inner is not None and float(top) != float(inner):
        raise ModelError(f"{source}: rope_theta = {top} and rope_parameters.rope_theta = {inner} contradict each other")
    theta = float(inner if top is None and inner is not None else 10000.0 if top is None else top)
    # rope_scaling is the older name of the same object; when both are there they must agree.
    kinds = {key: d.get("rope_type", d.get("type", "default")) for key, d in (("nested", nested), ("old", old)) if d}
    if len(set(kinds.values())) > 1:
        raise ModelError(f"{source}: rope_scaling {old!r} and rope_parameters {nested!r} contradict each other")
    parameters = nested or old
    kind = next(iter(kinds.values()), "default")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise refuse("rope_scaling", parameters, "only the types default and llama3 are")
    try:
        return theta, RopeScaling(
            factor=float(parameters["factor"]),
            low_freq_factor=float(parameters["low_freq_factor"]),
            high_freq_factor=float(parameters["high_freq_factor"]),
            original_max_position=int(parameters["original_max_position_embeddings"]),
        )
    except KeyError as missing:
        raise ModelError(f"{source}: rope_scaling lacks {missing.args[0]!r}") from None


def read_config(folder: Path) -> DecoderConfig:
    """Reads `folder/config.json`; raises `ModelError` when it is absent, not JSON, or not supported."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder}: there is no config.json; a Hugging Face model folder is needed")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from None
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
    if config.family in ("llama", "qwen3", "mistral") and config.output_bias:
        values["attention_bias"] = True
    if config.mlp_bias:
        values["mlp_bias"] = True
    if config.family == "mistral":
        values["sliding_window"] = None
    return values
