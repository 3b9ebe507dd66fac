"""A plan: what guided decoding and scoring need on chips that are not here, and which mesh is best."""

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxalign.errors import InputError, ModelError
from jaxalign.models.config import DecoderConfig
from jaxalign.models.sharding import bytes_per_device
from jaxalign.planning import hlo, programs, roofline
from jaxalign.planning.chips import PlanError, Topology
from jaxalign.planning.flops import product_flops
from jaxalign.planning.programs import Workload

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ProgramPlan:
    """One program on one chip.

    Attributes:
      name: `prefill`, `decode` or `score`.
      bytes: of memory that it needs: arguments, results that are not in place of arguments, and temporaries.
      temporary: bytes of temporaries among them.
      flops: of its matrix products, loops multiplied; for `decode` of one step of its loop.
      compiled_flops: by XLA's cost analysis, each loop's body counted once.
      compiled_bytes: bytes accessed, in the same way.
      collectives: see `hlo.collectives`.
    """

    name: str
    bytes: int
    temporary: int
    flops: float
    compiled_flops: float
    compiled_bytes: float
    collectives: list[hlo.Collective]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A mesh, its programs, and the speed that the chips' limits allow.

    Attributes:
      users: size of axis `users`.
      model: size of axis `model`.
      weights: bytes of parameters on each chip.
      hbm: bytes of memory of each chip.
      programs: see `ProgramPlan`.
      step: of the decode loop.
      prefill_seconds: for the batch.
      score_seconds: for the batch's texts.
    """

    users: int
    model: int
    weights: int
    hbm: int
    programs: list[ProgramPlan]
    step: roofline.Time
    prefill_seconds: float
    score_seconds: float
    work: Workload

    @property
    def fits(self) -> bool:
        """Whether every program stays within the chip's memory."""
        return max(program.bytes for program in self.programs) <= self.hbm

    @property
    def tokens_per_second(self) -> float:
        """Guided tokens per second over all chips, prefill included, at the roofline."""
        seconds = self.prefill_seconds + self.work.new_tokens * self.step.total
        return self.work.batch * self.work.new_tokens / seconds

    @property
    def crossing(self) -> list[hlo.Collective]:
        """Collectives of the decode loop that go over `users`: there should be none."""
        loop = next(program for program in self.programs if program.name == "decode").collectives
        return [one for one in loop if one.in_loop and "users" in one.axis]


