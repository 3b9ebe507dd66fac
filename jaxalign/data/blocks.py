"""Preference pairs as padded per-user blocks: what reward models are fitted on."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairBlocks:
    """Pairs of U users, padded to N pairs each; texts are rows of one feature table, since many pairs share a text.

    Attributes:
      features: `[texts, width]` float32, hidden states of the frozen LM for prompt + response.
      prompts: `[texts, width]` float32, the hidden state at the last prompt token of the same texts, or None.
      chosen: `[users, pairs]` int32, rows of `features`.
      rejected: `[users, pairs]` int32, rows of `features`.
      mask: `[users, pairs]` bool, false for padding. Padding rows index text 0 and must not change any result.
      label: `[users, pairs]` float32, probability that chosen is preferred (1.0; 0.5 a tie).
      margin: `[users, pairs]` float32, how much better chosen is, 0.0 where not stated.
      users: the user ids, in row order.
    """

    features: np.ndarray
    chosen: np.ndarray
    rejected: np.ndarray
    mask: np.ndarray
    label: np.ndarray
    margin: np.ndarray
    users: tuple[str, ...]
    prompts: np.ndarray | None = None

    @property
    def counts(self) -> np.ndarray:
        """`[users]` int, pairs per user."""
        return self.mask.sum(axis=1)

    def padded(self, pairs: int) -> "PairBlocks":
        """The same pairs, padded to at least `pairs` per user: blocks of one shape share a compiled program."""
        more = max(0, pairs - self.mask.shape[1])
        names = ("chosen", "rejected", "mask", "label", "margin")
        return dataclasses.replace(self, **{name: np.pad(getattr(self, name), ((0, 0), (0, more))) for name in names})
