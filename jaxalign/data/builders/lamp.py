"""LaMP-4, LaMP-5 and LaMP-7 as TFDS builders."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from jaxalign.data.builders.base import COMPLETION, SourceBuilder
from jaxalign.data.schema import Completion
from jaxalign.data.sources import lamp


class _Lamp(SourceBuilder):
    """The TFDS splits are "support" (profiles) and "query" (what the questions ask for), over all official parts.

    The users of the official parts are different people in the user split, and are told apart by their ids.
    """

    FEATURES = COMPLETION
    TASK: ClassVar[int]

    def rows(self, path: Path) -> Iterator[Completion]:
        return lamp.completions(path, self.TASK)


class Lamp4(_Lamp):
    """News headlines; see `jaxalign.data.sources.lamp`."""

    TASK = 4
    SOURCE = lamp.TASKS[4].source


class Lamp5(_Lamp):
    """Scholarly titles; see `jaxalign.data.sources.lamp`."""

    TASK = 5
    SOURCE = lamp.TASKS[5].source


class Lamp7(_Lamp):
    """Tweets; see `jaxalign.data.sources.lamp`."""

    TASK = 7
    SOURCE = lamp.TASKS[7].source