def make_plan(
    topology: Topology,
    config: DecoderConfig,
    work: Workload,
    mesh: dict[str, int],
    devices: Sequence[Any] | None = None,
    progress: Callable[[str], None] = log.info,
) -> Plan:
    """Compiles prefill, guided decoding and scoring for a mesh of the topology's chips.

    Args:
      topology: the chips.
      config: the language model's sizes; no weights are needed.
      work: what is decoded.
      mesh: sizes of `users` and `model`.
      devices: the topology's, where they are known already.
      progress: told what is compiled.

    Raises:
      InputError: a mesh or a batch that does not fit.
      ModelError: a model that does not divide over the mesh.
      PlanError: libtpu is missing, or a program does not fit into a chip's memory.
    """
    users, model = mesh["users"], mesh["model"]
    if users * model != topology.chips:
        raise InputError(
            f"mesh users={users},model={model} has {users * model} devices; {topology} has {topology.chips}"
        )
    found = topology.devices() if devices is None else devices
    grid = Mesh(_arrange(found, users, model), ("users", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    work.check(config, grid)
    axes = (("users", users), ("model", model))
    planned: list[ProgramPlan] = []

    def build(name: str, traced: programs.Traced) -> Any:
        progress(f"compiling {name} for {topology}, users={users},model={model}")
        trace = traced.function.trace(*traced.arguments)
        try:
            compiled = trace.lower().compile()
        except Exception as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            first = str(error).splitlines()[0]
            raise PlanError(
                f"{name} does not fit into a chip's memory with users={users},model={model}: {first}"
            ) from error
        memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
        planned.append(
            ProgramPlan(
                name=name,
                bytes=memory.argument_size_in_bytes
                + memory.output_size_in_bytes
                - memory.alias_size_in_bytes
                + memory.temp_size_in_bytes,
                temporary=memory.temp_size_in_bytes,
                flops=product_flops(trace.jaxpr) / model,
                compiled_flops=float(cost.get("flops", math.nan)),
                compiled_bytes=float(cost.get("bytes accessed", math.nan)),
                collectives=hlo.collectives(compiled.as_text(), axes),
            )
        )
        return compiled

    prefilled = build("prefill", programs.prefill_program(config, grid, work))
    build("decode", programs.decode_program(config, grid, work, prefilled))
    build("score", programs.score_program(config, grid, work))
    prefill, decode, score = planned
    weights = bytes_per_device(config, grid, jnp.dtype(work.dtype))
    item, rows = jnp.dtype(work.dtype).itemsize, work.batch // users
    cache = roofline.cache_bytes(config, rows, work.prompt + work.new_tokens, item, model)
    # Of the embedding only the rows of the tokens at hand are read.
    read = weights - (0 if config.tie_embeddings else config.vocab_size * config.hidden_size * item / model)
    chip = topology.chip
    inside = [one for one in decode.collectives if one.in_loop]
    return Plan(
        users=users,
        model=model,
        weights=weights,
        hbm=int(chip.hbm),
        programs=planned,
        step=roofline.step_time(chip, decode.flops, read + cache, inside),
        prefill_seconds=roofline.step_time(chip, prefill.flops, read + cache, prefill.collectives).total,
        score_seconds=roofline.step_time(chip, score.flops, read + cache, score.collectives).total,
        work=work,
    )


def _arrange(devices: Sequence[Any], users: int, model: int) -> np.ndarray:
    """Chips that are neighbours on the network along `model`, where the network's shape allows it."""
    from jax.experimental import mesh_utils

    try:
        return mesh_utils.create_device_mesh((users, model), list(devices), allow_split_physical_axes=True)
    except (NotImplementedError, ValueError, AssertionError):
        return np.asarray(devices).reshape(users, model)


def candidate_meshes(topology: Topology, config: DecoderConfig, work: Workload, most: int = 3) -> list[dict[str, int]]:
    """Meshes worth compiling, from the config alone: those whose weights and cache fit, the smallest `model` first.

    More chips per replica than are needed read fewer bytes each and exchange more, so that the next sizes are worth a
    look and others are not.
    """
    fitting = []
    item = jnp.dtype(work.dtype).itemsize
    for model in (n for n in range(1, topology.chips + 1) if topology.chips % n == 0):
        users = topology.chips // model
        split = (config.num_heads, config.intermediate_size, config.vocab_size)
        if work.batch % users or any(size % model for size in split):
            continue
        weights = config.num_params * item / model
        cache = roofline.cache_bytes(config, work.batch // users, work.prompt + work.new_tokens, item, model)
        # What the compiler and the runtime need beside them is known only after compiling.
        if weights + cache < 0.85 * topology.chip.hbm:
            fitting.append({"users": users, "model": model})
    return fitting[:most]


def best_plan(
    topology: Topology, config: DecoderConfig, work: Workload, progress: Callable[[str], None] = log.info
) -> list[Plan]:
    """Plans of a few meshes, the fastest that fits first.

    Raises:
      PlanError: no mesh of the topology holds the model.
    """
    meshes = candidate_meshes(topology, config, work)
    if not meshes:
        raise PlanError(
            f"no mesh of {topology} holds this model and a batch of {work.batch}: heads {config.num_heads}, MLP "
            f"{config.intermediate_size} and vocabulary {config.vocab_size} must divide over `model`, the batch over "
            f"`users`, and weights and cache must fit into {topology.chip.hbm / 2**30:.0f} GiB"
        )
    devices, plans, failed = topology.devices(), [], []
    for mesh in meshes:
        try:
            plans.append(make_plan(topology, config, work, mesh, devices, progress))
        except (PlanError, ModelError) as error:
            failed.append(str(error))
    if not plans:
        raise PlanError("; ".join(failed))
    jax.clear_caches()
    return sorted(plans, key=lambda plan: (not plan.fits, -plan.tokens_per_second))
