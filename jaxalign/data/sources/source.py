"""What is known about a public data set, and the check that a folder holds its files."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxalign.data.reader import rows_of
from jaxalign.data.row_error import RowError
from jaxalign.errors import DataError
from jaxalign.files import read_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Download:
    """One file at a pinned address. `sha256` and `size` (bytes) are those that its host publishes for that revision."""

    name: str
    url: str
    sha256: str
    size: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A public data set.

    Attributes:
      name: the name in commands and of the TFDS builder.
      title: what the authors call it.
      description: what the rows are, and what was decided in making them.
      homepage: where it is published, at a pinned revision where there is one.
      licence: as the authors state it.
      citation: BibTeX.
      layouts: the files that a folder must hold: any one of these sets of glob patterns.
      downloads: files that `prepare` may fetch itself; empty where no checksum is published or the licence forbids it.
    """

    name: str
    title: str
    description: str
    homepage: str
    licence: str
    citation: str
    layouts: tuple[tuple[str, ...], ...]
    downloads: tuple[Download, ...] = ()

    def layout_of(self, folder: Path) -> int:
        """Which of `layouts` the folder has.

        Raises:
          DataError: none; the message names the files that were expected.
        """
        folder = Path(folder)
        if folder.is_dir():
            for number, patterns in enumerate(self.layouts):
                if all(any(folder.glob(pattern)) for pattern in patterns):
                    return number
        expected = ", or ".join(" and ".join(patterns) for patterns in self.layouts)
        if folder.is_dir():
            found = sorted(path.name for path in folder.iterdir())
            state = f"holds {', '.join(found[:5])}{' ...' if len(found) > 5 else ''}" if found else "is empty"
        else:
            state = "is no folder"
        raise DataError(f"{folder} {state}. {self.title} needs {expected}, from {self.homepage}.")


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines or Parquet file with their lines.

    Raises:
      RowError: a line cannot be read or is no object. A published file is whole or wrong: nothing is skipped.
    """
    for line, row in rows_of(path):
        if isinstance(row, RowError):
            raise row.at(path.name, line)
        if not isinstance(row, dict):
            raise RowError("", "is not a JSON object", "Get the file again.", source=path.name, line=line)
        yield line, row


def json_document(path: Path) -> Any:
    """The content of a file that is one JSON value.

    Raises:
      DataError: it is not.
    """
    try:
        return read_json(path, DataError)
    except DataError as error:
        raise DataError(f"{error}. Get the file again.") from None


def field(row: Any, name: str, path: Path, line: int, kind: type = str) -> Any:
    """`row[name]`, of type `kind`.

    Raises:
      RowError: it is missing or of another type, so the file is not in the official layout.
    """
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        mend = "The file is not in the official layout: get it again."
        raise RowError(name, f"is missing or no {kind.__name__}", mend, source=path.name, line=line)
    return value
