"""How long work tells what it has done."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""From the name of a piece of work and its number of items, to a context that gives "so many more are done"."""


@contextlib.contextmanager
def silent(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Tells nobody."""
    del what, total
    yield lambda count: None
