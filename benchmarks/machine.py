"""Where, with what and how a run was made: enough for a stranger to repeat it, or to see why it differs."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCHEMA = 1
"""Raised when a field of the JSON lines changes its meaning."""

_PACKAGES = ("jax", "jaxlib", "flax", "transformers", "numpy", "torch")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are installed. Nothing is imported."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """The processor's name, or its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _vector_units() -> list[str]:
    """What decides a CPU's speed here, beside its name: virtual machines hide the model and show the flags."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return []
    flags = next((line.split(":", 1)[1].split() for line in text.splitlines() if line.startswith("flags")), [])
    return [unit for unit in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if unit in flags]


def describe() -> dict[str, Any]:
    """Backend, devices, processor and load, as values that JSON can hold."""
    import jax

    devices = jax.devices()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "kind": kind(),
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "vector_units": _vector_units(),
        # Over the minute before; well above 0 when other jobs share the machine.
        "load": load,
    }


def kind() -> str:
    """A name under which ratios can be compared: the accelerator, or the processor with its cores and vector unit."""
    import jax

    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{device.device_kind} x {jax.device_count()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return " ".join([cpu_model(), f"{cores} cores", *_vector_units()[-1:]])


def commit() -> str | None:
    """The commit of the source tree, `-changed` where files differ from it; None outside a git checkout."""
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    if head is None:
        return None
    changed = git("status", "--porcelain", "--untracked-files=no", "--", str(folder), str(folder.parent / "jaxalign"))
    return head + ("-changed" if changed else "")


def origin(module: str, arguments: Sequence[str] | None) -> dict[str, Any]:
    """What every JSON line of a run has in common.

    Args:
      module: the benchmark, such as `decode`.
      arguments: its flags; None for the process's own.
    """
    rest = sys.argv[1:] if arguments is None else arguments
    return {
        "schema": SCHEMA,
        "benchmark": module,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": shlex.join(["python", "-m", f"benchmarks.{module}", *rest]),
        "machine": describe(),
        "versions": versions(),
    }
