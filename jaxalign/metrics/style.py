"""Distance between the style of generated texts and the style of a user's own texts.

    style_distance(texts, history, standardiser)  -> [texts]

The tables are attributes from `jaxalign.data.attributes.attribute_table`. The standardiser is made once, from the own
texts of all users: `Standardiser.of(attribute_table(own_texts))`, so that an attribute counts by how much people
differ in it. A user's own text is not at distance 0 from their mean: the distance of what they wrote for the same
prompt is the yardstick.
"""

import numpy as np

from jaxalign.data.attributes import Standardiser


def style_distance(texts: np.ndarray, history: np.ndarray, standardiser: Standardiser) -> np.ndarray:
    """Root mean square over attributes of (text - mean of the history), in deviations over people's texts.

    Args:
      texts: `[texts, attributes]` attributes of generated texts.
      history: `[own texts, attributes]` attributes of the user's own texts.
      standardiser: from the own texts of all users.

    Returns:
      `[texts]` float64, at least 0; NaN where the user has no own texts.
    """
    if not len(history):
        return np.full(len(texts), np.nan)
    centre = standardiser(np.asarray(history)).mean(axis=0, dtype=np.float64)
    return np.sqrt(np.mean((standardiser(np.asarray(texts)) - centre) ** 2, axis=1, dtype=np.float64))
