"""A network that is told who the user is."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxalign.rewards import draws, networks
from jaxalign.rewards.networks import Mlp
from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import Method, Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserEmbedding(Method):
    """r_u(h) = MLP([h; e_u]), with h `[width]` and e_u `[embedding]`; BT loss.

    Written as r_u(h) = f(W h + U e_u + b) with f an MLP on `[hidden]`, so that W h is computed once a text.
    Source: user-conditioned reward models; the closest public relatives are the user tokens of P-RLHF (arXiv
    2402.05133) and the user embeddings of CoPL. There is no canonical code.
    Personal part: e_u, with prior N(0, 1) and start 0; an unseen user's e_u is fitted with the network fixed, and
    without pairs it is 0.
    Defaults: ours. Weight decay and early stopping on validation users hold back a network with some 40,000 weights.

    Attributes:
      embedding: size of e_u.
      hidden: width of the two hidden layers.
      decay: ridge on the weights of the network, all of them.
      strength: ridge on e_u.
    """

    name: ClassVar[str] = "user_embedding"
    summary: ClassVar[str] = "a network on the hidden state and a learned user embedding"
    cost: ClassVar[str] = "hidden^2"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"decay": (30.0, 100.0, 300.0)}

    learning_rate: float = 0.005
    steps: int = 200
    embedding: int = 8
    hidden: int = 32
    decay: float = 100.0
    strength: float = 1.0

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        width = pairs.features.shape[1]
        params = {
            "text": networks.init(nnx.Linear, (width, self.hidden), key, "text"),
            "user": draws.normal(key, (self.embedding, self.hidden), "user", scale=0.1),
            "head": networks.init(Mlp, self._head, key, "head"),
        }
        return params, {"embedding": jnp.zeros((pairs.users, self.embedding))}

    @property
    def _head(self) -> tuple[tuple[int, ...]]:
        return ((self.hidden, self.hidden, 1),)

    def encode_text(self, params: Tree, features: Array) -> Array:
        return networks.apply(nnx.Linear, (features.shape[-1], self.hidden), params["text"], features)

    def encode_user(self, params: Tree, user: Tree) -> Array:
        return user["embedding"] @ params["user"]

    def combine(self, params: Tree, text: Array, prompt: Tree, user: Array) -> Array:
        hidden = jax.nn.gelu(text + jnp.broadcast_to(user, text.shape))
        return networks.apply(Mlp, self._head, params["head"], hidden)[..., 0]

    def penalty(self, params: Tree, users: Tree) -> Array:
        weights = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params))
        return 0.5 * (self.decay * weights + self.strength * jnp.square(users["embedding"]).sum())

    def prior(self, params: Tree) -> Tree:
        return {"embedding": jnp.zeros(self.embedding)}
