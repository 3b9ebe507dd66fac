"""arm: an autoregressive reward model, whose reward is a log-probability and is known token by token."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
from jax import Array

from jaxalign.decoding.guidance import AutoregressiveReward
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Params, bind
from jaxalign.rewards.tuning.forward import TextBatch, embed, encode, response_log_prob
from jaxalign.rewards.tuning.method import Tree, TunedMethod


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm(TunedMethod):
    """r(x, y) = beta sum_t log pi_r(y_t given x, y<t), fitted by -log sigmoid(r(chosen) - r(rejected)).

    pi_r is the language model with a tuned backbone; each text is `[length]` tokens, and its reward a number. Every
    prefix has a reward, and every next token at once: guidance adds alpha log pi_r(v) to log p(v) for the whole
    vocabulary, and never leaves the k best candidates aside.

    Source: GenARM (Xu et al. 2024, arXiv 2410.08193). Defaults: beta 0.05, LoRA, learning rate 5e-4, batches of 32
    pairs, weight decay 0.05, one epoch, those of its HH experiments; rank 8 and alpha 16 are P-RLHF's.
    Deviations: no end token is part of a response, as everywhere in jaxalign, so pi_r is not taught when to stop; a
    tenth of the steps warms up instead of 100 steps, which a small data set does not have; labels may be soft.

    Trap: a sum of log-probabilities falls with length, so before tuning the shorter response wins; beta is small
    for that reason too.
    """

    name: ClassVar[str] = "arm"
    summary: ClassVar[str] = "log-probabilities of a tuned model, by token (GenARM)"
    cost: ClassVar[str] = "2 passes, 1 wide"
    learning_rate: ClassVar[float] = 5e-4

    beta: float = 0.05

    def init(self, key: Array, config: DecoderConfig, params: Params, pairs: np.ndarray) -> tuple[Tree, Tree]:
        return {}, {}

    def rewards(
        self, config: DecoderConfig, params: Params, head: Tree, user: Tree, texts: TextBatch, width: int, remat: bool
    ) -> Array:
        model = bind(config, params)
        hidden, _ = encode(model, embed(model, texts.tokens), texts.lengths, remat=remat)
        return self.beta * response_log_prob(model, hidden, texts, width)

    def guidance(
        self, config: DecoderConfig, params: Params, tuned: bool, head: Tree, users: Tree, weight: Any
    ) -> AutoregressiveReward:
        """log p + weight log pi_r: `weight` is alpha, and beta is not used, as published."""
        return AutoregressiveReward(config=config, params=params, weight=weight)
