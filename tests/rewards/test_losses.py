import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxalign.rewards.losses import BradleyTerry, Hinge

CHOSEN = jnp.asarray([1.0, 0.0, -1.0, 3.0])
REJECTED = jnp.asarray([0.0, 0.5, 2.0, 1.0])
MARGIN = jnp.asarray([0.5, 0.0, 1.0, 0.25])
ONES = jnp.ones(4)


def log_sigmoid(x):
    return -np.log1p(np.exp(-np.asarray(x, np.float64)))


def test_plain_loss_is_minus_log_sigmoid():
    losses = BradleyTerry()(CHOSEN, REJECTED, ONES, MARGIN, ONES)
    np.testing.assert_allclose(losses, -log_sigmoid(CHOSEN - REJECTED), rtol=1e-6)


def test_a_soft_label_is_the_mean_over_both_orders():
    label = jnp.asarray([1.0, 0.5, 0.3, 0.0])
    losses = BradleyTerry()(CHOSEN, REJECTED, label, MARGIN, ONES)
    d = np.asarray(CHOSEN - REJECTED)
    np.testing.assert_allclose(losses, -label * log_sigmoid(d) - (1 - label) * log_sigmoid(-d), rtol=1e-6)


def test_swapping_a_pair_and_its_label_changes_nothing():
    loss = BradleyTerry(margin=1.0, adaptive=0.5, smoothing=0.1, centring=0.01)
    label = jnp.asarray([1.0, 0.8, 0.3, 0.0])
    straight = loss(CHOSEN, REJECTED, label, MARGIN, ONES)
    np.testing.assert_allclose(straight, loss(REJECTED, CHOSEN, 1.0 - label, MARGIN, ONES), rtol=1e-5)


def test_margin_smoothing_and_centring_by_hand():
    d = np.asarray(CHOSEN - REJECTED)
    losses = BradleyTerry(margin=2.0)(CHOSEN, REJECTED, ONES, MARGIN, ONES)
    np.testing.assert_allclose(losses, -log_sigmoid(d - 2.0 * np.asarray(MARGIN)), rtol=1e-6)
    losses = BradleyTerry(smoothing=0.2)(CHOSEN, REJECTED, ONES, MARGIN, ONES)
    np.testing.assert_allclose(losses, -0.8 * log_sigmoid(d) - 0.2 * log_sigmoid(-d), rtol=1e-6)
    losses = BradleyTerry(centring=0.5)(CHOSEN, REJECTED, ONES, MARGIN, ONES)
    np.testing.assert_allclose(losses, -log_sigmoid(d) + 0.5 * np.square(CHOSEN + REJECTED), rtol=1e-6)


def test_adaptive_margin_by_brute_force_and_held_constant_in_the_gradient():
    d = np.asarray(CHOSEN - REJECTED, np.float64)
    mean, deviation = d.mean(), d.std()
    expected = [
        -log_sigmoid(x - (0.5 * np.exp(min(mean * (mean - x) / deviation, 5.0)) if x < mean else 0.0)) for x in d
    ]
    loss = BradleyTerry(adaptive=0.5)
    np.testing.assert_allclose(loss(CHOSEN, REJECTED, ONES, MARGIN, ONES), expected, rtol=1e-5)
    # The gradient of -log sigmoid(d - m) in d is sigmoid(d - m) - 1 = exp(-loss) - 1 when m is constant.
    gradient = jax.grad(lambda chosen: loss(chosen, REJECTED, ONES, MARGIN, ONES).sum())(CHOSEN)
    np.testing.assert_allclose(gradient, np.exp(-np.asarray(expected)) - 1.0, rtol=1e-5)


@pytest.mark.parametrize("loss", [BradleyTerry(margin=1.0, adaptive=1.0, smoothing=0.1, centring=0.1), Hinge()])
def test_padding_does_not_reach_other_pairs_and_gradients_are_finite(loss):
    weight = jnp.asarray([1.0, 1.0, 0.0, 0.0])
    wild = CHOSEN.at[2:].set(jnp.asarray([1e4, -1e4]))

    def total(chosen):
        return (weight * loss(chosen, REJECTED, ONES, MARGIN, weight)).sum()

    alone = loss(CHOSEN[:2], REJECTED[:2], ONES[:2], MARGIN[:2], ONES[:2])
    np.testing.assert_allclose(total(wild), alone.sum(), rtol=1e-5)
    assert np.isfinite(jax.grad(total)(wild)).all()
    assert np.isfinite(
        jax.grad(lambda chosen: (0.0 * weight * loss(chosen, REJECTED, ONES, MARGIN, 0.0 * weight)).sum())(wild)
    ).all()


def test_hinge_by_hand():
    np.testing.assert_allclose(Hinge(width=1.0)(CHOSEN, REJECTED, ONES, MARGIN, ONES), [0.0, 1.5, 4.0, 0.0])
    np.testing.assert_allclose(Hinge()(CHOSEN, REJECTED, 0.0 * ONES, MARGIN, ONES), [2.0, 0.5, 0.0, 3.0])
