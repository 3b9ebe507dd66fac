"""Rows from files: `.jsonl`, `.jsonl.gz` and `.parquet`, one at a time, each error with its line.

The reader never holds more than one line (or one Parquet batch). A byte order mark, Windows line ends, blank lines and
a missing final newline make no difference. What cannot be read is refused by line: broken JSON, a cut-off last line,
NUL bytes, bytes that are not UTF-8, lines over `MAX_LINE_BYTES`.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from jaxalign.data.row_error import RowError
from jaxalign.data.schema import Completion, Preference, as_row, read_completion, read_preference
from jaxalign.errors import DataError
from jaxalign.files import write_atomic

Row = TypeVar("Row")

MAX_LINE_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
_LINES = (".jsonl", ".ndjson", ".json")


def rows_of(path: Path) -> Iterator[tuple[int, Any]]:
    """Each row's line number (from 1) and its object, or the `RowError` that took its place.

    Errors of a row do not end the iteration: the next row is still read.

    Raises:
      DataError: the file is absent, empty of rows in its own format's terms, or of another format.
    """
    path = Path(path)
    # Not the methods of Path: they raise for a name that no file can have.
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder. Give a file: .jsonl, .jsonl.gz or .parquet.")
    if not os.path.exists(path):
        raise DataError(f"There is no file {path}. Check the path.")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".parquet"]:
        yield from _parquet_rows(path)
    elif suffixes[-1:] == [".gz"] and suffixes[-2:-1] and suffixes[-2] in _LINES:
        with _opened(path) as raw, gzip.open(raw, "rb") as file:
            yield from _json_rows(file, path)
    elif suffixes[-1:] and suffixes[-1] in _LINES:
        with _opened(path) as file:
            yield from _json_rows(file, path)
    else:
        raise DataError(f"{path} has no known ending. Rename it to .jsonl, .jsonl.gz or .parquet, after its format.")


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be opened ({error.strerror}). Check its permissions.") from error


def _json_rows(file: IO[bytes] | gzip.GzipFile, path: Path) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if number == 1:
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise DataError(f"{path} is in UTF-16. Save it as UTF-8.")
                line = line.removeprefix(_BOM)
            if len(line) > MAX_LINE_BYTES:
                whole = f"{MAX_LINE_BYTES >> 20} MiB"
                yield number, RowError("", f"is longer than {whole}", "Split the file into one object a line.")
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
                continue
            if line.strip():
                yield number, _parse(line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}, after line {number}: the compressed file is damaged or cut off ({error}). Copy it again."
        ) from error


class _RepeatedField(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedField(next(name for name in names if names.count(name) > 1))
    return row


# A repeated field would silently keep its last value.
_decode = json.JSONDecoder(object_pairs_hook=_object).decode


def _parse(line: bytes) -> Any:
    try:
        return _decode(line.decode())
    except UnicodeDecodeError as error:
        return RowError("", f"is not UTF-8 at byte {error.start + 1} of the line", "Save the file as UTF-8.")
    except _RepeatedField as error:
        return RowError(str(error), "occurs twice in one object", "Keep one of them.")
    except RecursionError:
        return RowError("", "is nested too deeply", "Write one flat object a line.")
    except ValueError as error:
        return _explain(line, error)


def _explain(line: bytes, error: ValueError) -> RowError:
    if b"\0" in line:
        return RowError("", "holds NUL bytes", "The file was damaged, or is not UTF-8 text: copy or save it again.")
    what = f"is not JSON ({error})"
    if not line.endswith(b"\n") and not line.rstrip().endswith(b"}"):
        return RowError(
            "", f"is cut off: the file ends inside it; it {what}", "Copy the file again, or remove the line."
        )
    if line.lstrip()[:1] == b"[":
        return RowError("", what, "The file is one JSON array: write one object a line instead.")
    return RowError("", what, "Write one JSON object a line.")


def _parquet_rows(path: Path, batch: int = 1024) -> Iterator[tuple[int, Any]]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for records in file.iter_batches(batch_size=batch):
                for row in records.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}, after row {number}: cannot be read as Parquet ({error}). Write it again.") from error


def parsed(path: Path, parse: Callable[[Any], Row]) -> Iterator[tuple[int, Row | RowError]]:
    """`rows_of` with each object through `parse`; a row that fails gives its `RowError`, placed in the file."""
    source = Path(path).name
    for line, row in rows_of(path):
        if isinstance(row, RowError):
            yield line, row.at(source, line)
            continue
        try:
            yield line, parse(row)
        except RowError as error:
            yield line, error.at(source, line)


def _load(path: Path, parse: Callable[[Any], Row], drop_invalid: bool) -> list[Row]:
    rows: list[Row] = []
    dropped: list[RowError] = []
    for _, row in parsed(path, parse):
        if not isinstance(row, RowError):
            rows.append(row)
        elif drop_invalid:
            dropped.append(row)
        else:
            raise row
    if dropped:
        import logging

        logging.getLogger(__name__).warning("%d rows were dropped; the first: %s", len(dropped), dropped[0])
    if not rows:
        raise DataError(f"{path} holds no valid row{f'; the first error: {dropped[0]}' if dropped else ''}.")
    return rows


def load_preferences(path: str | Path, *, drop_invalid: bool = False) -> list[Preference]:
    """All preferences of a file, or of a folder of UKPConvArg1 (either of its two layouts).

    Args:
      path: `.jsonl`, `.jsonl.gz`, `.parquet`, or a folder with `arguments.jsonl` and `votes.csv`, or with the official
        XML files.
      drop_invalid: leave out the rows that break the schema, and log how many, instead of failing on the first one.

    Raises:
      DataError: there are no rows, the file cannot be read, or (a `RowError`) a row breaks the schema.
    """
    path = Path(path)
    if path.is_dir():
        from jaxalign.data.sources import ukp

        return list(ukp.preferences(path))
    return _load(path, read_preference, drop_invalid)


def load_completions(path: str | Path, *, drop_invalid: bool = False) -> list[Completion]:
    """As `load_preferences`, for texts that users wrote; a folder is one of ACL titles."""
    path = Path(path)
    if path.is_dir():
        from jaxalign.data.sources import acl

        return list(acl.completions(path))
    return _load(path, read_completion, drop_invalid)


def write_rows(path: str | Path, rows: list[Preference] | list[Completion]) -> None:
    """Writes rows as JSON lines (compressed where the name ends in `.gz`), atomically."""
    path = Path(path)
    content = "".join(json.dumps(as_row(row), ensure_ascii=False) + "\n" for row in rows).encode()
    # A fixed time stamp keeps equal rows equal bytes.
    write_atomic(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
