"""Small Flax NNX networks whose parameters are plain nested dictionaries outside.

A module is split once: `init` gives its parameters, `apply` runs it on any parameters of that structure, inside jit,
vmap and grad. The static half is rebuilt from the constructor's arguments and cached.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jaxalign.rewards import draws

Tree = Any


class Mlp(nnx.Module):
    """Linear layers with GELU between them: sizes `(in, hidden, ..., out)`, `[..., in]` to `[..., out]`."""

    def __init__(self, sizes: tuple[int, ...], *, rngs: nnx.Rngs):
        self.depth = len(sizes) - 1
        for index in range(self.depth):
            setattr(self, f"layer{index}", nnx.Linear(sizes[index], sizes[index + 1], rngs=rngs))

    def __call__(self, values: Array) -> Array:
        for index in range(self.depth):
            values = getattr(self, f"layer{index}")(values)
            if index + 1 < self.depth:
                values = jax.nn.gelu(values)
        return values


@functools.lru_cache
def _split(kind: Callable[..., nnx.Module], arguments: tuple) -> tuple[Any, Any]:
    """The static half of a module, and its parameters as shapes."""
    return nnx.split(nnx.eval_shape(lambda: kind(*arguments, rngs=nnx.Rngs(0))))


def init(kind: Callable[..., nnx.Module], arguments: tuple, key: Array, name: str) -> Tree:
    """Fresh parameters of `kind(*arguments)`: kernels N(0, 1 / inputs), scales 1, biases 0; not for use inside jit.

    `name` tells networks from the same key apart; see `jaxalign.rewards.draws`.
    """

    def fill(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Array:
        at = f"{name}{jax.tree_util.keystr(path)}"
        if path[-1].key == "kernel":
            return draws.normal(key, leaf.shape, at, scale=leaf.shape[0] ** -0.5)
        return jnp.asarray(np.full(leaf.shape, {"scale": 1.0, "bias": 0.0}[path[-1].key], np.float32))

    return jax.tree_util.tree_map_with_path(fill, nnx.to_pure_dict(_split(kind, arguments)[1]))


def apply(kind: type[nnx.Module], arguments: tuple, params: Tree, *inputs: Any, method: str = "__call__") -> Any:
    """`kind(*arguments)` with the given parameters, its `method` called on `inputs`."""
    static, shapes = _split(kind, arguments)
    state = jax.tree.map(lambda leaf: leaf, shapes)
    nnx.replace_by_pure_dict(state, params)
    return getattr(nnx.merge(static, state), method)(*inputs)
