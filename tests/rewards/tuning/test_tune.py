"""Whole fits on planted letters: what is recovered, for whom, how it steers, resumes, is saved and is refused."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from letters import planted

from jaxalign import decoding, models
from jaxalign.data.schema import Preference
from jaxalign.errors import FitError, InputError, ModelError
from jaxalign.rewards import tuning
from jaxalign.rewards.checkpoint import Checkpoints
from jaxalign.rewards.tuning import Arm, Frozen, Lora, PDpo, PersonalArm, Recipe, TunedBradleyTerry, export

SAME = {"ann": "xq", "bob": "xq"}
OPPOSED = {"ann": "xq", "bob": "qx"}
LORA = Lora(rank=2, targets=("query", "down"))
RECIPE = Recipe(epochs=40, batch_size=16, micro_batch=16, learning_rate=1e-2, max_length=32, remat=False)


def fit(lm, method, likes, backbone=LORA, pairs=24, **changes):
    recipe = dataclasses.replace(RECIPE, **changes)
    return tuning.tune(method, lm, planted(likes, pairs), backbone=backbone, recipe=recipe)


@pytest.fixture(scope="module")
def arm(lm):
    return fit(lm, Arm(beta=0.5), SAME).model


@pytest.fixture(scope="module")
def personal(lm):
    """Opposed tastes, and the language model's own hidden states: guidance then needs no second model."""
    return fit(lm, PersonalArm(beta=0.5, rank=4, ridge=0.01), OPPOSED, Frozen(), epochs=60).model


def accuracy(model, lm, likes):
    return tuning.evaluate(model, lm, planted(likes, 24, seed=1), batch_size=16)


def test_arm_recovers_a_liked_letter_and_steers_towards_it(lm, arm):
    found = accuracy(arm, lm, SAME)
    assert found.macro is not None
    assert found.macro >= 0.9
    guidance = arm.guidance(lm, weight=2.0)
    plain, guided = (decoding.score(lm, ["p0"] * 2, ["x", "q"], guidance=one, batch_size=2) for one in (None, guidance))
    ratio = plain[0].log_prob - plain[1].log_prob
    assert guided[0].policy_log_prob - guided[1].policy_log_prob > ratio + 1.0
    # The bonus of a response is its reward, before beta.
    own = tuning.rewards(arm, lm, [("p0", "x"), ("p0", "q")])
    np.testing.assert_allclose([0.5 * s.reward for s in guided], own, rtol=1e-4)


@pytest.mark.slow
def test_gates_tell_users_apart_and_the_unseen_get_the_prior(lm, personal):
    found = accuracy(personal, lm, OPPOSED)
    assert found.macro is not None
    assert found.macro >= 0.85
    texts = [("p0", "x"), ("p0", "q")]
    ann, bob = (np.diff(tuning.rewards(personal, lm, texts, [user] * 2)) for user in ("ann", "bob"))
    assert ann < 0 < bob

    adapted = tuning.adapt(personal, lm, planted({"cat": "xq"}, 4, seed=2), ["dan"], max_length=32, batch_size=4)
    assert adapted.users == ("cat", "dan")
    np.testing.assert_array_equal(adapted.variables["users"]["gate"][1], 0)
    cat, dan = (np.diff(tuning.rewards(adapted, lm, texts, [user] * 2)) for user in ("cat", "dan"))
    assert cat < dan
    with pytest.raises(InputError, match=r"does not know user 'ane'. Did you mean 'ann'"):
        personal.index("ane")


def test_a_mixed_batch_is_guided_as_each_user_alone(lm, personal):
    guidance = personal.guidance(lm, weight=3.0)
    together = decoding.score(lm, ["p0"] * 2, ["x"] * 2, guidance=guidance, user=[0, 1], batch_size=2)
    for row, user in enumerate(personal.users):
        alone = decoding.score(
            lm, ["p0"] * 2, ["x"] * 2, guidance=personal.only(user).guidance(lm, weight=3.0), batch_size=2
        )
        np.testing.assert_allclose(together[row].policy_log_prob, alone[0].policy_log_prob, rtol=1e-5)
        own = tuning.rewards(personal, lm, [("p0", "x")], [user])
        np.testing.assert_allclose(0.5 * together[row].reward, own[0], rtol=1e-4)
    assert together[0].policy_log_prob != together[1].policy_log_prob
    with pytest.raises(InputError, match="unknown user: index 2"):
        decoding.score(lm, ["p0"], ["x"], guidance=guidance, user=2)


