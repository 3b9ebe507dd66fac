"""Cosine similarity of embeddings: how close in meaning a generated text is to what the user wrote.

cosine(one, two, centre=None)  -> [texts]
"""

import numpy as np

from jaxalign.errors import InputError


def cosine(one: np.ndarray, two: np.ndarray, centre: np.ndarray | None = None) -> np.ndarray:
    """Cosine of the angle between rows, between -1 and 1.

    Mean hidden states of a language model share a large common direction, so that any two texts are at 0.9 or more:
    give the mean embedding of many texts as `centre` to look at the rest.

    Args:
      one: `[texts, width]` embeddings.
      two: `[texts, width]` embeddings of the texts to compare with, row by row.
      centre: `[width]`, taken off every row first.

    Returns:
      `[texts]` float64; NaN where either row is zero or not finite.

    Raises:
      InputError: when the shapes differ.
    """
    one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
    if one.shape != two.shape or one.ndim != 2:
        raise InputError(f"embeddings of shapes {one.shape} and {two.shape} cannot be compared row by row")
    if centre is not None:
        one, two = one - centre, two - centre
    units = []
    for rows in (one, two):
        # Scaled by the largest entry first: squares of large or tiny entries leave the range of floats.
        largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
        usable = np.isfinite(largest) & (largest > 0)
        scaled = np.where(usable, rows, np.nan) / np.where(usable, largest, 1.0)
        units.append(scaled / np.sqrt((scaled**2).sum(axis=1, keepdims=True)))
    return np.clip((units[0] * units[1]).sum(axis=1), -1.0, 1.0)
