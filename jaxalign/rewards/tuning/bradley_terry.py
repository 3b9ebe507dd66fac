"""bt with a tuned backbone: a linear head on the last token, trained end to end with the language model under it."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.decoding.guidance import Guidance, RewardHead, SeparateRewardModel, linear_reward
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Params, bind
from jaxalign.rewards.tuning.forward import TextBatch, embed, encode
from jaxalign.rewards.tuning.method import Tree, TunedMethod


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedBradleyTerry(TunedMethod):
    """r(x, y) = v.h(x, y), with h `[width]` the tuned model's hidden state at the last token of the response.

    Fitted by -log sigmoid(r(chosen) - r(rejected)) over v `[width]` and the backbone. There is no bias: a difference of
    rewards does not see it.

    Source: Bradley and Terry (1952), as reward models are usually trained (Ouyang et al. 2022, arXiv 2203.02155).
    Defaults: learning rate 1e-4 as in TRL's RewardTrainer with LoRA. v starts at zero, so all rewards are tied at step
    0, where TRL draws it at random.
    """

    name: ClassVar[str] = "bt_tuned"
    summary: ClassVar[str] = "one direction, the model tuned with it (Bradley-Terry)"
    cost: ClassVar[str] = "2 passes, the second k wide"
    learning_rate: ClassVar[float] = 1e-4

    def init(self, key: Array, config: DecoderConfig, params: Params, pairs: np.ndarray) -> tuple[Tree, Tree]:
        return {"vector": jnp.zeros(config.hidden_size, jnp.float32)}, {}

    def rewards(
        self, config: DecoderConfig, params: Params, head: Tree, user: Tree, texts: TextBatch, width: int, remat: bool
    ) -> Array:
        model = bind(config, params)
        hidden, _ = encode(model, embed(model, texts.tokens), texts.lengths, remat=remat)
        return jnp.matmul(hidden[:, -1], head["vector"], precision="highest")

    def guidance(
        self, config: DecoderConfig, params: Params, tuned: bool, head: Tree, users: Tree, weight: Any
    ) -> Guidance:
        """The reward of each candidate, for the one user 0 that everyone is."""
        if not tuned:
            return RewardHead.linear(head["vector"], weight=weight)
        one = {"vector": head["vector"][None], "bias": jnp.zeros(1, jnp.float32)}
        return SeparateRewardModel(
            config=config, params=params, function=linear_reward, shared=(), users=one, weight=weight
        )
