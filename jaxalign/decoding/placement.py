"""Rows of a batch on the devices where the model's parameters are."""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec


def spread_rows(params: Any, rows: Any, axis: str = "users") -> Any:
    """Splits arrays with a leading axis of rows over the mesh axis `axis`, where the parameters are on a mesh with one.

    The compiler then splits the whole loop by rows. Each step exchanges one flag over `axis`, whether all rows are
    done; `jaxalign.evaluation.sharding.shard_users` exchanges nothing, and each device stops by itself.

    Args:
      params: the language model's parameters.
      rows: a pytree of arrays `[rows, ...]`; left as it is where the rows do not divide.
      axis: name of the mesh axis.
    """
    sharding = getattr(jax.tree.leaves(params)[0], "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh.shape.get(axis, 1) == 1:
        return rows
    count = jax.tree.leaves(rows)[0].shape[0]
    if count % sharding.mesh.shape[axis]:
        return rows
    return jax.device_put(rows, NamedSharding(sharding.mesh, PartitionSpec(axis)))
