"""OpenAI TL;DR comparisons as a TFDS builder."""

from collections.abc import Iterator
from pathlib import Path

from jaxalign.data.builders.base import SourceBuilder
from jaxalign.data.schema import Preference
from jaxalign.data.sources import tldr


class Tldr(SourceBuilder):
    """See `jaxalign.data.sources.tldr`."""

    SOURCE = tldr.SOURCE

    def rows(self, path: Path) -> Iterator[Preference]:
        return tldr.preferences(path)
