"""The teacher-forced pass: every candidate of every position of known responses, in one pass over the texts.

Each text is encoded once. Then, in pieces of bounded size, the candidates of each response position (the model's top k
joined with the token that is really there) are encoded as siblings that see the prefix before them, and judged. What
the candidates are, and their hidden states, does not depend on user or reward, so one pass serves any number of heads.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxalign.decoding import vocabulary
from jaxalign.decoding.guidance.base import Guidance, Step, Texts
from jaxalign.decoding.rows import Rows
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Decoder, Params, bind, prefill


class ForcedProgram(NamedTuple):
    """What is compiled in.

    Attributes:
      config: the language model's sizes.
      max_top_k: candidates per position beside the response's own token; 0 to judge no candidates.
      reads_hidden: whether the candidates' hidden states are needed.
      width: static bound of the responses' lengths.
      piece: response positions that are judged at once.
    """

    config: DecoderConfig
    max_top_k: int
    reads_hidden: bool
    width: int
    piece: int


class Judged(NamedTuple):
    """One piece of positions, as a judge sees it.

    Attributes:
      step: with the candidates; the last of them is the response's own token, the others the model's top k (after
        the bonus of a vocabulary guidance). With no candidates, `step.log_prob` is over the vocabulary.
      base: `[batch, positions, k + 1 or vocab]` float32, log-probabilities plus the weighted bonus, if any.
      target_bonus: `[batch, positions]` float32, the bonus of the response's token before the weight, or None.
      target_log_prob: `[batch, positions]` float32, the model's log-probability of the response's token.
      duplicate: `[batch, positions, k + 1]` bool, top-k candidates that are the response's token (which has its own
        place, the last) or lie beyond the row's k.
      valid: `[batch, positions]` bool, positions that belong to the row's response.
    """

    step: Step
    base: jax.Array
    target_bonus: jax.Array | None
    target_log_prob: jax.Array
    duplicate: jax.Array
    valid: jax.Array


# (arguments, guidances, carries, piece) -> a pytree of arrays [batch, positions, ...]
Judge = Callable[[Any, tuple[Guidance, ...], tuple[Any, ...], Judged], Any]


def piece_size(config: DecoderConfig, batch: int, width: int, top_k: int, budget: int = 1 << 24) -> int:
    """Positions per piece, so that neither logits nor candidates exceed `budget` numbers."""
    per_position = batch * max(config.vocab_size, (top_k + 1) * config.intermediate_size)
    return max(1, min(width, budget // per_position))


@functools.partial(jax.jit, static_argnames=("program", "judge", "reduce"))
def forced(
    program: ForcedProgram,
    judge: Judge,
    reduce: bool,
    params: Params,
    guidances: tuple[Guidance, ...],
    arguments: Any,
    rows: Rows,
    tokens: jax.Array,
    lengths: jax.Array,
    responses: jax.Array,
) -> Any:
    """Runs `judge` over all response positions.

    Args:
      program: what is compiled in.
      judge: a pure module-level function, called with each piece.
      reduce: sum what the judge returns over the valid positions, instead of giving it per position.
      params: the language model's parameters.
      guidances: encoded over the texts and given to the judge with what that gave. A guidance with a vocabulary bonus
        decides what the candidates are, and must be the only one.
      arguments: passed on to the judge, a pytree.
      rows: per-row settings (`user` and `top_k` are used).
      tokens: `[batch, length]` int32, prompt and response, padded on the left: all responses end in the last slot.
      lengths: `[batch]` int32.
      responses: `[batch]` int32, tokens of the response.

    Returns:
      the judge's pytree: `[batch, width, ...]`, response tokens in the last places; or `[batch, ...]` sums.
    """
    model = bind(program.config, params)
    batch, length = tokens.shape
    hidden, cache = prefill(model, tokens, lengths)
    prompt_last = jnp.asarray(length - responses - 1, jnp.int32)
    prompt_hidden = jnp.take_along_axis(hidden, prompt_last[:, None, None], axis=1)[:, 0]
    response_sum = None
    if program.reads_hidden:
        inside = jnp.arange(length, dtype=jnp.int32)[None] > prompt_last[:, None]
        response_sum = jnp.cumsum(jnp.where(inside[..., None], hidden, 0.0), axis=1)
    texts = Texts(tokens, lengths, prompt_last, length, 0, rows)
    carries = tuple(guidance.encode(texts) for guidance in guidances)
    boosting = next(((g, c) for g, c in zip(guidances, carries, strict=True) if g.scores_vocabulary), None)
    if boosting is not None and len(guidances) > 1:
        raise ValueError("a guidance with a vocabulary bonus has candidates of its own: judge it alone")
    pieces = -(-program.width // program.piece)
    # Slots before the first one (the width may have been rounded up) fall into padding and are not valid.
    first = length - pieces * program.piece

    def one(number):
        slot = first + number * program.piece + jnp.arange(program.piece, dtype=jnp.int32)
        prefix = jnp.clip(slot - 1, 0, length - 1)
        slot = jnp.clip(slot, 0, length - 1)
        target = tokens[:, slot]
        position = slot[None] - jnp.asarray(length - responses, jnp.int32)[:, None]
        # A clipped slot repeats slot 0, which is never in a response: the prompt has at least one token.
        valid = position >= 0
        last = hidden[:, prefix]
        log_prob = jax.nn.log_softmax(model.logits(last), axis=-1)
        target_log_prob = jnp.take_along_axis(log_prob, target[..., None], axis=-1)
        stop = jnp.broadcast_to(slot[None], (batch, program.piece))
        step = Step(rows, position, cache.start, stop, prefix, last, prompt_hidden, None, log_prob)
        if response_sum is not None:
            step = step._replace(response_sum=response_sum[:, prefix])
        base, target_bonus = log_prob, None
        if boosting is not None:
            guidance, carry = boosting
            bonus = guidance.bonus(step, carry)
            base = log_prob + guidance.weighted(bonus, step)
            target_bonus = jnp.take_along_axis(bonus, target[..., None], axis=-1)[..., 0]
        duplicate = jnp.zeros((batch, program.piece, 1), bool)
        if program.max_top_k:
            _, candidates = vocabulary.top_k(base, program.max_top_k)
            index = jnp.arange(program.max_top_k, dtype=jnp.int32)[None, None]
            surplus = (candidates == target[..., None]) | (index >= rows.top_k[:, None, None])
            duplicate = jnp.concatenate([surplus, duplicate], axis=-1)
            candidates = jnp.concatenate([candidates, target[..., None]], axis=-1)
            step = step._replace(tokens=candidates, log_prob=jnp.take_along_axis(log_prob, candidates, axis=-1))
            base = jnp.take_along_axis(base, candidates, axis=-1)
            if program.reads_hidden:
                # The response's own token was encoded with its text.
                others = _encode(model, candidates[..., :-1], stop, cache)
                step = step._replace(candidate_hidden=jnp.concatenate([others, hidden[:, slot][:, :, None]], axis=2))
        result = judge(
            arguments, guidances, carries, Judged(step, base, target_bonus, target_log_prob[..., 0], duplicate, valid)
        )
        if not reduce:
            return result

        def total(x):
            mask = valid.reshape(valid.shape + (1,) * (x.ndim - 2))
            return jnp.sum(jnp.where(mask, x, jnp.zeros_like(x)), axis=1)

        return jax.tree.map(total, result)

    results = jax.lax.map(one, jnp.arange(pieces, dtype=jnp.int32))
    if reduce:
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), results)

    def join(x):
        x = jnp.moveaxis(x, 0, 1).reshape(batch, pieces * program.piece, *x.shape[3:])
        return x[:, pieces * program.piece - program.width :]

    return jax.tree.map(join, results)


def target_log_prob(model: Decoder, hidden: jax.Array, tokens: jax.Array, width: int) -> jax.Array:
    """Log-probabilities of the last `width` tokens of each row, in pieces: logits never exist for all of them at once.

    Args:
      model: the bound module.
      hidden: `[batch, length, model width]` of `prefill`.
      tokens: `[batch, length]` int32, padded on the left.
      width: static; places before a row's second real token hold nothing of use.

    Returns:
      `[batch, width]` float32, nats.
    """
    batch, length = tokens.shape
    piece = piece_size(model.config, batch, width, 0)
    pieces = -(-width // piece)

    def one(number):
        slot = length - pieces * piece + number * piece + jnp.arange(piece, dtype=jnp.int32)
        log_prob = jax.nn.log_softmax(model.logits(hidden[:, jnp.clip(slot - 1, 0, length - 1)]), axis=-1)
        target = tokens[:, jnp.clip(slot, 0, length - 1)]
        return jnp.take_along_axis(log_prob, target[..., None], axis=-1)[..., 0]

    out = jnp.moveaxis(jax.lax.map(one, jnp.arange(pieces, dtype=jnp.int32)), 0, 1)
    return out.reshape(batch, pieces * piece)[:, pieces * piece - width :]


def _encode(model: Decoder, candidates: jax.Array, stop: jax.Array, cache) -> jax.Array:
    """Hidden states of sibling candidates at many positions: `[batch, positions, k]` -> `[..., width]`."""
    batch, positions, k = candidates.shape
    wide = jnp.repeat(stop, k, axis=1)
    hidden, _ = model(candidates.reshape(batch, positions * k), wide - cache.start[:, None], cache, cache.start, wide)
    return hidden.reshape(batch, positions, k, -1)
