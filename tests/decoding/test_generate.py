"""Decoding as a whole: why rows stop, what is compiled, what is drawn, and what is recorded."""

import dataclasses
import re
import types

import jax.numpy as jnp
import numpy as np
import pytest
import stepwise

from jaxalign.decoding import Generation, Greedy, RewardHead, VocabularyValue, generate, loop, stream
from jaxalign.decoding.guidance.base import for_rows
from jaxalign.decoding.rows import make_rows
from jaxalign.models import random

LM = stepwise.tiny_lm()
CONTEXT, VOCAB = LM.config.max_position, LM.config.vocab_size
PROMPTS = stepwise.prompts(3, 12, 1, 7)
PAD = 299
# Stands in for the two facts about a tokenizer that decoding reads, and for its way back to text.
WITH_ENDS = dataclasses.replace(
    LM, tokenizer=types.SimpleNamespace(end_ids=(17, 5), pad_id=PAD, decode=lambda ids: " ".join(map(str, ids)))
)


def script(*rows):
    """A guidance that makes user u say row u."""
    width = max(map(len, rows))
    return stepwise.Script(tokens=jnp.array([[*row, *[-1] * (width - len(row))] for row in rows], jnp.int32))


# Why rows stop.


def test_each_end_token_stops_its_row_and_no_other():
    guidance = script([8, 9, 10, 17], [5], [8] * 10, [9, 5])
    results = generate(WITH_ENDS, PROMPTS, guidance=guidance, user=[0, 1, 2, 3], max_new_tokens=[9, 9, 6, 1])
    assert [(r.tokens, r.stop_reason) for r in results] == [
        ([8, 9, 10, 17], "end_token"),
        ([5], "end_token"),
        ([8] * 6, "length"),
        ([9], "length"),
    ]
    assert results[0].text == "8 9 10 17"
    results = generate(WITH_ENDS, PROMPTS, guidance=guidance, user=[0, 1, 2, 3], max_new_tokens=4, ignore_eos=True)
    assert {(len(r.tokens), r.stop_reason) for r in results} == {(4, "length")}


def test_an_ended_row_is_padded_from_there_on():
    guidance = script([8, 9, 10, 17, 11, 11], [8, 8, 5, 11, 11, 11], [8] * 10, [8])
    program = loop.Program(config=LM.config, context=CONTEXT, max_tokens=16, max_top_k=0, end_ids=(17, 5), pad_id=PAD)
    rows = make_rows(4, max_new_tokens=[12, 12, 10, 12], user=[0, 1, 2, 2])
    tokens = np.array([[0] * 14 + [3, 4]] * 4, np.int32)
    arguments = (program, LM.params, for_rows(guidance, np.arange(4)), Greedy(), rows)
    # The last row only fills the batch.
    state = loop.start(*arguments, tokens, np.full(4, 2, np.int32), np.array([True, True, True, False]))
    state = loop.decode(*arguments, state)
    np.testing.assert_array_equal(state.tokens[0], [8, 9, 10, 17] + [PAD] * 12)
    np.testing.assert_array_equal(state.tokens[1], [8, 8, 5] + [PAD] * 13)
    np.testing.assert_array_equal(state.tokens[2], [8] * 10 + [PAD] * 6)
    np.testing.assert_array_equal(state.tokens[3], [PAD] * 16)
    np.testing.assert_array_equal(state.chosen, [4, 3, 10, 0])
    # The loop ends with the last row that runs.
    assert int(state.number) == 10


def test_the_context_is_a_limit_and_never_wraps_round():
    prompts = stepwise.prompts(CONTEXT, CONTEXT - 1, CONTEXT - 5, 2, seed=3)
    results = generate(LM, prompts, max_new_tokens=[100, 10, 10, 3])
    assert [r.stop_reason for r in results] == ["cache_full"] * 3 + ["length"]
    # The last token needs no room: it is chosen and never encoded.
    assert [len(r.tokens) for r in results] == [1, 2, 6, 3]
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens == stepwise.greedy(LM, prompt, len(result.tokens))


def test_candidates_are_never_encoded_beyond_the_context():
    prompts = stepwise.prompts(CONTEXT - 1, CONTEXT - 5, 2, 2, seed=3)
    vector = np.random.default_rng(0).standard_normal(32).astype(np.float32) * 0.3
    head = RewardHead.linear(vector, weight=2.0)
    results = generate(LM, prompts, guidance=head, top_k=4, max_new_tokens=[100, 10, 3, 3])
    assert [(len(r.tokens), r.stop_reason) for r in results] == [
        (1, "cache_full"),
        (5, "cache_full"),
        (3, "length"),
        (3, "length"),
    ]
    reward = stepwise.linear(LM, vector, 2.0)
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens == stepwise.greedy(LM, prompt, len(result.tokens), k=4, reward=reward)
        # Every reward was of a text that fits, so that it is what judging the text gives.
        assert len(prompt) + len(result.tokens) <= CONTEXT


