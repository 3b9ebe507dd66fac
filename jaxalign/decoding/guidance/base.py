"""What a guidance is: the one place where the decoder is extended.

A guidance adds to the language model's log-probabilities, in nats. It does so for every token of the vocabulary
(`VocabularyGuidance`), or for the k candidates that the model itself finds most probable (`CandidateGuidance`). Both
are frozen pytree dataclasses with one method to write; the loop, the teacher-forced pass, per-row weights, users and
schedules are the same for all. docs/extending.md builds one from nothing.

Shapes carry a `positions` axis beside the batch: it is 1 inside the decode loop, and the number of response tokens in
flight in the teacher-forced pass, so that one method serves both.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxalign.decoding.rows import Rows
from jaxalign.decoding.schedules import Constant, Schedule


class Step(NamedTuple):
    """What is known when tokens are scored.

    Attributes:
      rows: the rows' settings (user, k, ...).
      position: `[batch, positions]` int32, number of the response token to be chosen, 0 for the first.
      start: `[batch]` int32, first real slot of the row's prefix (left padding before it).
      stop: `[batch, positions]` int32, number of slots of the prefix, left padding included.
      query: `[positions]` int32, index of the position into what `encode` kept.
      hidden: `[batch, positions, width]` float32, the language model's hidden state at the last token of the prefix.
      prompt_hidden: `[batch, width]` float32, the same at the last token of the prompt.
      tokens: `[batch, positions, k]` int32, the candidates; None where the whole vocabulary is scored.
      log_prob: `[batch, positions, k]` float32, the language model's log-probabilities of the candidates, or of the
        whole vocabulary.
      candidate_hidden: `[batch, positions, k, width]` float32, the language model's hidden state at each candidate;
        None unless the guidance `reads_hidden`.
      response_sum: `[batch, positions, width]` float32, sum of the language model's hidden states at the response's
        tokens before this position; None unless the guidance `reads_hidden`.
    """

    rows: Rows
    position: jax.Array
    start: jax.Array
    stop: jax.Array
    query: jax.Array
    hidden: jax.Array
    prompt_hidden: jax.Array
    tokens: jax.Array | None
    log_prob: jax.Array
    candidate_hidden: jax.Array | None = None
    response_sum: jax.Array | None = None


class Texts(NamedTuple):
    """Prompts (in the loop) or whole texts (teacher-forced) that a guidance with a model of its own has to encode.

    Attributes:
      tokens: `[batch, length]` int32, padded on the left.
      lengths: `[batch]` int32, real tokens of each row.
      prompt_last: `[batch]` int32, slot of the last token of the prompt.
      slots: static room of a cache, at least `length`.
      first: static; hidden states are needed from this slot on, and `Step.query` counts from it.
      rows: the rows' settings (user, ...).
    """

    tokens: jax.Array
    lengths: jax.Array
    prompt_last: jax.Array
    slots: int
    first: int
    rows: Rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guidance:
    """Fields and default methods of every guidance; derive from one of the two classes below.

    Attributes:
      weight: w, a number or `[batch]` float32; how much a unit of reward counts against a nat of log-probability.
      schedule: a factor on the weight over the tokens of the response.
      clip: rewards are clipped to plus or minus this bound before they are weighted; None leaves them as they are.
    """

    # Class-level facts, not fields: which methods the loop has to call.
    scores_vocabulary: ClassVar[bool] = False
    scores_candidates: ClassVar[bool] = False
    reads_hidden: ClassVar[bool] = False

    weight: Any = 1.0
    schedule: Schedule = Constant()
    clip: Any = None

    def encode(self, texts: Texts) -> Any:
        """Reads the texts; what it returns comes back as `carry` in the calls that follow.

        A pytree of `Cache`s and of arrays `[batch, ...]`, so that rows can be reordered.
        """
        return ()

    def advance(self, carry: Any, pending: Any, choice: jax.Array, token: jax.Array) -> Any:
        """The state after a token was chosen.

        Args:
          carry: the state before.
          pending: what `reward` returned beside the rewards.
          choice: `[batch]` int32, index of the chosen candidate.
          token: `[batch]` int32, the chosen token.
        """
        return carry

    def bonus(self, step: Step, carry: Any) -> jax.Array:
        """What is added to every token, before the weight: `[batch, positions, vocab]` float32."""
        raise NotImplementedError(f"{type(self).__name__} must define bonus(step, carry)")

    def reward_and_pending(self, step: Step, carry: Any) -> tuple[jax.Array, Any]:
        """Rewards of the candidates, before the weight, `[batch, positions, k]`, and what `advance` needs of them."""
        raise NotImplementedError(f"{type(self).__name__} must define reward(step, carry)")

    @property
    def bounded(self) -> bool:
        """Whether the rewards have a bound: that of `clip`."""
        return self.clip is not None

    def bound(self, step: Step) -> jax.Array:
        """Largest absolute value of a weighted reward, where `bounded`: `[batch, positions]` float32."""
        return jnp.abs(self.weighted(jnp.full(step.position.shape, self.clip, jnp.float32), step))

    def weighted(self, value: jax.Array, step: Step) -> jax.Array:
        """`value` `[batch, positions, ...]`, clipped, times weight and schedule."""
        if self.clip is not None:
            # NaN passes through, so that it is still seen.
            value = jnp.clip(value, -self.clip, self.clip)
        weight = jnp.asarray(self.weight, jnp.float32).reshape(-1, 1)
        factor = jnp.broadcast_to(weight, step.position.shape) * self.schedule.at(step.position)
        return value * factor.reshape(factor.shape + (1,) * (value.ndim - 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyGuidance(Guidance):
    """Adds to the log-probability of every token of the vocabulary. Write `bonus`."""

    scores_vocabulary: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateGuidance(Guidance):
    """Adds to the log-probabilities of the k most probable tokens; no other token can then be chosen.

    Write `reward`, and set `reads_hidden = True` when it needs `Step.candidate_hidden`: the loop then encodes all k
    candidates in the one pass that also gives the winner's next logits.
    """

    scores_candidates: ClassVar[bool] = True

    def reward(self, step: Step, carry: Any) -> jax.Array:
        """The reward of the prefix ended by each candidate, before the weight: `[batch, positions, k]` float32."""
        raise NotImplementedError(f"{type(self).__name__} must define reward(step, carry)")

    def reward_and_pending(self, step: Step, carry: Any) -> tuple[jax.Array, Any]:
        """`reward`, and whatever `advance` needs of the same computation (a guidance with its own cache)."""
        return self.reward(step, carry), ()


def for_rows(guidance: Guidance, rows: np.ndarray) -> Guidance:
    """The guidance with its per-prompt weights brought into the order of a batch's rows.

    Args:
      guidance: with `weight` a number or one per prompt, here and in its terms or members.
      rows: `[batch]`, the prompt's place in the list for each row.
    """
    weight = np.asarray(guidance.weight, np.float32)
    fields: dict[str, Any] = {"weight": jnp.asarray(weight[rows] if weight.ndim and weight.size > 1 else weight)}
    for name in ("terms", "members"):
        if hasattr(guidance, name):
            fields[name] = tuple(for_rows(term, rows) for term in getattr(guidance, name))
    return dataclasses.replace(guidance, **fields)


def pytree(cls):
    """Registers a guidance (or selection) dataclass as a pytree; fields marked `static()` are part of its type."""
    static = [f.name for f in dataclasses.fields(cls) if f.metadata.get("static")]
    data = [f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")]
    return jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=static)


def static(**kwargs: Any) -> Any:
    """A dataclass field that is compiled in: a function, a config, a size. It must be hashable."""
    return dataclasses.field(metadata={"static": True}, **kwargs)
