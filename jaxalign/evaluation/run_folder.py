"""The folder of one run: its config, and results that are written as they come and kept when it is run again."""

import dataclasses
import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxalign import __version__
from jaxalign.errors import InputError
from jaxalign.files import write_atomic, write_json

SCHEMA_VERSION = 1


class RunFolder:
    """Results of one config; a folder of another config is refused."""

    def __init__(self, path: Path, config: Any):
        """Opens or makes the folder.

        Raises:
          InputError: it belongs to another config; the message shows the fields that differ.
        """
        self.path = path
        values = {k: _plain(v) for k, v in dataclasses.asdict(config).items() if k != "out"}
        file = path / "config.json"
        if file.is_file():
            old = json.loads(file.read_text(encoding="utf-8"))["config"]
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
        else:
            names = ("jax", "flax", "optax", "transformers", "numpy")
            versions = {"python": platform.python_version(), "jaxalign": __version__} | {
                name: version(name) for name in names
            }
            write_json(file, {"schema": SCHEMA_VERSION, "config": values, "versions": versions})

    def read_lines(self, name: str) -> list[dict[str, Any]] | None:
        """The rows of a finished file, or None."""
        file = self.path / name
        if not file.is_file():
            return None
        return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes all rows, or none; NaN is refused, since it is not JSON."""
        text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        # A lone surrogate cannot be written as UTF-8, and one bad text must not lose the rest.
        write_atomic(self.path / name, text.encode("utf-8", "replace"))


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
