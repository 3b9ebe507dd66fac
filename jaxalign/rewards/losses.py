"""Losses on pairs of rewards. Each gives one value a pair; the caller weighs and reduces.

A loss is a frozen dataclass: part of a method's hyper-parameters, compared and hashed by value.

With label l (probability that `chosen` is preferred) and difference d = r(chosen) - r(rejected), a loss is
l f(d) + (1 - l) f(-d): soft labels and ties (l = 0.5) need no special case.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

# exp() of the adaptive margin is bounded so that one hopeless pair cannot dominate a step or overflow.
_LARGEST_EXPONENT = 5.0


class Loss(Protocol):
    """A loss on pairs; see the module's docstring."""

    def __call__(self, chosen: Array, rejected: Array, label: Array, margin: Array, weight: Array) -> Array: ...


def _spread(d: Array, weight: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of `d` `[pairs]` under `weight` `[pairs]`; finite where all weights are 0."""
    total = jnp.maximum(weight.sum(), 1.0)
    mean = (weight * d).sum() / total
    return mean, jnp.sqrt((weight * jnp.square(d - mean)).sum() / total + 1e-12)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BradleyTerry:
    """-log sigmoid(d - m), the likelihood of Bradley and Terry (1952), with the options that people ask for.

    Attributes:
      margin: multiplies the data's margin column: m = margin * column (Llama 2, arXiv 2307.09288; 0 ignores it).
      adaptive: AMaPO's margin for pairs ranked below average (arXiv 2511.09385, from the authors' code): with mean and
        deviation over the batch, m += adaptive * 1[d < mean] exp(mean (mean - d) / deviation), held constant in the
        gradient. Ours bounds the exponent at 5, and applies it to the stated direction of soft labels.
      smoothing: the label moves this far towards its opposite: l (1 - e) + (1 - l) e.
      centring: adds centring * (r(chosen) + r(rejected))^2, which keeps rewards near zero (arXiv 2312.09244;
        0.01 is usual).
    """

    margin: float = 0.0
    adaptive: float = 0.0
    smoothing: float = 0.0
    centring: float = 0.0

    def __call__(self, chosen: Array, rejected: Array, label: Array, margin: Array, weight: Array) -> Array:
        """`[pairs]` losses; all arguments are `[pairs]`, `weight` is 0 for padding."""
        difference = chosen - rejected
        direction = 2.0 * label - 1.0
        shift = self.margin * margin
        if self.adaptive:
            ranked = jax.lax.stop_gradient(direction * difference)
            mean, deviation = _spread(ranked, weight)
            exponent = jnp.clip((mean - ranked) / deviation * mean, max=_LARGEST_EXPONENT)
            shift = shift + self.adaptive * jnp.where(ranked < mean, jnp.exp(exponent), 0.0)
        target = label * (1.0 - self.smoothing) + (1.0 - label) * self.smoothing
        shifted = difference - direction * shift
        losses = target * jax.nn.softplus(-shifted) + (1.0 - target) * jax.nn.softplus(shifted)
        if self.centring:
            losses = losses + self.centring * jnp.square(chosen + rejected)
        return losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hinge:
    """max(0, width - d), the loss of PAL's ideal-point form (width 1 there)."""

    width: float = 1.0

    def __call__(self, chosen: Array, rejected: Array, label: Array, margin: Array, weight: Array) -> Array:
        """`[pairs]` losses; all arguments are `[pairs]`; `margin` and `weight` are not used."""
        difference = chosen - rejected
        return label * jax.nn.relu(self.width - difference) + (1.0 - label) * jax.nn.relu(self.width + difference)


BRADLEY_TERRY = BradleyTerry()
"""The plain loss."""

LOSSES: dict[str, type] = {"bradley_terry": BradleyTerry, "hinge": Hinge}
"""The losses by the name that an exported model gives them."""
