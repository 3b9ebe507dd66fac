"""Users sharded over devices: one path from one CPU to a pod, and the modern form of `jax.pmap`.

For people who look for pmap: `jax.pmap` is in maintenance mode and is itself `jit(shard_map)`. What it did,

    jax.pmap(f, in_axes=(None, 0))(params, x.reshape(devices, -1, ...))

is here

    shard_users(f, mesh, in_axes=(None, 0))(params, x)

with these differences: `x` keeps its one leading axis (`[users, ...]`, any number of them, padded here), `f` sees a
block of users as pmap's did, a second mesh axis `model` may split the parameters (which pmap could not), and across
processes nothing is reshaped to host-local arrays and back.

Results do not depend on the number of devices: rows never meet, random draws must come from the row's own key, and a
function returns values per row. Sums over users are taken on the host, in float64 and in one order.
"""

import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxalign.errors import InputError

log = logging.getLogger(__name__)

AXES = ("users", "model")


def parse_mesh(text: str) -> dict[str, int]:
    """`users=4,model=2` as sizes of the axes; an axis that is not named has size 1.

    Raises:
      InputError: anything else; the message shows the part that is wrong.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        if name not in AXES or not equals or not re.fullmatch("[1-9][0-9]{0,5}", number) or name in sizes:
            raise InputError(f"mesh {text!r}: {part.strip()!r} is not an axis and its size; write users=4,model=2")
        sizes[name] = int(number)
    return {axis: sizes.get(axis, 1) for axis in AXES}


def make_mesh(sizes: Mapping[str, int] | str | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with the axes `users` and `model`.

    Args:
      sizes: of the two axes, over all processes together; None for all devices over `users`.
      devices: default all devices. With several processes, each of which can hold whole replicas of the model, it is
        the calling process's own part of the mesh: no program then spans processes, and a process that is lost costs
        its own work only. Otherwise the mesh is that of all processes, which must make the same calls.

    Raises:
      InputError: the mesh does not fit the devices; the message gives sizes that do.
    """
    if isinstance(sizes, str):
        sizes = parse_mesh(sizes)
    everything = list(jax.devices()) if devices is None else list(devices)
    users, model = (len(everything), 1) if sizes is None else (sizes.get("users", 1), sizes.get("model", 1))
    processes = len({device.process_index for device in everything})
    if users * model > len(everything) or (processes > 1 and users * model != len(everything)):
        fitting = ", ".join(f"users={len(everything) // m},model={m}" for m in _divisors(len(everything)))
        raise InputError(
            f"mesh users={users},model={model} needs {users * model} devices and there are {len(everything)}. "
            f"Meshes of all of them: {fitting}"
        )
    if idle := len(everything) - users * model:
        log.warning("mesh users=%d,model=%d leaves %d devices idle", users, model, idle)
    mine = [device for device in everything if device.process_index == jax.process_index()]
    if processes > 1 and len(mine) % model == 0:
        everything, users = mine, len(mine) // model
    used = everything[: users * model]
    if used[0].platform == "tpu":
        from jax.experimental import mesh_utils

        # Neighbours on the chips' network where it matters: along `model`.
        grid = mesh_utils.create_device_mesh((users, model), used, allow_split_physical_axes=True)
    else:
        grid = np.asarray(used).reshape(users, model)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto, AxisType.Auto))


def _divisors(number: int) -> list[int]:
    return [m for m in range(1, number + 1) if number % m == 0]


def spans_processes(mesh: Mesh | None) -> bool:
    """Whether programs on this mesh need several processes to make the same calls."""
    return mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1


def replicate(tree: Any, mesh: Mesh | None) -> Any:
    """A pytree of arrays put whole on every device of the mesh: do so once, before many calls."""
    if mesh is None:
        return jax.tree.map(jax.numpy.asarray, tree)
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: _put(x, whole), tree)


def balance(costs: Sequence[float] | np.ndarray, parts: int, capacity: int | None = None) -> list[np.ndarray]:
    """Divides items into parts of about equal cost: the dearest item first, always into the cheapest part.

    The dearest part costs at most 4/3 of the least possible (Graham 1969) when there is no capacity. Deterministic:
    equal costs go by the item's number, equal parts by the part's.

    Args:
      costs: `[items]`, for instance tokens of each user's texts; not negative.
      parts: how many.
      capacity: no part gets more items than this.

    Returns:
      for each part the numbers of its items, ascending; parts may be empty.

    Raises:
      InputError: costs that are negative or not finite, or a capacity that cannot hold the items.
    """
    cost = np.asarray(costs, np.float64)
    if parts < 1 or cost.ndim != 1 or not np.isfinite(cost).all() or (cost < 0).any():
        raise InputError("balance needs at least one part, and one finite, non-negative cost per item")
    if capacity is not None and capacity * parts < len(cost):
        raise InputError(f"{len(cost)} items do not fit into {parts} parts of at most {capacity}")
    sums = [0.0] * parts
    members: list[list[int]] = [[] for _ in range(parts)]
    for item in np.lexsort((np.arange(len(cost)), -cost)):
        open_parts = [p for p in range(parts) if capacity is None or len(members[p]) < capacity]
        # Among parts of equal cost the one with fewer items: items without cost are then spread as well.
        part = min(open_parts, key=lambda p: (sums[p], len(members[p]), p))
        sums[part] += float(cost[item])
        members[part].append(int(item))
    return [np.sort(np.asarray(m, np.int64)) for m in members]


