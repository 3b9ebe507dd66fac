import dataclasses
from typing import ClassVar

import jax
import numpy as np
import pytest
from planted import halves, make_blocks

from jaxalign import rewards
from jaxalign.errors import InputError
from jaxalign.rewards import draws
from jaxalign.rewards.checkpoint import Checkpoints
from jaxalign.rewards.methods.bt import BradleyTerryHead

TASTE = np.asarray([[2.0, 0, 0], [0, 2.0, 0], [1.0, 1.0, 1.0]], np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noisy(BradleyTerryHead):
    """A head whose start and whose every step are random: the least that tells a wrong resumption."""

    random: ClassVar[bool] = True

    def init(self, key, pairs, prepared):
        return {"v": draws.normal(key, (pairs.features.shape[1],))}, {}

    def objective(self, params, users, pairs, key):
        return super().objective(params, users, pairs, key) + params["v"] @ jax.random.normal(key, params["v"].shape)


class Killed(Exception):
    """Stands for a signal that ends the process between two steps."""


def killer(at):
    def progress(done, total):
        if done >= at:
            raise Killed

    return progress


@pytest.fixture(scope="module")
def data():
    return halves(make_blocks(TASTE, pairs=20, noise=1.0))


def fit(data, folder=None, progress=None, **settings):
    settings = {"seeds": (0, 1), "grid": {"strength": (0.1, 1.0)}, "eval_every": 5, "patience": 9, **settings}
    if folder is None:
        return rewards.fit(Noisy(steps=20), *data, progress=progress, **settings)
    with Checkpoints(folder) as checkpoints:
        return rewards.fit(Noisy(steps=20), *data, checkpoints=checkpoints, progress=progress, **settings)


def assert_bitwise(one, two):
    for a, b in zip(one.ensemble.members, two.ensemble.members, strict=True):
        jax.tree.map(np.testing.assert_array_equal, (a.shared, a.user_params), (b.shared, b.user_params))
    np.testing.assert_array_equal(one.report.train_loss, two.report.train_loss)
    np.testing.assert_array_equal(one.report.validation_loss, two.report.validation_loss)
    assert one.report.chosen == two.report.chosen
    assert one.report.best_step == two.report.best_step


def test_a_killed_fit_resumes_to_bitwise_the_same_parameters(data, tmp_path):
    whole = fit(data)
    with pytest.raises(Killed):
        fit(data, tmp_path, killer(10))
    seen = []
    resumed = fit(data, tmp_path, lambda done, total: seen.append(done))
    assert seen == [15, 20], "it went on where it was killed"
    assert_bitwise(whole, resumed)
    again = []
    assert_bitwise(whole, fit(data, tmp_path, lambda done, total: again.append(done)))
    assert again == [], "a finished fit computes no step"


def test_a_step_that_is_not_complete_is_skipped_and_written_again(data, tmp_path, caplog):
    whole = fit(data)
    with pytest.raises(Killed):
        fit(data, tmp_path, killer(10))
    steps = tmp_path / "steps"
    # What a kill during a save, and other people, leave behind.
    for file in sorted((steps / "10").rglob("*")):
        if file.is_file():
            file.write_bytes(b"")
    (steps / "15").mkdir()
    (steps / "12").write_text("not a step")
    (steps / "20.orbax-checkpoint-tmp-1").mkdir()
    seen = []
    resumed = fit(data, tmp_path, lambda done, total: seen.append(done))
    assert seen == [10, 15, 20]
    assert "step 10 is not complete" in caplog.text
    assert_bitwise(whole, resumed)
    assert_bitwise(whole, fit(data, tmp_path))


def placed(devices, values):
    """Arrays split over the first `devices` devices."""
    mesh = jax.make_mesh(
        (devices,), ("users",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices]
    )
    return jax.device_put(values, jax.NamedSharding(mesh, jax.P("users")))


def test_a_state_of_eight_devices_is_resumed_on_any_number(tmp_path):
    values = np.arange(16, dtype=np.float32)
    record = {"done": np.asarray(3)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.resume({"lanes": placed(8, 0 * values), "record": record}, {})
        checkpoints.save(3, {"lanes": placed(8, values), "record": record})
    for devices in (1, 4):
        with Checkpoints(tmp_path) as checkpoints:
            lanes, _ = checkpoints.resume({"lanes": placed(devices, 0 * values), "record": record}, {})
        np.testing.assert_array_equal(lanes, values)
        assert len(lanes.sharding.device_set) == devices


@pytest.mark.parametrize("change", ["more layers", "fewer layers", "wider", "dtype", "no head"])
def test_a_state_of_other_sizes_is_refused_and_kept(tmp_path, change):
    def state(layers=2, width=3, dtype=np.float32, head=True):
        arrays = {f"layer {n}": np.ones(width, dtype) for n in range(layers)} | ({"head": np.ones(1)} if head else {})
        return {"lanes": arrays, "record": {"done": np.asarray(1)}}

    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.resume(state(), {})
        checkpoints.save(1, state())
    kept = sorted(tmp_path.rglob("*"))
    changes = {"more layers": {"layers": 3}, "fewer layers": {"layers": 1}, "wider": {"width": 4}}
    changes |= {"dtype": {"dtype": np.float64}, "no head": {"head": False}}
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(InputError, match="sizes of the state differ"):
        checkpoints.resume(state(**changes[change]), {})
    assert sorted(tmp_path.rglob("*")) == kept


def test_another_fit_is_refused_and_told_apart(data, tmp_path):
    with pytest.raises(Killed):
        fit(data, tmp_path, killer(5))
    with pytest.raises(InputError, match="checkpoints of another fit: seeds differ"):
        fit(data, tmp_path, seeds=(0,))
    with pytest.raises(InputError, match="another fit: data differ"):
        fit(data[::-1], tmp_path)
