"""Decoder-only language models in Flax NNX: config, weights, tokenizer, transformer.

| file | what it holds |
| --- | --- |
| `language_model` | `load` a model by name or folder; the `LanguageModel` that everything else takes |
| `config`, `config_json` | sizes, by name of a release; the reader of `config.json` |
| `transformer` | the NNX modules; `bind`, `prefill` and `step` |
| `attention`, `cache` | the one attention primitive and the key/value buffers |
| `weights` | Hugging Face folders to parameters and back |
| `sharding` | logical axes to mesh axes |
| `hub`, `gguf` | names to folders; downloads and their conversion |
| `tokenizer` | text and chat messages to ids and back |
"""

from jaxalign.models.config import DecoderConfig, RopeScaling
from jaxalign.models.config_json import read_config
from jaxalign.models.language_model import LanguageModel, load, random
from jaxalign.models.sharding import ShardingRules
from jaxalign.models.tokenizer import Tokenizer
from jaxalign.models.transformer import Decoder, bind, init_params
from jaxalign.models.weights import load_params, save_params

__all__ = [
    "Decoder",
    "DecoderConfig",
    "LanguageModel",
    "RopeScaling",
    "ShardingRules",
    "Tokenizer",
    "bind",
    "init_params",
    "load",
    "load_params",
    "random",
    "read_config",
    "save_params",
]