@pytest.mark.slow
def test_soft_tokens_recover_opposed_tastes_and_their_guidance_sums_to_the_reward(lm):
    model = fit(lm, PDpo(tokens=2, beta=0.5), OPPOSED, pairs=200, epochs=16).model
    found = accuracy(model, lm, OPPOSED)
    assert found.macro is not None
    assert found.macro >= 0.8
    guided = decoding.score(lm, ["p0"] * 2, ["abx", "abx"], guidance=model.guidance(lm), user=[0, 1], batch_size=2)
    own = tuning.rewards(model, lm, [("p0", "abx")] * 2, ["ann", "bob"])
    np.testing.assert_allclose([s.reward for s in guided], own, rtol=1e-3, atol=1e-4)
    assert own[0] > own[1]
    # Decoding with it, step by step, gives what the teacher-forced pass says.
    written = decoding.generate(lm, ["p0"], guidance=model.guidance(lm), user=1, max_new_tokens=3)[0]
    again = decoding.score(lm, ["p0"], [written.tokens], guidance=model.guidance(lm), user=1)[0]
    assert np.isfinite(again.policy_log_prob)
    assert len(written.tokens) <= 3


@pytest.mark.slow
def test_a_tuned_bradley_terry_model_guides_and_its_language_model_is_a_plain_folder(lm, tmp_path):
    model = fit(lm, TunedBradleyTerry(), SAME, pairs=120, epochs=16).model
    found = accuracy(model, lm, SAME)
    assert found.macro is not None
    assert found.macro >= 0.9
    texts = [("p0", "abx"), ("p0", "abq")]
    own = tuning.rewards(model, lm, texts)
    guided = decoding.score(lm, ["p0"] * 2, ["abx", "abq"], guidance=model.guidance(lm), batch_size=2)
    np.testing.assert_allclose([s.reward for s in guided], own, rtol=1e-3)
    export.save_language_model(model, lm, tmp_path / "merged")
    plain = models.load(str(tmp_path / "merged"), layers="scanned")
    jax.tree.map(np.testing.assert_array_equal, plain.params, model.params(lm))
    assert plain.tokenizer is not None
    assert plain.tokenizer.end_ids == lm.tokenizer.end_ids


def test_scores_do_not_depend_on_batch_order_or_company(lm, arm):
    texts = [("p0", "x"), ("p1", "abcdefgabcdefg"), ("p2", "qq"), ("p0", "x")]
    whole = tuning.rewards(arm, lm, texts, batch_size=4)
    alone = np.concatenate([tuning.rewards(arm, lm, [text], batch_size=1) for text in texts])
    back = tuning.rewards(arm, lm, texts[::-1], batch_size=3)[::-1]
    np.testing.assert_allclose(whole, alone, rtol=1e-4)
    np.testing.assert_allclose(whole, back, rtol=1e-4)


