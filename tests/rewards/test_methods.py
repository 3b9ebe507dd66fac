"""What every method must hold, whatever it is: the protocol, masks, order, priors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planted import SMALL, make_blocks, one_by_one, pick, short

from jaxalign import rewards
from jaxalign.rewards.methods.pref import low_rank
from jaxalign.rewards.pairs import statistics, to_device
from jaxalign.rewards.scoring import pair_rewards

ALL = tuple(SMALL)
LINEAR = ("reference", "bt", "per_user", "lore", "pref", "mrm", "drm")


def test_every_built_in_method_is_tested():
    assert set(SMALL) >= set(rewards.names())


@pytest.mark.parametrize("name", ALL)
def test_the_reward_function_gives_what_fitting_scored(fitted, mixed, name):
    model = fitted(name).model
    slow, fast = one_by_one(model, mixed), pair_rewards(model, mixed)
    np.testing.assert_allclose(fast.chosen, slow[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(fast.rejected, slow[1], rtol=1e-4, atol=1e-4)
    margin = (slow[0] - slow[1])[mixed.mask]
    if name != "reference":
        assert abs(margin.std() - 1.0) < 1e-3, "rewards are in units of the margin's deviation"


@pytest.mark.parametrize("name", ALL)
def test_one_jitted_call_serves_a_batch_of_users_and_candidates(fitted, mixed, name):
    model = fitted(name).model
    rows = jnp.asarray([3, 0, 3, 7])
    hidden = jnp.asarray(mixed.features[:12].reshape(4, 3, 6))
    prompt = jnp.asarray(mixed.prompts[:4])

    @jax.jit
    def batch(shared, users, rows, hidden, prompt):
        mine = jax.tree.map(lambda leaf: leaf[rows], users)
        return jax.vmap(model.reward, in_axes=(None, 0, 0, 0))(shared, mine, hidden, prompt)

    together = batch(model.shared, model.user_params, rows, hidden, prompt)
    assert together.shape == (4, 3)
    assert together.dtype == jnp.float32
    single = jax.jit(model.reward)
    for index, row in enumerate([3, 0, 3, 7]):
        user = model.user(f"u{row}")
        for candidate in range(3):
            alone = single(model.shared, user, hidden[index, candidate], prompt[index])
            np.testing.assert_allclose(together[index, candidate], alone, rtol=1e-4, atol=1e-4)
    half = single(model.shared, user, hidden[0].astype(jnp.bfloat16), prompt[0].astype(jnp.bfloat16))
    assert half.dtype == jnp.float32


@pytest.mark.parametrize("name", ALL)
def test_linear_form(fitted, mixed, name):
    model = fitted(name).model
    form = model.linear_form(model.shared, model.user("u3"))
    if name not in LINEAR:
        assert form is None
        return
    vector, bias = form
    assert vector.shape == (6,)
    hidden = jnp.asarray(mixed.features)
    expected = model.reward(model.shared, model.user("u3"), hidden, jnp.zeros(6))
    np.testing.assert_allclose(hidden @ vector + bias, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_user_parameters_are_stacked_and_without_pairs_they_are_the_prior(fitted, name):
    model = fitted(name).model
    assert all(leaf.shape[0] == 9 for leaf in jax.tree.leaves(model.user_params))
    for user in ("u2", "u7"):
        jax.tree.map(np.testing.assert_array_equal, model.user(user), model.prior)


@pytest.mark.parametrize("name", ALL)
def test_adapting_many_users_is_adapting_any_of_them_in_any_order(fitted, mixed, name):
    model = fitted(name).model
    together = rewards.adapt(model, mixed)
    subset = rewards.adapt(model, pick(mixed, [4, 2, 8, 0]))
    assert subset.users == ("u4", "u2", "u8", "u0")
    for user in subset.users:
        jax.tree.map(
            lambda one, two: np.testing.assert_allclose(one, two, rtol=2e-3, atol=2e-3),
            together.user(user),
            subset.user(user),
        )
    jax.tree.map(np.testing.assert_array_equal, subset.user("u2"), model.prior)
    assert subset.shared is model.shared


@pytest.mark.parametrize("name", ["bt", "lore", "vpl", "gpo", "mrm", "drm"])
def test_nobody_with_pairs_is_everybody_at_the_prior(fitted, mixed, name):
    model = fitted(name).model
    adapted = rewards.adapt(model, dataclasses.replace(mixed, mask=np.zeros_like(mixed.mask)))
    for user in adapted.users:
        jax.tree.map(np.testing.assert_array_equal, adapted.user(user), model.prior)


def test_a_user_is_looked_up_inside_and_outside_a_jitted_function(fitted):
    model = fitted("lore").model
    inside = jax.jit(lambda tree: dataclasses.replace(model, user_params=tree).user("u3"))(model.user_params)
    jax.tree.map(np.testing.assert_array_equal, inside, model.user("u3"))
    np.testing.assert_array_equal(inside["logits"], model.user_params["logits"][3])


def test_padding_never_reaches_the_device(mixed):
    wide = {}
    for field, fill in (("chosen", 5), ("rejected", 7), ("mask", False), ("label", 0.0), ("margin", 9.0)):
        array = np.array(getattr(mixed, field))
        array[~mixed.mask] = fill
        wide[field] = np.pad(array, ((0, 0), (0, 4)), constant_values=fill)
    padded = dataclasses.replace(mixed, **wide)
    described = statistics(mixed)
    jax.tree.map(np.testing.assert_array_equal, described, statistics(padded))
    jax.tree.map(np.testing.assert_array_equal, to_device(mixed, described), to_device(padded, described))
    for one, two in zip(low_rank(mixed, 2), low_rank(padded, 2), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", ["lore", "vpl"])
def test_the_number_of_devices_does_not_matter(fitted, mixed, name):
    model = fitted(name).model
    features = jnp.asarray(mixed.features)

    def every(shared, users):
        return jax.vmap(model.reward, in_axes=(None, 0, None, None))(shared, users, features, jnp.zeros(6))

    eight = jax.tree.map(lambda leaf: leaf[:8], model.user_params)
    mesh = jax.make_mesh((8,), ("users",), axis_types=(jax.sharding.AxisType.Auto,))
    users = jax.sharding.PartitionSpec("users")
    whole = jax.sharding.PartitionSpec()
    sharded = jax.jit(jax.shard_map(every, mesh=mesh, in_specs=(whole, users), out_specs=users))(model.shared, eight)
    assert len(sharded.sharding.device_set) == 8
    np.testing.assert_allclose(sharded, jax.jit(every)(model.shared, eight), rtol=1e-5, atol=1e-5)


def test_thousands_of_users_with_two_pairs_each():
    taste = np.zeros((3000, 6), np.float32)
    taste[:, 0], taste[:1500, 1], taste[1500:, 1] = 2.0, 1.0, -1.0
    blocks = make_blocks(taste, pairs=2, texts=200)
    result = rewards.fit(rewards.make("per_user", strength=10.0, shared=1.0, steps=40), blocks)
    assert len(result.model.users) == 3000
    assert result.report.train.macro > 0.8
    assert result.report.train.pairs == 6000


def compare(one, two, blocks):
    """The same rewards for each user, in models whose users come in different orders."""
    for user in two.users:
        mine = pick(blocks, [blocks.users.index(user)])
        np.testing.assert_allclose(pair_rewards(one, mine).chosen, pair_rewards(two, mine).chosen, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("vpl", "gpo", "mrm")])
def test_the_order_of_users_does_not_matter(fitted, mixed, name):
    # The other three draw pairs at random by row: their fits differ as those of two seeds do.
    turned = rewards.fit(short(name), pick(mixed, [8, 0, 2, 5, 4, 3, 7, 6, 1]))
    compare(fitted(name).model, turned.model, mixed)


@pytest.mark.parametrize("name", ["bt", "per_user", "lore", "pref"])
def test_users_without_pairs_change_nothing_for_others(fitted, mixed, name):
    without = rewards.fit(short(name), pick(mixed, [0, 1, 3, 4, 5, 6, 8]))
    compare(fitted(name).model, without.model, mixed)


@pytest.mark.parametrize("name", ALL)
def test_ties_only_and_identical_texts_are_fitted_without_a_fault(mixed, name):
    ties = dataclasses.replace(mixed, label=np.full(mixed.label.shape, 0.5, np.float32))
    same = dataclasses.replace(mixed, features=np.ones_like(mixed.features), prompts=np.ones_like(mixed.features))
    for blocks in (ties, same):
        result = rewards.fit(short(name), blocks)
        assert np.isfinite(pair_rewards(result.model, blocks).chosen).all()
    assert result.report.train.ties == result.report.train.pairs, "equal texts have equal rewards"
