"""The folder of one run: its config, and results that are written as they come and kept when it is run again.

Every file is written whole, and its SHA-256 is kept in `checksums.json`. A file that is not as it was written is named
and computed again, never read.
"""

import dataclasses
import hashlib
import json
import logging
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jaxalign import __version__
from jaxalign.errors import InputError
from jaxalign.evaluation.distributed import process_index
from jaxalign.files import sha256, write_atomic, write_json

log = logging.getLogger(__name__)

SCHEMA_VERSION = 2
CHECKSUMS = "checksums.json"
# They say where results go and how they are computed, and change none; of plugins the content counts.
_NOT_RESULTS = ("out", "mesh", "track", "plugins")


class RunFolder:
    """Results of one config; a folder of another config is refused."""

    def __init__(self, path: Path, config: Any, plugins: Mapping[str, str] | None = None):
        """Opens or makes the folder.

        Args:
          path: of the folder.
          config: a dataclass, whose fields are kept.
          plugins: name and version (or SHA-256) of all that adds something that the config uses.

        Raises:
          InputError: it belongs to another config; the message shows the fields that differ.
        """
        self.path = path
        values = {k: _plain(v) for k, v in dataclasses.asdict(config).items() if k not in _NOT_RESULTS}
        if plugins:
            values["plugins"] = dict(plugins)
        file = path / "config.json"
        if file.is_file():
            old = _read_config(file)
            different = [
                f"{k}: {old.get(k)!r} there, {values.get(k)!r} now"
                for k in sorted(set(old) | set(values))
                if old.get(k) != values.get(k)
            ]
            if different:
                raise InputError(
                    f"{path} holds the results of another config ({'; '.join(different)}). Give another --out, or "
                    "remove the folder."
                )
        elif not process_index():
            write_json(file, {"schema": SCHEMA_VERSION, "config": values, "versions": _versions(), "commit": _commit()})
        self.config = values
        self._checksums = self._read_checksums()

    def _read_checksums(self) -> dict[str, str]:
        file = self.path / CHECKSUMS
        if not file.is_file():
            return {}
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            return {str(name): str(value) for name, value in found.items()}
        except (ValueError, AttributeError):
            log.warning("%s is damaged: results are computed again", file)
            return {}

    def finished(self, name: str) -> bool:
        """Whether a file is there and as it was written; says so where it is there and not."""
        file = self.path / name
        if process_index():
            self._checksums = self._read_checksums()  # process 0 writes them meanwhile
        if not file.is_file():
            return False
        if self._checksums.get(name) == sha256(file):
            return True
        log.warning("%s is not as it was written: it is computed again", file)
        return False

    def check_data(self, digest: str) -> None:
        """Keeps the digest of the data, or compares it.

        Raises:
          InputError: the results there come from other data.
        """
        if process_index():
            return  # compared with process 0's before
        if (old := self.read("data_digest.json")) is not None and old["sha256"] != digest:
            raise InputError(
                f"{self.path} holds results of other data (sha256 {old['sha256'][:12]} there, {digest[:12]} now). Give "
                "another --out, or remove the folder."
            )
        self.write("data_digest.json", {"sha256": digest})

    def digest(self, *parts: str) -> str:
        """A hash of the config and of whatever else results depend on."""
        told = json.dumps([SCHEMA_VERSION, self.config, *parts], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    def read(self, name: str) -> Any:
        """The value of a finished JSON file, or None."""
        return json.loads((self.path / name).read_text(encoding="utf-8")) if self.finished(name) else None

    def write(self, name: str, value: Any) -> None:
        """Writes a JSON file; NaN is refused, since it is not JSON."""
        self._put(name, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def read_lines(self, name: str) -> list[dict[str, Any]] | None:
        """The rows of a finished file, or None."""
        if not self.finished(name):
            return None
        return [json.loads(line) for line in (self.path / name).read_text(encoding="utf-8").split("\n") if line]

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes all rows, or none; NaN is refused, since it is not JSON."""
        self._put(name, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))

    def adopt(self, *names: str) -> None:
        """Takes files that were written by others, whole, as finished."""
        self._note({name: sha256(self.path / name) for name in names})

    def _put(self, name: str, text: str) -> None:
        if process_index():
            return  # every process has the same results, and process 0 writes them
        # A lone surrogate cannot be written as UTF-8, and one bad text must not lose the rest.
        data = text.encode("utf-8", "replace")
        write_atomic(self.path / name, data)
        # After the file: a process that is killed in between computes it again.
        self._note({name: hashlib.sha256(data).hexdigest()})

    def _note(self, checksums: Mapping[str, str]) -> None:
        self._checksums |= checksums
        write_json(self.path / CHECKSUMS, self._checksums)


def _read_config(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))["config"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged ({error}). Give another --out, or remove the folder.") from error


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "jaxalign": __version__}
    for name in ("jax", "jaxlib", "flax", "optax", "transformers", "numpy", "scipy", "rouge-score", "sacrebleu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The commit of a source checkout, or None."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
