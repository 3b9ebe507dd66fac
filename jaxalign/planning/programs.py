"""The programs that a run executes, with abstract arguments: nothing is allocated, nothing runs.

Layers are scanned (`models.load(..., layers="scanned")`): a model of 80 layers then compiles as fast as one of two.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxalign.decoding import Greedy, RewardHead, loop
from jaxalign.decoding.forced import ForcedProgram, forced, piece_size
from jaxalign.decoding.rows import make_rows
from jaxalign.decoding.score import _judge as judge
from jaxalign.errors import InputError
from jaxalign.models.cache import Cache
from jaxalign.models.config import DecoderConfig
from jaxalign.models.sharding import param_shardings
from jaxalign.models.transformer import abstract_params

_USERS = PartitionSpec("users")

# Every part of the loop's state begins with the rows, but for scanned layers, whose own axis comes first.
_STATE = loop.State(
    cache=Cache(layers=PartitionSpec(None, "users"), start=_USERS, slot=_USERS),  # pyright: ignore[reportArgumentType]
    **{name: _USERS for name in loop.State._fields if name != "cache"},  # pyright: ignore[reportArgumentType]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """What is decoded and scored at once, over all devices together.

    Attributes:
      batch: rows.
      prompt: tokens of each prompt.
      new_tokens: tokens of each response.
      top_k: candidates of guided decoding.
      dtype: of the weights and the cache.
    """

    batch: int
    prompt: int
    new_tokens: int
    top_k: int
    dtype: str = "bfloat16"

    def check(self, config: DecoderConfig, mesh: Mesh) -> None:
        """Raises InputError where the workload cannot be run on the mesh."""
        for field in ("batch", "prompt", "new_tokens", "top_k"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} = {getattr(self, field)}: at least 1 is needed")
        if self.prompt + self.new_tokens > config.max_position:
            raise InputError(
                f"{self.prompt} + {self.new_tokens} tokens exceed the model's context of {config.max_position}"
            )
        if self.batch % mesh.shape["users"]:
            raise InputError(
                f"batch = {self.batch} does not divide over {mesh.shape['users']} devices of axis 'users': give a "
                "multiple of it"
            )


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function and its abstract arguments."""

    function: Any
    arguments: tuple[Any, ...]


def _abstract(tree: Any, mesh: Mesh, spec: PartitionSpec) -> Any:
    sharding = NamedSharding(mesh, spec)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def _common(config: DecoderConfig, mesh: Mesh, work: Workload) -> tuple[Any, Any, Any]:
    """Parameters, one linear head per row, and the rows' settings."""
    params = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        abstract_params(config, jnp.dtype(work.dtype), "scanned"),
        param_shardings(config, mesh, layers="scanned"),
    )
    head = jax.eval_shape(lambda v: RewardHead.linear(v), jax.ShapeDtypeStruct((work.batch, config.hidden_size), "f4"))
    rows = jax.eval_shape(lambda: make_rows(work.batch, max_new_tokens=work.new_tokens, top_k=work.top_k))
    return params, _abstract(head, mesh, PartitionSpec()), _abstract(rows, mesh, _USERS)


def _map(function, mesh: Mesh, rows: tuple[Any, ...], results: Any):
    """`function` over blocks of rows, as evaluation/sharding.py does it; parameters and head are the same for all."""
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(), *rows),
        out_specs=results,
        axis_names={"users"},
        check_vma=False,
    )


def _lift(state: loop.State) -> loop.State:
    """Each block's own counters get an axis over blocks."""
    return state._replace(number=state.number[None], cache=state.cache._replace(slot=state.cache.slot[None]))


def _lower(state: loop.State) -> loop.State:
    return state._replace(number=state.number[0], cache=state.cache._replace(slot=state.cache.slot[0]))


def _program(config: DecoderConfig, work: Workload) -> loop.Program:
    return loop.Program(
        config=config,
        context=config.max_position,
        max_tokens=work.new_tokens,
        max_top_k=work.top_k,
        end_ids=(0,),
        pad_id=0,
    )


def prefill_program(config: DecoderConfig, mesh: Mesh, work: Workload) -> Traced:
    """`loop.start`: prompts encoded, first token chosen."""
    program = _program(config, work)

    def block(params, head, rows, tokens, lengths, real):
        return _lift(loop.start(program, params, head, Greedy(), rows, tokens, lengths, real))

    shapes = (
        jax.ShapeDtypeStruct((work.batch, work.prompt), "i4"),
        jax.ShapeDtypeStruct((work.batch,), "i4"),
        jax.ShapeDtypeStruct((work.batch,), "bool"),
    )
    arguments = (*_common(config, mesh, work), *_abstract(shapes, mesh, _USERS))
    return Traced(jax.jit(_map(block, mesh, (_USERS,) * 4, _STATE)), arguments)


def decode_program(config: DecoderConfig, mesh: Mesh, work: Workload, prefilled: Any) -> Traced:
    """`loop.decode`: the loop over tokens, taking over the state.

    Args:
      config: the language model.
      mesh: the devices.
      work: what is decoded.
      prefilled: the compiled `prefill_program`, whose results these arguments are.
    """
    program = _program(config, work)

    def block(params, head, rows, state):
        return _lift(loop.decode(program, params, head, Greedy(), rows, _lower(state)))

    before = prefill_program(config, mesh, work)
    state = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        jax.eval_shape(before.function, *before.arguments),
        prefilled.output_shardings,
    )
    return Traced(
        jax.jit(_map(block, mesh, (_USERS, _STATE), _STATE), donate_argnums=3), (*_common(config, mesh, work), state)
    )


def score_program(config: DecoderConfig, mesh: Mesh, work: Workload) -> Traced:
    """`forced`: the teacher-forced pass over as many texts, guided policy included."""
    length = work.prompt + work.new_tokens
    local = work.batch // mesh.shape["users"]
    program = ForcedProgram(
        config=config,
        max_top_k=work.top_k,
        reads_hidden=True,
        width=work.new_tokens,
        piece=piece_size(config, local, work.new_tokens, work.top_k),
    )
    run = functools.partial(forced, program, judge, True)

    def block(params, head, rows, tokens, lengths, responses):
        return run(params, (head,), None, rows, tokens, lengths, responses)

    shapes = (
        jax.ShapeDtypeStruct((work.batch, length), "i4"),
        jax.ShapeDtypeStruct((work.batch,), "i4"),
        jax.ShapeDtypeStruct((work.batch,), "i4"),
    )
    arguments = (*_common(config, mesh, work), *_abstract(shapes, mesh, _USERS))
    return Traced(jax.jit(_map(block, mesh, (_USERS,) * 4, _USERS)), arguments)
