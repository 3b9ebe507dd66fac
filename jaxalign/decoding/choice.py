"""One step of decoding: from the hidden state at the newest token to the next one, by guidance and selection."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxalign.decoding import skipping, vocabulary
from jaxalign.decoding.guidance.base import Guidance, Step
from jaxalign.decoding.rows import Rows
from jaxalign.models.cache import Cache, select
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Decoder, step


class Records(NamedTuple):
    """What happened at each token, on request. Each is `[batch, max_tokens]`, float32 unless said otherwise.

    Attributes:
      log_prob: the language model's log-probability of the chosen token, nats.
      rank: int32, how many tokens the language model found more probable.
      entropy: of the language model's distribution, nats.
      reward: of the prefix ended by the chosen token, before the weight; for a `Sum`, its terms weighted and added.
        The bonus, for a vocabulary guidance. 0 without guidance.
      changed: bool, whether the choice differs from the language model's own most probable token.
      skipped: int32, candidates that were not encoded since they could not win (see `skipping`).
    """

    log_prob: jax.Array
    rank: jax.Array
    entropy: jax.Array
    reward: jax.Array
    changed: jax.Array
    skipped: jax.Array


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
      response_sum: `[batch, width]` float32, sum of the hidden states at the chosen tokens; None where they are not
        known when a token is chosen.
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
    response_sum: jax.Array | None
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
      sample_first: choose from the language model alone, and let the guidance judge what was chosen (best-of-n).
      budgets: numbers of candidates of the whole batch, rising, to which a step may be packed; empty to encode every
        candidate. Only for `Greedy` and a guidance with a bound.
    """

    config: DecoderConfig
    context: int
    max_tokens: int
    max_top_k: int
    end_ids: tuple[int, ...]
    pad_id: int
    record: bool = False
    sample_first: bool = False
    budgets: tuple[int, ...] = ()

    def encodes_choices(self, guidance: Guidance | None) -> bool:
        """Whether choosing a token gives its hidden state, keys and values."""
        return guidance is not None and guidance.scores_candidates and (self.sample_first or guidance.reads_hidden)


class Choice(NamedTuple):
    """One chosen token per row, with what choosing it gave."""

    token: jax.Array
    hidden: jax.Array | None
    kv: Any
    carry: Any
    finite: jax.Array
    records: Records | None


def choose(program: Program, model: Decoder, guidance, selection, rows: Rows, state: State, hidden) -> Choice:
    """One token per row, by guidance and selection, from the hidden state `[batch, width]` at the newest token."""
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
        response_sum=None if state.response_sum is None else state.response_sum[:, None],
    )
    skipped = jnp.zeros(batch, jnp.int32)
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
        if program.sample_first:
            # The only candidate is the choice: what follows gives its reward, and encodes it.
            candidates = selection.choose(logits, rows, key)[:, None]
            base = jnp.take_along_axis(scores, candidates, axis=-1)
            valid = jnp.ones((batch, 1), bool)
        else:
            base, candidates = vocabulary.top_k(scores, program.max_top_k)
            valid = jnp.arange(program.max_top_k, dtype=jnp.int32)[None] < rows.top_k[:, None]
        found = prefix._replace(
            tokens=candidates[:, None],
            log_prob=jnp.take_along_axis(log_prob, candidates, axis=-1)[:, None],
        )
        wide, new = None, ()
        if program.budgets:
            alive = skipping.can_win(base, valid, guidance.bound(found)[:, 0])
            skipped = jnp.sum(valid & ~alive, axis=-1).astype(jnp.int32)
            valid = alive
            wide, new = skipping.packed_step(model, candidates, alive, state.cache, program.budgets)
        elif program.encodes_choices(guidance):
            wide, new = step(model, candidates, state.cache)
        if wide is not None:
            found = found._replace(candidate_hidden=wide[:, None])
        rewards, pending = guidance.reward_and_pending(found, state.carry)
        finite = finite & jnp.all(jnp.isfinite(rewards[:, 0]) | ~valid, axis=-1)
        total = jnp.where(valid, base + guidance.weighted(rewards, found)[:, 0], -jnp.inf)
        index = jnp.zeros(batch, jnp.int32) if program.sample_first else selection.choose(total, rows, key)
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
            skipped=skipped,
        )
    return Choice(token, hidden_next, kv, carry, finite, records)
