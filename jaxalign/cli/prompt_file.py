"""Input files of `generate` and `score`: JSON lines, every line checked before any work."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxalign.errors import DataError


def read_lines(path: Path, fields: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; blank lines are skipped.

    Args:
      path: of the file.
      fields: pairs of names, text form and ids form; each line has exactly one of each pair.

    Raises:
      DataError: the file is absent or empty, or a line breaks the form; the message names the line and the field.
    """
    if not os.path.isfile(path):
        raise DataError(f"{path}: there is no such file")
    rows = []
    with path.open(encoding="utf-8-sig", errors="strict", newline="\n") as file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_read(line, f"{path}, line {number}", fields))
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 ({error}); save it as UTF-8") from None
    if not rows:
        raise DataError(f"{path}: there are no lines")
    return rows


def _read(line: str, where: str, fields: Iterable[tuple[str, str]]) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: a JSON object is needed")
    for text, ids in fields:
        if (text in row) == (ids in row):
            raise DataError(f"{where}: give exactly one of '{text}' and '{ids}'")
        value = row.get(text, row.get(ids))
        if not value:
            raise DataError(f"{where}: '{text if text in row else ids}' is empty")
        if ids in row and not (isinstance(value, list) and all(type(item) is int for item in value)):
            raise DataError(f"{where}: '{ids}' must be a list of integers")
        if text in row and not (isinstance(value, str) or _messages(value)):
            raise DataError(f"{where}: '{text}' must be text or a list of messages with 'role' and 'content'")
    return row


def _messages(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)
        for item in value
    )
