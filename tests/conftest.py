"""Settings for the whole suite: eight CPU devices, strict promotion, fresh keys, no network, no surprises.

The environment is set before JAX is first imported, since JAX reads it once.
"""

import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = os.environ.get("JAXALIGN_TEST_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
# Half of the suite's time is compiling, often the same program in several modules and workers: they share what they
# compiled.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "compiled")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["MPLBACKEND"] = "Agg"

import hypothesis
import jax
import pytest

# Mixed dtypes and silent rank promotion hide mistakes: a float32 reward added to a bfloat16 logit, [batch] to
# [batch, k].
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# No test fails because the machine is busy, and the same examples are tried each time: a failure is a change's own.
# `--hypothesis-profile explore` tries others.
hypothesis.settings.register_profile(
    "explore", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.register_profile("repeatable", hypothesis.settings.get_profile("explore"), derandomize=True)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser):
    parser.addoption("--shapes", action="store_true", help="check jaxtyping shapes at run time (slower)")


def pytest_configure(config):
    if config.getoption("--shapes"):
        from jaxtyping import install_import_hook

        config.stash["shapes"] = install_import_hook("jaxalign", "beartype.beartype")


@pytest.fixture(scope="module")
def quick_compilation():
    """For modules that compile many programs and run each for a moment: optimising them takes most of the time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def key():
    """A function that gives a new random key at each call, so that no test uses a key twice."""
    state = [0]

    def dispense():
        state[0] += 1
        return jax.random.key(state[0])

    return dispense


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and reference outputs; a test that needs it skips where there is none."""
    folder = os.environ.get("JAXALIGN_SHARED")
    if not folder or not Path(folder).is_dir():
        pytest.skip("JAXALIGN_SHARED does not name a folder: real data and reference outputs are not here")
    return Path(folder)


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct in float32, loaded once; a test that needs it skips where it cannot be had.

    Always the package's weights: the reference outputs are theirs, and those on the model hub differ a little.
    """
    from jaxalign import models
    from jaxalign.errors import DownloadError
    from jaxalign.models import hub

    try:
        return models.load(str(hub.smollm2_from_package()))
    except DownloadError as error:
        pytest.skip(str(error))