def test_a_saved_model_loads_equal_and_refuses_what_it_was_not_fitted_on(lm, personal, tmp_path):
    export.save(personal, tmp_path / "m")
    again = export.load(tmp_path / "m")
    assert (again.method, again.backbone, again.users) == (personal.method, personal.backbone, personal.users)
    jax.tree.map(np.testing.assert_array_equal, again.variables, dict(personal.variables))
    other = dataclasses.replace(lm, name="another")
    with pytest.raises(InputError, match="was fitted on lm, and this is another: name differ"):
        again.guidance(other)
    with pytest.raises(InputError, match=r"exists. Give another folder"):
        export.save(personal, tmp_path / "m")
    (tmp_path / "m" / "tuned.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match="is damaged"):
        export.load(tmp_path / "m")
    with pytest.raises(ModelError, match="not a tuned reward model"):
        export.load(tmp_path)


def test_a_killed_run_resumes_to_the_same_parameters(lm, tmp_path):
    rows, recipe = planted(SAME, 8), dataclasses.replace(RECIPE, epochs=3, eval_every=1)

    def run(folder, stop=None):
        def tell(done, total):
            if done == stop:
                raise KeyboardInterrupt

        with Checkpoints(tmp_path / folder) as saver:
            return tuning.tune(Arm(), lm, rows, backbone=LORA, recipe=recipe, checkpoints=saver, progress=tell)

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("cut", stop=2)
    resumed = run("cut")
    jax.tree.map(np.testing.assert_array_equal, resumed.model.variables, whole.model.variables)
    np.testing.assert_array_equal(resumed.report.train_loss, whole.report.train_loss)
    with Checkpoints(tmp_path / "cut") as saver, pytest.raises(InputError, match="another fit: method differ"):
        tuning.tune(Arm(beta=0.2), lm, rows, backbone=LORA, recipe=recipe, checkpoints=saver)


def test_validation_chooses_the_step_and_order_of_rows_does_not_matter(lm):
    rows, held = planted(SAME, 16), planted(SAME, 8, seed=3)
    recipe = dataclasses.replace(RECIPE, epochs=2, eval_every=1)
    one = tuning.tune(Arm(beta=0.5), lm, rows, held, backbone=LORA, recipe=recipe).report
    assert len(one.validation_loss) == 4
    assert one.best_step == min(one.validation_loss, key=lambda step: one.validation_loss[step])
    assert one.validation is not None
    np.testing.assert_allclose(one.validation.loss, min(one.validation_loss.values()), rtol=1e-5)
    other = tuning.tune(Arm(beta=0.5), lm, rows[::-1], held[::-1], backbone=LORA, recipe=recipe).report
    np.testing.assert_array_equal(one.train_loss, other.train_loss)
    json.dumps(one.as_json())


def test_what_cannot_be_tuned_is_refused(lm):
    rows = planted(SAME, 2)
    broken = dataclasses.replace(lm, params=jax.tree.map(lambda x: x * jnp.nan, lm.params))
    recipe = dataclasses.replace(RECIPE, epochs=1, batch_size=4, micro_batch=4)
    with pytest.raises(FitError, match="diverged at step 1 of 1"):
        tuning.tune(Arm(), broken, rows, backbone=LORA, recipe=recipe)
    with pytest.raises(InputError, match="has nothing to train"):
        tuning.tune(Arm(), lm, rows, backbone=Frozen(), recipe=recipe)
    with pytest.raises(InputError, match="Validation user 'eve' has no training pairs"):
        tuning.tune(PersonalArm(), lm, rows, planted({"eve": "xq"}, 1), recipe=recipe)
    long = [Preference(user="ann", prompt="p", chosen="a" * 40, rejected="b")]
    with pytest.raises(InputError, match="None of 1 pairs can be used"):
        tuning.tune(Arm(), lm, long, recipe=recipe)
    with pytest.raises(InputError, match="no personal parameters"):
        tuning.adapt(fit(lm, TunedBradleyTerry(), SAME, Frozen(), epochs=1).model, lm, rows)
    for method, recipe, words in (
        (Arm(beta=-1.0), RECIPE, "arm: beta must be at least 0"),
        (PDpo(share=2.0), RECIPE, "share"),
        (PersonalArm(rank=0), RECIPE, "rank must be at least 1"),
        (Arm(), Recipe(epochs=0), "epochs must be at least 1"),
        (Arm(), Recipe(learning_rate=0.0), "learning_rate must be positive"),
        (Arm(), Recipe(warm_up=1.0), "warm_up"),
    ):
        with pytest.raises(InputError, match=words):
            tuning.tune(method, lm, rows, recipe=recipe)
    with pytest.raises(InputError, match=r"Did you mean 'personal_arm'"):
        tuning.make("personal_amr")
    with pytest.raises(InputError, match=r"no hyper-parameter 'bta'. Did you mean 'beta'"):
        tuning.make("arm", bta=1.0)


def test_a_response_that_does_not_fit_is_left_out_and_a_long_prompt_is_cut(lm):
    rows = planted({"ann": "xq"}, 3)
    rows.append(Preference(user="ann", prompt="p", chosen="a" * 40, rejected="b"))
    rows.append(Preference(user="ann", prompt="p" * 60, chosen="ax", rejected="aq"))
    report = tuning.tune(
        Arm(), lm, rows, backbone=LORA, recipe=dataclasses.replace(RECIPE, epochs=1, batch_size=4, micro_batch=4)
    ).report
    assert (report.pairs, report.dropped, report.cut) == (4, 1, 2)
