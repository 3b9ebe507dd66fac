"""Where parameters live on a mesh: a small table from logical axes to mesh axes."""

import dataclasses
import logging
import math
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxalign.errors import ModelError
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Layers, abstract_params, param_axes

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ShardingRules:
    """The mesh axis over which each logical axis is split; None keeps it whole on every device.

    The defaults are tensor parallelism over `model` and rows of a batch over `users`: each product then needs one
    reduction over `model` per attention and one per MLP, and none over `users`.

    Attributes:
      batch: rows of a batch.
      vocab: rows of the embedding and of the output matrix.
      heads: query heads.
      kv_heads: key/value heads, whole where the mesh does not divide them.
      mlp: the MLP's inner width.
      embed: the residual width.
      head_dim: the width of a head.
      layers: scanned layers.
    """

    batch: str | None = "users"
    vocab: str | None = "model"
    heads: str | None = "model"
    kv_heads: str | None = "model"
    mlp: str | None = "model"
    embed: str | None = None
    head_dim: str | None = None
    layers: str | None = None

    def spec(self, axes: tuple[str, ...], mesh: Mesh) -> PartitionSpec:
        """The partition of an array with these logical axes; mesh axes that the mesh lacks are left out."""
        names = [getattr(self, axis) for axis in axes]
        names = [name if name in mesh.axis_names else None for name in names]
        used = [name for name in names if name is not None]
        if len(used) != len(set(used)):
            raise ModelError(f"sharding rules map two of the axes {axes} to one mesh axis: {names}")
        return PartitionSpec(*names)


def fit_rules(rules: ShardingRules, config: DecoderConfig, mesh: Mesh) -> ShardingRules:
    """The rules for this model on this mesh: key/value heads that do not divide are kept whole, with a note.

    Raises:
      ModelError: query heads, MLP width, vocabulary or another axis does not divide; the message lists each with its
        numbers, and the sizes of the mesh axis that would do.
    """
    sizes = {
        "heads": config.num_heads,
        "mlp": config.intermediate_size,
        "vocab": config.vocab_size,
        "embed": config.hidden_size,
        "head_dim": config.head_dim,
        "layers": config.num_layers,
    }
    wrong = []
    for name in mesh.axis_names:
        split = {axis: size for axis, size in sizes.items() if getattr(rules, axis) == name}
        if bad := [f"{axis} = {size}" for axis, size in split.items() if size % mesh.shape[name]]:
            common = math.gcd(*split.values())
            good = ", ".join(str(n) for n in range(1, 257) if common % n == 0)
            wrong.append(f"{', '.join(bad)} over {mesh.shape[name]} devices of axis {name!r} (sizes that do: {good})")
    if wrong:
        raise ModelError(f"the mesh does not divide {'; '.join(wrong)}")
    name = rules.kv_heads
    if name in mesh.axis_names and config.num_kv_heads % mesh.shape[name]:
        log.warning(
            "%d key/value heads do not divide over %d devices: replicated", config.num_kv_heads, mesh.shape[name]
        )
        rules = dataclasses.replace(rules, kv_heads=None)
    return rules


def param_shardings(
    config: DecoderConfig, mesh: Mesh, rules: ShardingRules | None = None, layers: Layers = "unrolled"
) -> dict[str, Any]:
    """The sharding of every parameter, as a tree like `abstract_params`."""
    fitted = fit_rules(rules or ShardingRules(), config, mesh)
    return jax.tree.map(
        lambda axes: NamedSharding(mesh, fitted.spec(axes, mesh)),
        param_axes(config, layers),
        is_leaf=lambda axes: isinstance(axes, tuple),
    )


def bytes_per_device(config: DecoderConfig, mesh: Mesh, dtype, rules: ShardingRules | None = None) -> int:
    """Bytes of parameters on each device of the mesh, from the config alone."""
    shapes = jax.tree.leaves(abstract_params(config, dtype))
    shardings = jax.tree.leaves(param_shardings(config, mesh, rules))
    return sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(shapes, shardings, strict=True)
    )
