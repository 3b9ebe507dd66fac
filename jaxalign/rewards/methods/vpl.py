"""VPL: an encoder reads a user's pairs into a latent vector, and a decoder rewards texts given it."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxalign.rewards import draws, networks
from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import Method, Tree
from jaxalign.rewards.sampling import context_and_query, fixed_context

_SLOPE = 0.2


class Encoder(nnx.Module):
    """Set encoder: pairs `[context, hidden]` and a mask to mean and log variance, both `[latent]` in [-1, 1]."""

    def __init__(self, hidden: int, latent: int, *, rngs: nnx.Rngs):
        self.second = nnx.Linear(hidden, hidden, rngs=rngs)
        self.third = nnx.Linear(hidden, hidden, rngs=rngs)
        self.query = nnx.Linear(hidden, hidden, rngs=rngs)
        self.key = nnx.Linear(hidden, hidden, rngs=rngs)
        self.value = nnx.Linear(hidden, hidden, rngs=rngs)
        self.moments = nnx.Linear(hidden, 2 * latent, rngs=rngs)

    def __call__(self, pairs: Array, mask: Array) -> tuple[Array, Array]:
        hidden = jax.nn.leaky_relu(self.second(jax.nn.leaky_relu(pairs, _SLOPE)), _SLOPE)
        hidden = self.third(hidden)
        logits = self.query(hidden) @ self.key(hidden).T / jnp.sqrt(hidden.shape[-1])
        # A finite fill, so that a user without pairs has finite gradients; the empty mean is 0 below.
        logits = jnp.where(jnp.broadcast_to(mask[None, :], logits.shape), logits, -1e9)
        read = jax.nn.softmax(logits, axis=-1) @ self.value(hidden)
        read = jnp.where(jnp.broadcast_to(mask[:, None], read.shape), read, 0.0)
        mean = read.sum(axis=0) / jnp.maximum(mask.sum(), 1).astype(jnp.float32)
        location, spread = jnp.split(jnp.clip(self.moments(mean), -1.0, 1.0), 2)
        return location, spread


class Decoder(nnx.Module):
    """The layers after the first: `[..., hidden]` to `[...]`."""

    def __init__(self, hidden: int, *, rngs: nnx.Rngs):
        self.second = nnx.Linear(hidden, hidden, rngs=rngs)
        self.third = nnx.Linear(hidden, 1, rngs=rngs)

    def __call__(self, values: Array) -> Array:
        values = jax.nn.leaky_relu(self.second(jax.nn.leaky_relu(values, _SLOPE)), _SLOPE)
        return self.third(values)[..., 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vpl(Method):
    """r_u(h) = MLP([h; z_u]), z_u ~ N(mu, sigma^2) read from the user's pairs; loss BT + strength KL(z_u || N(0, I)).

    Encoder: MLP on [h_chosen; h_rejected], single-head self-attention over the set, mean, two linear maps to mu and
    log sigma^2 `[latent]`, clamped to [-1, 1]. First layers are linear in h, so they run once a text, not once a pair.
    Source: VPL, arXiv 2408.10075.
    Personal part: z_u = mu of the encoder on up to `contexts` of the user's pairs (chosen by their contents); nothing
    is optimised. Without pairs z_u = 0, the prior's mean.
    Training: each step draws, for each user, a context of 0 to `context` pairs and `query` other pairs.
    Defaults: three layers and LeakyReLU(0.2), contexts of at most 8 are the code's; its 512-wide layers and latent
    space are for 4096-wide features and a GPU. KL weights there are 0 to 1e-4, constant ours.
    Deviations: frozen backbone (an option of the code); z is not rescaled to norm sqrt(latent) in training, since it is
    not at evaluation either; no annealing of the KL weight; contexts may be empty; a soft label blends the two orders
    of a pair; weight decay 1e-3 becomes `decay`, a ridge.

    Attributes:
      latent: size of z_u.
      hidden: width of all layers.
      context: most pairs that the encoder reads in training.
      contexts: most pairs that it reads of a user afterwards.
      query: pairs per user and step that the decoder is trained on.
      strength: weight of the KL divergence.
      decay: ridge on all weights, relative to one pair's loss.
    """

    name: ClassVar[str] = "vpl"
    summary: ClassVar[str] = "a latent vector read from the user's pairs by an encoder (VPL)"
    cost: ClassVar[str] = "hidden^2"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"decay": (0.003, 0.01)}
    amortised: ClassVar[bool] = True

    learning_rate: float = 0.005
    steps: int = 120
    latent: int = 16
    hidden: int = 32
    context: int = 8
    contexts: int = 64
    query: int = 16
    strength: float = 0.0003
    decay: float = 0.01

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        layer = (pairs.features.shape[1], self.hidden)
        params = {
            "chosen": networks.init(nnx.Linear, layer, key, "chosen"),
            "rejected": networks.init(nnx.Linear, layer, key, "rejected"),
            "encoder": networks.init(Encoder, (self.hidden, self.latent), key, "encoder"),
            "text": networks.init(nnx.Linear, layer, key, "text"),
            "user": draws.normal(key, (self.latent, self.hidden), "user", scale=self.latent**-0.5),
            "decoder": networks.init(Decoder, (self.hidden,), key, "decoder"),
        }
        return params, {}

    def encode_text(self, params: Tree, features: Array) -> Array:
        return networks.apply(nnx.Linear, (features.shape[-1], self.hidden), params["text"], features)

    def encode_user(self, params: Tree, user: Tree) -> Array:
        return user["z"] @ params["user"]

    def combine(self, params: Tree, text: Array, prompt: Tree, user: Array) -> Array:
        hidden = text + jnp.broadcast_to(user, text.shape)
        return networks.apply(Decoder, (self.hidden,), params["decoder"], hidden)

    def prior(self, params: Tree) -> Tree:
        return {"z": jnp.zeros(self.latent)}

    def _encode(self, params: Tree, pairs: Pairs, index: Array, exists: Array) -> tuple[Array, Array]:
        """mu and log sigma^2 `[users, latent]` from pairs `index` `[users, context]`, of which `exists` are real."""
        layer = (pairs.features.shape[1], self.hidden)
        chosen = networks.apply(nnx.Linear, layer, params["chosen"], pairs.features)
        rejected = networks.apply(nnx.Linear, layer, params["rejected"], pairs.features)
        winner, loser = pairs.chosen_text[index], pairs.rejected_text[index]
        label = jnp.broadcast_to(pairs.label[index][..., None], (*index.shape, self.hidden))
        hidden = label * (chosen[winner] + rejected[loser]) + (1.0 - label) * (chosen[loser] + rejected[winner])
        encoder = (self.hidden, self.latent)
        return jax.vmap(lambda pairs, mask: networks.apply(Encoder, encoder, params["encoder"], pairs, mask))(
            hidden, exists
        )

    def objective(self, params: Tree, users: Tree, pairs: Pairs, key: Array) -> Array:
        draw, noise = jax.random.split(key)
        (context, known), (query, asked) = context_and_query(draw, pairs, self.context, self.query)
        mean, log_variance = self._encode(params, pairs, context, known)
        z = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(noise, mean.shape)
        texts = self.encode_text(params, pairs.features)
        user = z @ params["user"]

        def side(text: Array) -> Array:
            return jax.vmap(lambda text, user: self.combine(params, text, (), user))(texts[text], user)

        chosen, rejected = side(pairs.chosen_text[query]), side(pairs.rejected_text[query])
        weight = jnp.where(asked, pairs.weight[query], 0.0)
        losses = self.loss(chosen, rejected, pairs.label[query], pairs.margin[query], weight)
        loss = (weight * losses).sum() / jnp.maximum(weight.sum(), 1.0)
        kl = 0.5 * (jnp.exp(log_variance) + jnp.square(mean) - 1.0 - log_variance).sum(axis=-1)
        real = (pairs.count > 0).astype(jnp.float32)
        kl = (real * kl).sum() / jnp.maximum(real.sum(), 1.0)
        weights = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params))
        return loss + self.strength * kl + 0.5 * self.decay * weights

    def adapt(self, params: Tree, pairs: Pairs) -> Tree:
        if not pairs.user.shape[0]:
            return {"z": jnp.zeros((pairs.users, self.latent))}
        index, exists = fixed_context(pairs, self.contexts)
        mean, _ = self._encode(params, pairs, index, exists)
        known = jnp.broadcast_to((pairs.count > 0)[:, None], mean.shape)
        return {"z": jnp.where(known, mean, 0.0)}
