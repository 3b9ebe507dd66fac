"""Data sources by name: the published ones, and those that plugins add for `jaxalign run` and `jaxalign data`."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from jaxalign.data.row_error import RowError
from jaxalign.data.schema import Completion, Preference, as_row, read_completion, read_preference
from jaxalign.data.sources import acl, lamp, prism, tldr, ukp
from jaxalign.data.sources.source import Source
from jaxalign.errors import DataError
from jaxalign.plugins import Registry, blame

Reader = TypeVar("Reader", bound=Callable[..., Iterable[Any]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSource:
    """A data set and how it is read.

    Attributes:
      source: what is known about it; goes into the data card.
      read: from a file or folder to rows.
      own_texts: its rows are `Completion`s, texts that users wrote, and not `Preference`s.
    """

    source: Source
    read: Callable[[Path], Iterable[Any]]
    own_texts: bool = False


def _lamp(number: int) -> DataSource:
    return DataSource(
        source=lamp.TASKS[number].source, read=lambda path: lamp.completions(path, number), own_texts=True
    )


SOURCES: Registry[DataSource] = Registry(
    "source",
    {
        "ukp": lambda: DataSource(source=ukp.SOURCE, read=ukp.preferences),
        "acl_titles": lambda: DataSource(source=acl.SOURCE, read=acl.completions, own_texts=True),
        "tldr": lambda: DataSource(source=tldr.SOURCE, read=tldr.preferences),
        "prism": lambda: DataSource(source=prism.SOURCE, read=prism.preferences),
        "lamp4": lambda: _lamp(4),
        "lamp5": lambda: _lamp(5),
        "lamp7": lambda: _lamp(7),
    },
    # Words of `Experiment.source` and of `jaxalign data prepare` that are no data sets.
    reserved=("simulated", "preferences", "completions", "preference_jsonl"),
)


def register(source: Source, *, own_texts: bool = False) -> Callable[[Reader], Reader]:
    """Decorates a reader, `read(path) -> rows`, which makes the source known by its `name`.

    Args:
      source: what is known about the data set.
      own_texts: the rows are `Completion`s and not `Preference`s.

    Raises:
      InputError: the name is taken.
    """

    def add(read: Reader) -> Reader:
        SOURCES.add(source.name, DataSource(source=source, read=read, own_texts=own_texts))
        return read

    return add


def rows(name: str, path: Path) -> list[Preference | Completion]:
    """All rows of a file or folder of the source `name`; those of a plugin are checked against the schema.

    Raises:
      InputError: there is no such source, or a plugin's reader fails.
      DataError: the files break their layout, a row the schema, or there is no row.
    """
    found = SOURCES.find(name)
    if SOURCES.plugin(name) is None:
        return list(found.read(path))
    told = f"source '{name}'"
    kind, read = (Completion, read_completion) if found.own_texts else (Preference, read_preference)
    checked: list[Preference | Completion] = []
    with blame(told, found.read):
        for number, row in enumerate(found.read(path), 1):
            if not isinstance(row, kind):
                raise DataError(f"{told}: row {number} is a {type(row).__name__}, not a {kind.__name__}.")
            try:
                checked.append(read(as_row(row)))
            except RowError as error:
                raise error.at(f"{told}, {path}", number) from None
    if not checked:
        raise DataError(f"{told}: {path} holds no rows.")
    return checked
