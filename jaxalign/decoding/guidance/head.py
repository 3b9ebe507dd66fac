"""A reward read off the language model's own hidden state: one body pass per token, k wide."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxalign.decoding.guidance.base import CandidateGuidance, Step, pytree, static

# (shared parameters, one user's parameters, hidden [..., width], prompt hidden [width]) -> rewards [...]
RewardFunction = Callable[[Any, Any, jax.Array, jax.Array], jax.Array]


def linear_reward(shared: Any, user: dict[str, jax.Array], hidden: jax.Array, prompt: jax.Array) -> jax.Array:
    """`hidden . vector + bias` with the user's `vector` `[width]` and `bias` `[]`."""
    del shared, prompt
    return jnp.matmul(hidden, user["vector"], precision="highest") + user["bias"]


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardHead(CandidateGuidance):
    """r_u(prefix, v) = function(shared, users[u], h(prefix, v), h(prompt)), h being the language model's hidden state.

    Cost per generated token: one pass of the language model, k wide, and nothing else: the pass that scores the
    candidates also gives the winner's hidden state, which is the next token's logits.

    Attributes:
      function: a pure reward function of one user; vmapped over the batch.
      shared: parameters that all users share, a pytree.
      users: per-user parameters, a pytree of arrays `[users, ...]`, gathered by `Rows.user`.
      pooling: `last` reads the hidden state at the candidate, `mean` the mean over the response up to and including the
        candidate; as the reward was fitted.
    """

    reads_hidden: ClassVar[bool] = True

    function: RewardFunction = static()
    shared: Any
    users: Any
    pooling: Literal["last", "mean"] = static(default="last")

    @classmethod
    def linear(cls, vectors: ArrayLike, bias: ArrayLike = 0.0, **kwargs: Any) -> "RewardHead":
        """Heads that are linear in the hidden state.

        Args:
          vectors: `[users, width]`, or `[width]` for one head that all rows share.
          bias: a number or `[users]`.
          **kwargs: `weight`, `schedule`, `clip`, `pooling`.
        """
        vectors = jnp.atleast_2d(jnp.asarray(vectors, jnp.float32))
        bias = jnp.broadcast_to(jnp.asarray(bias, jnp.float32), vectors.shape[:1])
        return cls(function=linear_reward, shared=(), users={"vector": vectors, "bias": bias}, **kwargs)

    def reward(self, step: Step, carry: Any) -> jax.Array:
        assert step.candidate_hidden is not None, "the loop gives it, since this reads_hidden"
        user = jax.tree.map(lambda x: x[step.rows.user], self.users)
        function = jax.vmap(self.function, in_axes=(None, 0, 0, 0))
        hidden = step.candidate_hidden if self.pooling == "last" else mean_over_response(step)
        return function(self.shared, user, hidden, step.prompt_hidden)


def mean_over_response(step: Step) -> jax.Array:
    """`[batch, positions, k, width]`: mean hidden state of the response up to and including each candidate."""
    assert step.candidate_hidden is not None, "given where hidden states are read"
    assert step.response_sum is not None, "given where hidden states are read"
    # Places before the response, which the teacher-forced pass leaves out later, must not divide by 0.
    count = jnp.maximum(step.position + 1, 1).astype(jnp.float32)[..., None, None]
    return (step.response_sum[:, :, None] + step.candidate_hidden) / count


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Ensemble(CandidateGuidance):
    """Mean of several heads' rewards minus `penalty` times their standard deviation: guidance that avoids disagreement.

    Cost per generated token: as `RewardHead`, plus the heads.

    Attributes:
      members: `RewardHead`s; their own weight, schedule and clip are not used.
      penalty: lambda, in rewards per standard deviation.
    """

    reads_hidden: ClassVar[bool] = True

    members: tuple[RewardHead, ...]
    penalty: Any = 1.0

    def reward(self, step: Step, carry: Any) -> jax.Array:
        rewards = jnp.stack([member.reward(step, carry) for member in self.members])
        return jnp.mean(rewards, axis=0) - self.penalty * jnp.std(rewards, axis=0)
