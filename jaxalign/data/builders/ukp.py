"""UKPConvArg1 as a TFDS builder."""

from collections.abc import Iterator
from pathlib import Path

from jaxalign.data.builders.base import SourceBuilder
from jaxalign.data.schema import Preference
from jaxalign.data.sources import ukp


class Ukp(SourceBuilder):
    """See `jaxalign.data.sources.ukp`."""

    SOURCE = ukp.SOURCE

    def rows(self, path: Path) -> Iterator[Preference]:
        return ukp.preferences(path)
