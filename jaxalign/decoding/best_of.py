"""Best-of-n: sample n continuations from the language model, keep the best by a reward; whole responses or blocks.

Sampling is plain (the guidance does not steer it), and each sampled token is judged in the pass that encodes it, so n
samples cost n rows of plain decoding. In blocks, the winner's cache rows are gathered and its n copies go on together
(blockwise best-of-n of arXiv 2310.17022).
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxalign.decoding.choice import Program, State
from jaxalign.decoding.guidance.base import Guidance, Step
from jaxalign.decoding.loop import prepare, run
from jaxalign.decoding.rows import Rows, StopReason
from jaxalign.decoding.selection import Selection
from jaxalign.errors import InputError
from jaxalign.models.cache import Cache
from jaxalign.models.transformer import Params, bind


@dataclasses.dataclass(frozen=True)
class BestOf:
    """How samples are drawn and compared.

    Attributes:
      samples: n, drawn for each prompt. Sample j of a request depends on its seed, its number and j alone.
      block: tokens after which the best continuation replaces the others; None to compare whole responses.
      by: `reward`, of the text so far, read at its last token before the end token and before weight and clip; or
        `sequence`, the text's log-probability plus the weighted reward. The first of equals wins; a sample that met a
        value that is not finite never does.
    """

    samples: int
    block: int | None = None
    by: Literal["reward", "sequence"] = "reward"

    def __post_init__(self):
        for name, value in (("samples", self.samples), ("block", self.block)):
            if value is not None and value < 1:
                raise InputError(f"best of: {name} = {value}: at least 1 is needed")
        if self.by not in ("reward", "sequence"):
            raise InputError(f"best of: by = {self.by!r}: use 'reward' or 'sequence'")


@functools.partial(jax.jit, static_argnames=("program", "how"))
def best_of(
    program: Program,
    how: BestOf,
    params: Params,
    guidance: Guidance,
    selection: Selection,
    rows: Rows,
    tokens: jax.Array,
    lengths: jax.Array,
    real: jax.Array,
) -> State:
    """The final state of every prompt's best sample.

    Args:
      program: what is compiled in, with `sample_first` and `record`.
      how: n, block and measure, compiled in as well.
      params: the language model's parameters.
      guidance: judges the samples; a weight per row is `[batch * samples]`, a prompt's samples side by side.
      selection: draws a token from the language model's logits.
      rows: `[batch]` settings.
      tokens, lengths, real: as in `loop.start`; each prompt is encoded once.
    """
    model = bind(program.config, params)
    batch, n = tokens.shape[0], how.samples
    group = jnp.repeat(jnp.arange(batch, dtype=jnp.int32), n)
    state = take_rows(prepare(program, model, guidance, rows, tokens, lengths, real), group)
    rows = take_rows(rows, group)
    sample = jnp.tile(jnp.arange(n, dtype=jnp.uint32), batch)
    rows = rows._replace(key=jax.vmap(jax.random.fold_in)(rows.key, sample))

    def block(state: State) -> State:
        size = program.max_tokens if how.block is None else how.block
        state = run(program, model, guidance, selection, rows, state, until=state.number + size)
        value = _value(how, guidance, rows, state).reshape(batch, n)
        winner = jnp.arange(batch, dtype=jnp.int32) * n + jnp.argmax(value, axis=-1).astype(jnp.int32)
        return take_rows(state, winner[group])

    state = jax.lax.while_loop(lambda state: jnp.any(state.reason == StopReason.RUNNING), block, state)
    return take_rows(state, jnp.arange(batch, dtype=jnp.int32) * n)


def take_rows(tree: Any, index: jax.Array) -> Any:
    """Rows `index` `[n]` of everything in a pytree of `Cache`s, arrays `[batch, ...]` and scalars."""

    def take(x):
        if isinstance(x, Cache):
            return x.take(index)
        return x[index] if x.ndim else x

    return jax.tree.map(take, tree, is_leaf=lambda x: isinstance(x, Cache))


def _value(how: BestOf, guidance: Guidance, rows: Rows, state: State) -> jax.Array:
    """What samples are compared by, `[rows]` float32."""
    assert state.records is not None
    assert state.hidden is not None
    # The reward of a response is that of its content; an end token alone is all there is to read.
    content = state.chosen - ((state.reason == StopReason.END_TOKEN) & (state.chosen > 1)).astype(jnp.int32)
    last = jnp.maximum(content - 1, 0)[:, None]
    value = jnp.take_along_axis(state.records.reward, last, axis=1)
    if how.by == "sequence":
        written = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)[None] < state.chosen[:, None]
        log_prob = jnp.sum(jnp.where(written, state.records.log_prob, 0.0), axis=1)
        step = Step(
            rows=rows,
            position=last,
            start=state.cache.start,
            stop=jnp.broadcast_to(state.cache.slot, last.shape),
            query=jnp.zeros(1, jnp.int32),
            hidden=state.hidden[:, None],
            prompt_hidden=state.prompt_hidden,
            tokens=None,
            log_prob=log_prob[:, None, None],
        )
        value = log_prob[:, None] + guidance.weighted(value, step)
    lost = (state.reason == StopReason.NON_FINITE) | jnp.isnan(value[:, 0])
    return jnp.where(lost, -jnp.inf, value[:, 0])
