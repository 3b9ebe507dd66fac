"""Every method fitted once on small planted data."""

import functools

import numpy as np
import pytest
from planted import WIDTH, make_blocks, short

from jaxalign import rewards


@pytest.fixture(autouse=True, scope="module")
def hurry(quick_compilation):
    """All of these tests."""


@pytest.fixture(scope="session")
def mixed():
    """Nine users with 0, 1 or more pairs each, of two opposed tastes."""
    taste = np.zeros((9, WIDTH), np.float32)
    taste[:5, :2] = [2.0, 1.0]
    taste[5:, :2] = [-2.0, 1.0]
    return make_blocks(taste, pairs=[12, 1, 0, 20, 5, 12, 1, 0, 9], seed=3)


@pytest.fixture(scope="session")
def fitted(mixed):
    """A function from the name of a method to its fit on `mixed`, computed once; steps are few."""

    @functools.cache
    def fit(name):
        return rewards.fit(short(name), mixed)

    return fit
