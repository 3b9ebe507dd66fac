"""Files in jaxalign's own schema as a TFDS builder: for data sets of one's own in a TFDS pipeline."""

from collections.abc import Iterator
from pathlib import Path

from jaxalign.data.builders.base import SourceBuilder
from jaxalign.data.reader import load_preferences
from jaxalign.data.schema import Preference
from jaxalign.data.sources.source import Source

SOURCE = Source(
    name="preference_jsonl",
    title="preferences in jaxalign's schema",
    description="One row a preference, as docs/data.md describes; a row's own split names its TFDS split.",
    homepage="docs/data.md",
    licence="that of the files",
    citation="",
    layouts=(("*.jsonl",), ("*.jsonl.gz",), ("*.parquet",)),
)


class PreferenceJsonl(SourceBuilder):
    """`data` is one file, or a folder with files of one kind."""

    SOURCE = SOURCE

    def rows(self, path: Path) -> Iterator[Preference]:
        if path.is_file():
            files = [path]
        else:
            (pattern,) = SOURCE.layouts[SOURCE.layout_of(path)]
            files = sorted(path.glob(pattern))
        for file in files:
            yield from load_preferences(file)
