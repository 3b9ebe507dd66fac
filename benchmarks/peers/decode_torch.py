"""Decoding as public code does it, in torch: plain, the ARGS procedure with and without a cache, two-model logits.

Written from the published descriptions, not from their code, and without their accidental costs (statistics per token,
caches kept as Python lists, text decoded at every step): what is left is the cost of the procedure.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from transformers import DynamicCache

from benchmarks import kinds
from benchmarks.cases import Case, random_prompts
from benchmarks.harness import Arm
from benchmarks.peers import torch_model
from jaxalign.models import LanguageModel

FEW = 4
"""Tokens that a decoder without a cache gives."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """One way to decode.

    Attributes:
      arm: runs it.
      rows: how many prompts it is given.
      new_tokens: how many tokens it gives each of them.
      equals: our kinds that do the same mathematics, whose tokens it must give in float32.
      output: `[rows, new_tokens]`, what the last run gave.
    """

    arm: Arm
    rows: int
    new_tokens: int
    equals: tuple[str, ...]
    output: Callable[[], np.ndarray]


class Peers:
    """All of them over one model.

    The reward model of ARGS, and the second model of the two-model form, are the language model's own weights, read
    again: what they compute is what our `separate`, `head` and `autoregressive` compute.
    """

    def __init__(self, lm: LanguageModel, weight: float):
        self.model = torch_model.load(lm)
        self.device = self.model.device
        self.weight = weight
        self.vocab_size = lm.config.vocab_size
        vector = torch.from_numpy(kinds.vectors(lm.config.hidden_size, 1)[0])
        self.vector = vector.to(self.device)

    def arms(self, case: Case, rows: int) -> list[Peer]:
        """The peers for a case; ARGS takes one row at a time and gets the first `rows` prompts, one after the other.

        Without a cache it is so slow that it is run beside batch 1 alone, for a few tokens: its rate depends neither on
        the batch nor, while the prompt is much longer than they are, on their number.
        """
        prompts = torch.from_numpy(random_prompts(self.vocab_size, case.batch, case.prompt)).long().to(self.device)
        few, n, k = min(rows, case.batch), case.new_tokens, case.top_k
        peers = [
            self._peer("HF generate", ("none",), prompts, self.generate, n),
            self._peer("ARGS", ("head", "separate"), prompts[:few], partial(self.args, k=k), n),
            self._peer("two-model logits", ("autoregressive",), prompts, self.two_models, n),
        ]
        if case.batch == 1:
            peers.append(
                self._peer(
                    "ARGS, no cache", ("head", "separate"), prompts, partial(self.args_no_cache, k=k), min(n, FEW)
                )
            )
        return peers

    def _peer(
        self, name: str, equals: tuple[str, ...], prompts: torch.Tensor, decode: Callable, new_tokens: int
    ) -> Peer:
        outputs: list[np.ndarray] = []

        def run() -> Mapping[str, float]:
            begin = time.perf_counter()
            with torch.inference_mode():
                output = decode(prompts, new_tokens).cpu().numpy()  # waits for the device
            seconds = time.perf_counter() - begin
            outputs[:] = [output]
            return {"total": seconds}

        def warm() -> None:
            with torch.inference_mode():
                decode(prompts, min(2, new_tokens))

        return Peer(Arm(name, run, warm), len(prompts), new_tokens, equals, lambda: outputs[0])

    def generate(self, prompts: torch.Tensor, new_tokens: int) -> torch.Tensor:
        """The library's own greedy decoding."""
        out = self.model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            max_new_tokens=new_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[:, prompts.shape[1] :]

    def args(self, prompts: torch.Tensor, new_tokens: int, k: int) -> torch.Tensor:
        """The ARGS search, a row at a time: the reward model holds k copies of its cache and runs k one-token rows; the
        winner's copy then replaces all others."""
        return torch.cat([self._args(row[None], new_tokens, k) for row in prompts])

    def _args(self, prompt: torch.Tensor, new_tokens: int, k: int) -> torch.Tensor:
        # Encoded once and copied, where the published code encodes the prompt k times.
        reward_cache = DynamicCache()
        self.model.model(prompt, past_key_values=reward_cache, use_cache=True)
        reward_cache.batch_repeat_interleave(k)
        cache, newest, chosen = DynamicCache(), prompt, []
        for _ in range(new_tokens):
            out = self.model(newest, past_key_values=cache, use_cache=True, logits_to_keep=1)
            log_prob, candidates = self._candidates(out.logits, k)
            hidden = self.model.model(candidates[:, None], past_key_values=reward_cache, use_cache=True)
            reward = hidden.last_hidden_state[:, -1].float() @ self.vector
            winner = torch.argmax(log_prob + self.weight * reward)
            reward_cache.batch_select_indices(winner.repeat(k))
            newest = candidates[winner][None, None]
            chosen.append(newest)
        return torch.cat(chosen, dim=1)

    def args_no_cache(self, prompts: torch.Tensor, new_tokens: int, k: int) -> torch.Tensor:
        """The ARGS search with a reward model that reads k whole texts for every token."""
        rows = []
        for prompt in prompts:
            cache, text, newest = DynamicCache(), prompt[None], prompt[None]
            for _ in range(new_tokens):
                out = self.model(newest, past_key_values=cache, use_cache=True, logits_to_keep=1)
                log_prob, candidates = self._candidates(out.logits, k)
                texts = torch.cat([text.repeat(k, 1), candidates[:, None]], dim=1)
                hidden = self.model.model(texts, use_cache=False).last_hidden_state[:, -1].float()
                newest = candidates[torch.argmax(log_prob + self.weight * (hidden @ self.vector))][None, None]
                text = torch.cat([text, newest], dim=1)
            rows.append(text[:, len(prompt) :])
        return torch.cat(rows)

    @staticmethod
    def _candidates(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        log_prob = torch.log_softmax(logits[0, -1].float(), dim=-1)
        best = torch.topk(log_prob, k)
        return best.values, best.indices

    def two_models(self, prompts: torch.Tensor, new_tokens: int) -> torch.Tensor:
        """log p + alpha log p_r over the vocabulary, all rows at once, each model with its own cache."""
        caches, newest, chosen = (DynamicCache(), DynamicCache()), prompts, []
        for _ in range(new_tokens):
            first, second = (
                torch.log_softmax(
                    self.model(newest, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].float(),
                    dim=-1,
                )
                for cache in caches
            )
            newest = torch.argmax(first + self.weight * second, dim=-1, keepdim=True)
            chosen.append(newest)
        return torch.cat(chosen, dim=1)
