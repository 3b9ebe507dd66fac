"""The Hugging Face torch models themselves: their folders read by us, and ours read by them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from make_golden import GOLDEN, torch_logits, torch_model

from jaxalign.models import bind, load_params, read_config, save_params
from jaxalign.models.transformer import prefill

pytestmark = [
    pytest.mark.peers,
    # The torch library's own warnings are not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
# As a user of that library would write them: class, and arguments beside the sizes.
MODELS = {
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 8, "num_attention_heads": 8, "num_key_value_heads": 2}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "smollm2": ("Llama", {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}),
    "mistral": ("Mistral", {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6, "sliding_window": None}),
    "qwen2": ("Qwen2", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6, "attention_bias": True}),
    "qwen3 tied": ("Qwen3", {"head_dim": 10, "tie_word_embeddings": True}),
}


def our_logits(folder, ids, layers="unrolled"):
    config = read_config(folder)
    params = load_params(folder, config, layers=layers)

    @jax.jit
    def run(params):
        model = bind(config, params)
        hidden, _ = prefill(model, jnp.asarray(ids[None]), jnp.full(1, len(ids), jnp.int32))
        return model.logits(hidden)[0]

    return run(params)


def build(name):
    """A model of that library with random weights; biases and norms too, which it would leave at 0 and 1."""
    import torch
    import transformers

    kind, arguments = MODELS[name]
    sizes = {
        "vocab_size": 83,
        "hidden_size": 72,
        "intermediate_size": 50,
        "num_hidden_layers": 2,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 1024,
    }
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**(sizes | arguments))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if key.endswith("bias"):
                value.normal_(std=1.0)
            elif "norm" in key:
                value.normal_(mean=1.0, std=0.3)
            else:
                value.normal_(std=1.5 * value.shape[-1] ** -0.5)
    return model


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
@pytest.mark.parametrize("name", MODELS)
def test_a_folder_saved_by_torch_gives_its_logits(name, layers, tmp_path):
    model = build(name)
    model.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(0, 83, 40).astype(np.int32)
    expected = torch_logits(model, ids, np.arange(40))
    assert expected.std() > 0.5
    np.testing.assert_allclose(our_logits(tmp_path, ids, layers), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_a_folder_in_several_files(name, tmp_path):
    model = build(name)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ids = np.arange(10, dtype=np.int32)
    expected = torch_logits(model, ids, np.arange(10))
    np.testing.assert_allclose(our_logits(tmp_path, ids), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_torch_reads_a_folder_that_we_saved(name, dtype, tmp_path):
    config = tiny.CONFIGS[name]
    params = load_params(tiny.save(tmp_path / "in", config), config, dtype=dtype)
    save_params(tmp_path / "out", config, params, max_file_bytes=50_000)
    ids = tiny.tokens(config, 1, 20)[0]
    expected = torch_logits(torch_model(tmp_path / "out"), ids, tiny.POSITIONS["near"])
    np.testing.assert_allclose(our_logits(tmp_path / "out", ids), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_the_golden_logits_are_those_of_torch(name, tmp_path):
    config = tiny.CONFIGS[name]
    golden = np.load(GOLDEN / f"{name}.npz")
    model = torch_model(tiny.save(tmp_path, config))
    for place, positions in tiny.POSITIONS.items():
        ours = torch_logits(model, golden["ids"], positions)
        np.testing.assert_allclose(ours, golden[f"logits_{place}"], rtol=0, atol=2e-5)
