"""Judging given responses: against stepping token by token from scratch, and the formulas by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import stepwise

from jaxalign.decoding import AutoregressiveReward, Linear, RewardHead, SeparateRewardModel, Sum, VocabularyValue
from jaxalign.decoding.guidance import linear_reward
from jaxalign.decoding.score import score
from jaxalign.errors import InputError

LM = stepwise.tiny_lm()
WIDTH, VOCAB = LM.config.hidden_size, LM.config.vocab_size
PROMPTS, RESPONSES = stepwise.prompts(3, 12, 1, 7), stepwise.prompts(5, 2, 9, 1, seed=1)
USERS, WEIGHTS, KS = [2, 0, 1, 0], np.array([0.5, 2.0, 1.0, 4.0], np.float32), [8, 3, 1, 5]
RNG = np.random.default_rng(7)
VECTORS = RNG.standard_normal((3, WIDTH)).astype(np.float32) * 0.3
HEAD = RewardHead.linear(VECTORS, weight=WEIGHTS)
OWN = SeparateRewardModel(
    config=LM.config, params=LM.params, function=linear_reward, shared=(), users=HEAD.users, weight=WEIGHTS
)
UP = RNG.standard_normal((VOCAB, WIDTH)).astype(np.float32) * 0.2
NUMBERS = ("log_prob", "policy_log_prob", "score", "sequence", "reward")
close = dict(abs=2e-4)  # noqa: C408


def numbers(results):
    return [[getattr(r, name) for name in NUMBERS] + r.token_log_prob + r.token_policy_log_prob for r in results]


def equal(a, b, tolerance=1e-4):
    for ours, theirs in zip(numbers(a), numbers(b), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def judge(**settings):
    return score(LM, PROMPTS, RESPONSES, **{"user": USERS, "top_k": KS} | settings)


def slow(i, raw=None, weight=0.0, bonus=None, bonus_weight=0.0, k=None):
    """All numbers of text i by stepping through it: sums over t of what each token's own scores give."""
    prompt, response = PROMPTS[i], RESPONSES[i]
    log_prob = policy = rewarded = plain_bonus = 0.0
    last = 0.0

    def reward(prompt, prefix, t):
        return weight * raw(prompt, prefix)

    for t, token in enumerate(response):
        prefix = response[:t]
        own = stepwise.encode(LM, prompt + prefix)[1][-1][token]
        log_prob += own
        extra = 0.0 if bonus is None else bonus(prompt, prefix)[token]
        plain_bonus += extra
        candidates, scores = stepwise.choose(
            LM,
            prompt,
            prefix,
            k=k,
            reward=None if raw is None else reward,
            bonus=None if bonus is None else lambda p, y, t: bonus_weight * bonus(p, y),
        )
        last = 0.0 if raw is None else raw(prompt, [*prefix, token])
        value = own + bonus_weight * extra + weight * last
        rewarded += value
        others = scores[candidates != token]
        policy += value - np.log(np.exp(others).sum() + np.exp(value))
    return {
        "log_prob": log_prob,
        "policy_log_prob": policy,
        "score": rewarded,
        "sequence": log_prob + bonus_weight * plain_bonus + weight * last,
        "reward": plain_bonus + last,
    }


def check(result, wanted):
    for name, value in wanted.items():
        assert getattr(result, name) == pytest.approx(value, **close), name


def raw_reward(user):
    return lambda prompt, prefix: float(stepwise.encode(LM, prompt + prefix)[0][-1] @ VECTORS[user])


def raw_bonus(prompt, prefix):
    return UP @ stepwise.encode(LM, prompt + prefix)[0][-1]


@pytest.fixture(scope="module")
def fused():
    return judge(guidance=HEAD)


def test_log_probabilities_alone():
    for i, result in enumerate(judge(top_k=0)):
        assert result.num_tokens == len(RESPONSES[i])
        assert result.policy_log_prob is result.score is result.sequence is result.reward is None
        wanted = stepwise.encode(LM, PROMPTS[i] + RESPONSES[i])[1]
        places = range(len(PROMPTS[i]) - 1, len(PROMPTS[i]) + len(RESPONSES[i]) - 1)
        np.testing.assert_allclose(
            result.token_log_prob, [wanted[p][v] for p, v in zip(places, RESPONSES[i], strict=True)], rtol=0, atol=1e-5
        )
        assert result.log_prob == pytest.approx(sum(result.token_log_prob))


def test_a_mixed_batch_is_what_stepping_gives(fused):
    for i, result in enumerate(fused):
        check(result, slow(i, raw=raw_reward(USERS[i]), weight=float(WEIGHTS[i]), k=KS[i]))


def test_a_reward_on_the_mean_over_the_response():
    def raw(user):
        return lambda prompt, prefix: float(
            stepwise.encode(LM, prompt + prefix)[0][len(prompt) :].mean(axis=0) @ VECTORS[user]
        )

    for i, result in enumerate(judge(guidance=dataclasses.replace(HEAD, pooling="mean"))):
        check(result, slow(i, raw=raw(USERS[i]), weight=float(WEIGHTS[i]), k=KS[i]))


