"""One reward for everybody: the Bradley-Terry head."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import LinearMethod, Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class BradleyTerryHead(LinearMethod):
    """r(h) = v . h, with v `[width]` and loss softplus(-v . D), D = h_chosen - h_rejected `[width]`.

    Source: Bradley and Terry (1952); as an LM reward head, arXiv 1909.08593 and 2203.02155.
    Personal part: none; unseen users get the same v.
    Defaults: ours. The loss is convex, so they only need to reach the optimum: v starts at 0.
    Deviations: the backbone is frozen (reward models usually tune it); a ridge takes the place of early stopping.

    Attributes:
      strength: ridge; adds strength / 2 |v|^2 to the sum of pair losses (precision of a Gaussian prior on v).
    """

    name: ClassVar[str] = "bt"
    summary: ClassVar[str] = "one linear head for everybody"
    cost: ClassVar[str] = "none"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"strength": (3.0, 30.0, 300.0)}
    random: ClassVar[bool] = False

    learning_rate: float = 0.02
    steps: int = 200
    strength: float = 30.0

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        return {"v": jnp.zeros(pairs.features.shape[1])}, {}

    def encode_user(self, params: Tree, user: Tree) -> Array:
        return params["v"]

    def penalty(self, params: Tree, users: Tree) -> Array:
        return 0.5 * self.strength * jnp.square(params["v"]).sum()

    def prior(self, params: Tree) -> Tree:
        return {}
