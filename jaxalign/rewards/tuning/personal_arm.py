"""personal_arm: an autoregressive reward model whose low-rank vocabulary head is gated by a vector per user."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.decoding.guidance import AutoregressiveReward, Guidance, Step, VocabularyGuidance, pytree
from jaxalign.decoding.guidance.reward_model import EncodedText
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Params, bind
from jaxalign.rewards.tuning.forward import TextBatch, embed, encode, response_log_prob
from jaxalign.rewards.tuning.method import Tree, TunedMethod


def gated(hidden: Array, head: Tree, gate: Array) -> Array:
    """What the gated head adds to the logits: `[rows, positions, width]`, gates `[rows, rank]` -> `[..., vocab]`."""
    inner = jnp.einsum("bqd,rd->bqr", hidden, head["down"], precision="highest")
    return jnp.einsum("bqr,vr->bqv", inner * gate[:, None], head["up"], precision="highest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PersonalArm(TunedMethod):
    """r_u(x, y) = beta sum_t log pi_u(y_t given x, y<t), with the logits of pi_u

      W h_t + up diag(g_u) down h_t,   g_u = 1 + w_u,   w_u ~ N(0, I / ridge),

    h_t `[width]` being the hidden state of the tuned language model, W `[vocab, width]` its output matrix, up
    `[vocab, rank]` and down `[rank, width]` the head that all users share, and w_u `[rank]` all that is personal.
    Fitted by -log sigmoid(r_u(chosen) - r_u(rejected)) and ridge / 2 |w_u|^2.

    An unseen user without pairs has w_u = 0, the mean of the prior; with pairs w_u is fitted, all else fixed.

    Source: the objective is GenARM's (arXiv 2410.08193). One reward model conditioned on a vector is PARM's idea
    (Lin et al. 2025, arXiv 2505.06274), whose vector weighs stated objectives and enters bilinear adapters in
    every layer. Deviations from it: the vector belongs to a user and is learnt; it enters the vocabulary head only, so
    one pass serves users of any mixture, and a user costs `rank` numbers. Defaults: beta, rates and rank of the
    backbone as in `arm`; rank 8 of the head and ridge 1 are ours. `up` starts at zero, so step 0 is the language model;
    w_u starts as a draw of deviation 0.5, since with equal gates users of opposed tastes cancel and nothing moves.

    With a `Frozen` backbone the hidden states are the language model's own, and guidance needs one pass.
    """

    name: ClassVar[str] = "personal_arm"
    summary: ClassVar[str] = "as arm, with a vocabulary head gated per user"
    cost: ClassVar[str] = "2 passes, 1 wide; 1 pass if frozen"
    learning_rate: ClassVar[float] = 5e-4
    # A gate sees few pairs and must move by about 1; PAL's user weights have 50 times the rate of its adapters.
    user_rate: ClassVar[float] = 20.0
    personal: ClassVar[bool] = True

    beta: float = 0.05
    rank: int = 8
    ridge: float = 1.0

    def init(self, key: Array, config: DecoderConfig, params: Params, pairs: np.ndarray) -> tuple[Tree, Tree]:
        first, second = jax.random.split(key)
        width = config.hidden_size
        head = {
            "up": jnp.zeros((config.vocab_size, self.rank), jnp.float32),
            "down": jax.random.normal(first, (self.rank, width), jnp.float32) * width**-0.5,
        }
        draw = 0.5 * jax.random.normal(second, (len(pairs), self.rank), jnp.float32)
        return head, {"gate": jnp.where(jnp.asarray(pairs > 0)[:, None], draw, 0.0)}

    def prior(self, head: Tree) -> Tree:
        return {"gate": jnp.zeros(self.rank, jnp.float32)}

    def penalty(self, users: Tree) -> Array:
        return 0.5 * self.ridge * jnp.sum(jnp.square(users["gate"]))

    def rewards(
        self, config: DecoderConfig, params: Params, head: Tree, user: Tree, texts: TextBatch, width: int, remat: bool
    ) -> Array:
        model = bind(config, params)
        hidden, _ = encode(model, embed(model, texts.tokens), texts.lengths, remat=remat)
        gate = 1.0 + user["gate"]
        logits = lambda hidden: model.logits(hidden) + gated(hidden, head, gate)  # noqa: E731
        return self.beta * response_log_prob(model, hidden, texts, width, logits)

    def guidance(
        self, config: DecoderConfig, params: Params, tuned: bool, head: Tree, users: Tree, weight: Any
    ) -> Guidance:
        """log p + weight log pi_u, for batches in which every row has a user of its own."""
        if not tuned:
            return GatedHead(head=head, users=users, weight=weight)
        return GatedAutoregressiveReward(config=config, params=params, head=head, users=users, weight=weight)


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedAutoregressiveReward(AutoregressiveReward):
    """log pi_u(v given prefix) for every token v; `weight` is alpha.

    Cost per generated token: one pass of each model, 1 wide, and the head, `rank / width` of an output matrix.

    Attributes:
      head: `{"up": [vocab, rank], "down": [rank, width]}`.
      users: `{"gate": [users, rank]}`, gathered by `Rows.user`.
    """

    head: Tree
    users: Tree

    def bonus(self, step: Step, carry: EncodedText) -> Array:
        hidden = carry.hidden[:, step.query]
        logits = bind(self.config, self.params).logits(hidden)
        return jax.nn.log_softmax(logits + gated(hidden, self.head, 1.0 + self.users["gate"][step.rows.user]), axis=-1)


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedHead(VocabularyGuidance):
    """As `GatedAutoregressiveReward`, when the reward model's body is the language model's own.

    Cost per generated token: one pass of the language model, 1 wide, and the head.

    Attributes:
      head, users: as there.
    """

    head: Tree
    users: Tree

    def bonus(self, step: Step, carry: Any) -> Array:
        # Log-probabilities are logits up to a constant.
        addition = gated(step.hidden, self.head, 1.0 + self.users["gate"][step.rows.user])
        return jax.nn.log_softmax(step.log_prob + addition, axis=-1)
