"""Input that cannot work is refused with its place and the mend, before the model is run."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import stepwise

from jaxalign.decoding import (
    AutoregressiveReward,
    RewardHead,
    SeparateRewardModel,
    Sum,
    VocabularyValue,
    generate,
    loop,
)
from jaxalign.decoding.guidance import linear_reward
from jaxalign.decoding.score import score
from jaxalign.errors import InputError, ModelError

LM = stepwise.tiny_lm()
WIDTH, VOCAB = LM.config.hidden_size, LM.config.vocab_size
GOOD = [[1, 2, 3], [4]]
HEAD = RewardHead.linear(np.ones((2, WIDTH), np.float32))


@pytest.fixture(autouse=True)
def no_work(monkeypatch):
    """A refusal must come before the model is run."""
    import sys

    def fail(*_, **__):
        raise AssertionError("the model was run before the input was checked")

    monkeypatch.setattr(loop, "start", fail)
    monkeypatch.setattr(sys.modules["jaxalign.decoding.score"], "forced", fail)


def other_model(**changes):
    return dict(config=dataclasses.replace(LM.config, **changes), params=LM.params)  # noqa: C408


def value(up, down=None):
    return VocabularyValue(up=jnp.zeros(up), down=None if down is None else jnp.zeros(down))


PROMPTS = {
    "no_prompts": ([], {}, "there are no prompts"),
    "one_text": ("hello", {}, "give a list of prompts"),
    "empty_prompt": ([[1], []], {}, "prompt 1 is empty"),
    "empty_text": ([[1], ""], {}, "prompt 1 is empty"),
    "unknown_id": ([[1], [5, VOCAB]], {}, f"prompt 1: id {VOCAB} is not in the vocabulary of {VOCAB}"),
    "negative_id": ([[-1]], {}, "prompt 0: id -1"),
    "text_without_tokenizer": ([[1], "hello"], {}, "prompt 1 is text, and the model has no tokenizer"),
    "long": ([[1], [1] * 33], {}, "prompt 1 has 33 tokens and the context holds 32: shorten it"),
    "no_room_for_candidates": (
        [[1], [1] * 32],
        {"guidance": HEAD},
        "prompt 1 has 32 tokens and the context holds 32, 1 of them for the candidates: shorten it",
    ),
    "policy": (GOOD, {"on_long_prompt": "drop"}, "on_long_prompt = 'drop'"),
    "no_batch": (GOOD, {"batch_size": 0}, "batch_size = 0"),
    "no_tokens": (GOOD, {"max_new_tokens": [4, 0]}, "max_new_tokens = 0 in row 1: at least 1"),
    "negative_temperature": (GOOD, {"temperature": -1.0}, "temperature = -1.0 in row 0"),
    "nan_temperature": (GOOD, {"temperature": [0.0, np.nan]}, "temperature = nan in row 1"),
    "infinite_temperature": (GOOD, {"temperature": np.inf}, "temperature = inf in row 0"),
    "no_top_p": (GOOD, {"top_p": 0.0}, "top_p = 0.0 in row 0"),
    "large_top_p": (GOOD, {"top_p": [0.5, 1.5]}, "top_p = 1.5 in row 1"),
    "nan_top_p": (GOOD, {"top_p": np.nan}, "top_p = nan in row 0"),
    "negative_k": (GOOD, {"top_k": -1}, "top_k = -1 in row 0"),
    "k_above_vocabulary": (GOOD, {"top_k": [0, VOCAB + 1]}, f"top_k = {VOCAB + 1} in row 1: between 0 and {VOCAB}"),
    "negative_user": (GOOD, {"user": -1}, "user = -1 in row 0"),
    "three_users": (GOOD, {"user": [0, 1, 2]}, r"user = \[0, 1, 2\]: a number, or one for each of the 2 rows"),
    "negative_seed": (GOOD, {"seed": -1}, "seed = -1: a number"),
    "three_requests": (GOOD, {"request": [0, 1, 2]}, r"request = \[0, 1, 2\]: a number, or one for each"),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_and_settings(case):
    prompts, settings, message = PROMPTS[case]
    with pytest.raises(InputError, match=message):
        generate(LM, prompts, **settings)


GUIDANCES = {
    "negative_weight": (InputError, {"weight": -0.5}, {}, "RewardHead: weight = -0.5 must be finite and not negative"),
    "nan_weight": (InputError, {"weight": np.array([1.0, np.nan])}, {}, "RewardHead: weight = .* must be finite"),
    "infinite_weight": (InputError, {"weight": np.inf}, {}, "RewardHead: weight = inf must be finite"),
    "three_weights": (InputError, {"weight": np.ones(3)}, {}, r"RewardHead: weight has shape \(3,\)"),
    "table_of_weights": (InputError, {"weight": np.ones((2, 1))}, {}, r"RewardHead: weight has shape \(2, 1\)"),
    "no_clip": (InputError, {"clip": 0.0}, {}, "RewardHead: clip = 0.0 must be above 0"),
    "unknown_user": (InputError, {}, {"user": [0, 2]}, "unknown user: index 2, and RewardHead has parameters for 2"),
    "no_candidates": (InputError, {}, {"top_k": [3, 0]}, f"top_k = 0 in row 1: between 1 and {VOCAB}"),
    "k_above_vocabulary": (InputError, {}, {"top_k": VOCAB + 1}, f"top_k = {VOCAB + 1} in row 0: between 1"),
    "users_disagree": (
        ModelError,
        {"users": {"vector": jnp.ones((3, WIDTH)), "bias": jnp.ones(2)}},
        {},
        r"per-user parameters disagree on the number of users: \[2, 3\]",
    ),
    "width": (
        ModelError,
        {"users": {"vector": jnp.ones((2, 7)), "bias": jnp.ones(2)}},
        {},
        "RewardHead: its reward function does not take hidden states of width 32",
    ),
    "shape": (
        ModelError,
        {"users": {"vector": jnp.ones((2, WIDTH, 3)), "bias": jnp.ones((2, 3))}},
        {},
        "RewardHead: its reward function .*",
    ),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("case", GUIDANCES)
def test_guidances(case, inside):
    error, fields, settings, message = GUIDANCES[case]
    guidance = dataclasses.replace(HEAD, **fields)
    guidance = Sum(terms=(HEAD, guidance)) if inside else guidance
    for run in (generate, lambda lm, prompts, **how: score(lm, prompts, [[5], [6, 7]], **how)):
        with pytest.raises(error, match=message):
            run(LM, GOOD, guidance=guidance, **{"top_k": 3} | settings)


def separate(**changes):
    return SeparateRewardModel(**other_model(**changes), function=linear_reward, shared=(), users=HEAD.users)


MODELS = {
    "vocabulary": (separate(vocab_size=301), "SeparateRewardModel: its vocabulary has 301 tokens .* one tokenizer"),
    "width": (separate(hidden_size=16), "SeparateRewardModel: its reward function .* of width 16"),
    "autoregressive": (AutoregressiveReward(**other_model(vocab_size=9)), "AutoregressiveReward: its vocabulary has 9"),
    "values": (value((9, WIDTH)), "VocabularyValue: it has values for 9 tokens, the model 300"),
    "value_width": (value((VOCAB, 16)), "VocabularyValue: it reads hidden states of width 16, not 32"),
    "value_rank": (value((VOCAB, 4), (2, 5, WIDTH)), "VocabularyValue: `down` has rank 5 and `up` has rank 4"),
    "low_rank_width": (value((VOCAB, 4), (2, 4, 7)), "VocabularyValue: it reads hidden states of width 7, not 32"),
}


@pytest.mark.parametrize("case", MODELS)
def test_models_that_do_not_fit(case):
    guidance, message = MODELS[case]
    with pytest.raises(ModelError, match=message):
        generate(LM, GOOD, guidance=guidance)


def test_value_heads_know_their_users_and_their_k():
    guidance = value((VOCAB, 4), (2, 4, WIDTH))
    with pytest.raises(InputError, match="unknown user: index 5, and VocabularyValue has parameters for 2 users"):
        generate(LM, GOOD, guidance=guidance, user=[0, 5])
    with pytest.raises(InputError, match="top_k = 999 in row 0: between 0 and 300"):
        generate(LM, GOOD, guidance=guidance, top_k=999, temperature=1.0)


def test_the_shorter_context_of_a_reward_model_counts():
    with pytest.raises(InputError, match="prompt 0 has 3 tokens and the context holds 2"):
        generate(LM, GOOD, guidance=separate(max_position=2))
    with pytest.raises(InputError, match=r"prompt 0 and its response have 5 tokens .* the context holds 4"):
        score(LM, GOOD, [[5, 6], [7]], guidance=separate(max_position=4))


RESPONSES = {
    "no_prompts": ([], [], {}, "there are no prompts"),
    "numbers_differ": (GOOD, [[1]], {}, "2 prompts and 1 responses: one response per prompt"),
    "empty_response": (GOOD, [[1], []], {}, "response 1 is empty"),
    "unknown_id": (GOOD, [[VOCAB], [1]], {}, f"response 0: id {VOCAB} is not in the vocabulary"),
    "text_without_tokenizer": (GOOD, [[1], "no"], {}, "response 1 is text, and the model has no tokenizer"),
    "no_room": (GOOD, [[1], [1] * 32], {}, r"prompt 1 and its response have 33 tokens \(32 of them the response\)"),
    "no_room_for_response": (
        GOOD,
        [[1], [1] * 32],
        {"on_long_prompt": "truncate_left"},
        "prompt 1 and its response have 33 tokens .* shorten them$",
    ),
    "policy": (GOOD, [[1], [1]], {"on_long_prompt": "drop"}, "on_long_prompt = 'drop'"),
    "no_batch": (GOOD, [[1], [1]], {"batch_size": 0}, "batch_size = 0"),
    "negative_user": (GOOD, [[1], [1]], {"user": [0, -1]}, "user = -1 in row 1"),
    "three_ks": (GOOD, [[1], [1]], {"top_k": [1, 2, 3]}, r"top_k = \[1, 2, 3\]: a number, or one for each"),
}


@pytest.mark.parametrize("case", RESPONSES)
def test_responses(case):
    prompts, responses, settings, message = RESPONSES[case]
    with pytest.raises(InputError, match=message):
        score(LM, prompts, responses, **settings)
