"""Reward models are float32, also where the process computes in float64 elsewhere."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """Runs `function` without the flag `jax_enable_x64`, under which random draws and zeros would be float64."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(False):
            return function(*args, **kwargs)

    return run
