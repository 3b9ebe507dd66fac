"""The methods with a tuned backbone by name."""

import dataclasses
import difflib
from typing import Any

from jaxalign.errors import InputError
from jaxalign.rewards.tuning.arm import Arm
from jaxalign.rewards.tuning.bradley_terry import TunedBradleyTerry
from jaxalign.rewards.tuning.method import TunedMethod
from jaxalign.rewards.tuning.p_dpo import PDpo
from jaxalign.rewards.tuning.personal_arm import PersonalArm

METHODS: dict[str, type[TunedMethod]] = {kind.name: kind for kind in (TunedBradleyTerry, Arm, PersonalArm, PDpo)}


def make(name: str, **hyper: Any) -> TunedMethod:
    """A method with the given hyper-parameters, the others at their defaults.

    Raises:
      InputError: no method has that name, or it has no such hyper-parameter.
    """
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise InputError(f"There is no reward model '{name}' that tunes.{hint} Known: {', '.join(METHODS)}.")
    fields = {field.name for field in dataclasses.fields(METHODS[name])}
    for given in hyper:
        if given not in fields:
            near = difflib.get_close_matches(given, fields, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise InputError(f"'{name}' has no hyper-parameter '{given}'.{hint} It has {', '.join(sorted(fields))}.")
    return METHODS[name](**hyper)
