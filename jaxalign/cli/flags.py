"""Command-line flags from a dataclass: one definition serves the command line, config files and Python."""

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def parse(command: str, options: type[T], arguments: Sequence[str], default: T | None = None) -> T:
    """Fills the dataclass `options` from `arguments`; `--help` prints the docstrings of its fields and exits.

    Names are written with dashes (`--max-new-tokens`); `default` gives other defaults than the class has. A wrong flag
    ends the process with status 2 and a message that names it.
    """
    import tyro

    settings: dict[str, Any] = {"prog": f"jaxalign {command}", "args": list(arguments)}
    if default is None:
        return tyro.cli(options, **settings)
    return tyro.cli(options, default=default, **settings)
