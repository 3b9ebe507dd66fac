"""GPO: a transformer neural process that reads a user's pairs as context."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxalign.data.blocks import PairBlocks
from jaxalign.errors import InputError
from jaxalign.rewards import networks
from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import Method, Tree
from jaxalign.rewards.sampling import context_and_query, fixed_context

_CHUNK = 512
"""Slots scored at one time: each needs its user's keys and values."""


class Process(nnx.Module):
    """Tokens attend to context tokens only; pre-norm layers, no positions.

    Keys and values of a context are `[layers, context, width]`; they are computed once a user.
    """

    def __init__(self, width: int, layers: int, heads: int, *, rngs: nnx.Rngs):
        self.layers, self.heads = layers, heads
        self.label = nnx.Linear(1, width, use_bias=False, rngs=rngs)
        for index in range(3):
            setattr(self, f"token{index}", nnx.Linear(width, width, rngs=rngs))
        for index in range(layers):
            for name in ("query", "key", "value", "out", "up", "down"):
                setattr(self, f"{name}{index}", nnx.Linear(width, width, rngs=rngs))
            for name in ("attention_norm", "feed_norm"):
                setattr(self, f"{name}{index}", nnx.LayerNorm(width, rngs=rngs))
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, 1, rngs=rngs)

    def _token(self, text: Array, label: Array) -> Array:
        """`[..., width]` encoded texts and `[...]` labels to tokens: the MLP on [text; label], first layer done."""
        token = text + self.label(label[..., None])
        for index in range(3):
            token = getattr(self, f"token{index}")(jax.nn.relu(token))
        return token

    def _attend(self, index: int, token: Array, key: Array, value: Array, mask: Array) -> Array:
        """One layer: tokens `[n, width]` read keys and values `[context, width]`; an empty context gives 0."""
        size = token.shape[-1] // self.heads

        def split(rows: Array) -> Array:
            return rows.reshape(rows.shape[0], self.heads, size)

        query = split(getattr(self, f"query{index}")(getattr(self, f"attention_norm{index}")(token)))
        logits = jnp.einsum("nhd,chd->hnc", query, split(key)) / jnp.sqrt(size)
        shown = jnp.broadcast_to(mask[None, None, :], logits.shape)
        weights = jnp.where(shown, jax.nn.softmax(jnp.where(shown, logits, -1e9), axis=-1), 0.0)
        read = jnp.einsum("hnc,chd->nhd", weights, split(value)).reshape(token.shape)
        token = token + getattr(self, f"out{index}")(read)
        hidden = getattr(self, f"up{index}")(getattr(self, f"feed_norm{index}")(token))
        return token + getattr(self, f"down{index}")(jax.nn.relu(hidden))

    def read(self, text: Array, label: Array, mask: Array) -> dict[str, Array]:
        """Context `[context, width]`, labels and mask `[context]` to its keys and values."""
        token = self._token(text, label)
        keys, values = [], []
        for index in range(self.layers):
            normed = getattr(self, f"attention_norm{index}")(token)
            keys.append(getattr(self, f"key{index}")(normed))
            values.append(getattr(self, f"value{index}")(normed))
            token = self._attend(index, token, keys[-1], values[-1], mask)
        return {"keys": jnp.stack(keys), "values": jnp.stack(values), "mask": mask}

    def __call__(self, text: Array, context: dict[str, Array]) -> Array:
        """Rewards `[n]` of encoded texts `[n, width]` given one context."""
        token = self._token(text, jnp.zeros(text.shape[:-1]))
        for index in range(self.layers):
            token = self._attend(index, token, context["keys"][index], context["values"][index], context["mask"])
        return self.head(self.norm(token))[..., 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpo(Method):
    """r_u(h) = the output at token (h, 0) of a transformer over the user's context tokens (h_i, y_i); BT loss.

    A context pair gives two tokens: its chosen text with y = +1 and its rejected text with y = -1. Every token, context
    or not, attends to context tokens only, so a target costs one pass against cached keys and values.
    Source: GPO, arXiv 2310.11523.
    Personal part: keys and values `[layers, 2 contexts, width]` of the user's context; nothing is optimised. Without
    pairs the context is empty, and attention reads 0.
    Training: each step draws, for each user, a context of 0 to `contexts` pairs and `query` other pairs.
    Defaults: token MLP of 4 layers, 4 heads, feed-forward as wide as the model, are the code's; it has 6 layers of 128,
    which is for a GPU.
    Deviations: a question with options is a pair here, and the code's softmax over the options of a question is then
    the BT probability; its Gaussian likelihood becomes the BT loss, and no deviation is predicted. Pre-norm layers;
    empty contexts; 16 context pairs, chosen by their contents where there are more.

    Attributes:
      width: of tokens and layers.
      layers: number of attention layers.
      heads: attention heads; divides `width`.
      contexts: most context pairs of a user.
      query: pairs per user and step that are predicted.
      decay: ridge on all weights, relative to one pair's loss.
    """

    name: ClassVar[str] = "gpo"
    summary: ClassVar[str] = "a transformer that reads the user's pairs in context (GPO)"
    cost: ClassVar[str] = "layers x (4 width^2 + 4 contexts x width)"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"decay": (0.001, 0.01)}
    amortised: ClassVar[bool] = True

    learning_rate: float = 0.002
    steps: int = 200
    width: int = 32
    layers: int = 2
    heads: int = 4
    contexts: int = 16
    query: int = 16
    decay: float = 0.001

    @property
    def _process(self) -> tuple[int, int, int]:
        return (self.width, self.layers, self.heads)

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        return {
            "text": networks.init(nnx.Linear, (pairs.features.shape[1], self.width), key, "text"),
            "process": networks.init(Process, self._process, key, "process"),
        }, {}

    def encode_text(self, params: Tree, features: Array) -> Array:
        return networks.apply(nnx.Linear, (features.shape[-1], self.width), params["text"], features)

    def combine(self, params: Tree, text: Array, prompt: Tree, user: Tree) -> Array:
        rows = text.reshape(-1, self.width)
        rewards = networks.apply(Process, self._process, params["process"], rows, user)
        return rewards.reshape(text.shape[:-1])

    def prior(self, params: Tree) -> Tree:
        empty = jnp.zeros((self.layers, 2 * self.contexts, self.width))
        return {"keys": empty, "values": empty, "mask": jnp.zeros(2 * self.contexts, bool)}

    def _read(self, params: Tree, texts: Array, pairs: Pairs, index: Array, exists: Array) -> dict[str, Any]:
        """Contexts of all users from pairs `index` `[users, contexts]`: every leaf `[users, ...]`."""
        sides = jnp.concatenate([pairs.chosen_text[index], pairs.rejected_text[index]], axis=1)
        label = 2.0 * pairs.label[index] - 1.0
        labels, mask = jnp.concatenate([label, -label], axis=1), jnp.concatenate([exists, exists], axis=1)

        def one(text: Array, label: Array, mask: Array) -> dict[str, Array]:
            return networks.apply(Process, self._process, params["process"], text, label, mask, method="read")

        return jax.vmap(one)(texts[sides], labels, mask)

    def objective(self, params: Tree, users: Tree, pairs: Pairs, key: Array) -> Array:
        (context, known), (query, asked) = context_and_query(key, pairs, self.contexts, self.query)
        texts = self.encode_text(params, pairs.features)
        contexts = self._read(params, texts, pairs, context, known)
        sides = jnp.concatenate([pairs.chosen_text[query], pairs.rejected_text[query]], axis=1)
        rewards = jax.vmap(lambda text, user: self.combine(params, text, (), user))(texts[sides], contexts)
        chosen, rejected = jnp.split(rewards, 2, axis=1)
        weight = jnp.where(asked, pairs.weight[query], 0.0)
        losses = self.loss(chosen, rejected, pairs.label[query], pairs.margin[query], weight)
        weights = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params))
        return (weight * losses).sum() / jnp.maximum(weight.sum(), 1.0) + 0.5 * self.decay * weights

    def scores(self, params: Tree, users: Tree, pairs: Pairs) -> Array:
        texts = self.encode_text(params, pairs.features)

        def one(slot: tuple[Array, Array]) -> Array:
            user = jax.tree.map(lambda leaf: leaf[slot[1]], users)
            return self.combine(params, texts[slot[0]], (), user)

        return jax.lax.map(one, (pairs.slot_text, pairs.slot_user), batch_size=_CHUNK)

    def adapt(self, params: Tree, pairs: Pairs) -> Tree:
        empty = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (pairs.users, *leaf.shape)), self.prior(params))
        if not pairs.user.shape[0]:
            return empty
        texts = self.encode_text(params, pairs.features)
        contexts = self._read(params, texts, pairs, *fixed_context(pairs, self.contexts))
        # Keys and values of padding are never read; zeros make equal users equal.
        keep = contexts["mask"][:, None, :, None]
        for name in ("keys", "values"):
            contexts[name] = jnp.where(jnp.broadcast_to(keep, contexts[name].shape), contexts[name], 0.0)
        return contexts

    def check(self, blocks: PairBlocks) -> None:
        super().check(blocks)
        if self.width % self.heads:
            raise InputError(f"gpo: heads ({self.heads}) must divide width ({self.width}).")
