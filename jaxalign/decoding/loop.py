"""The decode loop: one `while_loop` over a whole batch, with static buffers and one body pass per token.

`start` encodes the prompts and chooses the first token; `decode` runs until every row has stopped. Both are jitted and
take plain pytrees, and `decode` takes over the buffers of the state it is given. Limits are traced values, so requests
that fit the same buffers share one program.

Guided by a head on the model's own hidden state, the pass that scores the k candidates is the decode step of the
winner: its hidden state gives the next logits, and its keys and values are the only ones written.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxalign.decoding import vocabulary
from jaxalign.decoding.guidance.base import Guidance, Step, Texts
from jaxalign.decoding.rows import Rows, StopReason
from jaxalign.decoding.selection import Selection
from jaxalign.models.cache import Cache, select
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Decoder, Params, bind, prefill, step


class Records(NamedTuple):
    """What happened at each token, on request. Each is `[batch, max_tokens]`, float32 unless said otherwise.

    Attributes:
      log_prob: the language model's log-probability of the chosen token, nats.
      rank: int32, how many tokens the language model found more probable.
      entropy: of the language model's distribution, nats.
      reward: of the prefix ended by the chosen token, before the weight; for a `Sum`, its terms weighted and added.
        The bonus, for a vocabulary guidance. 0 without guidance.
      changed: bool, whether the choice differs from the language model's own most probable token.
    """

    log_prob: jax.Array
    rank: jax.Array
    entropy: jax.Array
    reward: jax.Array
    changed: jax.Array


class State(NamedTuple):
    """Everything that changes while decoding.

    Attributes:
      cache: keys and values of the prompt and of the chosen tokens, but for the newest one when `hidden` is None.
      hidden: `[batch, width]` float32, the hidden state at the newest token, where choosing it gave it (guidance that
        reads hidden states); otherwise None, and the next step begins by encoding the newest token.
      token: `[batch]` int32, the newest token.
      tokens: `[batch, max_tokens]` int32, chosen tokens; pad after a row's end.
      chosen: `[batch]` int32, how many tokens were chosen.
      reason: `[batch]` int32, `StopReason`.
      number: int32, tokens chosen by the rows that never stopped.
      prompt_hidden: `[batch, width]` float32, hidden state at the last prompt token.
      carry: the guidance's own state.
      records: or None.
    """

    cache: Cache
    hidden: jax.Array | None
    token: jax.Array
    tokens: jax.Array
    chosen: jax.Array
    reason: jax.Array
    number: jax.Array
    prompt_hidden: jax.Array
    carry: Any
    records: Records | None


class Program(NamedTuple):
    """What is compiled in: hashable, and equal for equal programs.

    Attributes:
      config: the language model's sizes.
      context: longest sequence in tokens, of the language model or of the guidance's model if that is shorter.
      max_tokens: columns of the token buffer: at least every row's `max_new_tokens`, or `context`.
      max_top_k: the largest number of candidates of any row; 0 without a candidate guidance.
      end_ids: token ids that end a row, in its tokens as its last; none to run to the limit.
      pad_id: written after a row's end.
      record: whether to keep `Records`.
    """

    config: DecoderConfig
    context: int
    max_tokens: int
    max_top_k: int
    end_ids: tuple[int, ...]
    pad_id: int
    record: bool = False


class Choice(NamedTuple):
    """One chosen token per row, with what choosing it gave."""

    token: jax.Array
    hidden: jax.Array | None
    kv: Any
    carry: Any
    finite: jax.Array
    records: Records | None


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
    batch, length = tokens.shape
    # The last token is chosen and never encoded, so a buffer of `max_tokens - 1` further slots is enough; one more
    # where the choice itself encodes its candidates.
    slots = length + program.max_tokens
    hidden, cache = prefill(model, tokens, lengths)
    texts = Texts(tokens, lengths, jnp.full(batch, length - 1, jnp.int32), slots, length - 1, rows)
    shape = (batch, program.max_tokens)
    records = None
    if program.record:
        number = jnp.zeros(shape, jnp.float32)
        records = Records(number, jnp.zeros(shape, jnp.int32), number, number, jnp.zeros(shape, bool))
    state = State(
        cache=cache.extend(slots),
        hidden=None,
        token=jnp.full(batch, program.pad_id, jnp.int32),
        tokens=jnp.full(shape, program.pad_id, jnp.int32),
        chosen=jnp.zeros(batch, jnp.int32),
        reason=jnp.where(real, StopReason.RUNNING, StopReason.LENGTH).astype(jnp.int32),
        number=jnp.zeros((), jnp.int32),
        prompt_hidden=hidden[:, -1],
        carry=() if guidance is None else guidance.encode(texts),
        records=records,
    )
    return _take(program, model, guidance, selection, rows, state, hidden[:, -1])


@functools.partial(jax.jit, static_argnames="program", donate_argnames="state")
def decode(
    program: Program, params: Params, guidance: Guidance | None, selection: Selection, rows: Rows, state: State
) -> State:
    """Chooses tokens until every row has stopped; the buffers of `state` are taken over."""
    model = bind(program.config, params)

    def running(state: State) -> jax.Array:
        return jnp.any(state.reason == StopReason.RUNNING)

    def body(state: State) -> State:
        if state.hidden is None:
            hidden, new = step(model, state.token[:, None], state.cache)
            state = state._replace(cache=state.cache.write(new))
            return _take(program, model, guidance, selection, rows, state, hidden[:, 0])
        return _take(program, model, guidance, selection, rows, state, state.hidden)

    return jax.lax.while_loop(running, body, state)


def _take(program: Program, model: Decoder, guidance, selection, rows: Rows, state: State, hidden) -> State:
    """Chooses the next token of every row from the hidden state `[batch, width]`, and does the book-keeping."""
    choice = _choose(program, model, guidance, selection, rows, state, hidden)
    running = state.reason == StopReason.RUNNING
    taken = running & choice.finite
    token = jnp.where(taken, choice.token, program.pad_id)
    count = state.chosen + taken.astype(jnp.int32)
    ended = functools.reduce(jnp.logical_or, [choice.token == end for end in program.end_ids], jnp.zeros_like(taken))
    # A further token needs a position for this one's keys and values.
    prompt_length = state.cache.slots - program.max_tokens - state.cache.start
    full = prompt_length + count > program.context
    reason = jnp.where(full, StopReason.CACHE_FULL, StopReason.RUNNING)
    reason = jnp.where(count >= rows.max_new_tokens, StopReason.LENGTH, reason)
    reason = jnp.where(ended, StopReason.END_TOKEN, reason)
    reason = jnp.where(choice.finite, reason, StopReason.NON_FINITE)
    column = state.number

    def put(buffer, value):
        value = jnp.where(taken, value, jax.lax.dynamic_index_in_dim(buffer, column, axis=1, keepdims=False))
        return jax.lax.dynamic_update_slice_in_dim(buffer, value[:, None].astype(buffer.dtype), column, axis=1)

    return state._replace(
        cache=state.cache if choice.kv is None else state.cache.write(choice.kv),
        hidden=choice.hidden,
        token=token,
        tokens=put(state.tokens, token),
        chosen=count,
        reason=jnp.where(running, reason, state.reason).astype(jnp.int32),
        number=column + 1,
        carry=choice.carry,
        records=None if choice.records is None else jax.tree.map(put, state.records, choice.records),
    )


def _choose(program: Program, model: Decoder, guidance, selection, rows: Rows, state: State, hidden) -> Choice:
    """One token per row, by guidance and selection."""
    logits = model.logits(hidden)
    batch = logits.shape[0]
    key = jax.vmap(jax.random.fold_in, in_axes=(0, None))(rows.key, state.number)
    log_prob = jax.nn.log_softmax(logits, axis=-1)
    prefix = Step(
        rows=rows,
        position=jnp.broadcast_to(state.number, (batch, 1)),
        start=state.cache.start,
        stop=jnp.broadcast_to(state.cache.slot, (batch, 1)),
        query=jnp.zeros(1, jnp.int32),
        hidden=hidden[:, None],
        prompt_hidden=state.prompt_hidden,
        tokens=None,
        log_prob=log_prob[:, None],
    )
    # Without guidance the choice needs no normalised log-probabilities.
    scores, reward = logits if guidance is None else log_prob, jnp.zeros(batch, jnp.float32)
    finite = vocabulary.usable(logits)
    bonus = None
    if guidance is not None and guidance.scores_vocabulary:
        bonus = guidance.bonus(prefix, state.carry)
        scores = scores + guidance.weighted(bonus, prefix)[:, 0]
        finite = finite & vocabulary.usable(scores)
    if guidance is None or not guidance.scores_candidates:
        index = selection.choose(scores, rows, key)
        token, hidden_next, kv, pending = index, None, None, ()
        if bonus is not None:
            reward = jnp.take_along_axis(bonus[:, 0], token[:, None], axis=-1)[:, 0]
    else:
        base, candidates = vocabulary.top_k(scores, program.max_top_k)
        found = prefix._replace(
            tokens=candidates[:, None],
            log_prob=jnp.take_along_axis(log_prob, candidates, axis=-1)[:, None],
        )
        wide, new = None, ()
        if guidance.reads_hidden:
            wide, new = step(model, candidates, state.cache)
            found = found._replace(candidate_hidden=wide[:, None])
        rewards, pending = guidance.reward_and_pending(found, state.carry)
        valid = jnp.arange(program.max_top_k, dtype=jnp.int32)[None] < rows.top_k[:, None]
        finite = finite & jnp.all(jnp.isfinite(rewards[:, 0]) | ~valid, axis=-1)
        total = jnp.where(valid, base + guidance.weighted(rewards, found)[:, 0], -jnp.inf)
        index = selection.choose(total, rows, key)
        token = jnp.take_along_axis(candidates, index[:, None], axis=-1)[:, 0]
        reward = jnp.take_along_axis(rewards[:, 0], index[:, None], axis=-1)[:, 0]
        if bonus is not None:
            reward = reward + jnp.take_along_axis(bonus[:, 0], token[:, None], axis=-1)[:, 0]
        hidden_next, kv = None, None
        if wide is not None:
            hidden_next, kv = wide[jnp.arange(batch), index], select(new, index)
    carry = state.carry if guidance is None else guidance.advance(state.carry, pending, index, token)
    records = None
    if program.record:
        chosen = jnp.take_along_axis(log_prob, token[:, None], axis=-1)
        records = Records(
            log_prob=chosen[:, 0],
            rank=jnp.sum(log_prob > chosen, axis=-1).astype(jnp.int32),
            entropy=-jnp.sum(jnp.exp(log_prob) * jnp.where(log_prob > -jnp.inf, log_prob, 0.0), axis=-1),
            reward=reward,
            changed=token != vocabulary.argmax(log_prob),
        )
    return Choice(token, hidden_next, kv, carry, finite, records)
