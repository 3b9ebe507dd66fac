"""PReF: collaborative filtering over pairs, tied to features of the texts."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.data.blocks import PairBlocks
from jaxalign.rewards import draws
from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import LinearMethod, Tree

_ROUNDS = 10
"""Published number of rounds of imputation."""
_LARGEST = 20_000_000
"""Most cells of the user x pair matrix; the pairs that most users judged are kept."""


def low_rank(blocks: PairBlocks, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Low-rank factors of the user x pair matrix of preferences, missing ones imputed.

    A cell is the probability that the first text of the pair is preferred, less one half; missing cells start at 0, and
    ten times over they are replaced by the best rank-`rank` approximation, clipped to probabilities. Pairs that only
    one user judged say nothing about how users relate, and are left out.

    Returns:
      users `[users, rank]`, pairs `[kept, rank]` with cells = users . pairs, and the texts of the kept pairs, first and
      second, `[kept]`. `kept` is 0 where no pair has two users.
    """
    user = np.repeat(np.arange(len(blocks.users)), blocks.counts)
    chosen, rejected = (side[blocks.mask].astype(np.int64) for side in (blocks.chosen, blocks.rejected))
    first, second = np.minimum(chosen, rejected), np.maximum(chosen, rejected)
    vote = np.where(chosen == first, blocks.label[blocks.mask], 1.0 - blocks.label[blocks.mask]) - 0.5
    codes, column = np.unique(first * len(blocks.features) + second, return_inverse=True)
    judges = np.bincount(column, minlength=len(codes))
    kept = np.flatnonzero(judges > 1)
    kept = np.sort(kept[np.argsort(-judges[kept], kind="stable")][: _LARGEST // max(len(blocks.users), 1)])
    place = np.full(len(codes), -1)
    place[kept] = np.arange(len(kept))
    seen = place[column] >= 0
    cell = (user[seen], place[column[seen]])
    total, number = np.zeros((2, len(blocks.users), len(kept)), np.float32)
    np.add.at(total, cell, vote[seen])
    np.add.at(number, cell, 1.0)
    observed = number > 0
    known = total / np.maximum(number, 1.0)
    matrix = known.copy()
    left = right = np.zeros((0, 0), np.float32)
    for _ in range(_ROUNDS if len(kept) else 0):
        # The Gram matrix of the shorter side: users are few, pairs are many.
        if len(blocks.users) <= len(kept):
            _, vectors = np.linalg.eigh(matrix @ matrix.T)
            left = vectors[:, ::-1][:, :rank]
            right = matrix.T @ left
        else:
            _, vectors = np.linalg.eigh(matrix.T @ matrix)
            right = vectors[:, ::-1][:, :rank]
            left = matrix @ right
        matrix = np.where(observed, known, np.clip(left @ right.T, -0.5, 0.5))
    if not len(kept):
        return np.zeros((len(blocks.users), rank)), np.zeros((0, rank)), kept, kept
    singular = np.linalg.norm(right if len(blocks.users) <= len(kept) else left, axis=0)
    root = np.sqrt(np.maximum(singular, 1e-12))
    left, right = (left * root, right / root) if len(blocks.users) <= len(kept) else (left / root, right * root)
    pad = ((0, 0), (0, rank - left.shape[1]))
    return (
        np.pad(left, pad),
        np.pad(right, pad),
        codes[kept] // len(blocks.features),
        codes[kept] % len(blocks.features),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pref(LinearMethod):
    """r_u(h) = (A h) . u_u, with A `[width, rank]` and u_u `[rank]`; BT loss.

    Source: PReF, arXiv 2503.06358.
    Personal part: u_u = c + e_u with c learned and the prior N(0, 1 / strength) on e_u; an unseen user's e_u is fitted
    by logistic regression with A fixed, and is 0 without pairs.
    Start: the singular value decomposition of the user x pair preference matrix with imputation (`low_rank`); u_u takes
    its user factors, and A is fitted to its pair factors by ridge regression on D. Where no pair was judged by two
    users there is no such matrix, and both start at random.
    Defaults: rank 5 is the released script's. Published steps (stochastic gradient descent on a whole LM) do not carry
    over to a linear A.
    Deviations: the LM is frozen; ridge regression where the code takes 50 gradient steps; a prior on u_u around a
    learned centre (published: none, and a random start for an unseen user); a ridge on A for the code's norm penalty on
    A D. Active choice of the pairs to ask is not part of it.

    Attributes:
      rank: size of u_u.
      strength: ridge on e_u.
      ridge: ridge on A.
    """

    name: ClassVar[str] = "pref"
    summary: ClassVar[str] = "factors of the user x pair matrix, tied to features (PReF)"
    cost: ClassVar[str] = "rank"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"ridge": (30.0, 300.0), "strength": (3.0, 10.0, 30.0)}

    learning_rate: float = 0.02
    steps: int = 200
    rank: int = 5
    strength: float = 10.0
    ridge: float = 100.0

    def prepare(self, blocks: PairBlocks, pairs: Pairs) -> Tree:
        users, factors, first, second = low_rank(blocks, self.rank)
        if not len(factors):
            return {}
        used = np.unique(np.concatenate([blocks.chosen[blocks.mask], blocks.rejected[blocks.mask]]))
        table = np.asarray(pairs.features)
        difference = table[np.searchsorted(used, first)] - table[np.searchsorted(used, second)]
        # Logits are about four times the probability's distance from one half.
        gram = difference.T @ difference + 0.1 * len(difference) * np.eye(table.shape[1], dtype=np.float32)
        a = np.linalg.solve(gram, difference.T @ factors)
        return {"a": jnp.asarray(4.0 * a, jnp.float32), "users": jnp.asarray(users, jnp.float32)}

    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        width = pairs.features.shape[1]
        # Seeds differ by a little noise around the decomposition.
        noise = draws.normal(key, (width, self.rank), "a", scale=0.01 * width**-0.5)
        # A user without pairs says nothing: no part of the centre, and at the prior.
        known = (pairs.count > 0).astype(jnp.float32)
        if prepared:
            centre = known @ prepared["users"] / jnp.maximum(known.sum(), 1.0)
            offset = prepared["users"] - jnp.broadcast_to(centre, prepared["users"].shape)
            params = {"a": prepared["a"] + noise, "centre": centre}
        else:
            offset = draws.normal(key, (pairs.users, self.rank), "users", scale=0.1)
            params = {"a": 10.0 * noise, "centre": jnp.ones(self.rank) / jnp.sqrt(self.rank)}
        return params, {"offset": offset * jnp.broadcast_to(known[:, None], offset.shape)}

    def project(self, params: Tree) -> Array:
        return params["a"]

    def encode_user(self, params: Tree, user: Tree) -> Array:
        return params["centre"] + user["offset"]

    def penalty(self, params: Tree, users: Tree) -> Array:
        ridge = self.ridge * jnp.square(params["a"]).sum()
        return 0.5 * (ridge + self.strength * jnp.square(users["offset"]).sum())

    def prior(self, params: Tree) -> Tree:
        return {"offset": jnp.zeros_like(params["centre"])}