def layout(rows: int, parts: int, costs: Sequence[float] | np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Where rows go when `parts` equal blocks are computed.

    Args:
      rows: number of rows, at least 1.
      parts: number of blocks.
      costs: `[rows]`, to balance the blocks; None keeps the order.

    Returns:
      source: `[parts * block]`, the row computed in each place; padding repeats a row.
      place: `[rows]`, the place at which each row's result is found.
    """
    block = -(-rows // parts)
    if costs is None:
        source = np.minimum(np.arange(parts * block), rows - 1)
        return source, np.arange(rows)
    source, place = np.zeros(parts * block, np.int64), np.zeros(rows, np.int64)
    for part, members in enumerate(balance(costs, parts, block)):
        at = part * block + np.arange(len(members))
        place[members], source[at] = at, members
        source[part * block + len(members) : (part + 1) * block] = members[-1] if len(members) else 0
    return source, place


def shard_users(
    function: Callable[..., Any],
    mesh: Mesh | None,
    *,
    in_axes: Sequence[int | None],
    axis: str = "users",
    static_argnums: Sequence[int] = (),
    donate_argnums: Sequence[int] = (),
) -> Callable[..., Any]:
    """Maps a function of rows over the mesh axis `axis`: `jit(shard_map)`, manual over `axis`, automatic over `model`.

    `function` is called with a block of rows and must treat each row by itself; it returns a pytree of arrays whose
    leading axis is the rows. A loop inside stops when the block's own rows are done: nothing is exchanged over `axis`.
    Make the sharded function once and call it often; each new number of rows per device compiles anew.

    Args:
      function: pure.
      mesh: None, or a mesh of one device, gives `jax.jit(function)`.
      in_axes: for each positional argument 0 (its arrays have a leading axis of rows) or None (the same for all rows:
        kept as it is sharded over `model`, or replicated; large ones should be on the mesh before, see `replicate`).
      axis: the mesh axis.
      static_argnums: as in `jax.jit`; their `in_axes` must be None.
      donate_argnums: as in `jax.jit`; only arguments that are the same for all rows, or rows that come as arrays
        sharded over `axis` already (others are copied here anyway).

    Returns:
      a function of the same positional arguments and an optional `costs=[rows]` by which rows are spread over the
      devices. It takes any number of rows (numpy or JAX arrays), pads them, and returns as many. On a mesh that spans
      processes every process gives the same rows (or arrays made with `jax.make_array_from_process_local_data`, when
      their number divides) and gets all results, as numpy arrays; each device reads its own rows only.

    Raises:
      InputError: when called, with no row or with arguments of different numbers of rows.
    """
    static, axes = set(static_argnums), tuple(in_axes)
    if any(place is not None and (place != 0 or i in static) for i, place in enumerate(axes)) or 0 not in axes:
        raise ValueError(f"in_axes = {axes}: 0 for arguments with rows (at least one), None for others and static ones")
    parts = 1 if mesh is None else mesh.shape[axis]
    mapped = function if mesh is None or mesh.size == 1 else _manual(function, mesh, axes, axis, static)
    compiled = jax.jit(mapped, static_argnums=tuple(static_argnums), donate_argnums=tuple(donate_argnums))
    spanning = spans_processes(mesh)
    sharding = None if mesh is None or mesh.size == 1 else NamedSharding(mesh, PartitionSpec(axis))

    @functools.wraps(function)
    def call(*arguments: Any, costs: Sequence[float] | np.ndarray | None = None) -> Any:
        rows = _rows(arguments, axes)
        if sharding is None:
            return compiled(*arguments)
        source, place = layout(rows, parts, costs)
        moved = len(source) != rows or costs is not None
        placed = []
        for argument, where in zip(arguments, axes, strict=True):
            if where is not None:
                argument = jax.tree.map(lambda x, s=sharding: _put(x[source] if moved else x, s), argument)
            placed.append(argument)
        out = compiled(*placed)
        if spanning:
            from jax.experimental import multihost_utils

            out = multihost_utils.process_allgather(out, tiled=True)
        return jax.tree.map(lambda x: x[place], out) if moved else out

    return call


def _manual(function, mesh: Mesh, axes, axis: str, static: set[int]):
    """`function` under shard_map; static arguments are closed over, since shard_map takes arrays only."""

    def whole(*arguments):
        dynamic = [i for i in range(len(arguments)) if i not in static]

        def block(*values):
            merged = list(arguments)
            for i, value in zip(dynamic, values, strict=True):
                merged[i] = value
            return function(*merged)

        specs = tuple(PartitionSpec(axis) if axes[i] == 0 else PartitionSpec() for i in dynamic)
        # check_vma needs `pcast` in loops that start from constants, which jax 0.10 does not export; pmap has no such
        # check either.
        mapped = jax.shard_map(
            block, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(axis), axis_names={axis}, check_vma=False
        )
        return mapped(*(arguments[i] for i in dynamic))

    return whole


def _rows(arguments: tuple, axes: tuple) -> int:
    """The one number of rows of all arguments that have rows."""
    if len(arguments) != len(axes):
        raise TypeError(f"{len(arguments)} arguments for {len(axes)} in_axes")
    numbers = {
        leaf.shape[0] if leaf.ndim else None
        for argument, where in zip(arguments, axes, strict=True)
        if where is not None
        for leaf in jax.tree.leaves(argument)
    }
    if len(numbers) != 1 or None in numbers or 0 in numbers:
        found = ", ".join(sorted(str(n) for n in numbers)) or "none"
        raise InputError(f"arguments with rows need one leading axis of equal length, at least 1; lengths are {found}")
    return int(numbers.pop() or 0)


def _put(x: Any, sharding: NamedSharding) -> jax.Array:
    # A tracer is left to the program around it.
    if isinstance(x, Tracer) or (isinstance(x, jax.Array) and not x.is_fully_addressable):
        return x
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
