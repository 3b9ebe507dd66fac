"""PAL: users are mixtures of a few prototype tastes in a learned space."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.rewards import draws, networks
from jaxalign.rewards.losses import Hinge, Loss
from jaxalign.rewards.networks import Mlp
from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import Method, Tree

_LARGEST_SCALE = 100.0
_TINY = 1e-12
_HINGE = Hinge()


def _length(vector: Array) -> Array:
    """Euclidean norm over the last axis, with a finite gradient at 0."""
    return jnp.sqrt(jnp.square(vector).sum(axis=-1) + _TINY)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PalIdeal(Method):
    """r_u(h) = -|f(h) - f(P^T softmax(w_u))|, with P `[prototypes, width]`, f an MLP to `[space]`; hinge loss of width
    1.

    PAL's form A: a user is an ideal point, and likes what lies near it; texts and prototypes go through the same f.
    Source: PAL, arXiv 2406.08469.
    Personal part: w_u = c + e_u, c learned, prior N(0, 1 / strength) on e_u; an unseen user's e_u is fitted with the
    rest fixed, and is 0 without pairs.
    Defaults: 2 prototypes and three linear layers are the code's; its rates (1e-4 for f, 5e-3 for P and w) are for
    mini-batches over an epoch.
    Deviations: prototypes start from N(0, 1), the spread of standardised features, where the code has unit norm; one
    rate for all parameters; the reward is read at one token, where the code weighs all tokens after the first
    difference; GELU in f without the residual; a prior on w_u and weight decay.

    Attributes:
      prototypes: number of tastes.
      space: width of f's layers and of the learned space.
      decay: ridge on all shared weights.
      strength: ridge on e_u.
    """

    name: ClassVar[str] = "pal_ideal"
    summary: ClassVar[str] = "distance to a user's mixture of prototypes (PAL, form A)"
    cost: ClassVar[str] = "space"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"decay": (30.0, 100.0)}

    loss: Loss = _HINGE
    learning_rate: float = 0.005
    steps: int = 120
    prototypes: int = 2
    space: int = 32
    decay: float = 30.0
    strength: float = 1.0

    def _sizes(self, width: int) -> tuple[tuple[int, ...]]:
        return ((width, self.space, self.space, self.space),)

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        width = pairs.features.shape[1]
        params = {
            "f": networks.init(Mlp, self._sizes(width), key, "f"),
            "prototypes": draws.normal(key, (self.prototypes, width), "prototypes"),
            "centre": jnp.zeros(self.prototypes),
        }
        return params, {"logits": jnp.zeros((pairs.users, self.prototypes))}

    def encode_text(self, params: Tree, features: Array) -> Array:
        return networks.apply(Mlp, self._sizes(features.shape[-1]), params["f"], features)

    def encode_user(self, params: Tree, user: Tree) -> Array:
        return self.encode_text(params, jax.nn.softmax(params["centre"] + user["logits"]) @ params["prototypes"])

    def combine(self, params: Tree, text: Array, prompt: Tree, user: Array) -> Array:
        return -_length(text - jnp.broadcast_to(user, text.shape))

    def penalty(self, params: Tree, users: Tree) -> Array:
        weights = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params["f"]))
        return 0.5 * (self.decay * weights + self.strength * jnp.square(users["logits"]).sum())

    def prior(self, params: Tree) -> Tree:
        return {"logits": jnp.zeros_like(params["centre"])}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pal(Method):
    """r_u(h, x) = s cos(f(h), sum_k softmax(w_u)_k (g_k(x) + a_k)), x the prompt's hidden state; BT loss.

    PAL's form B: the ideal point moves with the prompt. f and each g_k are MLPs `[width]` to `[space]`, a_k `[space]`,
    s = exp(scale) at most 100. BT on s cos is the code's two-class cross-entropy.
    Source: PAL, arXiv 2406.08469.
    Personal part: as in `PalIdeal`.
    Defaults: 2 prototypes, three linear layers with GELU, scale starting at 1 / 0.07 are the code's.
    Deviations: as in `PalIdeal`, but for the start of P; and the anchor a_k, so that prototypes exist, as constants,
    where the data have no prompt features (prompts then count as 0, also when decoding).

    Attributes: as in `PalIdeal`.
    """

    name: ClassVar[str] = "pal"
    summary: ClassVar[str] = "cosine with a user's mixture of prompt-dependent prototypes (PAL, form B)"
    cost: ClassVar[str] = "space"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"decay": (30.0, 100.0)}

    learning_rate: float = 0.005
    steps: int = 120
    prototypes: int = 2
    space: int = 32
    decay: float = 30.0
    strength: float = 1.0

    def _sizes(self, width: int) -> tuple[tuple[int, ...]]:
        return ((width, self.space, self.space, self.space),)

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        sizes = self._sizes(pairs.features.shape[1])
        each = [networks.init(Mlp, sizes, key, f"g{number}") for number in range(self.prototypes)]
        params = {
            "f": networks.init(Mlp, sizes, key, "f"),
            "g": jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *each),
            "anchor": draws.normal(key, (self.prototypes, self.space), "anchor", scale=self.space**-0.5),
            "scale": jnp.asarray(math.log(1.0 / 0.07), jnp.float32),
            "centre": jnp.zeros(self.prototypes),
        }
        return params, {"logits": jnp.zeros((pairs.users, self.prototypes))}

    def encode_text(self, params: Tree, features: Array) -> Array:
        return networks.apply(Mlp, self._sizes(features.shape[-1]), params["f"], features)

    def encode_prompt(self, params: Tree, prompts: Array) -> Array:
        """`[..., width]` to `[..., prototypes, space]`."""
        sizes = self._sizes(prompts.shape[-1])
        points = jax.vmap(lambda g: networks.apply(Mlp, sizes, g, prompts), out_axes=-2)(params["g"])
        return points + jnp.broadcast_to(params["anchor"], points.shape)

    def encode_user(self, params: Tree, user: Tree) -> Array:
        return jax.nn.softmax(params["centre"] + user["logits"])

    def combine(self, params: Tree, text: Array, prompt: Array, user: Array) -> Array:
        ideal = user @ prompt
        cosine = (text @ ideal) / (_length(text) * _length(ideal))
        return self._scale(params) * cosine

    def _scale(self, params: Tree) -> Array:
        return jnp.exp(jnp.minimum(params["scale"], jnp.log(_LARGEST_SCALE)))

    def scores(self, params: Tree, users: Tree, pairs: Pairs) -> Array:
        """As in `Method`, by inner products that are computed once a text: a slot costs `prototypes^2`, not `space`."""
        texts = self.encode_text(params, pairs.features)
        points = self.encode_prompt(params, pairs.prompts)
        product = jnp.einsum("ts,tks->tk", texts, points)[pairs.slot_text]
        gram = jnp.einsum("tks,tls->tkl", points, points)[pairs.slot_text]
        weights = jax.vmap(lambda user: self.encode_user(params, user))(users)[pairs.slot_user]
        # Rounding may leave a vanishing square slightly negative.
        # Products and sums, not einsum: a batched product of thousands of tiny matrices is slow on CPU.
        square = jnp.maximum((weights[:, :, None] * gram * weights[:, None, :]).sum(axis=(1, 2)), 0.0)
        length = _length(texts)[pairs.slot_text] * jnp.sqrt(square + _TINY)
        return self._scale(params) * (weights * product).sum(axis=1) / length

    def penalty(self, params: Tree, users: Tree) -> Array:
        weights = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves({"f": params["f"], "g": params["g"]}))
        return 0.5 * (self.decay * weights + self.strength * jnp.square(users["logits"]).sum())

    def prior(self, params: Tree) -> Tree:
        return {"logits": jnp.zeros_like(params["centre"])}
