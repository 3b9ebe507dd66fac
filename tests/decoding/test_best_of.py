"""Best-of-n and blockwise best-of-n against drawing every sample alone, from scratch, and comparing them in a loop."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest
import stepwise

from jaxalign.decoding import BestOf, RewardHead, SeparateRewardModel, generate
from jaxalign.decoding.guidance import linear_reward
from jaxalign.errors import InputError

ENDS = tuple(range(0, 300, 12))  # often enough that some samples end and some do not
LM = dataclasses.replace(
    stepwise.tiny_lm(),
    tokenizer=types.SimpleNamespace(end_ids=ENDS, pad_id=299, decode=lambda ids: " ".join(map(str, ids))),
)
PROMPTS = stepwise.prompts(3, 12, 1, 7)
VECTORS = np.random.default_rng(7).standard_normal((3, LM.config.hidden_size)).astype(np.float32) * 0.3
WEIGHTS = np.array([0.5, 2.0, 1.0, 4.0], np.float32)
HEAD = RewardHead.linear(VECTORS, weight=WEIGHTS)
USERS, SEEDS, TEMPERATURES, NEW, N = [2, 0, 1, 0], [3, 3, 4, 5], [1.0, 0.7, 2.0, 1.0], 8, 3
SETTINGS = dict(user=USERS, seed=SEEDS, temperature=TEMPERATURES, max_new_tokens=[NEW, NEW, 5, NEW])  # noqa: C408


@jax.jit
def uniform(seed, *numbers):
    """The draw of a request's sample at a token: the seed's key, folded with each number in turn."""
    return jax.random.uniform(functools.reduce(jax.random.fold_in, numbers, jax.random.key(seed)))


def continuation(i, sample, prefix, limit):
    """Sample number `sample` of prompt i, drawn on from `prefix` up to `limit` tokens, with its log-probability."""
    prefix, log_prob = list(prefix), 0.0
    while len(prefix) < limit and not (prefix and prefix[-1] in ENDS):
        logits = stepwise.encode(LM, PROMPTS[i] + prefix)[1][-1]
        cumulative = np.cumsum(np.exp((logits - logits.max()) / TEMPERATURES[i]))
        drawn = float(uniform(SEEDS[i], i, sample, len(prefix)))
        token = int(np.searchsorted(cumulative, drawn * cumulative[-1], side="right"))
        log_prob += logits[token]
        prefix.append(token)
    return prefix, log_prob


def slow(i, block, by):
    """The best of n, block by block."""
    limit = SETTINGS["max_new_tokens"][i]
    prefix, log_prob = [], 0.0
    while len(prefix) < limit and not (prefix and prefix[-1] in ENDS):
        drawn = [continuation(i, j, prefix, min(limit, len(prefix) + (block or limit))) for j in range(N)]

        def value(sample, before=log_prob):
            text, more = sample
            content = text[:-1] if text[-1] in ENDS and len(text) > 1 else text
            reward = float(stepwise.encode(LM, PROMPTS[i] + content)[0][-1] @ VECTORS[USERS[i]])
            return reward if by == "reward" else before + more + WEIGHTS[i] * reward

        prefix, more = max(drawn, key=value)
        log_prob += more
    return prefix


def run(how, guidance=HEAD, order=(0, 1, 2, 3)):
    settings = {name: [values[i] for i in order] for name, values in SETTINGS.items()}
    guidance = dataclasses.replace(guidance, weight=WEIGHTS[list(order)])
    return generate(LM, [PROMPTS[i] for i in order], guidance=guidance, request=order, best_of=how, **settings)


@pytest.mark.parametrize(("block", "by"), [(None, "reward"), (3, "sequence")])
def test_the_best_of_samples_drawn_one_by_one(block, by):
    wanted = [slow(i, block, by) for i in range(4)]
    # There is something to choose, and some texts have ended.
    assert wanted != [continuation(i, 0, [], SETTINGS["max_new_tokens"][i])[0] for i in range(4)]
    results = run(BestOf(N, block, by))
    assert [r.tokens for r in results] == wanted
    assert [r.stop_reason for r in results] == ["end_token" if w[-1] in ENDS else "length" for w in wanted]
    assert all(r.records is None for r in results)
    # Whatever the neighbours.
    order = (2, 0, 3, 1)
    assert [r.tokens for r in run(BestOf(N, block, by), order=order)] == [wanted[i] for i in order]


def test_blocks_judged_by_a_model_with_a_cache_of_its_own():
    own = SeparateRewardModel(config=LM.config, params=LM.params, function=linear_reward, shared=(), users=HEAD.users)
    assert [r.tokens for r in run(BestOf(N, 3), own)] == [slow(i, 3, "reward") for i in range(4)]


BAD = {
    "no_samples": (lambda: BestOf(0), {}, "samples = 0"),
    "no_block": (lambda: BestOf(2, 0), {}, "block = 0"),
    "by": (lambda: BestOf(2, by="length"), {}, "by = 'length'"),
    "cold": (lambda: BestOf(2), {"temperature": [1.0, 0.0, 1.0, 1.0]}, "temperature = 0 in row 1"),
    "no_reward": (lambda: BestOf(2), {"guidance": None, "temperature": 1.0}, "one reward is needed"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work(case):
    how, settings, message = BAD[case]
    with pytest.raises(InputError, match=message):
        generate(LM, PROMPTS, best_of=how(), **{"guidance": HEAD} | settings)