def test_a_limit_beyond_the_context_costs_no_memory_and_stops_there():
    prompts = stepwise.prompts(1, 20, 32, 32, seed=4)
    results = generate(LM, prompts, max_new_tokens=2**30)
    assert [(len(r.tokens), r.stop_reason) for r in results] == [(n, "cache_full") for n in (32, 13, 1, 1)]
    assert results[0].tokens == stepwise.greedy(LM, prompts[0], 32)


def test_long_prompts_are_cut_on_request_and_the_cut_is_counted():
    prompts = stepwise.prompts(CONTEXT + 5, CONTEXT, 4, 4, seed=3)
    cut, *_ = generate(LM, prompts, max_new_tokens=[100, 10, 10, 3], on_long_prompt="truncate_left")
    assert (cut.prompt_cut, cut.prompt_tokens) == (5, CONTEXT)
    assert cut.tokens == stepwise.greedy(LM, prompts[0][5:], 1)


# What is compiled.


def test_requests_of_similar_size_share_one_program():
    def sizes():
        return loop.start._cache_size(), loop.decode._cache_size()

    head = RewardHead.linear(np.ones((3, 32), np.float32), weight=0.1)
    generate(LM, PROMPTS, guidance=head, user=[0, 1, 0, 1], top_k=8, max_new_tokens=8)
    before = sizes()
    for seed in range(10):
        rng = np.random.default_rng(seed)
        prompts = stepwise.prompts(*rng.integers(1, 17, 4), seed=seed)
        k = rng.integers(1, 9, 4)
        k[seed % 4] = 8
        other = RewardHead.linear(rng.standard_normal((3, 32)).astype(np.float32), weight=float(seed))
        generate(
            LM, prompts, guidance=other, user=rng.integers(0, 2, 4), top_k=k, max_new_tokens=rng.integers(1, 17, 4)
        )
    assert sizes() == before


@pytest.mark.slow
def test_prompts_of_all_lengths_and_many_users_share_a_handful_of_programs():
    """50 prompts of 1 to 50 tokens by 20 users: a program for each bucket of lengths, and none for a user."""
    config = dataclasses.replace(LM.config, num_layers=1, max_position=64)
    lm = random(config)
    vectors = np.random.default_rng(0).standard_normal((20, 32)).astype(np.float32)

    def run(order):
        prompts = [[7] * (1 + place) for place in order]
        head = RewardHead.linear(vectors, weight=0.5)
        generate(
            lm, prompts, guidance=head, user=[place % 20 for place in order], top_k=2, max_new_tokens=2, batch_size=8
        )
        return loop.start._cache_size() + loop.decode._cache_size()

    before = loop.start._cache_size() + loop.decode._cache_size()
    after = run(range(50))
    assert 2 <= after - before <= 12
    assert run(np.random.default_rng(1).permutation(50)) == after


# What is drawn.

SAMPLED = dict(temperature=[1.0, 0.7, 2.0, 1.0], seed=[3, 3, 4, 5], request=[0, 7, 7, 2], max_new_tokens=8)  # noqa: C408


def pick(settings, order):
    return {name: [x[i] for i in order] if isinstance(x, list) else x for name, x in settings.items()}


def test_a_request_draws_the_same_whatever_its_neighbours():
    together = [r.tokens for r in generate(LM, PROMPTS, **SAMPLED)]
    for order in ([2, 0, 3, 1], [1, 1, 1, 1], [3, 0, 0, 3]):
        again = generate(LM, [PROMPTS[i] for i in order], **pick(SAMPLED, order))
        assert [r.tokens for r in again] == [together[i] for i in order]
    assert [r.tokens for r in generate(LM, PROMPTS, **SAMPLED, batch_size=2)] == together
    changed = generate(LM, PROMPTS, **SAMPLED | {"seed": 9})
    assert all(a.tokens != b for a, b in zip(changed, together, strict=True))


