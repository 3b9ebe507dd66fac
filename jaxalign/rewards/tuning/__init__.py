"""Reward models that tune the language model: LoRA or full fine-tuning, and what is trained with it.

| file | what it holds |
| --- | --- |
| `training` | `tune`: pairs to a fitted model; `recipe`, `steps` and `pairs` under it |
| `backbone` | `Lora`, `Full`, `Frozen`: what of the language model is trained |
| `method` | the protocol; `bradley_terry`, `arm`, `personal_arm`, `p_dpo`: one method each |
| `model` | `TunedModel`: rewards, accuracy, guidance; `adapting`: further users; `export`: folders |
| `forward` | hidden states and log-probabilities, with gradients |
"""

from jaxalign.rewards.tuning.adapting import adapt
from jaxalign.rewards.tuning.arm import Arm
from jaxalign.rewards.tuning.backbone import Frozen, Full, Lora
from jaxalign.rewards.tuning.bradley_terry import TunedBradleyTerry
from jaxalign.rewards.tuning.model import TunedModel, evaluate, rewards
from jaxalign.rewards.tuning.p_dpo import PDpo
from jaxalign.rewards.tuning.personal_arm import PersonalArm
from jaxalign.rewards.tuning.recipe import Recipe
from jaxalign.rewards.tuning.registry import make
from jaxalign.rewards.tuning.training import TuneReport, TuneResult, tune

__all__ = [
    "Arm",
    "Frozen",
    "Full",
    "Lora",
    "PDpo",
    "PersonalArm",
    "Recipe",
    "TuneReport",
    "TuneResult",
    "TunedBradleyTerry",
    "TunedModel",
    "adapt",
    "evaluate",
    "make",
    "rewards",
    "tune",
]
