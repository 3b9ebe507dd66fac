import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planted import SMALL, WIDTH, halves, make_blocks, pick, short

from jaxalign import rewards
from jaxalign.errors import FitError, InputError
from jaxalign.rewards.fitting import _deviation
from jaxalign.rewards.methods.bt import BradleyTerryHead
from jaxalign.rewards.scoring import evaluate, pair_rewards

TASTE = np.asarray([[2.0, 0, 0, 0, 0, 0]] * 3 + [[0, 2.0, 0, 0, 0, 0]] * 3, np.float32)


@pytest.fixture(scope="module")
def noisy():
    """Training and validation pairs of six users, with noise."""
    return halves(make_blocks(TASTE, pairs=40, noise=1.0, seed=1))


def test_the_choice_is_the_lowest_validation_loss_of_fits_made_one_by_one(noisy):
    train, validation = noisy
    strengths = (0.01, 1.0, 1000.0)
    method = rewards.make("bt", steps=60)
    together = rewards.fit(method, train, validation, grid={"strength": strengths}, eval_every=60)
    alone = [
        rewards.fit(dataclasses.replace(method, strength=s), train, validation, grid={}, eval_every=60)
        for s in strengths
    ]
    losses = [result.report.validation.loss for result in alone]
    best = int(np.argmin(losses))
    assert together.report.chosen == {"strength": strengths[best]}
    assert together.model.method.strength == strengths[best]
    table = [candidate["validation_loss"] for candidate in together.report.candidates]
    np.testing.assert_allclose(table, losses, rtol=1e-3)
    np.testing.assert_allclose(
        together.model.shared["params"]["v"], alone[best].model.shared["params"]["v"], rtol=1e-3, atol=1e-4
    )


def test_seeds_are_independent_of_each_other_and_the_best_is_returned(noisy):
    train, validation = noisy
    both = rewards.fit(short("lore"), train, validation, grid={}, seeds=(7, 3))
    alone = rewards.fit(short("lore"), train, validation, grid={}, seeds=(3,))
    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4),
        both.ensemble.members[1].user_params,
        alone.model.user_params,
    )
    losses = [evaluate(model, validation).loss for model in both.ensemble.members]
    assert evaluate(both.model, validation).loss == min(losses)
    assert len(rewards.fit(short("bt"), train, seeds=(0, 1)).ensemble.members) == 1, "bt uses no randomness"


def test_a_bootstrap_makes_members_differ_where_seeds_do_not(noisy):
    train, _ = noisy
    members = rewards.fit(short("bt"), train, seeds=(0, 1), resample=True).ensemble.members
    one, two = (model.shared["params"]["v"] for model in members)
    assert np.abs(one - two).max() > 1e-3


def test_early_stopping_returns_the_best_evaluation(noisy):
    train, validation = noisy
    method = rewards.make("per_user", strength=1e-3, shared=1e-3, steps=100, learning_rate=0.3)
    result = rewards.fit(method, train, validation, grid={}, eval_every=5, patience=2)
    curve = result.report.validation_loss[0]
    assert result.report.best_step[0] == 5 * int(np.nanargmin(curve)) < 100
    assert np.isnan(curve[-1]), "it stopped before the end"
    assert np.isnan(result.report.train_loss[0, -1])
    np.testing.assert_allclose(result.report.validation.loss, np.nanmin(curve), rtol=1e-4)


def test_unseen_validation_users_are_adapted_on_their_support(noisy):
    train, held = noisy
    seen, unseen = pick(train, [0, 1, 3, 4]), [2, 5]
    support, query = pick(train, unseen), pick(held, unseen)
    result = rewards.fit(short("lore"), seen, query, support=support, grid={"strength": (0.1, 10.0)})
    adapted = rewards.adapt(result.model, support)
    np.testing.assert_allclose(result.report.validation.loss, evaluate(adapted, query).loss, rtol=1e-5)
    chosen = min(result.report.candidates, key=lambda candidate: candidate["validation_loss"])
    np.testing.assert_allclose(result.report.validation.loss, chosen["validation_loss"], rtol=1e-3)
    assert result.model.users == seen.users


def test_divergence_is_refused_with_its_step(noisy):
    train, validation = noisy

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Wild(BradleyTerryHead):
        """A penalty that overflows as soon as v has moved, unless the strength is 0."""

        def objective(self, params, users, pairs, key):
            return super().objective(params, users, pairs, key) + jnp.square(self.strength * 1e10 * params["v"]).sum()

    with pytest.raises(FitError, match=r"Training of 'bt' diverged at step 2 of 50 \(with the given"):
        rewards.fit(Wild(strength=1e18, steps=50, learning_rate=1.0), train)
    # One value of a grid that diverges does not take the others with it, and is reported.
    result = rewards.fit(Wild(steps=50, learning_rate=1.0), train, validation, grid={"strength": (0.0, 1e18)})
    assert result.report.chosen == {"strength": 0.0}
    assert result.report.candidates[0]["diverged"] is None
    assert result.report.candidates[1]["diverged"] == 2


def test_curves_and_report(noisy):
    train, validation = noisy
    seen = []
    result = rewards.fit(
        short("bt"), train, validation, grid={}, eval_every=8, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(8, 20), (16, 20), (20, 20)]
    assert result.report.train_loss.shape == (1, 20)
    assert result.report.validation_loss.shape == (1, 4)
    assert (np.diff(result.report.train_loss[0]) < 1e-3).all()
    report = json.loads(json.dumps(result.report.as_json(), allow_nan=False))
    assert report["train"]["pairs"] == 120
    assert report["train"]["macro"] == result.report.train.macro
    rewarded = pair_rewards(result.model, train)
    right = (rewarded.chosen > rewarded.rejected)[train.mask]
    assert result.report.train.micro == pytest.approx(right.mean())
    assert result.report.train.macro == pytest.approx((rewarded.chosen > rewarded.rejected).mean(axis=1).mean())
    assert result.report.train.reward_spread == pytest.approx(
        np.stack([rewarded.chosen, rewarded.rejected]).std(), 1e-4
    )


