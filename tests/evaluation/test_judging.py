"""The pass that judges all users, reward models, weights and k at once, against judging each by itself; the limits of
the forms of policy accuracy."""

import dataclasses

import numpy as np
import planted
import pytest
import stepwise

from jaxalign import rewards
from jaxalign.decoding import RewardHead, score
from jaxalign.errors import InputError
from jaxalign.evaluation import forms
from jaxalign.evaluation.forms import JudgedPairs
from jaxalign.evaluation.judging import Judging, collect
from jaxalign.evaluation.roster import Roster
from jaxalign.evaluation.sharding import make_mesh
from jaxalign.rewards.protocol import row_of

pytestmark = pytest.mark.usefixtures("quick_compilation")

LM = stepwise.tiny_lm()
WIDTH, VOCAB = LM.config.hidden_size, LM.config.vocab_size
PROMPTS, RESPONSES = stepwise.prompts(5, 12, 1, 7), stepwise.prompts(5, 3, 9, 1, seed=1)
TEXTS = list(zip(PROMPTS, RESPONSES, strict=True))
USERS = [("u0", "u2"), ("u1",), ("u2", "u1", "u0"), ()]
WEIGHTS, KS = (0.0, 0.5, 2.0), (3, 1, VOCAB)
NAMES = ("bt", "per_user", "pal", "vpl")


@pytest.fixture(scope="module")
def models():
    weights = np.random.default_rng(0).normal(size=(3, WIDTH))
    blocks = planted.make_blocks(weights, pairs=12)
    return {name: rewards.fit(planted.short(name), blocks, seeds=(0,), grid={}).model for name in NAMES}


def judge(models, texts=TEXTS, users=USERS, **settings):
    settings = {"weights": WEIGHTS, "top_ks": KS, "batch_size": 2} | settings
    judging = Judging(LM, models, ("u0", "u1", "u2"), **settings)
    return collect(judging.run(texts, users, 3), range(len(texts)), users, settings["weights"], settings["top_ks"])


@pytest.fixture(scope="module")
def judged(models):
    return judge(models)


def test_equal_to_judging_each_by_itself(models, judged):
    assert [tuple(e) for e in judged.entries] == [(t, u) for t, own in enumerate(USERS) for u in own]
    roster = Roster(models, ("u0", "u1", "u2"))
    for name in NAMES:
        for w, weight in enumerate(WEIGHTS):
            head = roster.head(weight)
            for k, top_k in enumerate(KS):
                who = [roster.row(name, entry.user) for entry in judged.entries]
                alone = score(
                    LM,
                    [PROMPTS[entry.text] for entry in judged.entries],
                    [RESPONSES[entry.text] for entry in judged.entries],
                    guidance=head,
                    user=who,
                    top_k=top_k,
                )
                for number, one in enumerate(alone):
                    ours = [
                        judged.log_prob[number],
                        judged.policy[name][number, w, k],
                        judged.reward[name][number],
                        forms.scores(judged, name, "score", "sum")[number, w, k],
                        forms.scores(judged, name, "sequence", "sum")[number, w, k],
                    ]
                    theirs = [one.log_prob, one.policy_log_prob, one.reward, one.score, one.sequence]
                    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-4)
                    assert judged.tokens[number] == one.num_tokens


def test_a_roster_gives_each_row_its_own_method_and_user(models):
    roster = Roster(models, ("u2", "u0"))
    head = roster.head(1.0)
    hidden, prompt = np.random.default_rng(1).normal(size=(2, 4, WIDTH)).astype(np.float32)
    for name, model in models.items():
        for user in ("u0", "u2"):
            row = row_of(head.users, roster.row(name, user))
            ours = head.function(head.shared, row, hidden, prompt[0])
            np.testing.assert_allclose(ours, model.reward(model.shared, model.user(user), hidden, prompt[0]), atol=1e-5)


