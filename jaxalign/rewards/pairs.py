"""Preference pairs on the device: a flat list of real pairs, and the text rows that each user touches, each once.

Users differ in their number of pairs by a factor of fifty in real data, so padding every user to the longest costs ten
times the work. Fitting therefore runs over flat arrays: `pairs` is the total number of real pairs, and padding never
reaches the device. Each pair points at two *slots*; a slot is one text scored for one user, and a text that a user
judged in many pairs is scored once.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.data.blocks import PairBlocks
from jaxalign.errors import DataError

Statistics = dict[str, dict[str, Array]]
"""`{"features": {"mean", "inverse"}, "prompts": {"mean", "inverse"}}`, each `[width]` float32."""


def check(blocks: PairBlocks) -> None:
    """Refuses pairs that no reward model can be fitted on.

    Raises:
      DataError: shapes disagree, an index leaves the table, a feature, label or margin of a real pair is not finite, or
        a label is outside [0, 1]. The message names the user or the row of the table.
    """
    shape = blocks.mask.shape
    if blocks.features.ndim != 2 or blocks.mask.ndim != 2:
        raise DataError("features must be [texts, width] and mask [users, pairs].")
    for field in ("chosen", "rejected", "label", "margin"):
        if getattr(blocks, field).shape != shape:
            raise DataError(f"'{field}' has shape {getattr(blocks, field).shape}, but the mask has {shape}.")
    if len(blocks.users) != shape[0]:
        raise DataError(f"There are {len(blocks.users)} user ids for {shape[0]} rows of pairs.")
    if len(set(blocks.users)) != len(blocks.users):
        twice = next(user for user in blocks.users if blocks.users.count(user) > 1)
        raise DataError(f"User '{twice}' has two rows of pairs. Merge them: one row a user.")
    if blocks.prompts is not None and blocks.prompts.shape != blocks.features.shape:
        raise DataError(f"prompts have shape {blocks.prompts.shape}, but features {blocks.features.shape}.")
    for name in ("features", "prompts"):
        table = getattr(blocks, name)
        if table is not None and not np.isfinite(table).all():
            row = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
            raise DataError(f"Row {row} of {name} holds a number that is not finite. Compute the features of it again.")
    for field in ("chosen", "rejected"):
        index = getattr(blocks, field)
        wrong = blocks.mask & ((index < 0) | (index >= len(blocks.features)))
        if wrong.any():
            user, pair = np.argwhere(wrong)[0]
            raise DataError(
                f"User '{blocks.users[user]}', pair {pair}: '{field}' is {index[user, pair]}, but there are "
                f"{len(blocks.features)} texts."
            )
    wrong = blocks.mask & ~((blocks.label >= 0.0) & (blocks.label <= 1.0))
    if wrong.any():
        user, pair = np.argwhere(wrong)[0]
        raise DataError(
            f"User '{blocks.users[user]}', pair {pair}: label {blocks.label[user, pair]} is not a probability. Give "
            "the probability that chosen is preferred, between 0 and 1."
        )
    wrong = blocks.mask & ~np.isfinite(blocks.margin)
    if wrong.any():
        user, pair = np.argwhere(wrong)[0]
        raise DataError(f"User '{blocks.users[user]}', pair {pair}: the margin is not finite. Leave it out (0.0).")


def used_texts(blocks: PairBlocks) -> np.ndarray:
    """The rows of the table that some real pair uses, sorted."""
    return np.unique(np.concatenate([blocks.chosen[blocks.mask], blocks.rejected[blocks.mask]]))


def statistics(blocks: PairBlocks) -> Statistics:
    """Mean and inverse standard deviation of each feature over the texts that the pairs use, each text once.

    A feature that is constant there gets inverse 0 and is thereby ignored, as are prompts where the blocks have none.
    """
    rows = used_texts(blocks)

    def describe(table: np.ndarray) -> dict[str, Array]:
        mean, deviation = table.mean(axis=0, dtype=np.float64), table.std(axis=0, dtype=np.float64)
        # Rounding leaves a constant feature with a deviation of some 1e-8 of its size.
        varies = deviation > 1e-6 * np.abs(mean) + 1e-12
        inverse = np.where(varies, 1.0 / np.where(varies, deviation, 1.0), 0.0)
        return {"mean": jnp.asarray(mean.astype(np.float32)), "inverse": jnp.asarray(inverse.astype(np.float32))}

    nothing = {name: jnp.zeros(blocks.features.shape[1], jnp.float32) for name in ("mean", "inverse")}
    if not len(rows):
        return {"features": nothing, "prompts": nothing}
    prompts = nothing if blocks.prompts is None else describe(blocks.prompts[rows])
    return {"features": describe(blocks.features[rows]), "prompts": prompts}


def _on_host(table: np.ndarray, described: dict[str, Array]) -> Array:
    """`standardise` without compiling a program for the shape of `table`."""
    mean, inverse = (np.asarray(described[name]) for name in ("mean", "inverse"))
    return jnp.asarray((table.astype(np.float32) - mean) * inverse)


def standardise(values: Array, described: dict[str, Array]) -> Array:
    """`[..., width]` values in units of their standard deviation, float32; `described` as in `Statistics`."""
    mean, inverse = (jnp.broadcast_to(described[name], values.shape) for name in ("mean", "inverse"))
    return (values.astype(jnp.float32) - mean) * inverse


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """Real pairs, sorted by user.

    Attributes:
      features: `[texts, width]` standardised features of the texts in use.
      prompts: `[texts, width]` standardised prompt features, zeros where there are none.
      slot_user: `[slots]` int32, the user of each slot.
      slot_text: `[slots]` int32, the text of each slot.
      chosen: `[pairs]` int32, slot of the chosen text.
      rejected: `[pairs]` int32, slot of the rejected text.
      user: `[pairs]` int32, non-decreasing.
      start: `[users]` int32, the first pair of each user.
      count: `[users]` int32, pairs of each user.
      label: `[pairs]` float32.
      margin: `[pairs]` float32.
      weight: `[pairs]` float32, 1 (a bootstrap draws other weights).
      users: how many users there are, those without pairs included.
    """

    features: Array
    prompts: Array
    slot_user: Array
    slot_text: Array
    chosen: Array
    rejected: Array
    user: Array
    start: Array
    count: Array
    label: Array
    margin: Array
    weight: Array
    users: int = dataclasses.field(metadata={"static": True})

    @property
    def chosen_text(self) -> Array:
        """`[pairs]` int32, rows of `features`."""
        return self.slot_text[self.chosen]

    @property
    def rejected_text(self) -> Array:
        """`[pairs]` int32, rows of `features`."""
        return self.slot_text[self.rejected]

    def per_user(self, values: Array) -> Array:
        """`[users]` sums of `[pairs]` values."""
        return jax.ops.segment_sum(values, self.user, self.users, indices_are_sorted=True)


def to_device(blocks: PairBlocks, described: Statistics) -> Pairs:
    """Flattens checked blocks; pairs keep the order of `blocks.mask` read row by row."""
    mask = blocks.mask
    rows = used_texts(blocks)
    if not len(rows):  # Nobody has a pair: one text that no slot uses keeps every shape positive.
        rows = np.zeros(1, np.int64)
    texts = len(rows)
    user = np.repeat(np.arange(len(blocks.users)), blocks.counts)
    sides = [np.searchsorted(rows, side[mask]) for side in (blocks.chosen, blocks.rejected)]
    slots, inverse = np.unique(np.concatenate([user * texts + side for side in sides]), return_inverse=True)
    chosen, rejected = inverse.reshape(2, -1)
    count = blocks.counts

    def index(values: np.ndarray) -> Array:
        return jnp.asarray(values.astype(np.int32))

    features = _on_host(blocks.features[rows], described["features"])
    prompts = jnp.asarray(np.zeros(features.shape, np.float32))
    if blocks.prompts is not None:
        prompts = _on_host(blocks.prompts[rows], described["prompts"])
    return Pairs(
        features=features,
        prompts=prompts,
        slot_user=index(slots // texts),
        slot_text=index(slots % texts),
        chosen=index(chosen),
        rejected=index(rejected),
        user=index(user),
        start=index(np.cumsum(count) - count),
        count=index(count),
        label=jnp.asarray(blocks.label[mask].astype(np.float32)),
        margin=jnp.asarray(blocks.margin[mask].astype(np.float32)),
        weight=jnp.asarray(np.ones(int(mask.sum()), np.float32)),
        users=len(blocks.users),
    )
