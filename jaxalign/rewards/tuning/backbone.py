"""Which part of the language model is trained: low-rank pairs (LoRA), everything, or nothing.

What is trained is a flat dictionary from a parameter's path (`blocks/0/attention/query`) to float32 arrays; `apply`
puts it into the language model's own tree, in the dtype of that tree: load the model in bfloat16 to compute in it.
"""

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxalign.errors import InputError
from jaxalign.models.config import DecoderConfig
from jaxalign.models.low_rank import LowRank
from jaxalign.models.sharding import ShardingRules, param_shardings
from jaxalign.models.transformer import Layers, Params, layers_of

Trained = dict[str, Any]
"""Path of a parameter to what is trained of it."""

# Projections, and how many trailing axes of their weights are inputs; the remaining ones (but for scanned layers) are
# outputs.
_INPUTS = {"query": 1, "key": 1, "value": 1, "output": 2, "gate": 1, "up": 1, "down": 1}


def path_name(path: tuple[Any, ...]) -> str:
    """The path of a parameter as one string."""
    return "/".join(str(key.key) for key in path)


class Backbone(abc.ABC):
    """What is trained of the language model; a frozen dataclass, static in jitted functions."""

    @abc.abstractmethod
    def init(self, key: Array, params: Params) -> Trained:
        """What is trained, float32, such that `apply` gives the model itself; shares no buffer with `params`."""

    @abc.abstractmethod
    def apply(self, params: Params, trained: Trained) -> Params:
        """The tuned parameter tree, for `transformer.bind`."""

    @abc.abstractmethod
    def merged(self, params: Params, trained: Trained) -> Params:
        """The tuned parameters as plain arrays of the dtype of `params`, that a folder can hold."""

    @abc.abstractmethod
    def shardings(self, config: DecoderConfig, mesh: Mesh, rules: ShardingRules | None, layers: Layers) -> Trained:
        """A tree like `init`'s, of where its arrays live."""


