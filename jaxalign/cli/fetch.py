"""`jaxalign fetch NAME`: a model's folder, downloaded if need be, printed on standard output."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxalign.cli import flags


@dataclasses.dataclass(frozen=True)
class Options:
    """Downloads a language model (converting it if need be) and prints its folder; a cached one is printed at once.

    Progress goes to standard error, so that `MODEL=$(jaxalign fetch NAME)` works.
    """

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """smollm2-135m-instruct, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or a local folder."""


def main(arguments: Sequence[str]) -> int:
    """Prints the folder and returns the exit status."""
    options = flags.parse("fetch", Options, arguments)
    from jaxalign.models import hub

    print(hub.resolve(options.name))
    return 0