def test_temperature_is_the_row_s_own_and_zero_is_greedy():
    plain = stepwise.greedy(LM, PROMPTS[1], 8)
    same = [PROMPTS[1]] * 4
    cold, freezing, warm, one = generate(LM, same, temperature=[0.0, 1e-8, 1.0, 1.0], top_k=0, max_new_tokens=8)
    assert cold.tokens == freezing.tokens == plain
    assert plain != warm.tokens != one.tokens
    # Filters are the row's own too: one candidate, and a nucleus of one, are greedy.
    results = generate(LM, same, temperature=1.0, top_k=[1, 0, 3, 0], top_p=[1.0, 1e-6, 1.0, 1.0], max_new_tokens=8)
    assert results[0].tokens == results[1].tokens == plain
    assert results[3].tokens == one.tokens
    prefix = []
    for token in results[2].tokens:
        assert token in stepwise.choose(LM, PROMPTS[1], prefix, k=3)[0]
        prefix.append(token)


def test_sampling_among_candidates_follows_the_guided_policy():
    vector, k, rows = np.random.default_rng(0).standard_normal(32).astype(np.float32) * 0.2, 4, 256
    head = RewardHead.linear(vector, weight=2.0)
    settings = dict(guidance=head, top_k=k, temperature=1.5, max_new_tokens=1, batch_size=rows)  # noqa: C408
    drawn = [r.tokens[0] for seed in range(8) for r in generate(LM, PROMPTS[:1] * rows, seed=seed, **settings)]
    candidates, scores = stepwise.choose(LM, PROMPTS[0], [], k=k, reward=stepwise.linear(LM, vector, 2.0))
    assert set(drawn) <= set(candidates.tolist())
    p = np.exp((scores - scores.max()) / 1.5)
    expected = p / p.sum() * len(drawn)
    counts = np.array([drawn.count(v) for v in candidates])
    # Far in the tail of chi-square with three degrees of freedom.
    assert ((counts - expected) ** 2 / expected).sum() < 25


# What is recorded, and the order of results.


@pytest.mark.parametrize("kind", ["candidates", "vocabulary"])
def test_records_are_what_recomputing_gives(kind):
    rng = np.random.default_rng(5)
    vector, up = rng.standard_normal(32) * 0.3, rng.standard_normal((VOCAB, 32)) * 0.2
    if kind == "candidates":
        guidance = RewardHead.linear(vector.astype(np.float32), weight=2.0)
    else:
        guidance = VocabularyValue(up=jnp.asarray(up, jnp.float32), weight=2.0)
    top_k = 5 if kind == "candidates" else 0
    results = generate(LM, PROMPTS, guidance=guidance, top_k=top_k, max_new_tokens=6, record=True)
    changed = 0
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert set(result.records) == {"log_prob", "rank", "entropy", "reward", "changed", "skipped"}
        for t, token in enumerate(result.tokens):
            before = prompt + result.tokens[:t]
            hidden, log_prob = (x[-1] for x in stepwise.encode(LM, before))
            after = stepwise.encode(LM, [*before, token])[0][-1]
            reward = after @ vector if kind == "candidates" else up[token] @ hidden
            got = {name: values[t] for name, values in result.records.items()}
            assert got["log_prob"] == pytest.approx(log_prob[token], abs=1e-5)
            assert got["rank"] == (log_prob > log_prob[token]).sum()
            assert got["entropy"] == pytest.approx(-(np.exp(log_prob) * log_prob).sum(), abs=1e-5)
            assert got["reward"] == pytest.approx(reward, abs=1e-5)
            assert got["changed"] == (token != log_prob.argmax())
            changed += got["changed"]
    assert changed > 3


@pytest.mark.parametrize("guided", [False, True])
def test_no_step_copies_the_cache(guided):
    """XLA's CPU compiler would write the new slot first, and copy all buffers for those who still read them."""
    program = loop.Program(LM.config, CONTEXT, max_tokens=8, max_top_k=4 if guided else 0, end_ids=(), pad_id=0)
    guidance = RewardHead.linear(np.ones(LM.config.hidden_size, np.float32)) if guided else None
    rows = make_rows(2, max_new_tokens=8, top_k=4)
    first = (np.ones((2, 16), np.int32), np.array([16, 3], np.int32), np.ones(2, bool))
    state = loop.start(program, LM.params, guidance, Greedy(), rows, *first)
    keys = state.cache.layers[0][0]
    text = loop.decode.lower(program, LM.params, guidance, Greedy(), rows, state).compile().as_text()
    shape = f"f32[{','.join(map(str, keys.shape))}]"
    assert shape in text
    assert not [line for line in text.splitlines() if re.search(rf"= {re.escape(shape)}\S* copy\(", line)]


def test_results_come_batch_by_batch_longest_first_with_their_places():
    places = [(i, type(r)) for i, r in stream(LM, PROMPTS, max_new_tokens=8, batch_size=2)]
    assert places == [(i, Generation) for i in (1, 3, 0, 2)]
    finished = []
    generate(LM, PROMPTS, max_new_tokens=8, batch_size=2, progress=finished.append)
    assert sum(finished) == 4
