"""Saving the state of training with Orbax, so that a killed fit resumes to bitwise the same parameters.

A step is saved asynchronously and counts only when complete. The state holds the latest and the best parameters of all
lanes, the optimiser, the curves, and the number of steps done, which is also the data position: what a step draws
depends on its number and the seed only. Feature statistics and users follow from the data, whose hash is checked.
"""

import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxalign.data.blocks import PairBlocks
from jaxalign.errors import InputError
from jaxalign.files import read_json, write_json
from jaxalign.rewards.protocol import Method

_log = logging.getLogger(__name__)
_MARK = "fit.json"
_SIZES = "sizes of the state"
_LAST_FILE = "_CHECKPOINT_METADATA"


def fingerprint(
    method: Method,
    combinations: Sequence[dict[str, float]],
    seeds: Sequence[int],
    settings: Sequence[Any],
    data: Sequence[PairBlocks | None],
) -> dict[str, str]:
    """What a fit is: equal fingerprints compute the same numbers, on the same machine."""
    digest = hashlib.sha256()
    for blocks in data:
        if blocks is None:
            digest.update(b"none")
            continue
        for field in dataclasses.fields(blocks):
            value = getattr(blocks, field.name)
            if isinstance(value, np.ndarray):
                digest.update(f"{field.name} {value.shape} {value.dtype}".encode())
                digest.update(np.ascontiguousarray(value).tobytes())
            else:
                digest.update(repr(value).encode())
    return {
        "method": repr(method),
        "grid": json.dumps(list(combinations)),
        "seeds": json.dumps(list(seeds)),
        "settings": json.dumps(list(settings)),
        "data": digest.hexdigest(),
    }


def _sizes(state: Any) -> str:
    """A hash of the names, shapes and dtypes of a state's arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    told = [f"{jax.tree_util.keystr(path)} {np.shape(leaf)} {np.asarray(leaf).dtype}" for path, leaf in leaves]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


class Checkpoints:
    """A folder of checkpoints of one fit; the two newest are kept.

    Use it as a context manager: leaving waits for saves that are under way.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._manager: ocp.CheckpointManager | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        if self._manager is not None:
            self._manager.wait_until_finished()
            self._manager.close()
            self._manager = None

    @property
    def manager(self) -> ocp.CheckpointManager:
        """Orbax's manager; made when first needed, since it scans the folder."""
        if self._manager is None:
            self._drop_unfinished()
            options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=True)
            # Named items: without names Orbax infers them from whatever lies in the folder.
            self._manager = ocp.CheckpointManager(self.folder / "steps", options=options, item_names=("state",))
        return self._manager

    def _drop_unfinished(self) -> None:
        """Removes numbered folders that lack Orbax's last file: steps that were not saved to the end."""
        for path in sorted((self.folder / "steps").glob("*")):
            if path.is_dir() and path.name.isdecimal() and not (path / _LAST_FILE).is_file():
                _log.warning("%s: step %s is not complete and is removed", self.folder, path.name)
                shutil.rmtree(path)

    def resume(self, fresh: dict[str, Any], mark: dict[str, str]) -> tuple[Any, Any]:
        """The newest complete state, or the fresh one where there is none: `(lanes, record)`.

        A step that cannot be read is skipped with a warning and removed, so that it will be saved again.

        Raises:
          InputError: the folder belongs to another fit; says in what they differ.
        """
        # A step of other sizes could not be read, and would be taken for a damaged one.
        mark = {**mark, _SIZES: _sizes(fresh)}
        path = self.folder / _MARK
        if path.exists():
            known = read_json(path, InputError)
            if not isinstance(known, dict):
                raise InputError(f"{path} is damaged: use another folder, or remove this one to start anew.")
            differ = [name for name in mark if known.get(name) != mark[name]]
            # Where something else differs, that is why.
            differ = [name for name in differ if name != _SIZES] or differ
            if differ:
                raise InputError(
                    f"{self.folder} holds checkpoints of another fit: {', '.join(differ)} differ. Use another "
                    "folder, or remove this one to start anew."
                )
        else:
            write_json(path, mark)
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                restored = self.manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(fresh)))[
                    "state"
                ]
            except Exception as error:
                # Whatever a broken file makes Orbax raise: an older complete step is the way on.
                _log.warning("%s: step %d is not complete and is skipped (%s)", self.folder, step, error)
                self.manager.delete(step)
                continue
            record = jax.tree.map(lambda leaf: np.array(leaf), restored["record"])
            return restored["lanes"], record
        return fresh["lanes"], fresh["record"]

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Saves the state after `step` steps; returns once it is copied, and writes in the background."""
        # The record changes in place and the lanes are donated to the next step: hand over copies.
        copied = jax.tree.map(np.array, state)
        self.manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave(copied)), force=True)

    def wait(self) -> None:
        """Returns when everything is on disk."""
        self.manager.wait_until_finished()
