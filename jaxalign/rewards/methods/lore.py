"""LoRe: every user's reward is a mixture of a few shared ones."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from jaxalign.rewards import draws
from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import LinearMethod, Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lore(LinearMethod):
    """r_u(h) = h . V softmax(w_u), with V `[width, rank]` and w_u `[rank]`; BT loss.

    Source: LoRe, arXiv 2504.14439.
    Personal part: w_u; an unseen user's w_u is fitted with V fixed. Without pairs it is the prior's centre c, which is
    learned with V.
    Defaults: rank 5 is the published few-shot setting on TL;DR. Published are Adam at rate 0.5 for 1000 steps on
    features divided by 100, V and w from N(0, 1), and 500 steps for an unseen user; ours are for standardised features,
    with a decayed rate.
    Deviations: w_u = c + e_u with the prior N(0, 1 / strength) on e_u, and a ridge on V (published: neither, which
    makes a user with one pair jump to a corner of the simplex; strength and ridge 0 give that back). All pairs weigh
    the same, where the TL;DR script averages within each user first. The regulariser towards the backbone's own head
    (PRISM) needs a backbone that has one, and is left out.

    Attributes:
      rank: number of shared rewards; 1 is `bt`.
      strength: ridge on e_u.
      ridge: ridge on V.
    """

    name: ClassVar[str] = "lore"
    summary: ClassVar[str] = "a mixture of a few shared linear heads (LoRe)"
    cost: ClassVar[str] = "rank"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"ridge": (10.0, 100.0), "strength": (1.0, 3.0, 10.0)}

    learning_rate: float = 0.03
    steps: int = 200
    rank: int = 5
    strength: float = 3.0
    ridge: float = 30.0

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        width = pairs.features.shape[1]
        params = {
            # Rewards of about 0.1 at the start: near indifference, and yet apart.
            "v": draws.normal(key, (width, self.rank), scale=0.1 * width**-0.5),
            "centre": jnp.zeros(self.rank),
        }
        # Users start where an unseen one does, so that one without pairs stays there exactly.
        return params, {"logits": jnp.zeros((pairs.users, self.rank))}

    def project(self, params: Tree) -> Array:
        return params["v"]

    def encode_user(self, params: Tree, user: Tree) -> Array:
        return jax.nn.softmax(params["centre"] + user["logits"])

    def penalty(self, params: Tree, users: Tree) -> Array:
        ridge = self.ridge * jnp.square(params["v"]).sum()
        return 0.5 * (ridge + self.strength * jnp.square(users["logits"]).sum())

    def prior(self, params: Tree) -> Tree:
        return {"logits": jnp.zeros_like(params["centre"])}
