"""Guidances and selections by name, as plugins add them for `jaxalign generate` and `jaxalign score`.

What is registered is a function (or the class itself) that makes one from settings, the flags' `name=value`.
"""

import difflib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from jaxalign.decoding.guidance import Guidance
from jaxalign.decoding.selection import Selection
from jaxalign.errors import InputError
from jaxalign.models.language_model import LanguageModel
from jaxalign.plugins import Registry, blame

Maker = TypeVar("Maker", bound=Callable[..., Any])

GUIDANCES: Registry[Callable[..., Guidance]] = Registry("guidance")
SELECTIONS: Registry[Callable[..., Selection]] = Registry("selection")


def register_guidance(name: str) -> Callable[[Maker], Maker]:
    """Decorates `make(lm, *, setting=default, ...) -> Guidance`.

    Raises:
      InputError: the name is taken.
    """
    return _adder(GUIDANCES, name)


def register_selection(name: str) -> Callable[[Maker], Maker]:
    """Decorates `make(*, setting=default, ...) -> Selection`, or a selection class with such fields.

    Raises:
      InputError: the name is taken.
    """
    return _adder(SELECTIONS, name)


def _adder(registry: Registry[Callable[..., Any]], name: str) -> Callable[[Maker], Maker]:
    def add(maker: Maker) -> Maker:
        registry.add(name, maker)
        return maker

    return add


def make_guidance(name: str, lm: LanguageModel, **settings: Any) -> Guidance:
    """The guidance of that name.

    Raises:
      InputError: there is none, it has no such setting, a setting that it needs is missing, or its code fails.
    """
    made = _make(GUIDANCES, name, (lm,), settings)
    if not isinstance(made, Guidance):
        raise InputError(f"guidance '{name}' gave a {type(made).__name__}, which is no jaxalign.decoding.Guidance")
    return made


def make_selection(name: str, **settings: Any) -> Selection:
    """The selection of that name; raises as `make_guidance`."""
    made = _make(SELECTIONS, name, (), settings)
    if not callable(getattr(made, "choose", None)):
        raise InputError(f"selection '{name}' gave a {type(made).__name__}, which has no method choose")
    return made


def _make(registry: Registry[Callable[..., Any]], name: str, given: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    maker = registry.find(name)
    known = list(inspect.signature(maker).parameters.values())[len(given) :]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
        names = [parameter.name for parameter in known]
        for setting in settings:
            if setting not in names:
                near = difflib.get_close_matches(setting, names, n=1)
                hint = f" Did you mean '{near[0]}'?" if near else ""
                has = f"It has {', '.join(names)}." if names else "It has none."
                raise InputError(f"{registry.kind} '{name}' has no setting '{setting}'.{hint} {has}")
    for parameter in known:
        variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is parameter.empty and not variable and parameter.name not in settings:
            raise InputError(f"{registry.kind} '{name}' needs a value: give {parameter.name}=VALUE after its name.")
    with blame(f"{registry.kind} '{name}'", maker):
        return maker(*given, **settings)
