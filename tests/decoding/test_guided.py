"""Guided decoding against the slow reference of `stepwise`, and against itself by every other path."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stepwise

from jaxalign.decoding import (
    AutoregressiveReward,
    Ensemble,
    FirstTokens,
    Greedy,
    Linear,
    RewardHead,
    SeparateRewardModel,
    Sum,
    VocabularyValue,
    generate,
    loop,
    score,
)
from jaxalign.decoding.guidance import linear_reward
from jaxalign.decoding.rows import make_rows
from jaxalign.models import random
from jaxalign.models.tokenizer import left_pad

LM = stepwise.tiny_lm()
WIDTH, VOCAB = LM.config.hidden_size, LM.config.vocab_size
PROMPTS = stepwise.prompts(3, 12, 1, 7)
RNG = np.random.default_rng(7)
# Strong enough to change about half of the tokens: the tests below check that they do.
VECTORS = RNG.standard_normal((3, WIDTH)).astype(np.float32) * 0.3
HEAD = RewardHead.linear(VECTORS, bias=[0.0, 1.0, -1.0])
USERS, WEIGHTS, KS, NEW = [2, 0, 1, 0], [0.5, 2.0, 1.0, 8.0], [8, 3, 5, 8], 8
PLAIN = [stepwise.greedy(LM, prompt, NEW) for prompt in PROMPTS]


def tokens(**settings):
    """Tokens of all prompts; the same shapes in all tests, so that they share programs."""
    settings = {"max_new_tokens": NEW, "user": USERS, "top_k": KS} | settings
    return [result.tokens for result in generate(LM, PROMPTS, **settings)]


def separate(config=LM.config, params=LM.params, **kwargs):
    return SeparateRewardModel(
        config=config, params=params, function=linear_reward, shared=(), users=HEAD.users, **kwargs
    )


@pytest.fixture(scope="module")
def expected():
    """Tokens of the mixed batch by the slow reference."""
    return [
        stepwise.greedy(LM, p, NEW, k=k, reward=stepwise.linear(LM, VECTORS[u], w))
        for p, u, w, k in zip(PROMPTS, USERS, WEIGHTS, KS, strict=True)
    ]


def test_fused_and_two_models_equal_re_encoding_in_a_mixed_batch(expected):
    assert sum(a != b for a, b in zip(np.ravel(expected), np.ravel(PLAIN), strict=True)) > 8
    weight = np.asarray(WEIGHTS, np.float32)
    assert tokens(guidance=dataclasses.replace(HEAD, weight=weight)) == expected
    assert tokens(guidance=separate(weight=weight)) == expected


def test_each_row_alone_gives_what_it_gives_in_the_batch(expected):
    for prompt, u, w, k, want in zip(PROMPTS, USERS, WEIGHTS, KS, expected, strict=True):
        head = dataclasses.replace(HEAD, weight=np.full(4, w, np.float32))
        # Four copies, so that the batch's programs serve here too: a row knows nothing of its neighbours.
        results = generate(LM, [prompt] * 4, guidance=head, user=u, top_k=[k, 8, 8, 8], max_new_tokens=NEW)
        assert results[0].tokens == want


def test_one_row_in_a_batch_of_one(expected):
    head = dataclasses.replace(HEAD, weight=np.asarray(WEIGHTS[2:3], np.float32))
    assert generate(LM, PROMPTS[2:3], guidance=head, user=1, top_k=5, max_new_tokens=NEW)[0].tokens == expected[2]


def test_sampled_rows_have_settings_of_their_own():
    """Guidance weights of 0, 1 and 50, other seeds, k and temperatures: a greedy or an extreme row changes no other."""
    weight = np.asarray([0.0, 1.0, 50.0, 1.0], np.float32)
    own = {"user": [0, 1, 2, 0], "top_k": [8, 3, 5, 1], "temperature": [1.0, 0.7, 0.0, 1.0], "seed": [1, 2, 3, 4]}
    together = generate(
        LM, PROMPTS, guidance=dataclasses.replace(HEAD, weight=weight), request=0, max_new_tokens=NEW, **own
    )
    for row, prompt in enumerate(PROMPTS):
        alone = {name: [values[row]] * 4 for name, values in own.items()} | {"top_k": [own["top_k"][row], 8, 8, 8]}
        head = dataclasses.replace(HEAD, weight=np.full(4, weight[row]))
        results = generate(LM, [prompt] * 4, guidance=head, request=0, max_new_tokens=NEW, **alone)
        assert results[0].tokens == together[row].tokens
    assert together[3].tokens == PLAIN[3]  # one candidate


def test_the_order_of_rows_and_the_batch_size_do_not_matter(expected):
    weight = np.asarray(WEIGHTS, np.float32)
    order = np.array([3, 1, 0, 2])
    mixed = generate(
        LM,
        [PROMPTS[i] for i in order],
        guidance=dataclasses.replace(HEAD, weight=weight[order]),
        user=np.asarray(USERS)[order],
        top_k=np.asarray(KS)[order],
        max_new_tokens=NEW,
    )
    assert [result.tokens for result in mixed] == [expected[i] for i in order]
    # Three rows, then the shortest one alone.
    assert tokens(guidance=dataclasses.replace(HEAD, weight=weight), batch_size=3) == expected
    # Three prompts leave a padding row in a batch of four.
    three = generate(
        LM,
        PROMPTS[:3],
        guidance=dataclasses.replace(HEAD, weight=weight[:3]),
        user=USERS[:3],
        top_k=KS[:3],
        max_new_tokens=NEW,
    )
    assert [result.tokens for result in three] == expected[:3]


def test_no_weight_and_one_candidate_are_plain_greedy():
    assert tokens(top_k=0) == PLAIN
    for head in (HEAD, separate()):
        assert tokens(guidance=dataclasses.replace(head, weight=np.zeros(4, np.float32))) == PLAIN
    head = dataclasses.replace(HEAD, weight=np.full(4, 9.0, np.float32))
    assert tokens(guidance=head, top_k=[1, 8, 1, 8])[::2] == PLAIN[::2]


def test_separate_reward_model_with_weights_of_its_own():
    other = stepwise.tiny_lm(1)
    narrow = dataclasses.replace(separate(params=other.params), weight=np.full(4, 2.0, np.float32))
    want = [
        stepwise.greedy(LM, p, NEW, k=k, reward=stepwise.linear(other, VECTORS[u], 2.0))
        for p, u, k in zip(PROMPTS, USERS, KS, strict=True)
    ]
    assert want != PLAIN
    assert tokens(guidance=narrow) == want


def test_autoregressive_reward():
    other = stepwise.tiny_lm(1)
    want = [
        stepwise.greedy(
            LM, p, NEW, bonus=lambda prompt, prefix, t: 0.7 * stepwise.encode(other, prompt + prefix)[1][-1]
        )
        for p in PROMPTS
    ]
    assert want != PLAIN
    assert tokens(guidance=AutoregressiveReward(config=other.config, params=other.params, weight=0.7), top_k=0) == want


def value_head(low_rank):
    up = RNG.standard_normal((VOCAB, 4 if low_rank else WIDTH)).astype(np.float32) * 0.5
    down = RNG.standard_normal((3, 4, WIDTH)).astype(np.float32) * 0.3
    matrix = np.einsum("vr,urd->uvd", up, down) if low_rank else np.stack([up] * 3)
    return VocabularyValue(up=jnp.asarray(up), down=jnp.asarray(down) if low_rank else None), matrix


@pytest.mark.parametrize("low_rank", [False, True])
def test_vocabulary_value(low_rank):
    guidance, matrix = value_head(low_rank)

    def bonus(user, weight):
        return lambda prompt, prefix, t: weight * (matrix[user] @ stepwise.encode(LM, prompt + prefix)[0][-1])

    want = [stepwise.greedy(LM, p, NEW, bonus=bonus(u, w)) for p, u, w in zip(PROMPTS, USERS, WEIGHTS, strict=True)]
    assert want != PLAIN
    assert tokens(guidance=dataclasses.replace(guidance, weight=np.asarray(WEIGHTS, np.float32)), top_k=0) == want


def test_ensemble_is_the_mean_less_the_penalised_deviation():
    members = tuple(RewardHead.linear(VECTORS[i : i + 1]) for i in range(3))
    guidance = Ensemble(members=members, penalty=0.5, weight=2.0)

    def reward(prompt, prefix, t):
        rewards = VECTORS @ stepwise.encode(LM, prompt + prefix)[0][-1]
        return 2.0 * (rewards.mean() - 0.5 * rewards.std())

    want = [stepwise.greedy(LM, p, NEW, k=k, reward=reward) for p, k in zip(PROMPTS, KS, strict=True)]
    assert want != PLAIN
    assert tokens(guidance=guidance, user=0) == want


def test_a_reward_on_the_mean_over_the_response():
    def reward(user, weight):
        return lambda prompt, prefix, t: (
            weight * (stepwise.encode(LM, prompt + prefix)[0][len(prompt) :].mean(axis=0) @ VECTORS[user])
        )

    weight = 3 * np.asarray(WEIGHTS, np.float32)
    want = [
        stepwise.greedy(LM, p, NEW, k=k, reward=reward(u, w))
        for p, u, w, k in zip(PROMPTS, USERS, weight, KS, strict=True)
    ]
    assert want != PLAIN
    assert tokens(guidance=dataclasses.replace(HEAD, pooling="mean", weight=weight)) == want
    assert tokens(guidance=dataclasses.replace(HEAD, weight=weight)) != want


def test_scanned_layers_give_the_same_tokens(expected):
    blocks = jax.tree.map(lambda *layers: jnp.stack(layers), *LM.params["blocks"].values())
    scanned = dataclasses.replace(LM, params=LM.params | {"blocks": blocks})
    head = dataclasses.replace(HEAD, weight=np.asarray(WEIGHTS, np.float32))
    results = generate(scanned, PROMPTS, guidance=head, user=USERS, top_k=KS, max_new_tokens=NEW)
    assert [result.tokens for result in results] == expected


def test_eight_devices_give_the_same_tokens(expected):
    """Parameters and heads on every device, one row on each."""
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:8]), "rows", axis_types=(jax.sharding.AxisType.Auto,))
    by_row, whole = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("rows",), ()))
    program = loop.Program(LM.config, LM.config.max_position, 16, 8, (), 0)
    twice = np.tile(np.arange(4), 2)
    head = dataclasses.replace(HEAD, weight=np.asarray(WEIGHTS, np.float32)[twice])
    params, head = jax.device_put((LM.params, head), whole)
    rows = make_rows(8, max_new_tokens=NEW, user=np.asarray(USERS)[twice], top_k=np.asarray(KS)[twice])
    ids, lengths = left_pad([PROMPTS[i] for i in twice], 16, 0)
    rows, *texts = jax.device_put((rows, ids, lengths, np.ones(8, bool)), by_row)
    state = loop.decode(
        program, params, head, Greedy(), rows, loop.start(program, params, head, Greedy(), rows, *texts)
    )
    assert len(state.cache.start.sharding.device_set) == 8
    np.testing.assert_array_equal(state.tokens[:, :NEW], expected * 2)


def test_half_precision_decodes_as_it_scores():
    half = random(LM.config, dtype="bfloat16")
    head = dataclasses.replace(HEAD, weight=np.asarray(WEIGHTS, np.float32))
    settings = dict(guidance=head, user=USERS, top_k=KS)  # noqa: C408
    results = generate(half, PROMPTS, max_new_tokens=NEW, record=True, **settings)
    assert [(len(r.tokens), r.stop_reason) for r in results] == [(NEW, "length")] * 4
    for result, judged in zip(results, score(half, PROMPTS, [r.tokens for r in results], **settings), strict=True):
        np.testing.assert_allclose(result.records["log_prob"], judged.token_log_prob, rtol=0, atol=0.1)
        np.testing.assert_allclose(result.records["reward"], judged.token_reward, rtol=0, atol=0.1)


def test_a_sum_of_schedules_clips_and_kinds():
    value, matrix = value_head(True)
    value = dataclasses.replace(value, weight=0.5, clip=1.5)
    head = dataclasses.replace(HEAD, weight=np.asarray(WEIGHTS, np.float32), schedule=Linear(2.0, 0.0, 5))
    own = separate(weight=3.0, clip=0.4, schedule=FirstTokens(3))
    guidance = Sum(terms=(head, value, own), weight=np.float32(0.8))

    def bonus(user):
        return lambda prompt, prefix, t: (
            0.8 * 0.5 * np.clip(matrix[user] @ stepwise.encode(LM, prompt + prefix)[0][-1], -1.5, 1.5)
        )

    def reward(user, weight):
        def total(prompt, prefix, t):
            raw = stepwise.encode(LM, prompt + prefix)[0][-1] @ VECTORS[user] + (0.0, 1.0, -1.0)[user]
            return 0.8 * (weight * max(2.0 - t / 2, 0.0) * raw + (3.0 * np.clip(raw, -0.4, 0.4) if t < 3 else 0.0))

        return total

    want = [
        stepwise.greedy(LM, p, NEW, k=k, reward=reward(u, w), bonus=bonus(u))
        for p, u, w, k in zip(PROMPTS, USERS, WEIGHTS, KS, strict=True)
    ]
    assert tokens(guidance=guidance) == want


def test_a_row_whose_rewards_break_stops_and_the_others_go_on():
    # One NaN, all NaN, one infinite, all minus infinite; and a user for whom all is well.
    fault = stepwise.Fault(
        at=jnp.array([2, 0, 5, 3, 99]),
        value=jnp.array([jnp.nan, jnp.nan, jnp.inf, -jnp.inf, 0.0]),
        candidates=jnp.array([1, 8, 1, 8, 0]),
        first=jnp.zeros(5, jnp.int32),
    )
    for broken in range(4):
        results = generate(LM, PROMPTS, guidance=fault, user=[4, broken, 4, 4], top_k=[8, 8, 1, 3], max_new_tokens=NEW)
        assert [result.stop_reason for result in results] == ["length", "non_finite", "length", "length"]
        assert results[1].tokens == PLAIN[1][: int(fault.at[broken])]
        assert [results[i].tokens for i in (0, 2, 3)] == [PLAIN[i] for i in (0, 2, 3)]


def test_a_broken_reward_beyond_a_row_s_own_k_is_never_seen():
    # The reward of candidate 5 and of those after it is broken.
    fault = stepwise.Fault(
        at=jnp.full(5, 2),
        value=jnp.full(5, jnp.nan),
        candidates=jnp.full(5, 8),
        first=jnp.full(5, 5),
    )
    results = generate(LM, PROMPTS, guidance=fault, user=0, top_k=[5, 8, 1, 6], max_new_tokens=NEW)
    assert [result.stop_reason for result in results] == ["length", "non_finite", "length", "non_finite"]
    assert [result.tokens for result in results] == [PLAIN[0], PLAIN[1][:2], PLAIN[2], PLAIN[3][:2]]


def test_a_broken_value_head_stops_its_user_s_row_alone():
    down = np.zeros((3, 4, WIDTH), np.float32)
    down[0] = np.nan
    guidance = VocabularyValue(up=jnp.ones((VOCAB, 4)), down=jnp.asarray(down), weight=np.ones(4, np.float32))
    results = generate(LM, PROMPTS, guidance=guidance, user=[1, 0, 2, 1], top_k=0, max_new_tokens=NEW)
    assert [result.stop_reason for result in results] == ["length", "non_finite", "length", "length"]
    assert [result.tokens for result in results] == [PLAIN[0], [], PLAIN[2], PLAIN[3]]


def test_one_nan_among_the_logits_stops_the_rows():
    # One broken row of the (tied) output matrix, which is no prompt's token: every logit but one is a number.
    token = next(t for t in range(VOCAB) if t not in np.concatenate([*PROMPTS, *PLAIN]))
    broken = dataclasses.replace(LM, params=LM.params | {"embed": LM.params["embed"].at[token].set(jnp.nan)})
    results = generate(broken, PROMPTS, max_new_tokens=NEW)
    assert {(len(result.tokens), result.stop_reason) for result in results} == {(0, "non_finite")}
