"""Most of the time of these tests is XLA's, for programs that run for milliseconds: they are compiled in a hurry."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compilation(request):
    """Halves the suite's time. The real model's tests are compiled as users' programs are."""
    if request.module.__name__ == "test_golden":
        yield
        return
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
