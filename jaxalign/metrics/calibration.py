"""Expected calibration error of pair probabilities."""

import numpy as np


def expected_calibration_error(margin: np.ndarray, label: np.ndarray, bins: int = 10) -> float | None:
    """Mean distance between confidence and accuracy, over equally wide bins of confidence, weighted by pairs.

    The probability that chosen is preferred is p = sigmoid(margin); the confidence of a prediction is max(p, 1 - p),
    from 0.5 to 1, and its accuracy is the label's probability of the predicted side, one half for p = 0.5.
    Source: Guo et al. 2017 (arXiv 1706.04599), for two classes.

    Args:
      margin: `[pairs]` reward of chosen minus reward of rejected, as trained: not standardised.
      label: `[pairs]` probability that chosen is preferred.
      bins: number of bins.

    Returns:
      The error between 0 and 1, or None where there are no pairs.
    """
    margin, label = np.asarray(margin, np.float64), np.asarray(label, np.float64)
    if not margin.size:
        return None
    # 1 / (1 + exp(-|margin|)) is the confidence itself, and does not overflow.
    confidence = 1.0 / (1.0 + np.exp(-np.abs(margin)))
    accuracy = np.where(margin == 0.0, 0.5, np.where(margin > 0.0, label, 1.0 - label))
    place = np.minimum((2.0 * (confidence - 0.5) * bins).astype(int), bins - 1)
    size = np.bincount(place, minlength=bins)
    gap = np.abs(np.bincount(place, confidence - accuracy, minlength=bins))
    return float(gap[size > 0].sum() / margin.size)
