import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planted import short

from jaxalign import rewards
from jaxalign.errors import InputError
from jaxalign.rewards.ensemble import Ensemble


def test_mean_and_deviation_are_those_of_the_members(mixed):
    ensemble = rewards.fit(short("lore"), mixed, seeds=(0, 1, 2)).ensemble
    hidden, prompt = jnp.asarray(mixed.features), jnp.asarray(mixed.prompts[0])

    @jax.jit
    def batch(shared, users, rows):
        mine = jax.tree.map(lambda leaf: leaf[rows], users)
        return jax.vmap(ensemble.reward, in_axes=(None, 0, None, None))(shared, mine, hidden, prompt)

    mean, deviation = batch(ensemble.shared, ensemble.user_params, jnp.asarray([3, 5]))
    for place, user in enumerate(("u3", "u5")):
        alone = [model.reward(model.shared, model.user(user), hidden, prompt) for model in ensemble.members]
        np.testing.assert_allclose(mean[place], np.mean(alone, axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(deviation[place], np.std(alone, axis=0), rtol=1e-3, atol=1e-5)
    assert deviation.max() > 0.01, "seeds differ"


def test_reward_functions_are_equal_for_equal_methods(mixed):
    one, two = (rewards.fit(short("bt"), mixed) for _ in range(2))
    assert one.ensemble.reward == two.ensemble.reward
    assert hash(one.ensemble.reward) == hash(two.ensemble.reward)
    assert one.model.reward == two.model.reward
    assert hash(one.model.reward) == hash(two.model.reward)


def test_unlike_members_are_refused(fitted):
    model = fitted("bt").model
    with pytest.raises(InputError, match="at least one"):
        Ensemble.of([])
    with pytest.raises(InputError, match="same users"):
        Ensemble.of([model, dataclasses.replace(model, users=model.users[::-1])])
