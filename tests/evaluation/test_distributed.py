"""Several processes on one machine: the files of one process, whoever is killed; and what a wrong start is told.

Those marked `multiprocess` start JAX in each process, over gloo on loopback.
"""

import os
import subprocess
import sys
import textwrap

import pytest

from jaxalign.errors import InputError
from jaxalign.evaluation import distributed
from jaxalign.evaluation.launch import launch

WORK = """
    import os, sys, time
    import numpy as np
    from pathlib import Path
    from jaxalign.errors import JaxalignError
    from jaxalign.evaluation import distributed
    from jaxalign.evaluation.sharding import make_mesh, shard_users
    from jaxalign.evaluation.shards import Shards

    folder, config, victim = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    try:
        distributed.start(timeout=100)
        me = distributed.process_index()
        if victim == "differ":
            config += str(me)
        distributed.check_same({"config": config, "data": "same"}, timeout=100)
        if victim == "late" and me == 1:
            time.sleep(6)
        if victim == "late":
            distributed.barrier("fit", timeout=2)
        mesh = make_mesh()
        f = shard_users(lambda x: x * x + 1, mesh, in_axes=(0,))
        items = [f"u{i}" for i in range(11)]
        with Shards(folder, "stage", items, kind="arrays", config_digest=config, size=2, timeout=100) as shards:
            for number, shard in enumerate(shards.unfinished()):
                if victim == str(me) and number == 1:
                    os._exit(9)
                shards.save(shard, {"y": np.asarray(f(np.asarray(list(shard.places), np.float32)))})
                print("computed", shard.number, "on", mesh.size, "devices", flush=True)
            if me == 0:
                print("merged", shards.merged()["y"].tolist(), flush=True)
        distributed.stop()
    except JaxalignError as error:
        print(type(error).__name__, error, flush=True)
        os._exit(error.exit_status)
"""


def run(folder, processes, victim="none", devices=1):
    """Runs `WORK` in its own launcher; gives its exit status and output."""
    code = f"""
        import sys
        from jaxalign.evaluation.launch import launch
        work = [sys.executable, "-W", "ignore", "-c", {textwrap.dedent(WORK)!r}, {str(folder)!r}, "abc", {victim!r}]
        sys.exit(launch(work, {processes}, grace=5.0))
    """
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, timeout=280
    )
    return done.returncode, done.stdout + done.stderr


def parts(folder):
    return {path.name: path.read_bytes() for path in (folder / "stage").iterdir()}


@pytest.mark.multiprocess
def test_two_processes_write_the_files_of_one_and_a_killed_one_is_made_up_for(tmp_path):
    status, one = run(tmp_path / "one", 1)
    assert status == 0, one
    assert "merged [1.0, 2.0, 5.0, 10.0" in one
    status, two = run(tmp_path / "two", 2, devices=2)
    assert status == 0, two
    assert two.count("computed") == 6
    assert "[1] computed" in two
    assert "on 2 devices" in two
    assert parts(tmp_path / "two") == parts(tmp_path / "one")
    # Process 1 dies at its second shard; four devices of one process go on.
    status, killed = run(tmp_path / "killed", 2, victim="1")
    assert status == 9, killed
    assert "process 1 ended with status 9: stopping the others" in killed
    before = {name for name in parts(tmp_path / "killed") if name.endswith("safetensors")}
    assert 1 <= len(before) < 6
    status, again = run(tmp_path / "killed", 1, devices=4)
    assert status == 0, again
    assert again.count("computed") == 6 - len(before)
    assert parts(tmp_path / "killed") == parts(tmp_path / "one")


@pytest.mark.multiprocess
def test_processes_that_differ_or_do_not_come(tmp_path):
    status, said = run(tmp_path, 2, victim="differ")
    assert status == 2
    assert "do not agree on config: abc0 in process 0; abc1 in process 1. Start all of them" in said
    assert not (tmp_path / "stage").exists()
    status, said = run(tmp_path, 2, victim="late")
    assert status == 2
    assert "barrier fit: waited 2 s for process 1 (" in said
    assert "1 of 2 processes are here" in said


def test_one_process_needs_nothing(monkeypatch):
    for name in ("SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_SIZE", "JAX_COORDINATOR_ADDRESS", distributed.PROCESS):
        monkeypatch.delenv(name, raising=False)
    distributed.start()
    distributed.start("localhost:1", 1, 0)
    assert (distributed.process_index(), distributed.process_count()) == (0, 1)
    distributed.barrier("x", 0)
    distributed.check_same({"config": "a"})
    assert distributed.from_first("x", "value") == "value"
    distributed.stop()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("localhost:1", 2, None), "coordinator, processes given without process"),
        ((None, 2, None), "processes given without coordinator, process"),
        (("localhost:1", 2, 2), "process = 2 of processes = 2"),
        (("localhost", 2, 0), "write host:port"),
    ],
)
def test_flags_that_do_not_fit(flags, message, monkeypatch):
    monkeypatch.delenv(distributed.PROCESS, raising=False)
    with pytest.raises(InputError, match=message):
        distributed.start(*flags)


@pytest.mark.parametrize(
    ("environment", "several"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, False),  # a batch script outside srun
        ({"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "8"}, True),
        ({"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "JAX_PLATFORMS": "cpu"}, False),
    ],
)
def test_what_the_environment_says(environment, several):
    assert distributed._in_environment(environment) is several


def test_launch_marks_lines_and_gives_the_first_failure(capfd, monkeypatch):
    code = "import os, sys, time; p = os.environ['JAXALIGN_PROCESS']; print('hello', p, flush=True); "
    code += "p == '1' and sys.exit(3); time.sleep(60)"
    assert launch([sys.executable, "-c", code], 2, grace=5.0) == 3
    out, err = capfd.readouterr()
    assert "process 1 ended with status 3" in err
    assert "[1] hello 1\n" in out
    assert launch([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 1) == 137
    with pytest.raises(InputError, match="at least 1"):
        launch([], 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.delenv("JAX_PLATFORMS")
    with pytest.raises(InputError, match="2 processes do not divide the 3 GPUs"):
        launch([], 2)
