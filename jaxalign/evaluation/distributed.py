"""Many processes: started as one job, waiting for each other with a limit, agreeing on values. For one, all trivial.

Everything goes through the key/value store of JAX's coordinator, not through device collectives: a process that waits
can then say whom it waits for, where a collective would hang.
"""

import itertools
import json
import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxalign.errors import InputError, JaxalignError

log = logging.getLogger(__name__)

# Set by `launch` for the processes that it starts.
COORDINATOR, PROCESSES, PROCESS = "JAXALIGN_COORDINATOR", "JAXALIGN_PROCESSES", "JAXALIGN_PROCESS"

_calls: dict[str, itertools.count] = defaultdict(itertools.count)


class ProcessError(JaxalignError):
    """Another process of the job is missing, or has failed."""


def start(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None, *, timeout: float = 300
) -> None:
    """Joins this process to its job; before any computation. Does nothing where there is one process only.

    Without arguments the job is found in the environment: `launch`, Slurm (inside `srun`), Open MPI (`mpirun`), a TPU
    slice. Calling it again does nothing.

    Args:
      coordinator: `host:port` of process 0.
      processes: how many there are.
      process: number of this one, from 0.
      timeout: seconds to wait for the others.

    Raises:
      InputError: flags that are incomplete or do not fit each other.
      ProcessError: the others were not there in time.
    """
    import jax

    if jax.distributed.is_initialized():
        return
    settings: dict = {}
    explicit = {"coordinator": coordinator, "processes": processes, "process": process}
    if coordinator is None and PROCESS in os.environ and processes in (None, int(os.environ[PROCESSES])):
        explicit = {
            "coordinator": os.environ[COORDINATOR],
            "processes": int(os.environ[PROCESSES]),
            "process": int(os.environ[PROCESS]),
        }
    given = [name for name, value in explicit.items() if value is not None]
    if given and len(given) < 3:
        missing = [name for name in explicit if name not in given]
        raise InputError(f"{', '.join(given)} given without {', '.join(missing)}: give all three, or none")
    if given:
        count, index, address = explicit["processes"], explicit["process"], str(explicit["coordinator"])
        if not isinstance(count, int) or not isinstance(index, int) or not 0 <= index < count:
            raise InputError(f"process = {index} of processes = {count}: numbers from 0 to {count} - 1 are needed")
        if not address.rpartition(":")[2].isdecimal() or ":" not in address:
            raise InputError(f"coordinator = {address!r}: write host:port, for instance 10.0.0.1:8476")
        if count == 1:
            return
        settings = {"coordinator_address": address, "num_processes": count, "process_id": index}
    elif not _in_environment(os.environ):
        return
    try:
        jax.distributed.initialize(**settings, initialization_timeout=int(timeout))
    except RuntimeError as error:
        if "before any JAX" in str(error):
            raise
        raise ProcessError(
            f"the processes of the job did not come together within {timeout:.0f} s ({error}). Are all of them "
            "started, with one coordinator address that they can reach?"
        ) from error
    store = _store()
    store.key_value_set(f"jaxalign/host/{jax.process_index()}", f"{socket.gethostname()}, pid {os.getpid()}")


def _in_environment(environment: Mapping[str, str]) -> bool:
    """Whether the environment is that of one process of several, so that JAX can find out the rest."""

    def number(name: str) -> int:
        return int(environment[name]) if environment.get(name, "").isdecimal() else 0

    # Inside srun only: the batch script itself sees SLURM_NTASKS as well, and is one process.
    slurm = "SLURM_STEP_NODELIST" in environment and number("SLURM_STEP_NUM_TASKS") > 1
    if slurm or number("OMPI_COMM_WORLD_SIZE") > 1 or "JAX_COORDINATOR_ADDRESS" in environment:
        return True
    if "cpu" in environment.get("JAX_PLATFORMS", ""):
        return False
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):
        return True
    # A TPU machine may belong to a slice that only its metadata server knows of; JAX asks it.
    from importlib.util import find_spec

    return any(Path(device).exists() for device in ("/dev/accel0", "/dev/vfio/0")) and find_spec("libtpu") is not None


def _store() -> Any:
    # JAX has no public name for the store; multihost_utils and Orbax reach for the same object.
    from jax._src import distributed

    return distributed.global_state.client


def process_index() -> int:
    """Number of this process, 0 where there is one only. Starts no device."""
    from jax._src import distributed

    return distributed.global_state.process_id if _store() is not None else 0


def process_count() -> int:
    """How many processes the job has. Starts no device."""
    from jax._src import distributed

    return int(distributed.global_state.num_processes or 1) if _store() is not None else 1


def exchange(name: str, value: str, timeout: float = 600) -> list[str]:
    """Gives the values of all processes, by their number. Every process must make the same calls.

    Raises:
      ProcessError: a process did not give its value in time; the message names it.
    """
    if (store := _store()) is None:
        return [value]
    folder = f"jaxalign/{name}/{next(_calls[name])}"
    store.key_value_set(f"{folder}/{process_index()}", value)
    deadline, pause = time.monotonic() + timeout, 0.01
    while True:
        found = {int(key.rpartition("/")[2]): text for key, text in store.key_value_dir_get(f"{folder}/")}
        if len(found) == process_count():
            return [found[process] for process in range(process_count())]
        if time.monotonic() > deadline:
            missing = [process for process in range(process_count()) if process not in found]
            raise ProcessError(
                f"{name}: waited {timeout:g} s for {_names(missing)}; {len(found)} of {process_count()} processes are "
                "here. Look at the output of the missing ones; start the same command again to continue."
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def _names(processes: Sequence[int]) -> str:
    hosts = {int(key.rpartition("/")[2]): text for key, text in _store().key_value_dir_get("jaxalign/host/")}
    return ", ".join(f"process {process} ({hosts.get(process, 'unknown host')})" for process in processes)


def barrier(name: str, timeout: float = 600) -> None:
    """Waits until all processes are here.

    Raises:
      ProcessError: not all were within `timeout` seconds; the message names those that are missing.
    """
    exchange(f"barrier {name}", "", timeout)


def check_same(values: Mapping[str, str], timeout: float = 600) -> None:
    """Refuses to go on when processes were started with different values (hashes of config, data, code).

    Raises:
      InputError: in every process; the message names the values that differ, and in which processes.
      ProcessError: a process is missing.
    """
    everyone = [json.loads(text) for text in exchange("settings", json.dumps(dict(values)), timeout)]
    wrong = []
    for name in sorted({name for one in everyone for name in one}):
        groups = defaultdict(list)
        for process, one in enumerate(everyone):
            groups[one.get(name)].append(process)
        if len(groups) > 1:
            described = "; ".join(f"{value} in {_short(found)}" for value, found in groups.items())
            wrong.append(f"{name}: {described}")
    if wrong:
        raise InputError(
            f"the processes of this job do not agree on {', and '.join(wrong)}. Start all of them with the same files "
            "and flags."
        )


def _short(processes: Sequence[int]) -> str:
    shown = ", ".join(map(str, processes[:8]))
    return f"process {shown}{f' and {len(processes) - 8} more' if len(processes) > 8 else ''}"


def from_first(name: str, value: str, timeout: float = 600) -> str:
    """The value of process 0, in every process."""
    return exchange(name, value, timeout)[0]


def stop() -> None:
    """Leaves the job; a process that ends without is taken for lost by the others."""
    import jax

    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
