"""How the tuned methods are trained: AdamW with warm-up, cosine decay, clipping and gradient accumulation."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from jaxalign.errors import InputError
from jaxalign.rewards.tuning.method import Tree, TunedMethod

_FULL_RATE = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of training.

    Attributes:
      epochs: passes over the pairs.
      batch_size: pairs per step.
      micro_batch: pairs that are in memory at once; gradients are summed over the step's micro-batches.
      learning_rate: peak of the backbone's and the head's; None is the method's own for LoRA, and 1e-5 for full
        fine-tuning.
      warm_up: share of the steps over which the rate rises from 0; then it falls to 0 along half a cosine.
      weight_decay: decoupled, of the backbone's matrices only (0.05: GenARM).
      clip: the largest norm of all gradients together; infinite to leave them as they are.
      max_length: longest prompt and response together, in tokens.
      remat: compute layers twice rather than keep what is inside them; see `forward.encode`.
      eval_every: steps between evaluations on validation pairs, and between checkpoints; 0 for the end of each epoch.
      seed: of initial values and of the order of pairs.
    """

    epochs: int = 1
    batch_size: int = 32
    micro_batch: int = 4
    learning_rate: float | None = None
    warm_up: float = 0.1
    weight_decay: float = 0.05
    clip: float = 1.0
    max_length: int = 512
    remat: bool = True
    eval_every: int = 0
    seed: int = 0

    def check(self) -> None:
        """Refuses values that cannot work.

        Raises:
          InputError: naming the field.
        """
        for name in ("epochs", "batch_size", "micro_batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.learning_rate is not None and not 0.0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be positive and finite, not {self.learning_rate}.")
        if not 0.0 <= self.warm_up < 1.0:
            raise InputError(f"warm_up is a share of the steps, from 0 to below 1, not {self.warm_up}.")
        if not 0.0 <= self.weight_decay < math.inf or not self.clip > 0.0 or self.eval_every < 0:
            raise InputError("weight_decay and eval_every must be at least 0, and clip above 0.")

    def peak(self, method: TunedMethod, full: bool) -> float:
        """The learning rate at the end of the warm-up."""
        if self.learning_rate is not None:
            return self.learning_rate
        return _FULL_RATE if full else method.learning_rate


class Descent(NamedTuple):
    """What is compiled into a step of the optimiser.

    Attributes:
      peak: highest learning rate.
      steps: steps in all.
      warm_up: steps of rising rate.
      weight_decay: see `Recipe`.
      clip: see `Recipe`.
      user_rate: factor on the rate of personal parameters.
    """

    peak: float
    steps: int
    warm_up: int
    weight_decay: float
    clip: float
    user_rate: float

    @property
    def transform(self) -> optax.GradientTransformation:
        """Clipping and Adam's direction."""
        return optax.chain(optax.clip_by_global_norm(self.clip), optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8))

    def rate(self, step: Array) -> Array:
        """The learning rate of step 0, 1, ...: above 0 at the first, since a step of size 0 is wasted."""
        schedule = optax.schedules.warmup_cosine_decay_schedule(0.0, self.peak, self.warm_up + 1, self.steps + 1)
        return jnp.asarray(schedule(jnp.asarray(step + 1, jnp.float32)), jnp.float32)

    def apply(self, gradients: Tree, state: Any, variables: Tree, step: Array) -> tuple[Tree, Any, Array]:
        """New variables and state, and the norm of the gradients before clipping.

        Args:
          gradients: like `variables`.
          state: of `transform`.
          variables: `{"backbone", "head", "users"}`.
          step: int32, steps taken before this one.
        """
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)))
        # Optax raises a float to an integer power, which strict promotion (a user's setting, and ours in tests)
        # refuses.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = self.transform.update(gradients, state)
            rate = self.rate(step)

        def moved(path, value: Array, update: Array) -> Array:
            if path[0].key == "backbone" and value.ndim > 1 and not _is_vector(path):
                update = update + self.weight_decay * value
            factor = self.user_rate if path[0].key == "users" else 1.0
            return value - factor * rate * update

        return jax.tree_util.tree_map_with_path(moved, variables, updates), state, norm


def _is_vector(path: tuple[Any, ...]) -> bool:
    """Whether a parameter is a norm's scale or a bias, which are not decayed (stacked layers make matrices of them)."""
    return any(str(key.key).endswith(("scale", "bias")) for key in path)
