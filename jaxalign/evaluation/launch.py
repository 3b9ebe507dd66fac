"""Several processes of one job on this machine: to try out what a cluster does, or one process per GPU."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxalign.errors import InputError
from jaxalign.evaluation.distributed import COORDINATOR, PROCESS, PROCESSES


def launch(
    command: Sequence[str],
    processes: int,
    *,
    environment: Mapping[str, str] | None = None,
    grace: float = 30.0,
) -> int:
    """Runs `command` as the processes of one job and waits for all; each line of their output is marked `[number]`.

    The processes find each other by `distributed.start()`. NVIDIA GPUs of the machine are divided among them. SIGTERM
    and SIGINT are passed on. When a process fails, the others get SIGTERM and `grace` seconds.

    Args:
      command: program and arguments.
      processes: how many, at least 1.
      environment: further variables.
      grace: seconds between SIGTERM and SIGKILL.

    Returns:
      the exit status of the first process that failed (128 + the signal where one killed it), or 0.

    Raises:
      InputError: processes that do not divide the GPUs.
    """
    if processes < 1:
        raise InputError(f"processes = {processes}: at least 1 is needed")
    devices = _gpus(processes)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    running, readers = [], []
    for process in range(processes):
        own = dict(os.environ) | dict(environment or {})
        own |= {COORDINATOR: f"localhost:{port}", PROCESSES: str(processes), PROCESS: str(process)}
        if devices:
            own["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, devices[process]))
        # A new session: a Ctrl-C in the terminal reaches them through us, once.
        child = subprocess.Popen(
            command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        reader = threading.Thread(target=_copy, args=(child, f"[{process}] "), daemon=True)
        reader.start()
        running.append(child)
        readers.append(reader)
    return _wait(running, readers, grace)


def _gpus(processes: int) -> list[list[int]] | None:
    folder = Path("/proc/driver/nvidia/gpus")
    count = len(list(folder.iterdir())) if folder.is_dir() else 0
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        count = len(visible.split(","))
    if not count or "cpu" in os.environ.get("JAX_PLATFORMS", ""):
        return None
    if count % processes:
        raise InputError(f"{processes} processes do not divide the {count} GPUs of this machine")
    each = count // processes
    return [list(range(process * each, (process + 1) * each)) for process in range(processes)]


def _copy(child: subprocess.Popen, mark: str) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        sys.stdout.write(mark + line.decode(errors="replace"))
        sys.stdout.flush()


def _wait(running: list[subprocess.Popen], readers: list[threading.Thread], grace: float) -> int:
    """Waits for all; passes signals on; ends the rest when one fails."""
    failed: list[int] = []  # processes, the first to fail first
    deadline, asked = None, []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda received, _: asked.append(received))
    try:
        while True:
            statuses = [child.poll() for child in running]
            failed += [i for i, status in enumerate(statuses) if status and i not in failed]
            if None not in statuses:
                break
            if (asked or failed) and deadline is None:
                deadline = time.monotonic() + grace
                if failed:
                    status = _status(running[failed[0]])
                    print(f"process {failed[0]} ended with status {status}: stopping the others", file=sys.stderr)
                for child in running:
                    if child.poll() is None:
                        child.send_signal(signal.SIGTERM)
            if deadline is not None and time.monotonic() > deadline:
                for child in running:
                    child.kill()
            time.sleep(0.05)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for child in running:
            if child.poll() is None:
                child.kill()
            child.wait()
        for reader in readers:
            reader.join()
        for child in running:
            if child.stdout is not None:
                child.stdout.close()
    return _status(running[failed[0]]) if failed else 0


def _status(child: subprocess.Popen) -> int:
    return 128 - child.returncode if child.returncode < 0 else child.returncode
