"""DRM: principal components of the pairs' differences as heads, weighed in closed form."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from jaxalign.data.blocks import PairBlocks
from jaxalign.errors import InputError
from jaxalign.rewards.losses import Loss
from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import LinearMethod, Tree

_CHUNK = 4096
"""Pairs whose differences exist at one time: `[_CHUNK, width]` numbers."""


@jax.jit
def moments(pairs: Pairs) -> tuple[Array, Array]:
    """Mean `[width]` and second moment `[width, width]` of D over all pairs, D = h_chosen - h_rejected."""
    number = pairs.user.shape[0]
    width = pairs.features.shape[1]
    padded = -(-max(number, 1) // _CHUNK) * _CHUNK
    fill = (0, padded - number)
    sides = [jnp.pad(side, fill).reshape(-1, _CHUNK) for side in (pairs.chosen_text, pairs.rejected_text)]
    weights = jnp.pad(pairs.weight, fill).reshape(-1, _CHUNK)

    def add(carry: tuple[Array, Array], chunk: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        chosen, rejected, weight = chunk
        difference = pairs.features[chosen] - pairs.features[rejected]
        weighted = difference * jnp.broadcast_to(weight[:, None], difference.shape)
        return (carry[0] + weighted.sum(axis=0), carry[1] + weighted.T @ difference), None

    zeros = (jnp.zeros(width), jnp.zeros((width, width)))
    (first, second), _ = jax.lax.scan(add, zeros, (sides[0], sides[1], weights))
    total = jnp.maximum(pairs.weight.sum(), 1.0)
    return first / total, second / total


@functools.partial(jax.jit, static_argnames=("number", "centre"))
def components(mean: Array, second: Array, number: int, centre: bool) -> Array:
    """Principal components `[width, number]` of D from its moments, scaled so that D has unit deviation along each."""
    spread = second - jnp.outer(mean, mean)
    _, vectors = jnp.linalg.eigh(spread if centre else second)
    vectors = vectors[:, ::-1][:, :number]
    # An eigenvector's sign is arbitrary; both signs become heads, but their order should not be.
    largest = vectors[jnp.abs(vectors).argmax(axis=0), jnp.arange(number)]
    vectors = vectors * jnp.broadcast_to(jnp.where(largest < 0.0, -1.0, 1.0), vectors.shape)
    variance = ((spread @ vectors) * vectors).sum(axis=0)
    # A component without spread says nothing: scale 0, not noise divided by nothing.
    real = variance > 1e-6 * jnp.maximum(variance.max(), 1e-12)
    scale = jnp.where(real, jax.lax.rsqrt(jnp.where(real, variance, 1.0)), 0.0)
    return vectors * jnp.broadcast_to(scale, vectors.shape)


@functools.partial(jax.jit, static_argnames="loss")
def head_losses(loss: Loss, heads: Array, pairs: Pairs) -> Array:
    """Sums over the pairs of each user of the loss of every head: heads `[width, heads]` to `[users, heads]`."""
    texts = pairs.features @ heads
    chosen, rejected = texts[pairs.chosen_text], texts[pairs.rejected_text]

    def one(chosen: Array, rejected: Array) -> Array:
        return pairs.per_user(pairs.weight * loss(chosen, rejected, pairs.label, pairs.margin, pairs.weight))

    return jax.vmap(one, in_axes=1, out_axes=1)(chosen, rejected)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drm(LinearMethod):
    """r_u(h) = sum_k w_uk c_k . h, with c `[2 components, width]`: the principal components of D and their negatives.

    Weights: w_u = softmax over heads of -(sum over u's pairs of the BT loss of head k) / temperature. No gradients.
    Source: DRM (decomposed reward models), arXiv 2502.13131.
    Personal part: w_u `[2 components]`, closed form for seen and unseen users. Without pairs: the mean of the seen
    users' weights (a uniform mixture of heads and their negatives would be 0 for every text).
    Defaults: 20 components, mean-centred, temperature 1 are the code's.
    Deviations: heads are scaled to unit deviation of c_k . D over the training pairs once, where the code standardises
    the scores of each evaluation set, which would make a reward depend on its neighbours.

    Attributes:
      components: number of principal components; there are twice as many heads.
      temperature: of the softmax; the loss is a sum over pairs, so many pairs come close to picking the best head.
      centre: whether the mean of D is removed first. That removes most of what all users share.
    """

    name: ClassVar[str] = "drm"
    summary: ClassVar[str] = "principal components of differences, weighed in closed form (DRM)"
    cost: ClassVar[str] = "2 components"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"temperature": (1.0, 3.0, 10.0, 30.0)}
    amortised: ClassVar[bool] = True
    random: ClassVar[bool] = False

    steps: int = 0
    components: int = 20
    temperature: float = 1.0
    centre: bool = True

    def prepare(self, blocks: PairBlocks, pairs: Pairs) -> Tree:
        mean, second = moments(pairs)
        return components(mean, second, self.components, self.centre)

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        params = {"heads": jnp.concatenate([prepared, -prepared], axis=1)}
        weights = self._weights(params, pairs)
        seen = (pairs.count > 0).astype(jnp.float32)
        params["prior"] = (seen @ weights) / jnp.maximum(seen.sum(), 1.0)
        return params, {}

    def project(self, params: Tree) -> Array:
        return params["heads"]

    def encode_user(self, params: Tree, user: Tree) -> Array:
        return user["weights"]

    def prior(self, params: Tree) -> Tree:
        return {"weights": params["prior"]}

    def _weights(self, params: Tree, pairs: Pairs) -> Array:
        """w `[users, heads]`."""
        return jax.nn.softmax(-head_losses(self.loss, params["heads"], pairs) / self.temperature, axis=-1)

    def adapt(self, params: Tree, pairs: Pairs) -> Tree:
        weights = self._weights(params, pairs)
        known = jnp.broadcast_to((pairs.count > 0)[:, None], weights.shape)
        return {"weights": jnp.where(known, weights, jnp.broadcast_to(params["prior"], weights.shape))}

    def check(self, blocks: PairBlocks) -> None:
        super().check(blocks)
        if self.components > blocks.features.shape[1]:
            raise InputError(
                f"drm: components ({self.components}) must be at most the width, {blocks.features.shape[1]}."
            )

    def check_hyper(self) -> None:
        super().check_hyper()
        if not self.temperature > 0.0:
            raise InputError(f"drm: temperature must be positive, not {self.temperature}.")
