"""Files that are either whole or absent: atomic writes, checksums, the cache folder.

A reader never sees a half-written file: contents go to a temporary name in the same folder, are flushed to disk, and
are renamed into place.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxalign.errors import JaxalignError

CACHE_VARIABLE = "JAXALIGN_CACHE"
# Ends the names of what is being written; no other program's files are called so.
UNFINISHED = ".jaxalign-part"


def cache_dir() -> Path:
    """The folder for downloads, converted models and features: `JAXALIGN_CACHE`, else the platform's cache folder."""
    if configured := os.environ.get(CACHE_VARIABLE):
        return Path(configured).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("jaxalign"))


def sha256(path: Path, chunk: int = 1 << 20) -> str:
    """The hexadecimal SHA-256 of a file, read in pieces of `chunk` bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(chunk):
            digest.update(piece)
    return digest.hexdigest()


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _mode() -> int:
    """The permissions that an ordinary new file gets; temporary files are private until they are in place."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def write_atomic(path: Path, content: bytes | str) -> None:
    """Writes `content` to `path`, creating its folder; readers see the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            _flush(file)
        os.chmod(temporary, _mode())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is what matters
            os.unlink(temporary)
        raise


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically. Non-finite numbers are refused: they are not JSON."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def remove_leftovers(folder: Path) -> None:
    """Removes what killed processes left half-written anywhere under `folder`; nothing may be writing there."""
    for path in list(folder.rglob(f".*{UNFINISHED}")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def read_json(path: Path, error: type[JaxalignError]) -> Any:
    """The value of a JSON file that anyone may have written; a byte order mark makes no difference.

    Python's own reader lets NaN, infinities and repeated fields pass, and has three more kinds of error.

    Raises:
      error: the file cannot be read, or is not one JSON value.
    """

    def refuse(what: str) -> None:
        raise ValueError(f"{what} is not a JSON number")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)!r} occurs twice")
        return fields

    try:
        text = path.read_text(encoding="utf-8-sig")
        return json.loads(text, parse_constant=refuse, object_pairs_hook=once)
    except (OSError, ValueError) as problem:
        raise error(f"{path}: not valid JSON ({problem})") from None
    except RecursionError:
        raise error(f"{path}: not valid JSON (nested too deeply)") from None


def is_number(value: Any) -> bool:
    """Whether a value that anyone may have written is a number that a float can hold; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Gives a temporary folder that becomes `path` when the block ends, and vanishes when the block fails.

    When another process finished the same folder meanwhile, its result is kept and this one is dropped.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED))
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb+") as handle:
                    _flush(handle)
        temporary.chmod(_mode() | 0o111 & (_mode() >> 2))  # a folder is entered where it is read
        try:
            os.rename(temporary, path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
