"""Adam with a cosine decay, over any pytree: the one optimiser of the cached-feature methods.

Adam acts on each number by itself, so a user without pairs (gradient exactly 0) does not move, and no user's step
depends on another user's gradients.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

# Gradients are means over all pairs, so those of one user among thousands are tiny: Adam's usual 1e-8 would damp them.
ADAM = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-12)


def step(gradients: Any, state: optax.OptState, variables: Any, rate: Array) -> tuple[Any, optax.OptState]:
    """One Adam step of size `rate` (a scalar); returns the new variables and state."""
    # Optax raises a float to an integer power, which strict promotion (a user's setting, and ours in tests) refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = ADAM.update(gradients, state)
    return jax.tree.map(lambda value, update: value - rate * update, variables, updates), state


def decayed(rate: float | Array, index: Array, steps: int) -> Array:
    """`rate` decayed along half a cosine from `rate` at step 0 to 0 after `steps` steps."""
    return rate * 0.5 * (1.0 + jnp.cos(jnp.pi * index.astype(jnp.float32) / max(steps, 1)))


def minimise(objective: Callable[[Any], Array], start: Any, steps: int, rate: float | Array) -> Any:
    """The variables after `steps` decayed Adam steps from `start`; traceable, also over gradients of `objective`."""

    def body(carry: tuple[Any, optax.OptState], index: Array) -> tuple[tuple[Any, optax.OptState], None]:
        variables, state = carry
        gradients = jax.grad(objective)(variables)
        return step(gradients, state, variables, decayed(rate, index, steps)), None

    (variables, _), _ = jax.lax.scan(body, (start, ADAM.init(start)), jnp.arange(steps))
    return variables