@dataclasses.dataclass(frozen=True)
class Lora(Backbone):
    """W + (alpha / rank) up down for every projection of attention and MLP (Hu et al. 2021, arXiv 2106.09685).

    `up` starts at zero, so step 0 is the language model itself; `down` is normal with variance 1 / inputs. The sum is
    not formed in training (`LowRank`): a step needs two passes' worth of products where full fine-tuning needs three.

    Attributes:
      rank: 8, with alpha 16, as P-RLHF trains (arXiv 2402.05133).
      alpha: scale of the update.
      targets: which projections; all of them by default.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = tuple(_INPUTS)

    def __post_init__(self):
        if self.rank < 1 or not 0 < self.alpha < float("inf"):
            raise InputError(f"LoRA: rank {self.rank} must be at least 1, and alpha {self.alpha} positive and finite.")
        if unknown := [name for name in self.targets if name not in _INPUTS]:
            raise InputError(f"LoRA: there is no projection '{unknown[0]}'. Known: {', '.join(_INPUTS)}.")
        if not self.targets:
            raise InputError("LoRA: targets is empty; name at least one projection, or freeze the backbone.")

    def _inputs(self, path: tuple[Any, ...]) -> int | None:
        """The number of input axes of a targeted projection; None for any other parameter."""
        name = path[-1].key
        return _INPUTS[name] if path[0].key == "blocks" and name in self.targets else None

    def init(self, key: Array, params: Params) -> Trained:
        leading = 1 if layers_of(params) == "scanned" else 0
        # NumPy's generator: JAX's would compile a program for every shape.
        seed = [int(word) for word in np.asarray(jax.random.key_data(key)).ravel()]
        trained: Trained = {}
        for number, (path, weight) in enumerate(jax.tree_util.tree_leaves_with_path(params)):
            if (inputs := self._inputs(path)) is None:
                continue
            stack, out, fan = _split(weight.shape, leading, inputs)
            draw = np.random.default_rng([*seed, number]).standard_normal((*stack, self.rank, *fan), np.float32)
            up = np.zeros((*stack, *out, self.rank), np.float32)
            down = draw * np.float32(math.prod(fan) ** -0.5)
            trained[path_name(path)] = {"up": jnp.asarray(up), "down": jnp.asarray(down)}
        return trained

    def apply(self, params: Params, trained: Trained) -> Params:
        scale = self.alpha / self.rank

        def one(path, weight):
            pair = trained.get(path_name(path))
            if pair is None:
                return weight
            return LowRank(weight, (pair["up"] * scale).astype(weight.dtype), pair["down"].astype(weight.dtype))

        return jax.tree_util.tree_map_with_path(one, params)

    def merged(self, params: Params, trained: Trained) -> Params:
        scale = self.alpha / self.rank

        def one(path, weight):
            pair, inputs = trained.get(path_name(path)), self._inputs(path)
            if pair is None or inputs is None:
                return weight
            return LowRank(weight, pair["up"] * scale, pair["down"]).merge(inputs)

        return jax.tree_util.tree_map_with_path(one, params)

    def shardings(self, config: DecoderConfig, mesh: Mesh, rules: ShardingRules | None, layers: Layers) -> Trained:
        leading = 1 if layers == "scanned" else 0
        trained: Trained = {}
        for path, sharding in jax.tree_util.tree_leaves_with_path(param_shardings(config, mesh, rules, layers)):
            if (inputs := self._inputs(path)) is not None:
                # The axes of the weight keep their places on the mesh; the rank is small and stays whole.
                stack, out, fan = _split(tuple(sharding.spec), leading, inputs)
                trained[path_name(path)] = {
                    "up": NamedSharding(mesh, PartitionSpec(*stack, *out, None)),
                    "down": NamedSharding(mesh, PartitionSpec(*stack, None, *fan)),
                }
        return trained


@dataclasses.dataclass(frozen=True)
class Full(Backbone):
    """Every parameter, with a float32 copy that is trained. Memory: 16 bytes a parameter, beside the model itself."""

    def init(self, key: Array, params: Params) -> Trained:
        leaves = jax.tree_util.tree_leaves_with_path(params)
        return {path_name(path): jnp.array(leaf, jnp.float32, copy=True) for path, leaf in leaves}

    def apply(self, params: Params, trained: Trained) -> Params:
        return jax.tree_util.tree_map_with_path(lambda path, leaf: trained[path_name(path)].astype(leaf.dtype), params)

    def merged(self, params: Params, trained: Trained) -> Params:
        return self.apply(params, trained)

    def shardings(self, config: DecoderConfig, mesh: Mesh, rules: ShardingRules | None, layers: Layers) -> Trained:
        leaves = jax.tree_util.tree_leaves_with_path(param_shardings(config, mesh, rules, layers))
        return {path_name(path): sharding for path, sharding in leaves}


@dataclasses.dataclass(frozen=True)
class Frozen(Backbone):
    """Nothing: only the method's own parameters are trained."""

    def init(self, key: Array, params: Params) -> Trained:
        return {}

    def apply(self, params: Params, trained: Trained) -> Params:
        return params

    def merged(self, params: Params, trained: Trained) -> Params:
        return params

    def shardings(self, config: DecoderConfig, mesh: Mesh, rules: ShardingRules | None, layers: Layers) -> Trained:
        return {}


def for_layers(trained: Trained, layers: Layers) -> Trained:
    """What is trained, for a language model whose layers are kept as `layers`, whichever way it was trained."""
    stacks: dict[str, dict[int, Any]] = {}
    out: Trained = {}
    for name, value in trained.items():
        first, _, rest = name.partition("/")
        number, _, inside = rest.partition("/")
        if first != "blocks" or (layers == "unrolled") == number.isdecimal():
            out[name] = value
        elif layers == "unrolled":
            for layer in range(jax.tree.leaves(value)[0].shape[0]):
                out[f"blocks/{layer}/{rest}"] = jax.tree.map(lambda leaf, layer=layer: leaf[layer], value)
        else:
            stacks.setdefault(f"blocks/{inside}", {})[int(number)] = value
    for name, parts in stacks.items():
        out[name] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(parts[layer] for layer in sorted(parts)))
    return out


BACKBONES: dict[str, type[Backbone]] = {"lora": Lora, "full": Full, "frozen": Frozen}
"""By the name that flags and saved models give them."""


def _split(axes: tuple[Any, ...], leading: int, inputs: int) -> tuple[tuple, tuple, tuple]:
    """The axes of a weight as (scanned layers, outputs, inputs)."""
    return axes[:leading], axes[leading : len(axes) - inputs], axes[len(axes) - inputs :]
