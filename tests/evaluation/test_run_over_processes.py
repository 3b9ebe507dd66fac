"""`jaxalign run` over several processes and devices, from the command line: the files of one process on one device."""

import json
import os
import subprocess
import sys

import pytest
from tiny_run import RESULTS, SETTINGS, rows, save_model, write

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Runs the tiny experiment in processes of their own; gives the results of a folder of that name."""
    place = tmp_path_factory.mktemp("runs")
    save_model(place / "model")
    write(place / "pairs.jsonl", rows())
    values = {"model": str(place / "model"), **SETTINGS}
    made = f"from jaxalign.evaluation.experiment import Experiment\nexperiment = Experiment(**{values!r})\n"
    (place / "tiny.py").write_text(made)

    def run(name, *flags, devices=1, cache="cache"):
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "JAXALIGN_CACHE": str(place / cache),
        }
        asked = [str(place / "tiny.py"), "--data", str(place / "pairs.jsonl"), "--out", str(place / name), *flags]
        done = subprocess.run(
            [sys.executable, "-m", "jaxalign", "run", *asked], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return {file: (place / name / file).read_bytes() for file in RESULTS}

    return run


@pytest.fixture(scope="module")
def alone(command):
    return command("alone")


def test_two_processes_write_the_files_of_one(command, alone):
    assert command("two", "--processes", "2", cache="of-two") == alone


def test_eight_devices_give_the_accuracies_and_texts_of_one(command, alone):
    spread = command("spread", "--mesh", "users=4,model=2", devices=8, cache="of-eight")
    for file, names in (("metrics.jsonl", ("measure", "method", "group", "users")), ("generations.jsonl", ("text",))):
        one, other = ([json.loads(line) for line in table[file].splitlines()] for table in (alone, spread))
        for name in names:
            assert [row[name] for row in one] == [row[name] for row in other]
        for row, same in zip(one, other, strict=True):
            value = row.get("value")
            assert value is None or same["value"] == pytest.approx(value, rel=1e-3, abs=1e-3), row
