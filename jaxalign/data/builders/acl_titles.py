"""Titles of the ACL Anthology as a TFDS builder."""

from collections.abc import Iterator
from pathlib import Path

from jaxalign.data.builders.base import COMPLETION, SourceBuilder
from jaxalign.data.schema import Completion
from jaxalign.data.sources import acl


class AclTitles(SourceBuilder):
    """See `jaxalign.data.sources.acl`."""

    SOURCE = acl.SOURCE
    FEATURES = COMPLETION

    def rows(self, path: Path) -> Iterator[Completion]:
        return acl.completions(path)
