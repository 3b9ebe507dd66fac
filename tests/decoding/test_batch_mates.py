"""A request in many different companies: its tokens and what is recorded of them are equal to the bit.

All companies have one shape, so that one program serves them: nothing may differ. Across shapes sums are taken in
another order; `test_score` and `test_guided` hold those to tolerances.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
import stepwise

from jaxalign.decoding import RewardHead, VocabularyValue, generate
from jaxalign.decoding.guidance import CandidateGuidance, pytree

LM = stepwise.tiny_lm()
ROWS, LONGEST, NEW = 8, 12, 6
NEEDLE = stepwise.prompts(9, seed=77)[0]
NEEDLE_SETTINGS = {"user": 3, "top_k": 4, "temperature": 0.7, "max_new_tokens": NEW, "request": 42}
RNG = np.random.default_rng(0)
HEAD = RewardHead.linear(RNG.standard_normal((5, LM.config.hidden_size)).astype(np.float32) * 0.3)
VALUE = VocabularyValue(up=jnp.asarray(RNG.standard_normal((LM.config.vocab_size, LM.config.hidden_size)), jnp.float32))


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaking(CandidateGuidance):
    """The negative control: a reward that looks at the other rows of the batch."""

    reads_hidden: ClassVar[bool] = True

    def reward(self, step, carry):
        del carry
        return step.candidate_hidden[..., 0] + 0.1 * jnp.mean(step.candidate_hidden[..., 0], axis=(0, 1), keepdims=True)


def companies(trials, seed):
    """The needle's place and the whole batch's settings, drawn anew for each trial."""
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        place = int(rng.integers(ROWS))
        # One prompt of the greatest length keeps the shape; it is never the needle's place.
        lengths = rng.integers(1, LONGEST + 1, ROWS)
        lengths[(place + 1) % ROWS] = LONGEST
        prompts = [rng.integers(0, LM.config.vocab_size, n).tolist() for n in lengths]
        settings = {
            "user": rng.integers(0, 5, ROWS),
            "top_k": rng.integers(1, 6, ROWS),
            "temperature": rng.choice([0.0, 0.7, 1.5], ROWS),
            "max_new_tokens": rng.integers(1, NEW + 1, ROWS),
            "request": rng.integers(0, 1000, ROWS),
        }
        prompts[place] = NEEDLE
        for name, value in NEEDLE_SETTINGS.items():
            settings[name][place] = value
        # The batch's bounds are compiled in: another row holds them.
        settings["top_k"][(place + 1) % ROWS], settings["max_new_tokens"][(place + 1) % ROWS] = 5, NEW
        yield place, prompts, settings


def of_the_needle(guidance, trials, seed=0):
    """The different answers that the needle got: tokens, and every record to the bit."""
    found = set()
    for place, prompts, settings in companies(trials, seed):
        result = generate(LM, prompts, guidance=guidance, seed=5, record=True, batch_size=ROWS, **settings)[place]
        records = tuple((name, np.asarray(result.records[name]).tobytes()) for name in sorted(result.records))
        found.add((tuple(result.tokens), result.stop_reason, records))
    return found


GUIDANCES = {"head": HEAD, "none": None, "value": VALUE}


@pytest.mark.parametrize("trials", [50, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", GUIDANCES)
def test_company_changes_no_bit(name, trials):
    assert len(of_the_needle(GUIDANCES[name], trials)) == 1


def test_the_test_would_notice():
    assert len(of_the_needle(Leaking(), 20)) > 10
