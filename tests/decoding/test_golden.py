"""The real model against reference outputs: the published ARGS search, and sums over given responses."""

import json

import numpy as np
import pytest

from jaxalign.decoding import RewardHead, SeparateRewardModel, generate
from jaxalign.decoding.guidance import linear_reward
from jaxalign.decoding.score import score

# As `how` in the golden files says.
VECTOR = (np.random.RandomState(1).randn(576) * 0.05).astype(np.float32)
HEAD = RewardHead.linear(VECTOR)


def separate(lm, weight):
    """The same reward by a second transformer with the language model's own weights."""
    return SeparateRewardModel(
        config=lm.config, params=lm.params, function=linear_reward, shared=(), users=HEAD.users, weight=weight
    )


@pytest.fixture(scope="module")
def golden(shared):
    return json.loads((shared / "golden" / "smollm2_135m.json").read_text())["cases"]


@pytest.fixture(scope="module")
def golden_policy(shared):
    return json.loads((shared / "golden" / "smollm2_135m_policy.json").read_text())["cases"]


def tokens(lm, golden, guidance):
    prompts = [case["ids"] for case in golden]
    return [r.tokens for r in generate(lm, prompts, guidance=guidance, max_new_tokens=24, ignore_eos=True)]


@pytest.mark.slow
def test_greedy_tokens(smollm2, golden):
    assert tokens(smollm2, golden, None) == [case["greedy"] for case in golden]


def check_fused(lm, cases):
    for weight in (0.5, 2.0):
        guidance = RewardHead.linear(VECTOR, weight=np.float32(weight))
        assert tokens(lm, cases, guidance) == [case[f"args_k10_w{weight}"] for case in cases]


def test_args_tokens_by_the_fused_path(smollm2, golden):
    """The one test of the default suite that decodes with the real model: its two shortest prompts."""
    check_fused(smollm2, sorted(golden, key=lambda case: len(case["ids"]))[:2])


@pytest.mark.slow
def test_all_args_tokens_by_the_fused_path(smollm2, golden):
    check_fused(smollm2, golden)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_args_tokens_by_two_models(weight, smollm2, golden):
    assert tokens(smollm2, golden, separate(smollm2, np.float32(weight))) == [
        case[f"args_k10_w{weight}"] for case in golden
    ]


def check_policy(lm, cases, guidance, weight):
    results = score(lm, [c["prompt"] for c in cases], [c["response"] for c in cases], guidance=guidance)
    for result, case in zip(results, cases, strict=True):
        assert result.num_tokens == len(case["response_ids"])
        wanted = {"log_prob": case["log_prob"], "reward": case["reward"]} | case[f"w{weight}"]
        for name, value in wanted.items():
            # Sums over long responses collect more rounding.
            assert getattr(result, name) == pytest.approx(value, abs=5e-3 if result.num_tokens < 60 else 2e-2), name


@pytest.mark.slow
def test_sums_over_given_responses(smollm2, golden_policy):
    check_policy(smollm2, golden_policy, RewardHead.linear(VECTOR, weight=np.float32(0.5)), 0.5)


@pytest.mark.slow
def test_sums_over_given_responses_by_two_models(smollm2, golden_policy):
    check_policy(smollm2, golden_policy, separate(smollm2, np.float32(2.0)), 2.0)
