"""No reward: the control row of every comparison."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import LinearMethod, Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference(LinearMethod):
    """r = 0 for every text and user: guided decoding with it is the LM alone, and its accuracy is one half by ties."""

    name: ClassVar[str] = "reference"
    summary: ClassVar[str] = "no reward: the language model alone"
    cost: ClassVar[str] = "none"
    random: ClassVar[bool] = False

    steps: int = 0

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        return {"v": jnp.zeros(pairs.features.shape[1])}, {}

    def encode_user(self, params: Tree, user: Tree) -> Array:
        return params["v"]

    def prior(self, params: Tree) -> Tree:
        return {}
