"""Decoding: one jitted loop over a batch, the guidances that steer it and the selections that choose.

| file | what it holds |
| --- | --- |
| `generate` | text in, text out |
| `score`, `forced` | how policies judge given responses; the teacher-forced pass under it |
| `loop` | the jitted loop, its state, its records |
| `guidance/` | what is added to the model's log-probabilities; `guidance/base.py` is where the decoder is extended |
| `selection`, `schedules` | how a token is chosen; how a weight changes over a response |
| `rows` | per-row settings and stop reasons |
| `vocabulary` | argmax, top-k and sampling over a whole vocabulary |
| `prompts`, `checks`, `buckets` | input to ids; what cannot work; rounding of sizes |
"""

from jaxalign.decoding.generate import Generation, generate, stream
from jaxalign.decoding.guidance import (
    AutoregressiveReward,
    CandidateGuidance,
    Ensemble,
    Guidance,
    RewardHead,
    SeparateRewardModel,
    Sum,
    VocabularyGuidance,
    VocabularyValue,
)
from jaxalign.decoding.rows import StopReason
from jaxalign.decoding.schedules import Constant, FirstTokens, Linear
from jaxalign.decoding.score import Score, score
from jaxalign.decoding.selection import Greedy, Sample

__all__ = [
    "AutoregressiveReward",
    "CandidateGuidance",
    "Constant",
    "Ensemble",
    "FirstTokens",
    "Generation",
    "Greedy",
    "Guidance",
    "Linear",
    "RewardHead",
    "Sample",
    "Score",
    "SeparateRewardModel",
    "StopReason",
    "Sum",
    "VocabularyGuidance",
    "VocabularyValue",
    "generate",
    "score",
    "stream",
]
