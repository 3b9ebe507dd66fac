"""What a `config.json` means, and what is refused by field and value."""

import dataclasses
import json

import pytest
import tiny

from jaxalign.errors import ModelError
from jaxalign.models import DecoderConfig, RopeScaling, read_config
from jaxalign.models.config import RELEASED
from jaxalign.models.config_json import from_hugging_face, to_hugging_face

# Fields of the published files that decide something, and some that do not.
PUBLISHED = {
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 576,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
        "transformers_version": "4.42.3",
        "use_cache": True,
        "vocab_size": 49152,
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0",
        "use_cache": True,
        "vocab_size": 128256,
    },
    "mistral-7b-v0.3": {
        "architectures": ["MistralForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mistral",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 32768,
    },
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_act": "silu",
        "hidden_size": 896,
        "initializer_range": 0.02,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 21,
        "model_type": "qwen2",
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
}
# As the model hub counts them.
PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


def llama(**changes):
    """A plain `config.json`; None removes a field."""
    values = PUBLISHED["smollm2-135m"] | {"rope_theta": None} | changes
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_the_named_sizes(name):
    assert from_hugging_face(PUBLISHED[name]) == DecoderConfig.named(name)


@pytest.mark.parametrize("name", RELEASED)
def test_counts_of_released_sizes(name):
    assert DecoderConfig.named(name).num_params == PARAMETERS[name]


@pytest.mark.parametrize("config", [*tiny.CONFIGS.values(), *(make() for make in RELEASED.values())])
def test_written_and_read_back(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_hugging_face(config)))
    assert read_config(tmp_path) == config


def test_an_unknown_release_names_the_known_ones():
    with pytest.raises(ModelError, match=r"llama-4.*known are .*llama-3\.2-1b"):
        DecoderConfig.named("llama-4")


# The rotary base and scaling: three places, two spellings.


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 1e6},
        {"rope_theta": 1000000},
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 1e6}},
        {"rope_scaling": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "rope_scaling": {}},
    ],
)
def test_theta_is_found_in_each_place(fields):
    assert from_hugging_face(llama(**fields)).rope_theta == 1e6


def test_theta_is_10000_only_where_nothing_says_otherwise():
    assert from_hugging_face(llama()).rope_theta == 1e4
    assert from_hugging_face(llama(rope_parameters={"rope_type": "default"})).rope_theta == 1e4


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e5}},
        {"rope_theta": 1e6, "rope_scaling": LLAMA3 | {"rope_theta": 1e5}},
        {"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"rope_theta": 1e5}},
        {"rope_parameters": LLAMA3, "rope_scaling": LLAMA3 | {"factor": 32.0}},
        {"rope_parameters": LLAMA3, "rope_scaling": {"rope_type": "default"}},
    ],
)
def test_places_that_contradict_each_other(fields):
    with pytest.raises(ModelError, match=r"config\.json: rope_\S+ = \S+ and rope_\S+ = \S+ contradict"):
        from_hugging_face(llama(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": LLAMA3},
        {"rope_scaling": {**LLAMA3, "type": "llama3", "rope_type": "llama3"}},
        {"rope_scaling": {"type": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}}},
        {"rope_parameters": LLAMA3 | {"rope_theta": 1e4}},
        {"rope_scaling": LLAMA3, "rope_parameters": LLAMA3},
        {"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 1e4}},
    ],
)
def test_llama3_scaling_is_found_in_each_place(fields):
    assert from_hugging_face(llama(**fields)).rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, "yarn"),
        ({"type": "linear", "factor": 2.0}, "linear"),
        ({"rope_type": "dynamic", "factor": 2.0}, "dynamic"),
        ({"rope_type": "brand_new"}, "brand_new"),
        ({"factor": 2.0}, "factor = 2.0"),
        (LLAMA3 | {"attention_factor": 1.2}, "attention_factor = 1.2"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"full_attention": {"rope_type": "yarn"}}, "full_attention"),
        (LLAMA3 | {"factor": "8"}, "'8'"),
        ({"rope_theta": True}, "True"),
        ("llama3", "object"),
        ({"rope_type": "llama3", "factor": 8.0}, "lacks low_freq_factor, high_freq_factor, original_max"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "low_freq_factor must be below"),
        (LLAMA3 | {"factor": 0}, "must be positive"),
    ],
)
def test_rotary_settings_that_are_refused(place, value, message):
    with pytest.raises(ModelError, match=message) as refused:
        from_hugging_face(llama(**{place: value}), "m/config.json")
    assert str(refused.value).startswith("m/config.json: ")


