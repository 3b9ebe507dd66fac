"""Guidance by a second transformer, with weights and a cache of its own: a scalar reward, or a log-probability."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxalign.decoding.guidance.base import CandidateGuidance, Step, Texts, VocabularyGuidance, pytree, static
from jaxalign.decoding.guidance.head import RewardFunction
from jaxalign.models.cache import Cache, select
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Params, bind, prefill, step


class _Prefix(NamedTuple):
    """The reward model's cache of the prefix, and its hidden state at the last prompt token, `[batch, width]`."""

    cache: Cache
    prompt_hidden: jax.Array


class EncodedText(NamedTuple):
    """A model's cache of the prefix, and its hidden states from slot `Texts.first` on, `[batch, kept, width]`."""

    cache: Cache
    hidden: jax.Array


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class SeparateRewardModel(CandidateGuidance):
    """r_u(prefix, v) from another transformer with the same tokenizer.

    Cost per generated token: one pass of the language model, 1 wide, and one of the reward model, k wide. The
    candidates are siblings on one cache: no cache is copied, and the winner's keys and values are selected, never
    recomputed.

    Attributes:
      config: the reward model's sizes.
      params: the reward model's parameters.
      function, shared, users: as in `RewardHead`, over the reward model's hidden state.
    """

    config: DecoderConfig = static()
    params: Params
    function: RewardFunction = static()
    shared: Any
    users: Any

    def encode(self, texts: Texts) -> _Prefix:
        hidden, cache = prefill(bind(self.config, self.params), texts.tokens, texts.lengths)
        prompt_hidden = jnp.take_along_axis(hidden, texts.prompt_last[:, None, None], axis=1)[:, 0]
        return _Prefix(cache.extend(texts.slots), prompt_hidden)

    def reward_and_pending(self, step: Step, carry: _Prefix) -> tuple[jax.Array, Any]:
        assert step.tokens is not None, "the loop gives the candidates"
        batch, positions, k = step.tokens.shape

        def repeat(x):
            return x[:, :, None].repeat(k, axis=2).reshape(batch, positions * k)

        model = bind(self.config, self.params)
        hidden, new = model(
            step.tokens.reshape(batch, positions * k),
            repeat(step.stop - step.start[:, None]),
            carry.cache,
            step.start,
            repeat(step.stop),
        )
        user = jax.tree.map(lambda x: x[step.rows.user], self.users)
        reward = jax.vmap(self.function, in_axes=(None, 0, 0, 0))(
            self.shared, user, hidden.reshape(batch, positions, k, -1), carry.prompt_hidden
        )
        return reward, new

    def advance(self, carry: _Prefix, pending, choice, token) -> _Prefix:
        return carry._replace(cache=carry.cache.write(select(pending, choice)))


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoregressiveReward(VocabularyGuidance):
    """alpha log p_r(v given prefix) for every token v, p_r being a language model trained as a reward (GenARM).

    `weight` is alpha. Several objectives are a `Sum` of several of these. Sampling at temperature t / (1 + alpha)
    gives the published rule, which divides the sum of log-probabilities by 1 + alpha.

    Cost per generated token: one pass of each model, 1 wide.

    Attributes:
      config: the reward model's sizes; its vocabulary must be the language model's.
      params: the reward model's parameters.
    """

    config: DecoderConfig = static()
    params: Params

    def encode(self, texts: Texts) -> EncodedText:
        hidden, cache = prefill(bind(self.config, self.params), texts.tokens, texts.lengths)
        return EncodedText(cache.extend(texts.slots), hidden[:, texts.first :])

    def bonus(self, step: Step, carry: EncodedText) -> jax.Array:
        logits = bind(self.config, self.params).logits(carry.hidden[:, step.query])
        return jax.nn.log_softmax(logits, axis=-1)

    def advance(self, carry: EncodedText, pending, choice, token) -> EncodedText:
        hidden, new = step(bind(self.config, self.params), token[:, None], carry.cache)
        return EncodedText(carry.cache.write(new, after=hidden[:, 0]), hidden)
