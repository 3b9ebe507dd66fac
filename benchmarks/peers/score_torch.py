"""Reward scoring as reward-model libraries do it: a loop over pairs, each padded to its longer text."""

import dataclasses
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from benchmarks import kinds
from benchmarks.harness import Arm
from benchmarks.peers import torch_model
from benchmarks.score import Texts
from jaxalign.models import LanguageModel


@dataclasses.dataclass(frozen=True)
class Scorer:
    """`arm` runs it; `output()` gives the rewards of its last run, `[batch]` float32."""

    arm: Arm
    output: Callable[[], np.ndarray]


class Peer:
    """A linear reward head on the last hidden state of the same model."""

    def __init__(self, lm: LanguageModel):
        self.model = torch_model.load(lm)
        self.vector = torch.from_numpy(kinds.vectors(lm.config.hidden_size, 1)[0]).to(self.model.device)

    def pairs(self, texts: Texts) -> Scorer:
        """Scores texts 0 and 1, then 2 and 3, and so on: chosen and rejected."""
        rows = [texts.tokens[row, -length:] for row, length in enumerate(texts.lengths)]
        outputs: list[np.ndarray] = []

        def run() -> Mapping[str, float]:
            begin = time.perf_counter()
            with torch.inference_mode():
                rewards = [self._pair(rows[first : first + 2]) for first in range(0, len(rows), 2)]
                outputs[:] = [torch.cat(rewards).cpu().numpy()]
            return {"total": time.perf_counter() - begin}

        return Scorer(Arm("torch, by pair", run), lambda: outputs[0])

    def _pair(self, rows: list[np.ndarray]) -> torch.Tensor:
        length = max(map(len, rows))
        tokens = np.stack([np.pad(row, (0, length - len(row))) for row in rows])
        mask = np.stack([np.arange(length) < len(row) for row in rows])
        hidden = self.model.model(
            torch.from_numpy(tokens).long().to(self.model.device),
            attention_mask=torch.from_numpy(mask).long().to(self.model.device),
            use_cache=False,
        ).last_hidden_state
        last = torch.tensor([len(row) - 1 for row in rows], device=self.model.device)
        return hidden[torch.arange(len(rows), device=self.model.device), last].float() @ self.vector
