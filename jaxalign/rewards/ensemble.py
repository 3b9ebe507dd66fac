"""Models of several seeds as one: the mean of their rewards, and how far they disagree."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.errors import InputError
from jaxalign.rewards.protocol import Method, RewardModel, Tree


@dataclasses.dataclass(frozen=True)
class EnsembleReward:
    """`reward(shared, user, hidden, prompt)` of all members at once; hashable, like a method's."""

    method: Method

    def __call__(self, shared: Tree, user: Tree, hidden: Array, prompt: Array) -> tuple[Array, Array]:
        """Mean and standard deviation over members, both `[...]`, of hidden states `[..., width]`.

        `shared` and `user` have a leading axis `[members]`; the deviation is that of the members at hand (divided by
        their number, so 0 for one).
        """
        rewards = jax.vmap(self.method.reward, in_axes=(0, 0, None, None))(shared, user, hidden, prompt)
        return rewards.mean(axis=0), rewards.std(axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Fitted models that differ in their seeds.

    Attributes:
      members: the models, of one method and the same users.
      shared: the members' `shared`, every leaf `[members, ...]`.
      user_params: the members' `user_params`, every leaf `[users, members, ...]`, so that gathering a user is the same
        as for one model.
    """

    members: tuple[RewardModel, ...]
    shared: Tree
    user_params: Tree

    @classmethod
    def of(cls, members: Sequence[RewardModel]) -> "Ensemble":
        """Stacks models.

        Raises:
          InputError: there are none, or they differ in method, users or language model.
        """
        if not members:
            raise InputError("An ensemble needs at least one reward model.")
        for model in members[1:]:
            for field in ("method", "users", "backbone"):
                if getattr(model, field) != getattr(members[0], field):
                    raise InputError(f"The members of an ensemble must have the same {field}.")

        def stack(leaves: Sequence[Array], axis: int) -> Array:
            return jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves], axis))

        return cls(
            members=tuple(members),
            shared=jax.tree.map(lambda *leaves: stack(leaves, 0), *[model.shared for model in members]),
            user_params=jax.tree.map(lambda *leaves: stack(leaves, 1), *[model.user_params for model in members]),
        )

    @property
    def reward(self) -> EnsembleReward:
        """`reward(shared, user, hidden, prompt) -> (mean, deviation)`."""
        return EnsembleReward(self.members[0].method)
