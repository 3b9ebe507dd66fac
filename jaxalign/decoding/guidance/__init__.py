"""Guidances: what is added to the language model's log-probabilities. `base` says how to write one."""

from jaxalign.decoding.guidance.base import CandidateGuidance, Guidance, Step, Texts, VocabularyGuidance, pytree, static
from jaxalign.decoding.guidance.head import Ensemble, RewardHead, linear_reward
from jaxalign.decoding.guidance.reward_model import AutoregressiveReward, SeparateRewardModel
from jaxalign.decoding.guidance.total import Sum
from jaxalign.decoding.guidance.value_head import VocabularyValue

__all__ = [
    "AutoregressiveReward",
    "CandidateGuidance",
    "Ensemble",
    "Guidance",
    "RewardHead",
    "SeparateRewardModel",
    "Step",
    "Sum",
    "Texts",
    "VocabularyGuidance",
    "VocabularyValue",
    "linear_reward",
    "pytree",
    "static",
]
