"""Policy accuracy in the `sequence` form: S = log p(y) + w r(x, y), the best-of-n view of a guided policy.

At w = 0 it is the language model's own ranking accuracy; as w grows it becomes RM accuracy. With `mean`, log p is
per token (rewards are of the whole text and are not divided), since a sum favours short responses.
"""

from typing import Literal

import numpy as np

from jaxalign.data.blocks import PairBlocks
from jaxalign.metrics.accuracy import PairCounts, count
from jaxalign.rewards.features import TextFeatures

Length = Literal["sum", "mean"]


def sequence_counts(
    blocks: PairBlocks,
    features: TextFeatures,
    chosen: np.ndarray,
    rejected: np.ndarray,
    weight: float,
    length: Length,
) -> PairCounts:
    """Correct pairs, pairs and ties per user.

    Args:
      blocks: the pairs.
      features: whose rows the blocks index.
      chosen: `[users, pairs]` rewards of the chosen texts.
      rejected: `[users, pairs]` rewards of the rejected texts.
      weight: w.
      length: `sum` or `mean`.
    """
    log_prob = features.log_prob if length == "sum" else features.log_prob / features.tokens
    # Differences of the two sides in float64: log-probabilities of long texts are large, and the reward is small.
    gap = log_prob[blocks.chosen] - log_prob[blocks.rejected]
    gap = gap + weight * (chosen.astype(np.float64) - rejected.astype(np.float64))
    return count(np.sign(gap).astype(np.float32), np.zeros_like(gap, np.float32), blocks.mask, blocks.label)