def test_margins_have_unit_deviation_and_no_spread_is_handled():
    assert _deviation(np.asarray([1.0, 3.0])) == 1.0
    assert _deviation(np.asarray([2.0, 2.0])) == 2.0
    assert _deviation(np.zeros(3)) == 1.0
    single = make_blocks(np.ones((1, WIDTH)), pairs=1)
    rewarded = pair_rewards(rewards.fit(short("bt"), single).model, single)
    assert rewarded.chosen[0, 0] - rewarded.rejected[0, 0] == pytest.approx(1.0, abs=1e-4)


def test_a_model_that_tells_no_two_texts_apart_is_half_right_and_said(noisy, caplog):
    train, validation = noisy
    same = dataclasses.replace(train, features=np.ones_like(train.features))
    report = rewards.fit(short("bt"), same).report.train
    assert (report.macro, report.micro, report.ties) == (0.5, 0.5, report.pairs)
    assert f"bt gives both texts the same reward in {report.pairs} of {report.pairs} pairs" in caplog.text
    caplog.clear()
    rewards.fit(short("bt"), train, validation, grid={})
    rewards.fit(short("reference"), train)
    assert "same reward" not in caplog.text


def test_a_fit_that_never_becomes_better_than_its_start_is_said(noisy, caplog):
    train, validation = noisy
    report = rewards.fit(dataclasses.replace(short("bt"), learning_rate=500.0), train, validation, grid={}).report
    assert report.best_step == (0,)
    assert "bt: no step made the validation loss smaller" in caplog.text
    caplog.clear()
    rewards.fit(short("bt"), train, validation, grid={})
    rewards.fit(short("drm"), train, validation, grid={})
    assert "no step" not in caplog.text


def test_soft_labels_and_margins_reach_the_loss(noisy):
    train, _ = noisy
    undecided = dataclasses.replace(train, label=np.full_like(train.label, 0.5))
    v = rewards.fit(short("bt"), undecided).model.shared["params"]["v"]
    np.testing.assert_allclose(v, 0.0, atol=1e-3)
    turned = dataclasses.replace(train, chosen=train.rejected, rejected=train.chosen, label=np.zeros_like(train.label))
    one, two = (rewards.fit(short("bt"), blocks).model.shared["params"]["v"] for blocks in (train, turned))
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_choose_compares_variants_of_different_shapes(noisy):
    train, validation = noisy
    best, results = rewards.choose([short("bt"), short("lore")], train, validation, grid={})
    assert best is min(results, key=lambda result: result.report.validation.loss)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"grid": {"strength": (1.0, 2.0)}}, "needs validation pairs"),
        ({"grid": {"steps": (1.0,)}}, "can vary only"),
        ({"grid": {"strenght": (1.0,)}}, "The grid varies 'strenght'"),
        ({"grid": {"strength": ()}}, "must be numbers"),
        ({"grid": {"strength": (float("nan"),)}}, "must be numbers"),
        ({"seeds": ()}, "at least one seed"),
        ({"eval_every": 0}, "at least 1"),
    ],
)
def test_bad_settings_are_refused(noisy, settings, words):
    with pytest.raises(InputError, match=words):
        rewards.fit(short("lore"), noisy[0], **settings)


def test_bad_validation_is_refused(noisy):
    train, validation = noisy
    stranger = dataclasses.replace(validation, users=("x", *validation.users[1:]))
    with pytest.raises(InputError, match="Validation user 'x' is not among the training users"):
        rewards.fit(short("bt"), train, stranger)
    with pytest.raises(InputError, match="same users in the same order"):
        rewards.fit(short("bt"), train, validation, support=stranger)
    narrow = dataclasses.replace(validation, features=validation.features[:, :3], prompts=None)
    with pytest.raises(InputError, match="validation features have width 3"):
        rewards.fit(short("bt"), train, narrow)
    with pytest.raises(InputError, match="needs pairs"):
        rewards.fit(short("bt"), dataclasses.replace(train, mask=np.zeros_like(train.mask)))


@pytest.mark.parametrize(
    ("name", "hyper", "words"),
    [
        ("lore", {"rank": 0}, "rank must be at least 1"),
        ("bt", {"strength": -1.0}, "strength must be at least 0"),
        ("bt", {"learning_rate": float("nan")}, "learning_rate must be at least 0"),
        ("bt", {"learning_rate": float("inf")}, "learning_rate must be positive and finite"),
        ("per_user", {"strength": 0.0}, "strength must be positive"),
        ("gpo", {"width": 8, "heads": 3}, "must divide width"),
        ("drm", {"components": 7}, "at most the width, 6"),
        ("drm", {"temperature": 0.0}, "temperature must be positive"),
        ("mrm", {"support": 1.0}, "between 0 and 1"),
    ],
)
def test_bad_hyper_parameters_are_refused(noisy, name, hyper, words):
    with pytest.raises(InputError, match=words):
        rewards.fit(rewards.make(name, **{**SMALL[name], **hyper}), noisy[0])


def test_an_unknown_user_is_named_with_near_ones(noisy):
    model = rewards.fit(short("bt"), noisy[0]).model
    with pytest.raises(InputError, match="does not know user 'u99'"):
        model.user("u99")
