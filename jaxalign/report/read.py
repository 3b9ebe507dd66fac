"""Reads a run folder, whole or with what is there so far; what breaks the format is refused by line and field."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxalign.errors import DataError, InputError, shown

SCHEMA = 2

_NUMBER = (int, float)
_TEXT = (str,)
_OPTIONAL_NUMBER = (int, float, type(None))
_OPTIONAL_TEXT = (str, type(None))

# Of each file the fields that the report cannot do without, and their types. Other fields are optional.
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "metrics.jsonl": {
        "measure": _TEXT,
        "method": _TEXT,
        "group": _TEXT,
        "value": _OPTIONAL_NUMBER,
    },
    "users.jsonl": {"measure": _TEXT, "method": _TEXT, "group": _TEXT, "user": _TEXT, "value": _OPTIONAL_NUMBER},
    "pairs.jsonl": {"user": _TEXT, "method": _TEXT},
    "texts.jsonl": {"text": (int,), "prompt": (str, list), "response": _TEXT},
    "generations.jsonl": {"user": _TEXT, "method": _TEXT, "text": _OPTIONAL_TEXT},
}
# Fields that may be absent, which is the same as null; where present, of these types.
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "low": _OPTIONAL_NUMBER,
    "high": _OPTIONAL_NUMBER,
    "weight": _OPTIONAL_NUMBER,
    "top_k": (int, type(None)),
    "shots": (int, type(None)),
    "users": (int, type(None)),
    "count": _OPTIONAL_NUMBER,
    "form": _OPTIONAL_TEXT,
    "length": _OPTIONAL_TEXT,
    "average": _OPTIONAL_TEXT,
    "chosen": (bool, type(None)),
}
_LISTS = {"correlations": ("x", "y"), "regret": ("criterion", "target"), "equivalence": ("one", "two", "measure"),
          "claims": ("claim",)}  # fmt: skip

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run folder holds.

    Attributes:
      folder: the folder itself.
      config: config.json, with `config`, `versions`, `commit` and `data`.
      data: the data card, or None.
      metrics, users, generations: rows of the file of that name; empty where there is none.
      selection: selection.json, or None.
      others: analyses of other groups of users (selection_unseen.json).
      missing: names of the files that are not there.
    """

    folder: Path
    config: Row
    data: Row | None
    metrics: Sequence[Row]
    users: Sequence[Row]
    generations: Sequence[Row]
    selection: Row | None
    others: Sequence[Row]
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the run is called: its config's name, else that of its folder."""
        name = self.config["config"].get("name")
        return name if isinstance(name, str) and name else self.folder.resolve().name


def load(folder: Path) -> Run:
    """Reads everything but the pairs.

    Raises:
      InputError: this is no run folder, or of another schema version.
      DataError: a file that is no JSON, or a row without a field that it must have.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder. `jaxalign run EXPERIMENT` makes one.")
    config = _object(folder / "config.json")
    if config is None:
        raise InputError(f"{folder}: it has no config.json, so it is not the folder of a run")
    if config.get("schema") != SCHEMA:
        raise InputError(
            f"{folder / 'config.json'}: schema is {config.get('schema')!r}, and this version reads {SCHEMA}. Run the "
            "experiment again, or use the jaxalign that wrote it."
        )
    if not isinstance(config.get("config"), dict):
        raise DataError(f"{folder / 'config.json'}: field 'config' must be an object")
    data, selection = _object(folder / "data.json"), _object(folder / "selection.json")
    other = _object(folder / "selection_unseen.json")
    for name, found in (("selection.json", selection), ("selection_unseen.json", other)):
        if found is not None:
            _check_selection(folder / name, found)
    rows = {name: read_rows(folder, name) for name in ("metrics.jsonl", "users.jsonl", "generations.jsonl")}
    files = {"data.json": data, "selection.json": selection, **rows}
    return Run(
        folder=folder,
        config=config,
        data=data,
        metrics=rows["metrics.jsonl"] or [],
        users=rows["users.jsonl"] or [],
        generations=rows["generations.jsonl"] or [],
        selection=selection,
        others=[] if other is None or selection is None else [other],
        missing=tuple(name for name, content in files.items() if content is None),
    )


def read_rows(folder: Path, name: str) -> list[Row] | None:
    """The rows of a file of JSON lines, checked; None where there is no such file.

    Raises:
      DataError: a line that is no JSON object, or lacks a field, or has one of another type.
    """
    path = folder / name
    text = _text(path)
    if text is None:
        return None
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = _parse(line, f"{path}, line {number}")
        for field, types in _FIELDS[name].items():
            if field not in row:
                raise DataError(f"{path}, line {number}: field '{field}' is missing")
            _check_type(row[field], types, f"{path}, line {number}: field '{field}'")
        for field, types in _OPTIONAL.items():
            if name == "metrics.jsonl" and field in row:
                _check_type(row[field], types, f"{path}, line {number}: field '{field}'")
        rows.append(row)
    return rows


def _check_type(value: Any, types: tuple[type, ...], where: str) -> None:
    # A bool is an int in Python, not in JSON.
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        names = {str: "text", list: "a list", int: "a number", float: "a number", type(None): "null"}
        names |= {bool: "true or false"}
        allowed = " or ".join(dict.fromkeys(names[kind] for kind in types))
        raise DataError(f"{where} must be {allowed}, not {shown(value, 60)}")


def _check_selection(path: Path, selection: Mapping[str, Any]) -> None:
    for field, needed in _LISTS.items():
        rows = selection.get(field) or []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{path}: field '{field}' must be a list of objects")
        for number, row in enumerate(rows, start=1):
            for key in needed:
                if not isinstance(row.get(key), str):
                    raise DataError(f"{path}: field '{field}', entry {number}: '{key}' must be text")
    for field in ("deploy", "rm_pick"):
        pick = selection.get(field)
        # A method of null: there was nothing to pick from.
        if pick is not None and not (isinstance(pick, dict) and isinstance(pick.get("method"), _OPTIONAL_TEXT)):
            raise DataError(f"{path}: field '{field}' must be an object with a 'method'")


def _text(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: it is not UTF-8 at byte {error.start}") from error


def _object(path: Path) -> Row | None:
    text = _text(path)
    return None if text is None else _parse(text, str(path))


def _parse(text: str, where: str) -> Row:
    def refuse(name: str) -> None:
        raise DataError(f"{where}: {name} is not JSON; write null where there is no number")

    try:
        value = json.loads(text, parse_constant=refuse)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: it must be a JSON object")
    return value
