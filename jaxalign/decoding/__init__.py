"""Decoding: one jitted loop over a batch, the guidances that steer it and the selections that choose.

| file | what it holds |
| --- | --- |
| `generate` | text in, text out |
| `score`, `forced` | how policies judge given responses; the teacher-forced pass under it |
| `loop`, `choice` | the jitted loop; one step of it, with the loop's state and records |
| `best_of` | best-of-n and blockwise best-of-n |
| `skipping` | candidates that cannot win are not encoded |
| `guidance/` | what is added to the model's log-probabilities; `guidance/base.py` is where the decoder is extended |
| `selection`, `schedules` | how a token is chosen; how a weight changes over a response |
| `rows` | per-row settings and stop reasons |
| `vocabulary` | argmax, top-k and sampling over a whole vocabulary |
| `prompts`, `checks`, `buckets` | input to ids; what cannot work; rounding of sizes |
"""

from jaxalign.decoding.best_of import BestOf
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
    "BestOf",
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
