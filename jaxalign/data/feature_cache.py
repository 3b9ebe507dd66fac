"""Arrays per text, kept on disk under what they depend on: model, tokenizer, template and the text itself.

The cache is a folder of files that are written once and never changed, each with the arrays of some texts and a
checksum. A file appears whole, by renaming, so a killed run loses at most what it had not yet put. Processes need no
lock: each writes files of its own, and the same text in two files has the same arrays. A damaged file is set aside, and
its texts are computed again. Arrays are read through the page cache, so a large cache costs no memory of its own.
"""

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxalign.data.prompts import Prompt, identity
from jaxalign.errors import DataError
from jaxalign.files import write_atomic, write_json

_MAGIC = b"jaxalign features 1\n"
_KEY_BYTES = 32
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """What features depend on besides the text; all strings, for instance fingerprints.

    Attributes:
      model: the language model with its weights and precision.
      tokenizer: the tokenizer.
      template: the chat template and how a text is cut.
      layer: which hidden state is taken.
    """

    model: str
    tokenizer: str
    template: str
    layer: str = "final"

    @property
    def name(self) -> str:
        """A short name for the folder: a hash of all fields."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()[:24]


def text_key(prompt: Prompt, response: str) -> bytes:
    """32 bytes that identify a prompt and a response."""
    first = identity(prompt).encode("utf-8", "surrogatepass")
    state = hashlib.sha256(len(first).to_bytes(8, "little") + first)
    state.update(response.encode("utf-8", "surrogatepass"))
    return state.digest()


class FeatureCache:
    """The features of one origin.

    Args:
      folder: shared by all origins; each has a folder of its own in it.
      origin: what the features depend on.
    """

    def __init__(self, folder: str | Path, origin: Origin):
        self.folder = Path(folder) / origin.name
        description = self.folder / "origin.json"
        if not description.exists():
            write_json(description, dataclasses.asdict(origin))
        self._rows: dict[bytes, tuple[str, int]] = {}
        self._files: dict[str, Arrays] = {}
        self.refresh()

    def __len__(self) -> int:
        return len(self._rows)

    def refresh(self) -> None:
        """Takes in the files that other processes have finished since."""
        for path in sorted(self.folder.glob("*.features")):
            if path.name in self._files:
                continue
            try:
                keys, arrays = _read(path)
            except FileNotFoundError:  # another process has set it aside
                continue
            except DataError as error:
                logging.getLogger(__name__).warning("%s Its texts are computed again.", error)
                os.replace(path, path.with_suffix(".damaged"))
                continue
            self._files[path.name] = arrays
            for row, key in enumerate(keys):
                self._rows.setdefault(key, (path.name, row))

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """The places in `keys` of texts that the cache lacks, each text once."""
        first = {key: place for place, key in reversed(list(enumerate(keys))) if key not in self._rows}
        return sorted(first.values())

    def get(self, keys: Sequence[bytes]) -> Arrays:
        """The arrays of texts, each `[texts, ...]`.

        Raises:
          KeyError: the cache lacks one.
        """
        places = [self._rows[key] for key in keys]
        if not places:
            return {}
        parts = self._files[places[0][0]]
        found = {name: np.empty((len(keys), *array.shape[1:]), array.dtype) for name, array in parts.items()}
        files: dict[str, tuple[list[int], list[int]]] = {}
        for target, (file, row) in enumerate(places):
            targets, rows = files.setdefault(file, ([], []))
            targets.append(target)
            rows.append(row)
        for file, (targets, rows) in files.items():
            for name, array in found.items():
                array[targets] = self._files[file][name][rows]
        return found

    def put(self, keys: Sequence[bytes], arrays: Mapping[str, np.ndarray]) -> None:
        """Keeps the arrays of texts, on disk when this returns.

        Each call makes a file: put some hundreds of texts at a time.

        Raises:
          DataError: an array has another length than `keys`, or a number that is not finite.
        """
        content = _pack(keys, arrays)
        name = f"{hashlib.sha256(content).hexdigest()[:32]}.features"
        if name not in self._files:
            write_atomic(self.folder / name, content)
            self._files[name] = _read(self.folder / name)[1]
        for row, key in enumerate(keys):
            self._rows.setdefault(key, (name, row))


def _pack(keys: Sequence[bytes], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Magic, a line of JSON with the checksum and shapes, the keys, the arrays."""
    for name, array in arrays.items():
        if len(array) != len(keys):
            raise DataError(f"{len(array)} rows of '{name}' were given for {len(keys)} texts.")
        if not np.isfinite(array).all():
            raise DataError(f"The features '{name}' hold numbers that are not finite; they were not kept.")
    body = b"".join([*keys, *(np.ascontiguousarray(array).tobytes() for array in arrays.values())])
    header = {
        "sha256": hashlib.sha256(body).hexdigest(),
        "texts": len(keys),
        "arrays": {name: [array.dtype.str, list(array.shape[1:])] for name, array in arrays.items()},
    }
    return _MAGIC + json.dumps(header).encode() + b"\n" + body


def _read(path: Path) -> tuple[list[bytes], Arrays]:
    """The keys and arrays of a file whose checksum holds."""
    with path.open("rb") as file:
        try:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("the beginning is not that of a features file")
            header = json.loads(file.readline())
            start = file.tell()
            texts = header["texts"]
            digest = hashlib.sha256()
            while piece := file.read(1 << 20):
                digest.update(piece)
            if digest.hexdigest() != header["sha256"]:
                raise ValueError("the checksum differs")
            file.seek(start)
            keys = [file.read(_KEY_BYTES) for _ in range(texts)]
            arrays, start = {}, start + texts * _KEY_BYTES
            for name, (dtype, shape) in header["arrays"].items():
                arrays[name] = np.memmap(path, dtype, "r", start, (texts, *shape))
                start += arrays[name].nbytes
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged ({error}).") from error
    return keys, arrays
