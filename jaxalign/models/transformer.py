"""The decoder-only transformer in Flax NNX: token ids in, hidden states, logits and new keys/values out.

Parameters are plain nested dictionaries of arrays: `bind` puts them into the module at trace time, so every jitted or
sharded function takes and returns ordinary pytrees. Weights are stored as `[out, in]`, the layout of Hugging Face
files (no transposes while loading) and the faster one for few rows on CPUs. Matrix products take the parameters' dtype
and accumulate in float32; the residual stream, norms, rotations and softmax are float32.

Layers are either unrolled (one sub-tree per layer; the fastest decoding, since a scan copies each layer's slice of the
stacked weights) or scanned (one stacked sub-tree; one compiled body for deep models).
"""

import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxalign.models.attention import Packed, attend
from jaxalign.models.cache import KV, Cache
from jaxalign.models.config import DecoderConfig
from jaxalign.models.low_rank import LowRank

Layers = Literal["unrolled", "scanned"]
Params = dict[str, Any]


def _param(rngs: nnx.Rngs | None, shape: tuple[int, ...], axes: tuple[str, ...], dtype, scale: float) -> nnx.Param:
    """A parameter with the names of its logical axes; `scale` 0 gives ones (norms), negative zeros (biases).

    Without `rngs` it is only a shape: tracing the random draws of a deep model takes seconds.
    """
    if rngs is None:
        return nnx.Param(jax.ShapeDtypeStruct(shape, dtype), axes=axes)
    if scale > 0:
        value = (jax.random.normal(rngs.params(), shape, jnp.float32) * scale).astype(dtype)
    else:
        value = jnp.full(shape, 1 if scale == 0 else 0, dtype)
    return nnx.Param(value, axes=axes)


def project(x: jax.Array, weight: jax.Array | LowRank, inputs: int = 1) -> jax.Array:
    """`x` times a weight stored outputs first: `[..., *in]`, `[*out, *in]` -> `[..., *out]` in float32.

    Args:
      x: activations; cast to the weight's dtype, since the product of two dtypes would be slow everywhere.
      weight: outputs first, the last `inputs` axes are contracted.
      inputs: number of contracted axes.
    """
    if isinstance(weight, LowRank):
        return project(x, weight.base, inputs) + project(project(x, weight.down, inputs), weight.up)
    outer, inner = x.shape[: x.ndim - inputs], math.prod(x.shape[x.ndim - inputs :])
    out = weight.shape[: weight.ndim - inputs]
    rows, matrix = x.reshape(-1, inner).astype(weight.dtype), weight.reshape(-1, inner)
    result = jax.lax.platform_dependent(rows, matrix, cpu=_product_on_cpu, default=_product)
    return result.reshape(*outer, *out)


