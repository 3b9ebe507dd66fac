"""Planted preferences: small data whose truth is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxalign import rewards
from jaxalign.data.blocks import PairBlocks

WIDTH = 6

SMALL = {
    "reference": {},
    "bt": {"strength": 1.0},
    "per_user": {"strength": 1.0, "shared": 1.0},
    "user_embedding": {"embedding": 2, "hidden": 8, "decay": 1.0, "strength": 0.1, "learning_rate": 0.03},
    "lore": {"rank": 2, "ridge": 1.0, "strength": 0.1, "learning_rate": 0.05},
    "pref": {"rank": 2, "ridge": 1.0, "strength": 1.0, "learning_rate": 0.05},
    "pal": {"space": 8, "decay": 0.1, "strength": 0.1, "learning_rate": 0.02},
    "pal_ideal": {"space": 8, "decay": 0.1, "strength": 0.1, "learning_rate": 0.02},
    "vpl": {"latent": 3, "hidden": 8, "context": 4, "query": 8, "decay": 0.001, "learning_rate": 0.02},
    "mrm": {"ridge": 1.0, "learning_rate": 0.05},
    "gpo": {"width": 8, "layers": 1, "heads": 2, "contexts": 6, "query": 8, "learning_rate": 0.02},
    "drm": {"components": 4},
}
"""Hyper-parameters of every method for planted data of width 6."""


def short(name):
    """A method for planted data that stops after 20 steps."""
    method = rewards.make(name, **SMALL[name])
    return dataclasses.replace(method, steps=min(method.steps, 20), adapt_steps=20)


def make_blocks(weights, *, pairs=30, texts=40, seed=0, noise=0.0, features=None, shared_pairs=False):
    """Pairs of users whose utility is features @ weights[user], labelled by a Bradley-Terry draw (noise 1) or its sign.

    `weights` is `[users, width]`; `pairs` a number, or one for each user; with `shared_pairs` all judge the same pairs.
    """
    random = np.random.default_rng(seed)
    weights = np.asarray(weights, np.float32)
    users = len(weights)
    if features is None:
        features = random.normal(size=(texts, weights.shape[1])).astype(np.float32)
    counts = np.broadcast_to(pairs, users)
    shape = (users, int(counts.max()))
    mask = np.arange(shape[1])[None, :] < counts[:, None]
    drawn = random.integers(0, len(features), size=(2, *((1, shape[1]) if shared_pairs else shape)))
    # A text is never paired with itself.
    first, second = np.broadcast_to(drawn[0], shape), np.broadcast_to(drawn[1], shape)
    second = np.where(first == second, (second + 1) % len(features), second)
    utility = features @ weights.T
    owner = np.broadcast_to(np.arange(users)[:, None], shape)
    gap = utility[first, owner] - utility[second, owner]
    if noise:
        gap = gap + noise * random.logistic(size=shape)
    chosen, rejected = np.where(gap > 0, first, second), np.where(gap > 0, second, first)
    return PairBlocks(
        features=features,
        prompts=random.normal(size=features.shape).astype(np.float32),
        chosen=np.where(mask, chosen, 0).astype(np.int32),
        rejected=np.where(mask, rejected, 0).astype(np.int32),
        mask=mask,
        label=np.ones(shape, np.float32),
        margin=np.zeros(shape, np.float32),
        users=tuple(f"u{index}" for index in range(users)),
    )


def halves(blocks):
    """The same users with the even and with the odd columns of pairs."""
    fields = ("chosen", "rejected", "mask", "label", "margin")
    return tuple(
        dataclasses.replace(blocks, **{field: getattr(blocks, field)[:, start::2] for field in fields})
        for start in (0, 1)
    )


def pick(blocks, rows):
    """Some users, in the given order."""
    fields = ("chosen", "rejected", "mask", "label", "margin")
    return dataclasses.replace(
        blocks,
        **{field: getattr(blocks, field)[rows] for field in fields},
        users=tuple(blocks.users[row] for row in rows),
    )


def one_by_one(model, blocks):
    """Rewards of chosen and rejected texts by the plain reward function, one text at a time: the slow reference."""
    sides = np.zeros((2, *blocks.mask.shape), np.float32)
    reward = jax.jit(model.reward)
    prompts = np.zeros_like(blocks.features) if blocks.prompts is None else blocks.prompts
    for row, user in enumerate(blocks.users):
        slice_ = model.user(user)
        for column in np.flatnonzero(blocks.mask[row]):
            for side, index in enumerate((blocks.chosen[row, column], blocks.rejected[row, column])):
                hidden, prompt = jnp.asarray(blocks.features[index]), jnp.asarray(prompts[index])
                sides[side, row, column] = reward(model.shared, slice_, hidden, prompt)
    return sides