def test_batches_order_and_devices_change_nothing(models, judged):
    for settings in ({"batch_size": 1}, {"batch_size": 4, "mesh": make_mesh("users=4")}):
        again = judge(models, **settings)
        assert again.entries == judged.entries
        for name in NAMES:
            np.testing.assert_allclose(again.policy[name], judged.policy[name], rtol=1e-5, atol=1e-4)
    turned = judge(models, TEXTS[::-1], USERS[::-1])
    place = {(3 - e.text, e.user): number for number, e in enumerate(turned.entries)}
    order = [place[tuple(entry)] for entry in judged.entries]
    np.testing.assert_allclose(turned.policy["vpl"][order], judged.policy["vpl"], rtol=1e-5, atol=1e-4)


def test_limits(judged):
    """Without a reward all forms are the language model's ranking; with a huge one `sequence` is the reward's."""
    full = KS.index(VOCAB)
    for length in forms.LENGTHS:
        alone = forms.likelihood(judged, length)
        for name in NAMES:
            np.testing.assert_allclose(forms.scores(judged, name, "policy", length)[:, 0, full], alone, atol=1e-3)
            np.testing.assert_array_equal(forms.scores(judged, name, "score", length)[:, 0, 0], alone)
            np.testing.assert_array_equal(forms.scores(judged, name, "sequence", length)[:, 0, 0], alone)
            far = dataclasses.replace(judged, weights=(1e9,))
            order = np.argsort(forms.scores(far, name, "sequence", length)[:, 0, 0])
            np.testing.assert_array_equal(order, np.argsort(judged.reward[name]))


def test_counts_by_hand():
    pairs = JudgedPairs(
        users=("a", "b", "c"),
        user=np.array([0, 0, 0, 1, 1, 2, 2]),
        chosen=np.array([0, 1, 2, 0, 3, 2, 1]),
        rejected=np.array([1, 2, 0, 3, 0, 2, 0]),
        label=np.array([1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.5]),
    )
    #                           a: 2>1, 1>0, not 0>2;  b: 2>1.5, and its reverse, labelled so;  c: a tie, and no answer
    found = pairs.counts(np.array([2.0, 1.0, 0.0, 1.5]))
    np.testing.assert_array_equal(found.correct, [2.0, 2.0, 0.5])
    np.testing.assert_array_equal(found.pairs, [3, 2, 1])
    np.testing.assert_array_equal(found.ties, [0, 0, 1])
    both = pairs.counts(np.stack([np.array([2.0, 1.0, 0.0, 1.5]), -np.array([2.0, 1.0, 0.0, 1.5])], axis=1)[:, :, None])
    np.testing.assert_array_equal(both.correct[:, 0, 0], found.correct)
    np.testing.assert_array_equal(both.correct[:, 1, 0], [1.0, 0.0, 0.5])


def test_bad_requests(models):
    with pytest.raises(InputError, match="weights: -1"):
        judge(models, weights=(-1.0,))
    with pytest.raises(InputError, match=f"top_ks: {VOCAB + 1} is not from 1 to {VOCAB}"):
        judge(models, top_ks=(VOCAB + 1,))
    with pytest.raises(InputError, match="does not know user 'u9'"):
        Judging(LM, models, ("u9",), weights=(1.0,), top_ks=(2,))
    broken = dataclasses.replace(models["bt"], shared={**models["bt"].shared, "margin_deviation": np.float32(0.0)})
    with pytest.raises(InputError, match=r"user 'u\d', reward model 'bt': .* is not finite"):
        judge({"bt": broken})


def test_linear_heads_agree_with_the_methods(models):
    """`RewardHead.linear` of a method's linear form scores as the method itself does."""
    model = models["per_user"]
    forms_ = [model.linear_form(model.shared, model.user(user)) for user in model.users]
    head = RewardHead.linear(np.stack([f[0] for f in forms_]), np.stack([f[1] for f in forms_]))
    own = Roster({"per_user": model}, model.users).head(1.0)
    results = [score(LM, PROMPTS, RESPONSES, guidance=g, user=[0, 1, 2, 1], top_k=3) for g in (head, own)]
    for one, two in zip(*results, strict=True):
        assert one.policy_log_prob == pytest.approx(two.policy_log_prob, abs=1e-3)
