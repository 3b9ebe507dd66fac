"""One run at a time on a results folder."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from jaxalign.errors import InputError

log = logging.getLogger(__name__)

NAME = ".lock"
_held: dict[Path, int] = {}


@contextlib.contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Holds the folder while the block runs; a run that holds it already may do so again.

    The kernel gives the lock back when its process ends, however it ends, so that the lock of a dead process never
    blocks. With several processes it is process 0's to take: the others only write files of their own.

    Raises:
      InputError: another run holds it; the message says which.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / NAME
    if path in _held:
        _held[path] += 1
        try:
            yield
        finally:
            _held[path] -= 1
        return
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                file.seek(0)
                raise InputError(
                    f"{folder} is in use by another run ({file.read().strip() or 'it has not said which'}). Wait for "
                    "it, stop it, or give another --out."
                ) from None
            # Some network file systems have no locks.
            log.warning("%s cannot be locked (%s): make sure that no other run uses it", folder, error)
        file.truncate(0)
        file.write(f"host {socket.gethostname()}, pid {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        file.flush()
        _held[path] = 1
        try:
            yield
        finally:
            # The file stays: removing it would let two later runs lock two different files of one name.
            file.truncate(0)
            del _held[path]