def test_sums_are_the_formulas_of_the_tokens(fused):
    for result, weight in zip(fused, WEIGHTS, strict=True):
        rewards = np.asarray(result.token_reward)
        assert result.policy_log_prob == pytest.approx(sum(result.token_policy_log_prob))
        assert result.score == pytest.approx(sum(result.token_log_prob) + weight * rewards.sum())
        assert result.sequence == pytest.approx(result.log_prob + weight * rewards[-1])
        assert result.reward == pytest.approx(rewards[-1])


def test_a_separate_model_with_equal_weights_gives_the_same(fused):
    equal(judge(guidance=OWN), fused)


def test_order_neighbours_batch_size_and_padding_do_not_matter(fused):
    equal(judge(guidance=HEAD, batch_size=3), fused)
    order = np.array([2, 0, 3, 1])
    mixed = score(
        LM,
        [PROMPTS[i] for i in order],
        [RESPONSES[i] for i in order],
        guidance=dataclasses.replace(HEAD, weight=WEIGHTS[order]),
        user=np.asarray(USERS)[order],
        top_k=np.asarray(KS)[order],
    )
    equal(mixed, [fused[i] for i in order])
    # One by one: a text is padded less, and its number of candidates is its own.
    head = dataclasses.replace(HEAD, weight=WEIGHTS[3:])
    equal(score(LM, PROMPTS[3:], RESPONSES[3:], guidance=head, user=USERS[3], top_k=KS[3]), fused[3:])


def test_without_weight_and_with_all_candidates_the_policy_is_the_language_model():
    for result in judge(guidance=dataclasses.replace(HEAD, weight=np.zeros(4, np.float32)), top_k=VOCAB):
        for value in (result.policy_log_prob, result.score, result.sequence):
            assert value == pytest.approx(result.log_prob, **close)


def test_as_the_weight_grows_sequence_ranks_as_the_reward_does():
    weight = np.full(4, 1e6, np.float32)
    results = judge(guidance=dataclasses.replace(HEAD, weight=weight), user=0)
    assert np.argsort([r.sequence for r in results]).tolist() == np.argsort([r.reward for r in results]).tolist()


def test_a_vocabulary_guidance_is_what_stepping_gives():
    for i, result in enumerate(judge(guidance=VocabularyValue(up=jnp.asarray(UP), weight=1.5))):
        check(result, slow(i, bonus=raw_bonus, bonus_weight=1.5))


def test_an_autoregressive_reward_is_what_stepping_gives():
    other = stepwise.tiny_lm(1)
    guidance = AutoregressiveReward(config=other.config, params=other.params, weight=0.7)
    for i, result in enumerate(judge(guidance=guidance)):
        check(result, slow(i, bonus=lambda p, y: stepwise.encode(other, p + y)[1][-1], bonus_weight=0.7))


def test_a_sum_of_head_and_vocabulary_is_what_stepping_gives():
    value = VocabularyValue(up=jnp.asarray(UP), weight=1.5)
    head = dataclasses.replace(HEAD, weight=2 * WEIGHTS)
    results = judge(guidance=Sum(terms=(head, value), weight=0.5))
    for i, result in enumerate(results):
        wanted = slow(
            i, raw=raw_reward(USERS[i]), weight=float(WEIGHTS[i]), bonus=raw_bonus, bonus_weight=0.75, k=KS[i]
        )
        # The parts of a sum come weighted by their own weights, and before the sum's own.
        wanted.pop("reward")
        check(result, wanted)
        assert result.reward == pytest.approx((result.sequence - result.log_prob) / 0.5, **close)


def test_a_schedule_counts_from_the_first_token_of_the_response():
    schedule = Linear(1.0, 0.0, 4)
    for result, plain in zip(
        judge(guidance=dataclasses.replace(HEAD, schedule=schedule)), judge(guidance=HEAD), strict=True
    ):
        np.testing.assert_allclose(result.token_reward, plain.token_reward, rtol=0, atol=1e-5)
    for result, weight in zip(judge(guidance=dataclasses.replace(HEAD, schedule=schedule)), WEIGHTS, strict=True):
        factor = np.maximum(1 - np.arange(result.num_tokens) / 3, 0)
        wanted = result.log_prob + weight * (factor * np.asarray(result.token_reward)).sum()
        assert result.score == pytest.approx(wanted, **close)


def test_a_text_that_fills_the_context_and_one_that_is_cut():
    prompts, responses = stepwise.prompts(24, 40), stepwise.prompts(8, 8, seed=2)
    full, cut = score(LM, prompts, responses, on_long_prompt="truncate_left")
    assert (full.prompt_cut, cut.prompt_cut) == (0, 16)
    wanted = stepwise.encode(LM, prompts[1][16:] + responses[1])[1]
    assert cut.log_prob == pytest.approx(sum(wanted[23 + t][v] for t, v in enumerate(responses[1])), **close)


def test_a_reward_that_is_not_finite_is_named():
    fault = stepwise.Fault(at=jnp.array([99, 1]), value=jnp.array([jnp.nan] * 2), candidates=jnp.array([0, 9]))
    with pytest.raises(InputError, match=r"response 2: (policy_log_prob|reward|weighted_reward) is nan at its token 1"):
        judge(guidance=fault, user=[0, 0, 1, 0])
