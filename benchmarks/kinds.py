"""The guidances that are compared, with random heads over the language model in hand."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxalign.decoding import (
    AutoregressiveReward,
    Ensemble,
    Guidance,
    RewardHead,
    SeparateRewardModel,
    VocabularyValue,
)
from jaxalign.errors import InputError
from jaxalign.models import LanguageModel

KINDS = {
    "none": "plain decoding",
    "head": "a reward head on the language model's own hidden state (fused: one pass, k wide)",
    "separate": "a reward model of the same size with weights and a cache of its own (two passes, the second k wide)",
    "autoregressive": "log-probabilities of a second language model over the vocabulary (two passes, 1 wide)",
    "value": "a low-rank value head over the vocabulary (one pass, 1 wide)",
    "ensemble": "four heads, mean minus deviation (one pass, k wide)",
}
RANK = 64
"""Of the value head."""


def vectors(width: int, users: int, seed: int = 1) -> np.ndarray:
    """Random linear reward heads `[users, width]` float32, of a size that changes some choices and not all."""
    return (np.random.default_rng(seed).standard_normal((users, width)) * 0.05).astype(np.float32)


def make(kind: str, lm: LanguageModel, *, users: int = 1, weight: float = 0.5) -> Guidance | None:
    """The guidance of a kind.

    A second model is a copy of the language model in memory of its own: it costs what any model of this size costs,
    and `separate` must then give the tokens of `head`, which the benchmark checks.

    Args:
      kind: a name in `KINDS`.
      lm: the language model.
      users: how many users' heads are stacked.
      weight: w, or alpha.
    """
    if kind not in KINDS:
        raise InputError(f"guidance {kind!r}: known kinds are {', '.join(KINDS)}")
    if kind == "none":
        return None
    width = lm.config.hidden_size
    head = RewardHead.linear(vectors(width, users), weight=weight)
    if kind == "head":
        return head
    if kind == "ensemble":
        members = tuple(RewardHead.linear(vectors(width, users, seed)) for seed in range(1, 5))
        return Ensemble(members=members, weight=weight)
    if kind == "value":
        generator = np.random.default_rng(1)
        up = generator.standard_normal((lm.config.vocab_size, RANK)).astype(np.float32) * RANK**-0.5
        down = generator.standard_normal((users, RANK, width)).astype(np.float32) * width**-0.5
        return VocabularyValue(up=jnp.asarray(up), down=jnp.asarray(down), weight=weight)
    params = jax.tree.map(jnp.copy, lm.params)
    if kind == "autoregressive":
        return AutoregressiveReward(config=lm.config, params=params, weight=weight)
    return SeparateRewardModel(
        config=lm.config, params=params, function=head.function, shared=head.shared, users=head.users, weight=weight
    )
