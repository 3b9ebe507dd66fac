"""p_dpo: direct preference optimisation with soft tokens per user; the policy is the reward."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.decoding.guidance import AutoregressiveReward, Step, Texts, pytree
from jaxalign.decoding.guidance.reward_model import EncodedText
from jaxalign.errors import InputError
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Decoder, Params, bind
from jaxalign.rewards.tuning.forward import TextBatch, embed, encode, response_log_prob
from jaxalign.rewards.tuning.method import PairBatch, Tree, TunedMethod


def with_soft_tokens(model: Decoder, tokens: Array, lengths: Array, soft: Array) -> tuple[Array, Array]:
    """Embeddings of texts with soft tokens in front of each.

    Args:
      model: the bound module.
      tokens: `[rows, length]` int32, padded on the left.
      lengths: `[rows]` int32.
      soft: `[rows, soft tokens, width]` float32.

    Returns:
      `[rows, soft tokens + length, width]` float32, padded on the left, and the rows' lengths.
    """
    rows, length = tokens.shape
    count = soft.shape[1]
    x = jnp.concatenate([jnp.zeros_like(soft), embed(model, tokens)], axis=1)
    # A row's first real slot does not move: what was its padding, and `count` more, now lies before it.
    slot = (length - lengths)[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
    x = x.at[jnp.arange(rows)[:, None], slot].set(soft)
    return x, lengths + count


@dataclasses.dataclass(frozen=True, kw_only=True)
class PDpo(TunedMethod):
    """r_u(x, y) = beta sum_t [log pi(y_t given e_u, x, y<t) - log pi_ref(y_t given x, y<t)].

    e_u = e_0 + o_u `[soft tokens, width]` are embeddings in front of the text, e_0 being the generic user, and pi_ref
    is the language model before tuning, without them. With L the loss -log sigmoid(r(chosen) - r(rejected)),

      share L(e_u) + (1 - share) L(e_0)

    is minimised over the backbone, e_0 and o_u. An unseen user is the generic one, o_u = 0.

    Source: P-RLHF (Li et al. 2024, arXiv 2402.05133) and its code, individual preferences. Defaults: beta 0.5,
    share 0.5, 10 soft tokens, LoRA of rank 8 and alpha 16, learning rate 5e-5, e_0 from rows of the embedding at
    random: theirs for TL;DR.
    Deviations: the soft tokens stand before the begin-of-text token, where there is one, not after it; no dropout; the
    output and token embeddings are not tuned with LoRA, and MLP gates are; fitting o_u to an unseen user's pairs is
    possible here, and the paper has no such step.
    """

    name: ClassVar[str] = "p_dpo"
    summary: ClassVar[str] = "log-ratio of a policy with soft user tokens (P-DPO)"
    cost: ClassVar[str] = "2 passes, 1 wide"
    learning_rate: ClassVar[float] = 5e-5
    personal: ClassVar[bool] = True
    needs_reference: ClassVar[bool] = True

    beta: float = 0.5
    tokens: int = 10
    share: float = 0.5

    @property
    def prefix(self) -> int:
        return self.tokens

    def check(self) -> None:
        super().check()
        if self.share > 1.0:
            raise InputError(f"p_dpo: share is the personal loss's part of the whole, from 0 to 1, not {self.share}.")

    def init(self, key: Array, config: DecoderConfig, params: Params, pairs: np.ndarray) -> tuple[Tree, Tree]:
        rows = jax.random.choice(key, config.vocab_size, (self.tokens,))
        generic = params["embed"][rows].astype(jnp.float32)
        return {"generic": generic}, {"offset": jnp.zeros((len(pairs), *generic.shape), jnp.float32)}

    def prior(self, head: Tree) -> Tree:
        return {"offset": jnp.zeros_like(head["generic"])}

    def rewards(
        self, config: DecoderConfig, params: Params, head: Tree, user: Tree, texts: TextBatch, width: int, remat: bool
    ) -> Array:
        model = bind(config, params)
        x, lengths = with_soft_tokens(model, texts.tokens, texts.lengths, head["generic"][None] + user["offset"])
        hidden, _ = encode(model, x, lengths, remat=remat)
        log_prob = response_log_prob(model, hidden[:, self.tokens :], texts, width)
        return self.beta * (log_prob - texts.reference)

    def pair_losses(self, rewards: Callable[[Tree], Array], head: Tree, user: Tree, batch: PairBatch) -> Array:
        personal = super().pair_losses(rewards, head, user, batch)
        generic = super().pair_losses(rewards, head, jax.tree.map(jnp.zeros_like, user), batch)
        return self.share * personal + (1.0 - self.share) * generic

    def guidance(
        self, config: DecoderConfig, params: Params, tuned: bool, head: Tree, users: Tree, weight: Any
    ) -> "SoftPromptReward":
        """weight beta (log pi_u - log p) for every token, p being the language model, which is pi_ref."""
        # The soft tokens take up room of the context.
        shorter = dataclasses.replace(config, max_position=config.max_position - self.tokens)
        soft = head["generic"][None] + users["offset"]
        return SoftPromptReward(config=shorter, params=params, users={"soft": soft}, beta=self.beta, weight=weight)


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftPromptReward(AutoregressiveReward):
    """beta (log pi(v given e_u, prefix) - log p(v given prefix)) for every token v.

    The decoded language model must be the reference pi_ref: its log-probabilities are at hand, and no third pass is
    needed.

    Cost per generated token: one pass of each model, 1 wide.

    Attributes:
      users: `{"soft": [users, soft tokens, width]}`, gathered by `Rows.user`.
      beta: as in `PDpo`.
    """

    users: Tree
    beta: Any

    def encode(self, texts: Texts) -> EncodedText:
        model = bind(self.config, self.params)
        soft = self.users["soft"][texts.rows.user]
        count = soft.shape[1]
        hidden, cache = encode(model, *with_soft_tokens(model, texts.tokens, texts.lengths, soft))
        return EncodedText(cache.extend(texts.slots + count), hidden[:, count + texts.first :])

    def bonus(self, step: Step, carry: EncodedText) -> Array:
        return self.beta * (super().bonus(step, carry) - step.log_prob)
