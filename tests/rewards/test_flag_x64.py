"""The flag `jax_enable_x64` changes no reward model."""

import jax
import numpy as np
import pytest
from planted import halves, make_blocks, short

from jaxalign import rewards
from jaxalign.rewards.scoring import evaluate

TASTE = np.asarray([[2.0, 0, 0, 0, 0, 0]] * 3 + [[0, 2.0, 0, 0, 0, 0]] * 3, np.float32)


@pytest.mark.parametrize("name", ["bt", "lore", "vpl", "gpo"])
def test_fits_adapts_and_scores_the_same(name):
    train, validation = halves(make_blocks(TASTE, pairs=20, noise=1.0, seed=1))

    def run():
        model = rewards.fit(short(name), train, validation, grid={}).model
        adapted = rewards.adapt(model, validation)
        return model.shared, adapted.user_params, evaluate(adapted, train)

    before = run()
    with jax.enable_x64(True):
        after = run()
    assert before[2] == after[2]
    for one, two in zip(jax.tree.leaves(before[:2]), jax.tree.leaves(after[:2]), strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
