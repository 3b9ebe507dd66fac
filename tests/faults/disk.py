"""A disk that fails, or a process that dies, at the n-th operation that writes.

Operations on files under given folders are counted: making a file or folder, writing, flushing, renaming. The one at
place `at` fails: with an `OSError` (no space, input/output error, no permission), after half of the bytes where it is a
write; or, with `how="kill"`, as a killed process would leave it: nothing after it happens, not even tidying up.
"""

import builtins
import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ERRORS = {"no space": errno.ENOSPC, "input/output": errno.EIO, "no permission": errno.EACCES}


class Killed(BaseException):
    """What takes the place of SIGKILL: nothing of the program catches it."""


class Disk:
    """Counts operations and lets one of them fail.

    Attributes:
      operations: what was done, in order: `(operation, path)`.
      failed: whether the one at `at` was reached.
    """

    def __init__(self, folders: Sequence[Path], at: int | None, how: str):
        self._folders = [str(Path(folder).resolve()) + os.sep for folder in folders]
        self._at, self._how = at, how
        self.operations: list[tuple[str, str]] = []
        self.failed = False

    def ours(self, path: Any) -> bool:
        return (os.path.abspath(os.fspath(path)) + os.sep).startswith(tuple(self._folders))

    def step(self, operation: str, path: Any, half: Callable[[], None] = lambda: None) -> None:
        """Counts one operation; raises where it is the one that fails, after `half` of it."""
        if not self.ours(path):
            return
        if self.failed and self._how == "kill":
            raise Killed
        number = len(self.operations)
        self.operations.append((operation, str(path)))
        if number == self._at:
            self.failed = True
            half()
            if self._how == "kill":
                raise Killed
            raise OSError(ERRORS[self._how], os.strerror(ERRORS[self._how]), str(path))

    def dead(self) -> bool:
        """Whether nothing happens any more."""
        return self.failed and self._how == "kill"


class _File:
    """A file whose writes are operations."""

    def __init__(self, file: Any, path: str, disk: Disk):
        self._file, self._path, self._disk = file, path, disk

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        self._disk.step("write", self._path, lambda: self._part(data))
        return self._file.write(data)

    def _part(self, data: bytes) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()


@contextlib.contextmanager
def faulty(folders: Sequence[Path], at: int | None = None, how: str = "no space") -> Iterator[Disk]:
    """While the block runs, the operation number `at` (from 0) under `folders` fails; None counts them only."""
    disk = Disk(folders, at, how)

    def named(operation: str, call: Callable, place: int = 0) -> Callable:
        def wrapped(*args: Any, **settings: Any) -> Any:
            disk.step(operation, args[place])
            return call(*args, **settings)

        return wrapped

    def temporary(operation: str, call: Callable) -> Callable:
        def wrapped(*args: Any, **settings: Any) -> Any:
            disk.step(operation, Path(settings["dir"]) / settings.get("prefix", ""))
            return call(*args, **settings)

        return wrapped

    fsync, fdopen, opened, rmtree, unlink = os.fsync, os.fdopen, builtins.open, shutil.rmtree, os.unlink

    def flushed(handle: int) -> None:
        disk.step("flush", os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def fdopened(handle: int, *args: Any, **settings: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{handle}")
        file = fdopen(handle, *args, **settings)
        return _File(file, path, disk) if disk.ours(path) else file

    mkdir = os.mkdir

    def made(path: Any, *args: Any, **settings: Any) -> None:
        if not os.path.isdir(path):  # to make a folder that is there changes nothing
            disk.step("make folder", path)
        mkdir(path, *args, **settings)

    def tidied(call: Callable) -> Callable:
        def wrapped(path: Any, *args: Any, **settings: Any) -> Any:
            if disk.dead() and disk.ours(path):
                raise Killed
            return call(path, *args, **settings)

        return wrapped

    def saved(call: Callable) -> Callable:
        def wrapped(arrays: Any, path: Any, *args: Any, **settings: Any) -> Any:
            def part() -> None:
                call(arrays, path, *args, **settings)
                with opened(path, "rb+") as file:
                    file.truncate(os.path.getsize(path) // 2)

            disk.step("write", path, part)
            return call(arrays, path, *args, **settings)

        return wrapped

    from jaxalign.rewards import export

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", named("rename", os.replace, 1))
        patch.setattr(os, "rename", named("rename", os.rename, 1))
        patch.setattr(os, "mkdir", made)
        patch.setattr(tempfile, "mkstemp", temporary("make file", tempfile.mkstemp))
        patch.setattr(tempfile, "mkdtemp", temporary("make folder", tempfile.mkdtemp))
        patch.setattr(os, "fsync", flushed)
        patch.setattr(os, "fdopen", fdopened)
        patch.setattr(shutil, "rmtree", tidied(rmtree))
        patch.setattr(os, "unlink", tidied(unlink))
        patch.setattr(export, "save_file", saved(export.save_file))
        yield disk
