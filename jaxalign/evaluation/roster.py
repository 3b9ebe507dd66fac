"""Reward models of several methods as one guidance, so that a batch mixes methods, users and weights.

Each row names a method and a user. All heads read the hidden states of the row's candidates, and the row takes its own
method's reward: heads are small beside a pass of the language model, and one program is compiled instead of one for
each method.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxalign.decoding import RewardHead
from jaxalign.rewards.features import Pooling
from jaxalign.rewards.protocol import Method, RewardModel, Tree


@dataclasses.dataclass(frozen=True)
class AnyOf:
    """The reward of the row's own method; equal for equal methods, as a static argument has to be."""

    methods: tuple[Method, ...]

    def __call__(self, shared: Tree, user: dict[str, jax.Array], hidden: jax.Array, prompt: jax.Array) -> jax.Array:
        """Rewards `[...]` of hidden states `[..., width]`; `user` holds the numbers of a method and of a user."""
        rewards = [
            method.reward(own, jax.tree.map(lambda leaf: leaf[user["user"]], users), hidden, prompt)
            for method, own, users in zip(self.methods, shared["shared"], shared["users"], strict=True)
        ]
        return jnp.stack(rewards)[user["method"]]


@dataclasses.dataclass(frozen=True)
class Roster:
    """Which row of the guidance's users stands for a method and a user.

    Attributes:
      models: reward models by name; each must know all users.
      users: user ids.
      pooling: what the models read of a prefix, as in fitting.
    """

    models: Mapping[str, RewardModel]
    users: tuple[str, ...]
    pooling: Pooling = "last"

    def row(self, method: str, user: str) -> int:
        """The index to give to `generate` as `user`."""
        return list(self.models).index(method) * len(self.users) + self.users.index(user)

    def head(self, weight: Sequence[float] | float) -> RewardHead:
        """The guidance, with a weight per prompt."""
        methods, count = len(self.models), len(self.users)
        shared = {
            "shared": tuple(dict(model.shared) for model in self.models.values()),
            "users": tuple(_rows(model, self.users) for model in self.models.values()),
        }
        places = {
            "method": jnp.asarray(np.repeat(np.arange(methods, dtype=np.int32), count)),
            "user": jnp.asarray(np.tile(np.arange(count, dtype=np.int32), methods)),
        }
        function = AnyOf(tuple(model.method for model in self.models.values()))
        return RewardHead(
            function=function, shared=shared, users=places, weight=np.asarray(weight, np.float32), pooling=self.pooling
        )


def _rows(model: RewardModel, users: Sequence[str]) -> Tree:
    rows = np.asarray([model.index(user) for user in users], np.int32)
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), model.user_params)
