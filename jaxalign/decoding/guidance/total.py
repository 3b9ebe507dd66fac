"""Several guidances at once."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxalign.decoding.guidance.base import Guidance, Step, Texts, pytree


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sum(Guidance):
    """The sum of the terms' weighted rewards and bonuses, times this guidance's own weight and schedule.

    Cost per generated token: the passes of its terms; terms that read the language model's hidden state share one.

    Attributes:
      terms: guidances of any kinds, each with its own weight, schedule and clip.
    """

    terms: tuple[Guidance, ...]

    def _having(self, flag: str) -> list[tuple[int, Any]]:
        return [(i, term) for i, term in enumerate(self.terms) if getattr(term, flag)]

    # The class-level facts of the other guidances depend on the terms here.
    @property
    def scores_vocabulary(self) -> bool:  # type: ignore[override]
        return bool(self._having("scores_vocabulary"))

    @property
    def scores_candidates(self) -> bool:  # type: ignore[override]
        return bool(self._having("scores_candidates"))

    @property
    def reads_hidden(self) -> bool:  # type: ignore[override]
        return bool(self._having("reads_hidden"))

    @property
    def bounded(self) -> bool:
        return self.clip is not None or all(term.bounded for _, term in self._having("scores_candidates"))

    def bound(self, step: Step) -> jax.Array:
        if self.clip is not None:
            return super().bound(step)
        terms = sum(term.bound(step) for _, term in self._having("scores_candidates"))
        return jnp.abs(self.weighted(terms, step))  # type: ignore[arg-type]

    def encode(self, texts: Texts) -> tuple[Any, ...]:
        return tuple(term.encode(texts) for term in self.terms)

    def bonus(self, step: Step, carry: tuple[Any, ...]) -> jax.Array:
        terms = self._having("scores_vocabulary")
        return sum(term.weighted(term.bonus(step, carry[i]), step) for i, term in terms)  # type: ignore[return-value]

    def reward_and_pending(self, step: Step, carry: tuple[Any, ...]) -> tuple[jax.Array, tuple[Any, ...]]:
        total, pending = 0.0, [()] * len(self.terms)
        for i, term in self._having("scores_candidates"):
            reward, pending[i] = term.reward_and_pending(step, carry[i])
            total = total + term.weighted(reward, step)
        return total, tuple(pending)  # type: ignore[return-value]

    def advance(self, carry, pending, choice, token):
        pending = pending or ((),) * len(self.terms)
        return tuple(
            term.advance(state, wait, choice, token)
            for term, state, wait in zip(self.terms, carry, pending, strict=True)
        )
