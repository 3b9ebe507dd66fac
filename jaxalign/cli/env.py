"""`jaxalign env`: versions, devices, cache folders and the variables that change behaviour, for a bug report."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxalign import __version__, files
from jaxalign.cli import flags

_PACKAGES = (
    "jax",
    "jaxlib",
    "libtpu",
    "flax",
    "optax",
    "orbax-checkpoint",
    "transformers",
    "tokenizers",
    "huggingface-hub",
    "safetensors",
    "numpy",
    "tensorflow-datasets",
)
_VARIABLES = re.compile(
    r"(JAX|JAXALIGN|XLA|HF|HUGGINGFACE|TRANSFORMERS|TFDS|TPU|LIBTPU|CUDA|NVIDIA_VISIBLE|NCCL|OMP)_.*|LD_LIBRARY_PATH"
)
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL")


@dataclasses.dataclass(frozen=True)
class Options:
    """Prints versions, devices, cache folders and relevant environment variables, for a bug report."""

    json: bool = False
    """print one JSON object instead of a table"""


def main(arguments: Sequence[str]) -> int:
    """Prints the report; the status is 1 when JAX cannot list its devices."""
    options = flags.parse("env", Options, arguments)
    report = collect()
    print(json.dumps(report, indent=2) if options.json else _table(report))
    return 1 if "error" in report["devices"] else 0


def collect() -> dict[str, Any]:
    """The report, as values that JSON can hold. Secrets among the variables are shown as `(set)`."""
    return {
        "versions": {"jaxalign": __version__, "python": sys.version.split()[0], **_versions()},
        "system": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "devices": _devices(),
        "caches": {name: {"path": str(path), "bytes": _size(path)} for name, path in _caches().items()},
        "variables": {
            name: "(set)" if _SECRET.search(name) else value
            for name, value in sorted(os.environ.items())
            if _VARIABLES.fullmatch(name)
        },
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _devices() -> dict[str, Any]:
    try:
        import jax

        kinds: dict[str, int] = {}
        for device in jax.devices():
            kinds[device.device_kind] = kinds.get(device.device_kind, 0) + 1
        return {"backend": jax.default_backend(), "processes": jax.process_count(), "kinds": kinds}
    except Exception as error:
        # A broken driver or a busy TPU is what the report is for; its other parts must still be printed.
        return {"error": f"{type(error).__name__}: {error}"}


def _caches() -> dict[str, Path]:
    from huggingface_hub import constants

    found = {"jaxalign": files.cache_dir(), "model hub": Path(constants.HF_HUB_CACHE)}
    if compiled := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        found["compiled programs"] = Path(compiled)
    return found


def _size(folder: Path) -> int | None:
    """Bytes of the files in `folder`, links not followed; None if there is no such folder."""
    if not folder.is_dir():
        return None
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue  # another process is cleaning up
    return total


def _table(report: dict[str, Any]) -> str:
    def caches(entry: dict[str, Any]) -> str:
        size = "not there yet" if entry["bytes"] is None else f"{entry['bytes'] / 1e6:.1f} MB"
        return f"{entry['path']} ({size})"

    devices = dict(report["devices"])
    if "kinds" in devices:
        devices["kinds"] = ", ".join(f"{count} x {kind}" for kind, count in devices["kinds"].items())
    sections = {
        "versions": {name: value or "not installed" for name, value in report["versions"].items()},
        "system": report["system"],
        "devices": devices,
        "caches": {name: caches(entry) for name, entry in report["caches"].items()},
        "variables": report["variables"] or {"(none)": ""},
    }
    lines = []
    for title, rows in sections.items():
        width = max(map(len, rows))
        lines += [title, *(f"  {name:<{width}}  {value}".rstrip() for name, value in rows.items())]
    return "\n".join(lines)
