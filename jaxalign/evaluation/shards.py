"""Work cut into shards whose results are files: killed at any time, continued by the same command anywhere.

    folder/name/manifest.json     what the shards are: items, cuts, config
    folder/name/00003.jsonl       the result of a shard, or 00003.safetensors
    folder/name/00003.json        its checksum: the shard is finished once this is there and true

The cuts depend on the items and their costs, never on processes or devices, so that another number of them continues
the same work, and merging gives the same result.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxalign.errors import DataError, InputError
from jaxalign.evaluation import distributed
from jaxalign.evaluation.folder_lock import only_run
from jaxalign.evaluation.preemption import Preempted, stop_on_sigterm
from jaxalign.evaluation.sharding import balance
from jaxalign.files import write_atomic, write_json

log = logging.getLogger(__name__)

Kind = Literal["arrays", "rows"]
_SUFFIX: dict[str, str] = {"arrays": "safetensors", "rows": "jsonl"}


@dataclasses.dataclass(frozen=True)
class Shard:
    """Consecutive items.

    Attributes:
      number: from 0.
      first: place of its first item.
      items: their names.
    """

    number: int
    first: int
    items: tuple[str, ...]

    @property
    def places(self) -> range:
        """The places of its items in the list of all."""
        return range(self.first, self.first + len(self.items))


def cut(costs: Sequence[float] | np.ndarray, size: int) -> list[tuple[int, int]]:
    """Cuts consecutive items into shards of about equal cost: `(first, end)` of each.

    There are `ceil(items / size)` shards, or fewer where single items outweigh a shard.
    """
    if size < 1:
        raise InputError(f"size = {size}: a shard holds at least 1 item")
    total = np.concatenate([[0.0], np.cumsum(np.asarray(costs, np.float64))])
    count = -(-(len(total) - 1) // size)
    if total[-1] == 0:
        edges = np.arange(count + 1) * size
    else:
        edges = np.searchsorted(total, np.arange(count + 1) * (total[-1] / max(count, 1)) * (1 - 1e-12))
    edges = np.unique(np.minimum(np.concatenate([edges, [0, len(total) - 1]]), len(total) - 1))
    return [(int(a), int(b)) for a, b in itertools.pairwise(edges)]


class Shards:
    """The shards of one stage of a run, of which the unfinished ones are computed.

        with Shards(folder, "policy", users, kind="arrays", config_digest=digest, costs=tokens) as shards:
            for shard in shards.unfinished():
                shards.save(shard, compute(shard.items))
            result = shards.merged()

    With several processes all of them run this; each is given shards of its own, about equal in cost, and all leave
    `unfinished` together. As a context it holds the folder (see `folder_lock`) and turns SIGTERM into an end after the
    shard at hand (see `preemption`).
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        items: Sequence[str],
        *,
        kind: Kind,
        config_digest: str,
        costs: Sequence[float] | np.ndarray | None = None,
        size: int = 16,
        lockstep: bool = False,
        timeout: float = 24 * 3600,
        grace: float = 20.0,
    ):
        """Opens or makes the folder `folder / name`.

        Args:
          folder: of the run.
          name: of the stage.
          items: unique names (users), in the order of the merged result.
          kind: `arrays`: a shard's result is a dict of arrays with a leading axis of its items; `rows`: a list of JSON
            objects, any number of them.
          config_digest: hash of everything else that the results depend on.
          costs: `[items]`, for shards of equal cost; default: of equal numbers.
          size: items per shard, on average. One shard is what a killed process loses.
          lockstep: all processes compute each shard together (the mesh spans processes) and process 0 saves it.
          timeout: seconds that a process waits for the others at the end.
          grace: seconds to finish the shard at hand after SIGTERM.

        Raises:
          InputError: items that repeat, or a folder of another config or other items; the message says what differs.
        """
        self.path, self.name, self.kind = folder / name, name, kind
        self._run, self._lockstep, self._timeout, self._grace = folder, lockstep, timeout, grace
        names = [str(item) for item in items]
        if len(set(names)) != len(names):
            seen: set[str] = set()
            twice = next(item for item in names if item in seen or seen.add(item))
            raise InputError(f"{name}: item {twice!r} is there twice")
        self._costs = np.ones(len(names)) if costs is None else np.asarray(costs, np.float64)
        if self._costs.shape != (len(names),) or not np.isfinite(self._costs).all() or (self._costs < 0).any():
            raise InputError(f"{name}: one finite, non-negative cost per item is needed, for {len(names)} items")
        edges = cut(self._costs, size)
        self.all = [Shard(n, a, tuple(names[a:b])) for n, (a, b) in enumerate(edges)]
        listed = json.dumps([names, edges], ensure_ascii=True).encode()
        self._manifest = {
            "kind": kind,
            "config": config_digest,
            "items": hashlib.sha256(listed).hexdigest(),
            "number_of_items": len(names),
            "number_of_shards": len(edges),
        }
        self._check_manifest()
        self._open = ExitStack()
        self._notice = None

    def _check_manifest(self) -> None:
        file = self.path / "manifest.json"
        try:
            old = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if distributed.process_index() == 0:
                write_json(file, self._manifest)
            return
        except ValueError:
            raise InputError(f"{file} cannot be read: remove the folder to compute it again") from None
        if different := [k for k in self._manifest if old.get(k) != self._manifest[k]]:
            shown = "; ".join(f"{k}: {old.get(k)} there, {self._manifest[k]} now" for k in different)
            raise InputError(
                f"{self.path} holds the work of another config or of other items ({shown}). Give another --out, or "
                "remove the folder."
            )

    def __enter__(self) -> "Shards":
        with ExitStack() as stack:
            if distributed.process_index() == 0:
                stack.enter_context(only_run(self._run))
            self._notice = stack.enter_context(stop_on_sigterm(self._grace))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()
        self._notice = None

    def _file(self, shard: Shard) -> Path:
        return self.path / f"{shard.number:05}.{_SUFFIX[self.kind]}"

    def _fault(self, shard: Shard) -> str | None:
        """Why a shard is not finished; an empty word where it was never written, None where it is finished."""
        part, sidecar = self._file(shard), self.path / f"{shard.number:05}.json"
        if not sidecar.is_file():
            return ""
        try:
            noted = json.loads(sidecar.read_text(encoding="utf-8"))
            content = part.read_bytes()
        except FileNotFoundError:
            return "the file is missing"
        except (ValueError, OSError) as error:
            return f"it cannot be read ({error})"
        if noted.get("items") != self._manifest["items"] or noted.get("config") != self._manifest["config"]:
            return "it is of another config or of other items"
        if len(content) != noted.get("bytes"):
            return f"it has {len(content)} bytes of {noted.get('bytes')}"
        if hashlib.sha256(content).hexdigest() != noted.get("sha256"):
            return "its contents do not have the checksum that was noted"
        return None

    def _left(self) -> list[Shard]:
        left = []
        for shard in self.all:
            if (fault := self._fault(shard)) is None:
                continue
            if fault:
                log.warning("%s: %s; it is computed again", self._file(shard), fault)
            left.append(shard)
        return left

    def unfinished(self) -> Iterator[Shard]:
        """Gives the shards that this process has to compute and `save`; ends when all processes have done theirs.

        Raises:
          Preempted: SIGTERM came; the shard at hand is finished and saved.
          ProcessError: another process did not finish.
        """
        # Process 0 decides what is left, since the others may look when some files are written already.
        listed = distributed.from_first(
            f"left {self.name}",
            json.dumps([s.number for s in self._left()]) if distributed.process_index() == 0 else "",
        )
        left = [self.all[number] for number in json.loads(listed)]
        if not self._lockstep:
            costs = [float(self._costs[shard.first : shard.first + len(shard.items)].sum()) for shard in left]
            left = [left[i] for i in balance(costs, distributed.process_count())[distributed.process_index()]]
        for done, shard in enumerate(left):
            self._stop_if_asked(done, len(left))
            if self._notice is not None:
                self._notice.at_hand = f"shard {shard.number} of {self.name}"
            yield shard
            if not (self._lockstep and distributed.process_index()) and self._fault(shard) is not None:
                raise RuntimeError(f"{self.name}: shard {shard.number} was not saved")
        self._stop_if_asked(len(left), len(left))
        distributed.barrier(f"end of {self.name}", self._timeout)

    def _stop_if_asked(self, done: int, all_: int) -> None:
        asked = self._notice is not None and self._notice.asked
        if self._lockstep and distributed.process_count() > 1:
            asked = "1" in distributed.exchange(f"stop {self.name}", str(int(asked)), self._timeout)
        if asked and done < all_:
            raise Preempted(
                f"stopped by SIGTERM: {done} of {all_} shards of {self.name} that this process had to do are finished "
                "and saved; the same command continues from there"
            )

    def save(self, shard: Shard, result: "Mapping[str, Any] | Sequence[Mapping[str, Any]]") -> None:
        """Writes a shard's result, whole or not at all.

        Raises:
          ValueError: arrays without the leading axis of the shard's items, or rows with NaN (not JSON).
        """
        if self._lockstep and distributed.process_index():
            return
        content = _arrays(shard, result) if isinstance(result, Mapping) else _rows(result)
        if isinstance(result, Mapping) != (self.kind == "arrays"):
            raise ValueError(f"{self.name}: a shard's result must be {self.kind}")
        write_atomic(self._file(shard), content)
        # The checksum is that of what was meant, and comes second: a shard without it is not finished.
        noted = {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "config": self._manifest["config"],
            "items": self._manifest["items"],
        }
        write_json(self.path / f"{shard.number:05}.json", noted)

    def merged(self) -> Any:
        """All results in the order of the items: a dict of arrays, or a list of rows.

        Raises:
          DataError: a shard is unfinished or damaged; the message names its file.
        """
        parts = []
        for shard in self.all:
            if (fault := self._fault(shard)) is not None:
                raise DataError(f"{self._file(shard)}: {fault or 'it is not finished'}; run the same command again")
            parts.append(self._read(shard))
        if self.kind == "rows":
            return [row for part in parts for row in part]
        if len({tuple(sorted(part)) for part in parts}) > 1:
            raise DataError(f"{self.path}: shards hold arrays of different names; remove the folder")
        return {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}

    def _read(self, shard: Shard) -> Any:
        if self.kind == "rows":
            lines = self._file(shard).read_text(encoding="utf-8").split("\n")
            return [json.loads(line) for line in lines if line]
        from safetensors.numpy import load

        return load(self._file(shard).read_bytes())


def _arrays(shard: Shard, result: Mapping[str, Any]) -> bytes:
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(value) for name, value in result.items()}
    for name, value in arrays.items():
        if value.ndim == 0 or value.shape[0] != len(shard.items):
            raise ValueError(f"{name} has shape {value.shape}; its first axis must be the {len(shard.items)} items")
    return save(dict(sorted(arrays.items())))


def _rows(result: Sequence[Mapping[str, Any]]) -> bytes:
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in result)
    # A lone surrogate cannot be written as UTF-8, and one bad text must not lose the rest.
    return text.encode("utf-8", "replace")
