"""Reward models by name: the built-in ones, and those that plugins add."""

import dataclasses
import difflib
import functools
import importlib
import math
from typing import Any

from jaxalign.errors import InputError
from jaxalign.plugins import Registry
from jaxalign.rewards.losses import LOSSES
from jaxalign.rewards.protocol import Method

_BUILT_IN = {
    "reference": "reference:Reference",
    "bt": "bt:BradleyTerryHead",
    "per_user": "per_user:PerUser",
    "user_embedding": "user_embedding:UserEmbedding",
    "lore": "lore:Lore",
    "pref": "pref:Pref",
    "pal": "pal:Pal",
    "pal_ideal": "pal:PalIdeal",
    "vpl": "vpl:Vpl",
    "mrm": "mrm:Mrm",
    "gpo": "gpo:Gpo",
    "drm": "drm:Drm",
}

TUNED = ("bt_tuned", "arm", "personal_arm", "p_dpo")
"""Methods that tune the language model instead of reading cached features; see `jaxalign.rewards.tuning`."""


def _built_in(place: str) -> type[Method]:
    module, kind = place.split(":")
    return getattr(importlib.import_module(f"jaxalign.rewards.methods.{module}"), kind)


METHODS: Registry[type[Method]] = Registry(
    "reward model", {name: functools.partial(_built_in, place) for name, place in _BUILT_IN.items()}, reserved=TUNED
)


def register(kind: type[Method]) -> type[Method]:
    """Makes a method known by its `name`, for this process; usable as a decorator.

    Raises:
      InputError: another class has that name.
    """
    METHODS.add(kind.name, kind)
    return kind


def names() -> tuple[str, ...]:
    """The names of all methods: built-in ones in the order of the documentation, then others."""
    return METHODS.names()


def find(name: str) -> type[Method]:
    """The class of a method.

    Raises:
      InputError: no method has that name.
    """
    if name in TUNED:
        raise InputError(f"'{name}' tunes the language model: fit it with `jaxalign tune`, or jaxalign.rewards.tuning.")
    return METHODS.find(name)


def make(name: str, **hyper: Any) -> Method:
    """A method with the given hyper-parameters, the others at their defaults.

    Raises:
      InputError: no method has that name, or it has no such hyper-parameter.
    """
    kind = find(name)
    fields = {field.name for field in dataclasses.fields(kind)}
    for given in hyper:
        if given not in fields:
            near = difflib.get_close_matches(given, fields, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise InputError(f"'{name}' has no hyper-parameter '{given}'.{hint} It has {', '.join(sorted(fields))}.")
    return kind(**hyper)


def describe(method: Method) -> dict[str, Any]:
    """A method as JSON: its name and its hyper-parameters."""
    hyper = {field.name: getattr(method, field.name) for field in dataclasses.fields(method) if field.name != "loss"}
    # JSON has no infinity, and an infinite ridge is a fair choice.
    hyper = {name: "inf" if value == math.inf else value for name, value in hyper.items()}
    kinds = {kind: name for name, kind in LOSSES.items()}
    if type(method.loss) not in kinds:
        raise InputError(
            f"The loss {type(method.loss).__name__} has no name. Add it to jaxalign.rewards.losses.LOSSES."
        )
    loss = {"name": kinds[type(method.loss)], **dataclasses.asdict(method.loss)}  # type: ignore[call-overload]
    return {"name": method.name, "hyper": hyper, "loss": loss}


def rebuild(described: dict[str, Any]) -> Method:
    """The method that `describe` described."""
    loss = dict(described["loss"])
    kind = LOSSES.get(loss.pop("name"))
    if kind is None:
        raise InputError(f"There is no loss '{described['loss']['name']}'. Known: {', '.join(LOSSES)}.")
    hyper = {name: math.inf if value == "inf" else value for name, value in described["hyper"].items()}
    return make(described["name"], **hyper, loss=kind(**loss))
