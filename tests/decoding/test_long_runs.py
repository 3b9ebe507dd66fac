"""A thousand batches: memory, open files and compiled programs stay what they were."""

import dataclasses
import gc
import os
from pathlib import Path

import numpy as np
import pytest
import stepwise

from jaxalign.decoding import RewardHead, forced, generate, loop, score

LM = stepwise.tiny_lm()
HEAD = RewardHead.linear(np.random.default_rng(0).standard_normal((4, LM.config.hidden_size)).astype(np.float32))


def batch(number):
    """Guided decoding and scoring of three prompts of one bucket of lengths, everything else drawn anew."""
    rng = np.random.default_rng(number)
    prompts = stepwise.prompts(*rng.integers(2, 13, 3), seed=number)
    user = rng.integers(0, 4, 3)
    head = dataclasses.replace(HEAD, weight=rng.uniform(0, 2, 3).astype(np.float32))
    results = generate(LM, prompts, guidance=head, user=user, top_k=4, max_new_tokens=6, record=True)
    responses = [result.tokens for result in results]
    return score(LM, prompts, responses, guidance=head, user=user, top_k=4)


def resident():
    """Bytes of memory that the process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the process's memory from /proc")
def test_a_thousand_batches_leave_nothing_behind():
    for number in range(200):
        batch(number)
    before, files = resident(), len(os.listdir("/proc/self/fd"))
    programs = [loop.start._cache_size(), loop.decode._cache_size(), forced.forced._cache_size()]
    for number in range(200, 1200):
        batch(number)
    assert [loop.start._cache_size(), loop.decode._cache_size(), forced.forced._cache_size()] == programs
    assert len(os.listdir("/proc/self/fd")) <= files
    # An array of a batch's hidden states kept by each batch would be 10 MB.
    grown = resident() - before
    print(f"grown by {grown / 1e6:.2f} MB over 1,000 batches")
    assert grown < 4e6
