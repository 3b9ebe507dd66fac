"""PRISM as a TFDS builder."""

from collections.abc import Iterator
from pathlib import Path

from jaxalign.data.builders.base import SourceBuilder
from jaxalign.data.schema import Preference
from jaxalign.data.sources import prism


class Prism(SourceBuilder):
    """See `jaxalign.data.sources.prism`."""

    SOURCE = prism.SOURCE

    def rows(self, path: Path) -> Iterator[Preference]:
        return prism.preferences(path)
