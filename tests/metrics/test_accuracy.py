import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxalign.metrics.accuracy import count, macro, micro, per_user, worst_tenth

# Three users and seven pairs, by hand: u0 right, wrong, tie; u1 right, right, unlabelled; u2 one tie.
CHOSEN = jnp.asarray([[2.0, 0.0, 1.0], [3.0, 1.0, 9.0], [4.0, 0.0, 0.0]])
REJECTED = jnp.asarray([[1.0, 5.0, 1.0], [2.0, 0.0, 0.0], [4.0, 7.0, 7.0]])
MASK = jnp.asarray([[True, True, True], [True, True, True], [True, False, False]])
LABEL = jnp.asarray([[1.0, 1.0, 1.0], [1.0, 0.8, 0.5], [1.0, 1.0, 1.0]])


def test_by_hand():
    counts = count(CHOSEN, REJECTED, MASK, LABEL)
    np.testing.assert_array_equal(counts.correct, [1.5, 2.0, 0.5])
    np.testing.assert_array_equal(counts.pairs, [3.0, 2.0, 1.0])
    np.testing.assert_array_equal(counts.ties, [1.0, 0.0, 1.0])
    np.testing.assert_allclose(per_user(counts), [0.5, 1.0, 0.5])
    assert macro(counts) == pytest.approx(2 / 3)
    assert micro(counts) == pytest.approx(4 / 6)
    assert worst_tenth(counts) == 0.5


def test_a_label_below_one_half_turns_the_pair_around():
    turned = count(CHOSEN, REJECTED, MASK, 1.0 - LABEL)
    np.testing.assert_array_equal(turned.correct, [1.5, 0.0, 0.5])


def test_shards_add_up_and_jit_agrees():
    whole = count(CHOSEN, REJECTED, MASK, LABEL)
    parts = [jax.jit(count)(*(rows[:, i : i + 1] for rows in (CHOSEN, REJECTED, MASK, LABEL))) for i in range(3)]
    jax.tree.map(np.testing.assert_array_equal, whole, parts[0] + parts[1] + parts[2])


def test_constant_rewards_are_half_right_and_all_ties():
    counts = count(jnp.zeros((2, 10)), jnp.zeros((2, 10)), jnp.ones((2, 10), bool))
    assert macro(counts) == micro(counts) == 0.5
    np.testing.assert_array_equal(counts.ties, 10.0)


def test_users_without_pairs_are_left_out_and_nobody_gives_none():
    mask = MASK.at[0].set(False)
    assert macro(count(CHOSEN, REJECTED, mask, LABEL)) == pytest.approx(0.75)
    nobody = count(CHOSEN, REJECTED, jnp.zeros_like(MASK))
    assert macro(nobody) is micro(nobody) is worst_tenth(nobody) is None


def test_infinite_and_undefined_rewards():
    big = jnp.asarray([[jnp.inf, jnp.inf, jnp.nan, 0.0]])
    small = jnp.asarray([[0.0, jnp.inf, 0.0, jnp.nan]])
    counts = count(big, small, jnp.ones((1, 4), bool))
    np.testing.assert_array_equal(counts.correct, [1.5])
    np.testing.assert_array_equal(counts.ties, [1.0])
