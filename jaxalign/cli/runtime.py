"""What long commands share: compiled programs on disk, progress on standard error, output that is whole or absent."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from jaxalign.errors import InputError


def prepare_jax() -> None:
    """Keeps compiled programs in the cache folder, so that a second run of the same shapes compiles nothing.

    JAX_ENABLE_X64 of the environment is not heeded: a command gives the same results everywhere.
    """
    import jax

    from jaxalign.files import cache_dir

    jax.config.update("jax_enable_x64", False)
    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "compiled"))


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; gives a function that takes the number of items done since its last call."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(what, total=total)
        yield lambda count: bars.update(task, advance=count)


def check_output(path: Path | None, overwrite: bool) -> None:
    """Refuses to write over a file; to be called before any work. A pipe or a device may be written to again.

    Raises:
      InputError: `path` is a file or folder, and `overwrite` was not asked for.
    """
    if path is not None and not overwrite and (os.path.isfile(path) or os.path.isdir(path)):
        raise InputError(f"{path} exists. Give another file, or --overwrite.")


@contextlib.contextmanager
def output(path: Path | None) -> Iterator[IO[str]]:
    """Standard output, or a file at `path` to which lines are written as they come."""
    if path is None:
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        yield file
