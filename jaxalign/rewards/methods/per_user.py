"""A linear head for each user, shrunk towards a common one."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from jaxalign.errors import InputError
from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import LinearMethod, Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerUser(LinearMethod):
    """r_u(h) = (v + d_u) . h, with v, d_u `[width]`; BT loss + shared / 2 |v|^2 + strength / 2 sum_u |d_u|^2.

    Source: hierarchical logistic regression; independent heads (v = 0, no ridge) are the "individual" baseline of PReF
    (arXiv 2503.06358) and LoRe (arXiv 2504.14439).
    Personal part: d_u, with prior N(0, 1 / strength); an unseen user's d_u is fitted with v fixed, and is 0 without
    pairs.
    Defaults: ours; the strength is what matters, and is chosen on validation pairs. Held-out pairs of *seen* users
    choose it well; unseen validation users choose what adapts well from few pairs.
    Deviations: shrinkage towards v, instead of independent heads with early stopping. Stored and optimised is
    e_u = sqrt(strength) d_u, whose prior is N(0, 1) whatever the strength: the ridge may be anything up to infinite
    (r_u = v . h exactly) without changing the step size.

    Attributes:
      strength: ridge on d_u; precision of the prior.
      shared: ridge on v.
    """

    name: ClassVar[str] = "per_user"
    summary: ClassVar[str] = "a linear head for each user, shrunk towards a common one"
    cost: ClassVar[str] = "width"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"strength": (100.0, 300.0, 1000.0, 3000.0)}
    random: ClassVar[bool] = False

    learning_rate: float = 0.02
    steps: int = 160
    strength: float = 300.0
    shared: float = 30.0

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        width = pairs.features.shape[1]
        return {"v": jnp.zeros(width)}, {"offset": jnp.zeros((pairs.users, width))}

    def encode_user(self, params: Tree, user: Tree) -> Array:
        return params["v"] + user["offset"] / jnp.sqrt(jnp.asarray(self.strength, jnp.float32))

    def penalty(self, params: Tree, users: Tree) -> Array:
        ridge = self.shared * jnp.square(params["v"]).sum()
        return 0.5 * (ridge + jnp.square(users["offset"]).sum())

    def prior(self, params: Tree) -> Tree:
        return {"offset": jnp.zeros_like(params["v"])}

    def check_hyper(self) -> None:
        super().check_hyper()
        if not self.strength > 0.0:
            raise InputError("per_user: strength must be positive: heads without shrinkage have no optimum in general.")
