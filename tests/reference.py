"""A decoder-only transformer in plain numpy loops and float64: slow, and easy to check by eye."""

import math

import numpy as np


def frequencies(config) -> list[float]:
    """Radians per position of each pair of dimensions; Llama 3 stretches those with long wavelengths."""
    result = []
    for i in range(config.head_dim // 2):
        frequency = config.rope_theta ** (-2 * i / config.head_dim)
        if (s := config.rope_scaling) is not None:
            wavelength = 2 * math.pi / frequency
            longest, shortest = (
                s.original_max_position / s.low_freq_factor,
                s.original_max_position / s.high_freq_factor,
            )
            if wavelength > longest:
                frequency /= s.factor
            elif wavelength >= shortest:
                turns = s.original_max_position / wavelength
                smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
                frequency = (1 - smooth) * frequency / s.factor + smooth * frequency
        result.append(frequency)
    return result


def rotate(config, head: np.ndarray, position: int) -> np.ndarray:
    """One head's vector, dimension i turned together with dimension i + head_dim / 2."""
    half = config.head_dim // 2
    out = np.empty(config.head_dim)
    for i, frequency in enumerate(frequencies(config)):
        # Models are trained with angles in float32, which matters far from position 0.
        angle = float(np.float32(position) * np.float32(frequency))
        a, b = head[i], head[i + half]
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + half] = a * math.sin(angle) + b * math.cos(angle)
    return out


def rms_norm(x: np.ndarray, scale: np.ndarray, eps: float) -> np.ndarray:
    return x / math.sqrt(np.mean(x**2) + eps) * scale


def forward(config, weights: dict[str, np.ndarray], tokens, positions) -> np.ndarray:
    """Next-token logits of one sequence: `[length, vocab]` float64, from the tensors of a Hugging Face folder."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    group = config.num_heads // config.num_kv_heads
    stream = [w["model.embed_tokens.weight"][token] for token in tokens]
    for layer in range(config.num_layers):

        def tensor(name, layer=layer):
            return w.get(f"model.layers.{layer}.{name}")

        def linear(name, x, tensor=tensor):
            bias = tensor(f"{name}.bias")
            return tensor(f"{name}.weight") @ x + (0 if bias is None else bias)

        keys, values = [], []
        for t, x in enumerate(stream):
            x = rms_norm(x, tensor("input_layernorm.weight"), config.norm_eps)
            queries = linear("self_attn.q_proj", x).reshape(config.num_heads, config.head_dim)
            key = linear("self_attn.k_proj", x).reshape(config.num_kv_heads, config.head_dim)
            values.append(linear("self_attn.v_proj", x).reshape(config.num_kv_heads, config.head_dim))
            if config.qk_norm:
                queries = [rms_norm(q, tensor("self_attn.q_norm.weight"), config.norm_eps) for q in queries]
                key = [rms_norm(k, tensor("self_attn.k_norm.weight"), config.norm_eps) for k in key]
            keys.append([rotate(config, k, positions[t]) for k in key])
            heads = []
            for h in range(config.num_heads):
                q = rotate(config, queries[h], positions[t])
                scores = np.array([q @ keys[s][h // group] for s in range(t + 1)]) / math.sqrt(config.head_dim)
                weight = np.exp(scores - scores.max())
                weight /= weight.sum()
                heads.append(sum(weight[s] * values[s][h // group] for s in range(t + 1)))
            stream[t] = stream[t] + linear("self_attn.o_proj", np.concatenate(heads))
        for t, x in enumerate(stream):
            x = rms_norm(x, tensor("post_attention_layernorm.weight"), config.norm_eps)
            gate = linear("mlp.gate_proj", x)
            stream[t] = stream[t] + linear("mlp.down_proj", gate / (1 + np.exp(-gate)) * linear("mlp.up_proj", x))
    head = w["model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"]
    return np.stack([head @ rms_norm(x, w["model.norm.weight"], config.norm_eps) for x in stream])
