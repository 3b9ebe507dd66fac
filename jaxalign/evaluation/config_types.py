"""Whether the fields of a config are of the types that its class declares.

A config that is written in Python is checked by nobody else: a list in place of a tuple, or "0.5" in place of 0.5,
would fail somewhere inside a run, after hours.
"""

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any

from jaxalign.errors import InputError, shown
from jaxalign.files import is_number

_WORDS = {int: "a whole number", float: "a finite number", str: "text", bool: "True or False", type(None): "None"}
_WORDS |= {Path: "a pathlib.Path"}


def check_types(config: Any) -> None:
    """Compares each field of a dataclass with its annotation.

    Raises:
      InputError: a field is of another type, or a number that is not finite; names the field, its value and the type.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _fits(value, hints[field.name]):
            raise InputError(f"{field.name} = {shown(value)}: {_words(hints[field.name])} is needed")


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return isinstance(value, str) and value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if hint is float:
        return is_number(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**32
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return f"one of {', '.join(arguments)}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(option) for option in arguments)
    if origin is tuple:
        return f"a tuple, each item {_words(arguments[0])},"
    return _WORDS[hint]
