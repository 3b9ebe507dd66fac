"""Candidates that cannot win are not encoded, and nothing else changes."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import stepwise

from jaxalign.decoding import Greedy, Linear, RewardHead, StopReason, Sum, generate, loop, skipping
from jaxalign.decoding.rows import make_rows
from jaxalign.models import random

K, NEW = 8, 16
HEAD = RewardHead.linear(
    np.random.default_rng(7).standard_normal((3, 32)).astype(np.float32) * 0.3,
    weight=np.array([0.1, 0.05, 0.2, 0.0], np.float32),
    clip=0.8,
)


def decode(lm, guidance, budgets):
    program = loop.Program(lm.config, 32, NEW, K, (), 0, record=True, budgets=budgets)
    rows = make_rows(4, max_new_tokens=NEW, top_k=np.array([8, 8, 5, 8]), user=np.array([2, 0, 1, 0]))
    tokens = stepwise.prompts(10, 10, 10, 10)
    arguments = (program, lm.params, guidance, Greedy(), rows)
    state = loop.start(*arguments, np.asarray(tokens, np.int32), np.array([10, 3, 10, 7], np.int32), np.ones(4, bool))
    return loop.decode(*arguments, state)


@pytest.mark.parametrize("layers", ["unrolled", pytest.param("scanned", marks=pytest.mark.slow)])
def test_packed_decoding_gives_the_same_tokens(layers):
    lm = random(stepwise.CONFIG, layers=layers)
    # The weight of the second term falls: steps go from many survivors to few, through every budget.
    guidance = Sum(terms=(HEAD, dataclasses.replace(HEAD, weight=1.0, schedule=Linear(1.0, 0.0, 12))))
    wanted, packed = decode(lm, guidance, ()), decode(lm, guidance, (9, 14))
    np.testing.assert_array_equal(packed.tokens, wanted.tokens)
    assert (np.asarray(packed.reason) == StopReason.LENGTH).all()
    np.testing.assert_allclose(packed.records.reward, wanted.records.reward, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(packed.records.changed, wanted.records.changed)
    assert packed.records.changed.any()
    assert not wanted.records.skipped.any()
    survivors = 29 - np.asarray(packed.records.skipped).sum(axis=0)
    assert survivors.min() <= 9 < survivors.max()
    assert survivors.max() > 14
    assert ((survivors > 9) & (survivors <= 14)).any()


def test_survivors_by_hand():
    base = jnp.array([[0.0, -1.0, -1.5, -4.0], [0.0, -0.1, -0.2, -0.3]])
    valid = jnp.array([[True, True, True, True], [True, True, False, False]])
    alive = skipping.can_win(base, valid, jnp.array([0.75, 0.0]))
    # A candidate that could just draw level survives: the lower index would win, but the bound is not certain to hold.
    np.testing.assert_array_equal(alive, [[True, True, True, False], [True, False, False, False]])


@pytest.mark.slow
def test_generate_packs_large_batches_of_clipped_rewards():
    """A batch of 64 candidates is packed, single rows are not; tokens are the same."""
    lm = random(stepwise.CONFIG)
    head = RewardHead.linear(np.random.default_rng(3).standard_normal(32).astype(np.float32), weight=0.2, clip=0.5)
    prompts = stepwise.prompts(*[6] * 8)
    settings = {"guidance": head, "top_k": K, "max_new_tokens": 6, "record": True}
    together = generate(lm, prompts, batch_size=8, **settings)
    alone = generate(lm, prompts, batch_size=1, **settings)
    assert [result.tokens for result in together] == [result.tokens for result in alone]
    assert sum(sum(result.records["skipped"]) for result in together) > 0
    assert not any(any(result.records["skipped"]) for result in alone)
