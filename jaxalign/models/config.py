"""The shape of a decoder-only language model.

One frozen dataclass covers the Llama 3, SmolLM2, Mistral, Qwen2/2.5 and Qwen3 families; `config_json` reads it from a
Hugging Face folder and writes it back.
"""

import dataclasses
import math

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

    def __post_init__(self):
        if not all(0 < value < math.inf for value in dataclasses.astuple(self)):
            raise ModelError(f"{self}: factors and positions must be positive")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ModelError(f"{self}: low_freq_factor must be below high_freq_factor")


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
        for name in ("rope_theta", "norm_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ModelError(f"{name} = {getattr(self, name)} must be positive and finite")
        # Only what the family's tensors and config.json can say, so that a saved folder reads back to the same model.
        llama_like = self.family in ("llama", "qwen3")
        allowed = {
            "qkv_bias": {True} if self.family == "qwen2" else {False, True} if llama_like else {False},
            "output_bias": {self.qkv_bias} if llama_like else {False},
            "mlp_bias": {False, True} if self.family == "llama" else {False},
            "qk_norm": {self.family == "qwen3"},
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                described = f"{name} = {getattr(self, name)} (with qkv_bias = {self.qkv_bias})"
                raise ModelError(f"{described} is no model of family {self.family!r}")

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
