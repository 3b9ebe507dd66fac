"""The decode loop: one `while_loop` over a whole batch, with static buffers and one body pass per token.

`start` encodes the prompts and chooses the first token; `decode` runs until every row has stopped. Both are jitted and
take plain pytrees, and `decode` takes over the buffers of the state it is given. Limits are traced values, so requests
that fit the same buffers share one program.

Guided by a head on the model's own hidden state, the pass that scores the k candidates is the decode step of the
winner: its hidden state gives the next logits, and its keys and values are the only ones written.
"""

import functools

import jax
import jax.numpy as jnp

from jaxalign.decoding.choice import Program, Records, State, choose
from jaxalign.decoding.guidance.base import Guidance, Texts
from jaxalign.decoding.rows import Rows, StopReason
from jaxalign.decoding.selection import Selection
from jaxalign.models.transformer import Decoder, Params, bind, prefill, step


@functools.partial(jax.jit, static_argnames="program")
def start(
    program: Program,
    params: Params,
    guidance: Guidance | None,
    selection: Selection,
    rows: Rows,
    tokens: jax.Array,
    lengths: jax.Array,
    real: jax.Array,
) -> State:
    """Encodes the prompts and chooses the first token.

    Args:
      program: what is compiled in.
      params: the language model's parameters.
      guidance: or None for plain decoding.
      selection: how a token is chosen from the scores.
      rows: per-row settings.
      tokens: `[batch, length]` int32, prompts padded on the left.
      lengths: `[batch]` int32, at least 1.
      real: `[batch]` bool; a false row only fills the batch and is stopped from the start.
    """
    model = bind(program.config, params)
    state = prepare(program, model, guidance, rows, tokens, lengths, real)
    assert state.hidden is not None
    return _take(program, model, guidance, selection, rows, state, state.hidden)


def prepare(program: Program, model: Decoder, guidance: Guidance | None, rows: Rows, tokens, lengths, real) -> State:
    """The state before the first token: prompts encoded, `hidden` at their last token; for use inside jit."""
    batch, length = tokens.shape
    # The last token is chosen and never encoded, so a buffer of `max_tokens - 1` further slots is enough; one more
    # where the choice itself encodes its candidates.
    slots = length + program.max_tokens
    hidden, cache = prefill(model, tokens, lengths)
    texts = Texts(tokens, lengths, jnp.full(batch, length - 1, jnp.int32), slots, length - 1, rows)
    shape = (batch, program.max_tokens)
    records = None
    if program.record:
        number, count = jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32)
        records = Records(number, count, number, number, jnp.zeros(shape, bool), count)
    return State(
        cache=cache.extend(slots),
        hidden=hidden[:, -1],
        token=jnp.full(batch, program.pad_id, jnp.int32),
        tokens=jnp.full(shape, program.pad_id, jnp.int32),
        chosen=jnp.zeros(batch, jnp.int32),
        reason=jnp.where(real, StopReason.RUNNING, StopReason.LENGTH).astype(jnp.int32),
        number=jnp.zeros((), jnp.int32),
        prompt_hidden=hidden[:, -1],
        response_sum=jnp.zeros_like(hidden[:, -1]) if program.encodes_choices(guidance) else None,
        carry=() if guidance is None else guidance.encode(texts),
        records=records,
    )


@functools.partial(jax.jit, static_argnames="program", donate_argnames="state")
def decode(
    program: Program, params: Params, guidance: Guidance | None, selection: Selection, rows: Rows, state: State
) -> State:
    """Chooses tokens until every row has stopped; the buffers of `state` are taken over."""
    return run(program, bind(program.config, params), guidance, selection, rows, state)


def run(program: Program, model: Decoder, guidance, selection, rows: Rows, state: State, until=None) -> State:
    """The loop itself, inside jit: until every row has stopped, or `until` tokens (int32) have been chosen."""

    def running(state: State) -> jax.Array:
        some = jnp.any(state.reason == StopReason.RUNNING)
        return some if until is None else some & (state.number < until)

    def body(state: State) -> State:
        if state.hidden is None:
            hidden, new = step(model, state.token[:, None], state.cache)
            state = state._replace(cache=state.cache.write(new, after=hidden[:, 0]))
            return _take(program, model, guidance, selection, rows, state, hidden[:, 0])
        return _take(program, model, guidance, selection, rows, state, state.hidden)

    return jax.lax.while_loop(running, body, state)


def _take(program: Program, model: Decoder, guidance, selection, rows: Rows, state: State, hidden) -> State:
    """Chooses the next token of every row from the hidden state `[batch, width]`, and does the book-keeping."""
    choice = choose(program, model, guidance, selection, rows, state, hidden)
    running = state.reason == StopReason.RUNNING
    taken = running & choice.finite
    token = jnp.where(taken, choice.token, program.pad_id)
    count = state.chosen + taken.astype(jnp.int32)
    ended = functools.reduce(jnp.logical_or, [choice.token == end for end in program.end_ids], jnp.zeros_like(taken))
    # A further token needs a position for this one's keys and values; and candidates, which are encoded before one of
    # them is chosen, need one for their own.
    prompt_length = state.cache.slots - program.max_tokens - state.cache.start
    candidates = guidance is not None and guidance.scores_candidates
    full = prompt_length + count + int(candidates) > program.context
    reason = jnp.where(full, StopReason.CACHE_FULL, StopReason.RUNNING)
    reason = jnp.where(count >= rows.max_new_tokens, StopReason.LENGTH, reason)
    reason = jnp.where(ended, StopReason.END_TOKEN, reason)
    reason = jnp.where(choice.finite, reason, StopReason.NON_FINITE)
    column = state.number

    def put(buffer, value):
        value = jnp.where(taken, value, jax.lax.dynamic_index_in_dim(buffer, column, axis=1, keepdims=False))
        return jax.lax.dynamic_update_slice_in_dim(buffer, value[:, None].astype(buffer.dtype), column, axis=1)

    response_sum = None
    if choice.hidden is not None:
        assert state.response_sum is not None, "kept where choices are encoded"
        response_sum = state.response_sum + choice.hidden
    return state._replace(
        cache=state.cache if choice.kv is None else state.cache.write(choice.kv),
        hidden=choice.hidden,
        response_sum=response_sum,
        token=token,
        tokens=put(state.tokens, token),
        chosen=count,
        reason=jnp.where(running, reason, state.reason).astype(jnp.int32),
        number=column + 1,
        carry=choice.carry,
        records=None if choice.records is None else jax.tree.map(put, state.records, choice.records),
    )
