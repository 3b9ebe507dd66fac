"""The flag `jax_enable_x64` changes nothing: every array of the decoder has a dtype of its own."""

import jax
import numpy as np
import pytest
import stepwise

from jaxalign.decoding import AutoregressiveReward, RewardHead, generate, score

LM = stepwise.tiny_lm()
OTHER = stepwise.tiny_lm(1)
PROMPTS = stepwise.prompts(3, 12, 1, 7)
VECTORS = np.random.default_rng(7).standard_normal((3, LM.config.hidden_size)).astype(np.float32) * 0.3
GUIDANCES = {
    "none": None,
    "head": RewardHead.linear(VECTORS, weight=2.0),
    "autoregressive": AutoregressiveReward(config=OTHER.config, params=OTHER.params, weight=0.5),
}


def run(guidance):
    """Tokens and records of greedy and sampled rows, and the scores of the tokens."""
    top_k = 5 if isinstance(guidance, RewardHead) else 0
    settings = {"guidance": guidance, "user": [2, 0, 1, 0], "top_k": top_k}
    results = generate(LM, PROMPTS, **settings, temperature=[0.0, 0.8, 0.0, 1.2], max_new_tokens=8, record=True)
    scores = score(LM, PROMPTS, [result.tokens for result in results], **settings | {"top_k": 5})
    return [(r.tokens, r.stop_reason, r.records) for r in results], scores


@pytest.mark.parametrize("name", GUIDANCES)
def test_same_tokens_records_and_scores(name):
    before, scored = run(GUIDANCES[name])
    with jax.enable_x64(True):
        after, scored_again = run(GUIDANCES[name])
    for (tokens, reason, records), (tokens_again, reason_again, records_again) in zip(before, after, strict=True):
        assert (tokens, reason) == (tokens_again, reason_again)
        for key, values in records.items():
            np.testing.assert_allclose(records_again[key], values, rtol=1e-5, atol=1e-5, err_msg=key)
    for one, again in zip(scored, scored_again, strict=True):
        assert one.log_prob == pytest.approx(again.log_prob, abs=1e-4)
        if name != "none":
            assert one.policy_log_prob == pytest.approx(again.policy_log_prob, abs=1e-4)
