"""Measures of generated texts by name, as plugins add them to a run (`measures=(...)`)."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxalign.errors import InputError
from jaxalign.metrics.quality import CORPUS_MEASURES, TEXT_MEASURES
from jaxalign.plugins import Registry, blame

# What a run measures by itself; `jaxalign.evaluation` says how.
_RESERVED = (
    *TEXT_MEASURES,
    *CORPUS_MEASURES,
    "rm_accuracy",
    "policy_accuracy",
    "ece",
    "style_distance",
    "embedding_similarity",
    "true_utility",
    "own_reward",
    "changed",
)
Function = Callable[[Mapping[str, Any], Sequence[str]], float | None]


@dataclasses.dataclass(frozen=True)
class TextMeasure:
    """A measure and which end of it is better."""

    function: Function
    lower_is_better: bool


MEASURES: Registry[TextMeasure] = Registry("measure", reserved=_RESERVED)


def register(name: str, *, lower_is_better: bool = False) -> Callable[[Function], Function]:
    """Decorates `measure(row, history) -> float | None`, the value of one generated text; None where there is none.

    `row` is one of `generations.jsonl`: user, prompt, text, reference (what the user wrote, or None), method, kind.
    `history` holds the texts that the user wrote or chose, of training groups.

    Raises:
      InputError: the name is taken.
    """

    def add(function: Function) -> Function:
        MEASURES.add(name, TextMeasure(function, lower_is_better))
        return function

    return add


def value(name: str, row: Mapping[str, Any], history: Sequence[str]) -> float | None:
    """The value of a measure for one text.

    Raises:
      InputError: there is no such measure, its code fails, or its value is not a finite number.
    """
    function = MEASURES.find(name).function
    with blame(f"measure '{name}' (method {row['method']}, user '{row['user']}')", function):
        found = function(row, history)
        if found is None:
            return None
        number = float(found)
    if not math.isfinite(number):
        raise InputError(
            f"measure '{name}' is {number} for a text of {row['method']} for user '{row['user']}': it must be finite, "
            "or None where there is nothing to measure"
        )
    return number


def lower_is_better() -> frozenset[str]:
    """The names of added measures of which less is better."""
    return frozenset(name for name, (measure, _) in MEASURES.added.items() if measure.lower_is_better)
