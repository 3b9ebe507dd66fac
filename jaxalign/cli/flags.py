"""Command-line flags from a dataclass: one definition serves the command line, config files and Python."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def parse(command: str, options: type[T], arguments: Sequence[str], default: T | None = None) -> T:
    """Fills the dataclass `options` from `arguments`; `--help` prints the docstrings of its fields and exits.

    Names are written with dashes (`--max-new-tokens`); `default` gives other defaults than the class has. A wrong flag
    ends the process with status 2 and a message that names it.
    """
    import tyro

    extra = {} if default is None else {"default": default}
    return tyro.cli(
        options,
        prog=f"jaxalign {command}",
        args=list(arguments),
        config=(tyro.conf.OmitSubcommandPrefixes,),
        **extra,
    )
