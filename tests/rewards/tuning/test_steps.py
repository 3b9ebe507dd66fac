"""One training step: gradients against finite differences, micro-batches, padding, the optimiser by hand."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from letters import planted

from jaxalign.rewards.tuning import Arm, Lora, PDpo, PersonalArm, Recipe, TunedBradleyTerry
from jaxalign.rewards.tuning.model import log_probs
from jaxalign.rewards.tuning.pairs import encode_pairs, micro_batches
from jaxalign.rewards.tuning.recipe import Descent
from jaxalign.rewards.tuning.steps import Program, accumulate, home, schedule, zeros

LORA = Lora(rank=2, targets=("query", "down"))
ROWS = planted({"ann": "xq", "bob": "qx"}, 4)


def prepared(lm, method, key):
    """Pairs, and variables that are not those of step 0."""
    pairs = encode_pairs(lm, ROWS, 48)
    if method.needs_reference:
        pairs = dataclasses.replace(pairs, reference=log_probs(lm, pairs))
    head, users = method.init(key(), lm.config, lm.params, pairs.counts)
    variables = {"backbone": LORA.init(key(), lm.params), "head": head, "users": users}
    leaves, structure = jax.tree.flatten(variables)
    leaves = [leaf + 0.05 * jax.random.normal(key(), leaf.shape) for leaf in leaves]
    return pairs, jax.device_put(jax.tree.unflatten(structure, leaves), home(lm.params))


def summed(lm, method, variables, pairs, size, length=32, remat=False):
    """Sums over all pairs in micro-batches of `size`."""
    program, total = Program(lm.config, method, LORA, remat), zeros(variables, home(lm.params))
    for batch, width in micro_batches(pairs, np.arange(len(pairs)), size, lm.pad_id, length):
        total = accumulate(program, width, variables, {}, lm.params, batch, total)
    return total


@pytest.mark.parametrize(
    "method",
    [
        Arm(beta=0.5),
        pytest.param(PersonalArm(beta=0.5, rank=3), marks=pytest.mark.slow),
        pytest.param(PDpo(tokens=2), marks=pytest.mark.slow),
        pytest.param(TunedBradleyTerry(), marks=pytest.mark.slow),
    ],
    ids=lambda method: method.name,
)
def test_gradients_are_the_slopes_of_the_loss(lm, method, key):
    pairs, variables = prepared(lm, method, key)
    total = summed(lm, method, variables, pairs, 8)
    leaves, structure = jax.tree.flatten(variables)
    direction = [jax.random.normal(key(), leaf.shape) for leaf in leaves]
    slope = sum(
        float(jnp.vdot(one, other)) for one, other in zip(direction, jax.tree.leaves(total["gradients"]), strict=True)
    )

    def loss(step):
        at = [leaf + step * one for leaf, one in zip(leaves, direction, strict=True)]
        return float(summed(lm, method, jax.tree.unflatten(structure, at), pairs, 8)["loss"])

    small = 2e-4
    np.testing.assert_allclose((loss(small) - loss(-small)) / (2 * small), slope, rtol=2e-2, atol=2e-2)
    for name in ("head", "users"):
        for leaf in jax.tree.leaves(total["gradients"][name]):
            assert np.abs(leaf).max() > 0


def test_accumulated_gradients_are_those_of_one_batch(lm, key):
    method = PersonalArm(beta=0.5, rank=3)
    pairs, variables = prepared(lm, method, key)
    whole = summed(lm, method, variables, pairs, 8)
    # 8 = 3 + 3 + 2: the last micro-batch is padded, with a row of weight 0.
    parts = summed(lm, method, variables, pairs, 3)
    # More padding on the left, and layers computed twice.
    padded = summed(lm, method, variables, _with_one_long_pair(pairs), 9, 48, remat=True)
    assert float(whole["weight"]) == float(parts["weight"]) == 8.0
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)  # noqa: E731
    jax.tree.map(close, parts, whole)
    jax.tree.map(close, padded, {**whole, "weight": jnp.full((), 9.0), "loss": whole["loss"] + math.log(2)})


def _with_one_long_pair(pairs):
    """A ninth pair of two equal long texts: its loss is log 2, it has no gradient, and it makes all rows longer."""
    long = pairs.chosen[0]._replace(ids=pairs.chosen[0].ids + [30] * 30, response=pairs.chosen[0].response + 30)
    return dataclasses.replace(
        pairs,
        chosen=[*pairs.chosen, long],
        rejected=[*pairs.rejected, long],
        user=np.append(pairs.user, pairs.user[:1]),
        label=np.append(pairs.label, np.float32(1)),
        margin=np.append(pairs.margin, np.float32(0)),
        reference=np.zeros((2, 9), np.float32),
    )


def test_log_probabilities_are_those_of_the_scoring_command(lm):
    from jaxalign.decoding import score

    pairs = encode_pairs(lm, ROWS, 48)
    expected = [score(lm, [row.prompt], [row.rejected])[0].log_prob for row in ROWS[:3]]
    np.testing.assert_allclose(log_probs(lm, pairs)[1, :3], expected, rtol=1e-4)


def test_the_optimiser_by_hand():
    descent = Descent(peak=0.1, steps=4, warm_up=1, weight_decay=0.5, clip=1e9, user_rate=3.0)
    variables = {
        "backbone": {"w": jnp.full((1, 2), 2.0), "norm/scale": jnp.full((1, 2), 2.0)},
        "head": {"v": jnp.full((1, 2), 2.0)},
        "users": {"u": jnp.full((1, 2), 2.0)},
    }
    gradients = jax.tree.map(lambda leaf: jnp.full_like(leaf, 7.0), variables)
    state = descent.transform.init(variables)
    step = jax.jit(descent.apply)
    after, state, norm = step(gradients, state, variables, jnp.asarray(0, jnp.int32))
    # Warm-up: half the peak at the first of two steps. Adam's first direction is the sign.
    np.testing.assert_allclose(norm, 7.0 * np.sqrt(8), rtol=1e-6)
    np.testing.assert_allclose(after["backbone"]["w"], 2.0 - 0.05 * (1 + 0.5 * 2.0), rtol=1e-5)
    np.testing.assert_allclose(after["backbone"]["norm/scale"], 2.0 - 0.05, rtol=1e-5)
    np.testing.assert_allclose(after["head"]["v"], 2.0 - 0.05, rtol=1e-5)
    np.testing.assert_allclose(after["users"]["u"], 2.0 - 3 * 0.05, rtol=1e-5)
    rates = [float(descent.rate(jnp.asarray(number, jnp.int32))) for number in range(4)]
    np.testing.assert_allclose(rates[:2], [0.05, 0.1], rtol=1e-5)
    assert rates[1] > rates[2] > rates[3] > 0
    # Adam forgets the size of a gradient, but for its epsilon: clipped far below it, the step shrinks.
    tiny, _, _ = descent._replace(clip=1e-9).apply(gradients, descent.transform.init(variables), variables, 0)
    assert np.all(2.0 - np.asarray(tiny["head"]["v"]) < 0.1 * 0.05)


def test_every_epoch_has_each_pair_once_in_another_order():
    steps = list(schedule(10, Recipe(epochs=2, batch_size=4)))
    assert [len(step) for step in steps] == [4, 4, 2, 4, 4, 2]
    first, second = np.concatenate(steps[:3]), np.concatenate(steps[3:])
    assert sorted(first) == sorted(second) == list(range(10))
    assert list(first) != list(second)