def _product(rows: jax.Array, matrix: jax.Array, batch: int = 0) -> jax.Array:
    """`[*batch, rows, in]` times the transposed `[*batch, out, in]` -> `[*batch, rows, out]` float32."""
    axes = tuple(range(batch))
    return jax.lax.dot_general(
        rows,
        matrix,
        (((batch + 1,), (batch + 1,)), (axes, axes)),
        precision=jax.lax.Precision.HIGHEST if matrix.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


# Blocks of a matrix that few rows are multiplied with on CPUs, and what few means (docs/performance.md).
_BLOCKS, _FEW_ROWS = 4, 32


def _product_on_cpu(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """`_product`, around what is slow in XLA's products on CPUs."""
    count, outputs = len(rows), len(matrix)
    if count == 1 and matrix.dtype == jnp.bfloat16:
        # The whole matrix is converted, slowly, for one row, and streamed for two: 7 times faster.
        return _product(jnp.concatenate([rows, rows]), matrix)[:1]
    if matrix.dtype == jnp.float32 and 1 < count <= _FEW_ROWS and outputs % _BLOCKS == 0:
        # One product rearranges the matrix before it multiplies; a batch of products does not: up to 1.9 times faster.
        blocks = matrix.reshape(_BLOCKS, outputs // _BLOCKS, -1)
        # The matrix first: its outputs stay in order, and only the small result is transposed.
        return _product(blocks, jnp.broadcast_to(rows, (_BLOCKS, *rows.shape)), batch=1).reshape(outputs, count).T
    return _product(rows, matrix)


class RMSNorm(nnx.Module):
    """`x / rms(x) * scale`, in float32."""

    def __init__(self, width: int, axis: str, eps: float, *, dtype, rngs: nnx.Rngs | None):
        self.scale = _param(rngs, (width,), (axis,), dtype, 0)
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32)
        scale = self.scale[...].astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps) * scale


def rope_frequencies(config: DecoderConfig) -> jax.Array:
    """`[head_dim / 2]` float32, radians per position of each pair of a head's dimensions."""
    half = config.head_dim // 2
    frequency = config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if (s := config.rope_scaling) is None:
        return frequency
    # Llama 3: stretch the long wavelengths, keep the short ones, blend between.
    turns = s.original_max_position * frequency / (2 * math.pi)
    blend = jnp.clip((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0)
    return frequency * (blend + (1 - blend) / s.factor)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotary embedding by halves: `[batch, queries, heads, head_dim]` by `[batch, queries, head_dim / 2]` radians."""
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions; optional biases (Qwen2) and query/key norms (Qwen3)."""

    def __init__(self, config: DecoderConfig, *, dtype, rngs: nnx.Rngs | None):
        d, h, n, hd = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
        make = functools.partial(_param, rngs, dtype=dtype)
        self.query = make((h, hd, d), ("heads", "head_dim", "embed"), scale=d**-0.5)
        self.key = make((n, hd, d), ("kv_heads", "head_dim", "embed"), scale=d**-0.5)
        self.value = make((n, hd, d), ("kv_heads", "head_dim", "embed"), scale=d**-0.5)
        self.output = make((d, h, hd), ("embed", "heads", "head_dim"), scale=(h * hd) ** -0.5)
        if config.qkv_bias:
            self.query_bias = make((h, hd), ("heads", "head_dim"), scale=-1)
            self.key_bias = make((n, hd), ("kv_heads", "head_dim"), scale=-1)
            self.value_bias = make((n, hd), ("kv_heads", "head_dim"), scale=-1)
        if config.output_bias:
            self.output_bias = make((d,), ("embed",), scale=-1)
        if config.qk_norm:
            self.query_norm = RMSNorm(hd, "head_dim", config.norm_eps, dtype=dtype, rngs=rngs)
            self.key_norm = RMSNorm(hd, "head_dim", config.norm_eps, dtype=dtype, rngs=rngs)
        self.config = config

    def __call__(self, x, angles, cache: KV | None, start, stop) -> tuple[jax.Array, KV]:
        c = self.config
        q, k, v = (project(x, w[...]) for w in (self.query, self.key, self.value))
        if c.qkv_bias:
            q, k, v = (
                y + b[...].astype(jnp.float32)[None, None]
                for y, b in ((q, self.query_bias), (k, self.key_bias), (v, self.value_bias))
            )
        if c.qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        dtype = self.key.dtype
        q = rotate(q, angles) * c.head_dim**-0.5
        # What is cached is what every later query sees; the token itself must see the same rounded values.
        k, v = rotate(k, angles).astype(dtype), v.astype(dtype)
        new = (k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3))
        keys, values = new if cache is None else cache
        out = project(attend(q, k, v, keys, values, start, stop), self.output[...], inputs=2)
        if c.output_bias:
            out = out + self.output_bias[...].astype(jnp.float32)[None, None]
        return out, new


class MLP(nnx.Module):
    """`down(silu(gate(x)) * up(x))`."""

    def __init__(self, config: DecoderConfig, *, dtype, rngs: nnx.Rngs | None):
        d, f = config.hidden_size, config.intermediate_size
        make = functools.partial(_param, rngs, dtype=dtype)
        self.gate = make((f, d), ("mlp", "embed"), scale=d**-0.5)
        self.up = make((f, d), ("mlp", "embed"), scale=d**-0.5)
        self.down = make((d, f), ("embed", "mlp"), scale=f**-0.5)
        if config.mlp_bias:
            self.gate_bias = make((f,), ("mlp",), scale=-1)
            self.up_bias = make((f,), ("mlp",), scale=-1)
            self.down_bias = make((d,), ("embed",), scale=-1)
        self.bias = config.mlp_bias

    def __call__(self, x: jax.Array) -> jax.Array:
        def add(y, name):
            return y + getattr(self, name)[...].astype(jnp.float32)[None, None] if self.bias else y

        gate = add(project(x, self.gate[...]), "gate_bias")
        up = add(project(x, self.up[...]), "up_bias")
        return add(project(jax.nn.silu(gate) * up, self.down[...]), "down_bias")


class Block(nnx.Module):
    """One layer: attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: DecoderConfig, *, dtype, rngs: nnx.Rngs | None):
        norm = functools.partial(RMSNorm, config.hidden_size, "embed", config.norm_eps, dtype=dtype, rngs=rngs)
        self.attention_norm, self.mlp_norm = norm(), norm()
        self.attention = Attention(config, dtype=dtype, rngs=rngs)
        self.mlp = MLP(config, dtype=dtype, rngs=rngs)

    def __call__(self, x, angles, cache: KV | None, start, stop) -> tuple[jax.Array, KV]:
        out, new = self.attention(self.attention_norm(x), angles, cache, start, stop)
        x = x + out
        return x + self.mlp(self.mlp_norm(x)), new


class Decoder(nnx.Module):
    """The language model. See the module's docstring for dtypes and for `layers`."""

    def __init__(self, config: DecoderConfig, *, dtype=jnp.float32, layers: Layers = "unrolled", rngs: nnx.Rngs | None):
        d, v = config.hidden_size, config.vocab_size
        self.embed = _param(rngs, (v, d), ("vocab", "embed"), dtype, d**-0.5)
        make = functools.partial(Block, config, dtype=dtype)
        if layers == "unrolled":
            self.blocks = nnx.List([make(rngs=rngs) for _ in range(config.num_layers)])
        elif rngs is None:
            stack = lambda x: jax.ShapeDtypeStruct((config.num_layers, *x.shape), x.dtype)  # noqa: E731
            self.blocks = jax.tree.map(stack, make(rngs=None))
        else:
            self.blocks = nnx.vmap(lambda r: make(rngs=r))(rngs.split(config.num_layers))
        self.norm = RMSNorm(d, "embed", config.norm_eps, dtype=dtype, rngs=rngs)
        if not config.tie_embeddings:
            self.head = _param(rngs, (v, d), ("vocab", "embed"), dtype, d**-0.5)
        self.config = config

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, cache: Cache | None, start: jax.Array, stop: jax.Array | Packed
    ) -> tuple[jax.Array, Any]:
        """Hidden states of queries that each see a range of the cache, and themselves.

        Args:
          tokens: `[batch, queries]` int32.
          positions: `[batch, queries]` int32, rotary positions (0 is the row's first real token).
          cache: what the queries see, or None to see the earlier of these very tokens (prefill).
          start: `[batch]` int32, the first visible slot.
          stop: `[batch, queries]` int32, the first slot that is no longer visible.

        Returns:
          hidden: `[batch, queries, width]` float32 after the final norm.
          new: the queries' own keys and values, laid out as `Cache.layers`, `[batch, kv_heads, queries, head_dim]`.
        """
        x = self.embed[...][tokens].astype(jnp.float32)
        angles = positions.astype(jnp.float32)[..., None] * rope_frequencies(self.config)[None, None]
        if isinstance(self.blocks, nnx.List):
            caches: Any = [None] * len(self.blocks) if cache is None else cache.layers
            new = []
            for block, layer in zip(self.blocks, caches, strict=True):
                x, kv = block(x, angles, layer, start, stop)
                new.append(kv)
            return self.norm(x), tuple(new)
        graph, stacked = nnx.split(self.blocks)

        def body(x, inputs):
            params, layer = inputs
            return nnx.merge(graph, params)(x, angles, layer, start, stop)

        x, new = jax.lax.scan(body, x, (stacked, None if cache is None else cache.layers))
        return self.norm(x), new

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Next-token logits of hidden states after the final norm: `[..., width]` -> `[..., vocab]` float32."""
        return project(hidden, (self.embed if self.config.tie_embeddings else self.head)[...])


@functools.lru_cache(maxsize=64)
def _structure(config: DecoderConfig, layers: Layers, dtype_name: str):
    return nnx.split(Decoder(config, dtype=jnp.dtype(dtype_name), layers=layers, rngs=None))


def abstract_params(config: DecoderConfig, dtype=jnp.bfloat16, layers: Layers = "unrolled") -> Params:
    """The parameter tree as `jax.ShapeDtypeStruct`s; nothing is allocated."""
    _, state = _structure(config, layers, jnp.dtype(dtype).name)
    return nnx.to_pure_dict(state)


def param_axes(config: DecoderConfig, layers: Layers = "unrolled") -> Params:
    """The logical axes of each parameter, as a tree of tuples; a scanned layer axis is named `layers`."""
    _, state = _structure(config, layers, "float32")
    axes = nnx.to_pure_dict(jax.tree.map(lambda p: p.get_metadata()["axes"], state, is_leaf=_is_variable))
    if layers == "scanned":
        axes["blocks"] = jax.tree.map(lambda a: ("layers", *a), axes["blocks"], is_leaf=lambda a: isinstance(a, tuple))
    return axes


def _is_variable(node) -> bool:
    return isinstance(node, nnx.Variable)


def init_params(config: DecoderConfig, seed: int = 0, dtype=jnp.float32, layers: Layers = "unrolled") -> Params:
    """Random parameters with the scales of a freshly initialised model.

    Not made inside jit: each shape's draw is compiled once; one program for all layers would compile for half a minute.
    """
    return nnx.to_pure_dict(nnx.split(Decoder(config, dtype=dtype, layers=layers, rngs=nnx.Rngs(params=seed)))[1])


def layers_of(params: Params) -> Layers:
    """How the layers of a parameter tree are kept."""
    return "unrolled" if 0 in params["blocks"] else "scanned"


def stacked(params: Params) -> Params:
    """The same parameters with scanned layers. A copy: layers that lie apart are put together."""
    blocks = params["blocks"]
    if layers_of(params) == "scanned":
        return params
    return {**params, "blocks": jax.tree.map(lambda *x: jnp.stack(x), *(blocks[i] for i in range(len(blocks))))}


def bind(config: DecoderConfig, params: Params) -> Decoder:
    """The module with these parameters, which may be tracers: call it inside jit."""
    graph, state = _structure(config, layers_of(params), jax.tree.leaves(params)[0].dtype.name)
    # The cached abstract state is shared between traces: fill a copy.
    state = jax.tree.map(lambda x: x, state)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graph, state)


def prefill(model: Decoder, tokens: jax.Array, lengths: jax.Array) -> tuple[jax.Array, Cache]:
    """Encodes prompts that are padded on the left.

    Args:
      model: the bound module.
      tokens: `[batch, length]` int32; row i is real in its last `lengths[i]` places.
      lengths: `[batch]` int32, at least 1.

    Returns:
      hidden: `[batch, length, width]` float32; places in the padding hold nothing of use.
      cache: with exactly `length` slots, all written.
    """
    batch, length = tokens.shape
    index = jnp.arange(length, dtype=jnp.int32)
    start = jnp.asarray(length - lengths, jnp.int32)
    positions = jnp.maximum(index[None] - start[:, None], 0)
    stop = jnp.broadcast_to(index[None], (batch, length))
    hidden, layers = model(tokens, positions, None, start, stop)
    return hidden, Cache(layers, start, jnp.asarray(length, jnp.int32))


def step(model: Decoder, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Any]:
    """Encodes k candidate tokens per row at the cache's next position, as siblings.

    Args:
      model: the bound module.
      tokens: `[batch, k]` int32; with k = 1 this is a plain decode step.
      cache: the prefix.

    Returns:
      hidden `[batch, k, width]` float32, and the candidates' keys and values for `select` and `Cache.write`.
    """
    batch, k = tokens.shape
    position = jnp.broadcast_to((cache.slot - cache.start)[:, None], (batch, k))
    stop = jnp.broadcast_to(cache.slot, (batch, k))
    return model(tokens, position, cache, cache.start, stop)