# Other fields.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gpt_neox"}, "model_type = 'gpt_neox'.*llama, mistral, qwen2, qwen3"),
        ({"model_type": None}, "model_type = None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures = .*SequenceClassification"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"pretraining_tp": 2}, "pretraining_tp = 2"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config = .*gptq"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor = 0.25"),
        ({"rope_interleaved": True}, "rope_interleaved = True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = .*sliding_attention"),
        ({"num_local_experts": 8}, "num_local_experts = 8"),
        ({"logit_scale": 0.5}, "logit_scale = 0.5"),
        ({"rope_theta": "1e6"}, "rope_theta = '1e6'.*number"),
        ({"rope_theta": -1.0}, "rope_theta = -1.0 must be positive"),
        ({"rms_norm_eps": 0}, "rms_norm_eps = 0"),
        ({"vocab_size": None}, "vocab_size = None, a positive integer"),
        ({"hidden_size": 576.0}, "hidden_size = 576.0, a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"hidden_size": 577}, "hidden_size = 577 is not a multiple of 9 heads"),
        ({"num_key_value_heads": 2}, "num_heads = 9 is not a multiple of num_kv_heads = 2"),
        ({"head_dim": 7}, "head_dim = 7 must be even"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window = 4096"),
        ({"model_type": "mistral"}, "sliding_window = 4096"),  # what the library fills in where nothing is said
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True}, "sliding_window = 4096"),
        ({"model_type": "mistral", "sliding_window": 8192, "attention_bias": True}, "attention_bias = True"),
        ({"model_type": "qwen3", "head_dim": 64, "mlp_bias": True}, "mlp_bias = True"),
        ({"model_type": "qwen3"}, "head_dim = None"),
        ({"model_type": "qwen2", "num_key_value_heads": None}, "num_key_value_heads = None"),
        # Values that no published file has, of which none may pass for another.
        ({"architectures": 3}, "architectures = 3, a list of names is needed"),
        ({"layer_types": [{}]}, r"layer_types = \[{}\], a list of names"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false', true or false is needed"),
        ({"attention_bias": 1}, "attention_bias = 1, true or false"),
        ({"rope_interleaved": "no"}, "rope_interleaved = 'no', true or false"),
        ({"sliding_window": "4096"}, "sliding_window = '4096', a number of tokens"),
        ({"rope_theta": float("nan")}, "rope_theta = nan.*a number is needed"),
        ({"rope_theta": 10**400}, "rope_theta = 10.*a number is needed"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps = inf"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000 is more than any model has"),
        ({"vocab_size": 2**31}, "vocab_size = 2147483648 is more than any model has"),
        ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192.5}}, "8192.5.*a whole number"),
        ({"rope_scaling": LLAMA3 | {"factor": float("inf")}}, "factor = inf.*a number is needed"),
    ],
)
def test_what_is_refused_is_named_with_its_value(fields, message):
    with pytest.raises(ModelError, match=message) as refused:
        from_hugging_face(llama(**fields), "m/config.json")
    assert str(refused.value).startswith("m/config.json: ")


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({"attention_bias": True}, {"qkv_bias": True, "output_bias": True}),
        ({"mlp_bias": True}, {"mlp_bias": True}),
        ({"num_key_value_heads": None}, {"num_kv_heads": 9}),
        ({"head_dim": 128}, {"head_dim": 128}),
        ({"tie_word_embeddings": None}, {"tie_embeddings": False}),
        ({"rms_norm_eps": None}, {"norm_eps": 1e-6}),
        ({"model_type": "mistral", "sliding_window": 8192}, {"family": "mistral"}),  # as long as the model itself
        ({"model_type": "qwen2", "sliding_window": 4096}, {"family": "qwen2", "qkv_bias": True}),  # switched off
        ({"layer_types": ["full_attention"] * 30, "some_new_switch": False, "another": None}, {}),
    ],
)
def test_what_is_read(fields, changes):
    expected = dataclasses.replace(DecoderConfig.smollm2_135m(), rope_theta=1e4, **changes)
    assert from_hugging_face(llama(**fields)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"family": "gemma"},
        {"hidden_size": 0},
        {"num_kv_heads": 4},
        {"head_dim": 5},
        {"family": "mistral", "qkv_bias": True},
        {"qkv_bias": True},  # Llama's attention_bias also adds one to the output
        {"qk_norm": True},
        {"family": "qwen2"},
        {"family": "qwen3", "qk_norm": True, "mlp_bias": True},
    ],
)
def test_a_config_that_no_folder_can_say_is_refused(changes):
    with pytest.raises(ModelError, match=next(iter(set(changes) - {"family", "qk_norm"}), ".*family")):
        dataclasses.replace(tiny.CONFIGS["smollm2"], **changes)


# The file.


def test_a_folder_without_config(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(("text", "message"), [('{"model_type": "lla', "not valid JSON"), ("[]", "a JSON object")])
def test_a_broken_config(text, message, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)
