"""Personal reward models on the hidden states of a frozen language model: fit, adapt, score, save.

`jaxalign.rewards.protocol` says what a method and a fitted model are.
"""

from jaxalign.rewards.adapting import adapt
from jaxalign.rewards.fitting import FitResult, choose, fit
from jaxalign.rewards.protocol import Method, RewardModel
from jaxalign.rewards.registry import make, names

__all__ = ["FitResult", "Method", "RewardModel", "adapt", "choose", "fit", "make", "names"]
