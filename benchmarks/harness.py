"""Timing that can be trusted: warm-up apart, rounds that interleave what is compared, medians with their spread.

A machine's speed drifts (clock, neighbours, temperature). Measuring A to the end and then B puts the drift into the
ratio; rounds A B C, A B C, ... give one ratio a round, of runs that lie seconds apart, and the median over rounds.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements.

    Attributes:
      median: half of the values lie below.
      low: the lower quartile.
      high: the upper quartile.
      count: how many values there are.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value. Raises ValueError for none, since a median of nothing would hide a failed run."""
        if len(values) == 0:
            raise ValueError("no measurements")
        low, median, high = np.percentile(np.asarray(values, np.float64), [25, 50, 75])
        return cls(float(median), float(low), float(high), len(values))

    def map(self, function: Callable[[float], float]) -> "Spread":
        """The spread of a monotone function of the values; a falling one (a rate from a time) swaps the quartiles."""
        low, high = sorted((function(self.low), function(self.high)))
        return Spread(function(self.median), low, high, self.count)


@dataclasses.dataclass(frozen=True)
class Compiled(Generic[T]):
    """Something compiled, with what compiling it cost in seconds."""

    program: T
    trace_seconds: float
    compile_seconds: float

    @property
    def seconds(self) -> float:
        """Tracing, lowering and compiling."""
        return self.trace_seconds + self.compile_seconds


def compile_ahead(function: Any, *args: Any, **kwargs: Any) -> Compiled[Any]:
    """Compiles a jitted function for these arguments without running it: compile time by itself.

    The program is called with the arguments less the static ones.
    """
    start = time.perf_counter()
    lowered = function.lower(*args, **kwargs)
    middle = time.perf_counter()
    program = lowered.compile()
    return Compiled(program, middle - start, time.perf_counter() - middle)


def program_bytes(program: Any) -> int | None:
    """Device memory that a compiled program holds while it runs, by the compiler's own account; None where unknown.

    Arguments (weights, caches), results and temporaries; what an argument and a result share counts once.
    """
    analysis = program.memory_analysis()
    if analysis is None:
        return None
    held = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return int(held + analysis.temp_size_in_bytes + analysis.generated_code_size_in_bytes)


@dataclasses.dataclass(frozen=True)
class Arm:
    """One of the things that are compared.

    Attributes:
      name: unique among the arms of a comparison.
      run: does the work once, waits for the device, and returns seconds by part, with their sum as `total`.
      warm: called once before anything is timed; by default a whole run.
    """

    name: str
    run: Callable[[], Mapping[str, float]]
    warm: Callable[[], Any] | None = None


Rounds = dict[str, list[dict[str, float]]]


def interleave(
    arms: Sequence[Arm], repeats: int, seconds: float = math.inf, least: int = 2, clock=time.perf_counter
) -> Rounds:
    """Runs every arm once a round, for `repeats` rounds.

    Args:
      arms: run in this order in even rounds and backwards in odd ones, so that none always follows the same other.
      repeats: rounds to run.
      seconds: no further round begins after this time, once `least` rounds are done.
      least: rounds that are run however long they take.
      clock: seconds since some moment.

    Returns:
      each arm's runs, in the order of the rounds: entry i of two arms lies in the same round.
    """
    if len({arm.name for arm in arms}) != len(arms):
        raise ValueError(f"two arms have one name: {[arm.name for arm in arms]}")
    for arm in arms:
        (arm.warm or arm.run)()
    rounds: Rounds = {arm.name: [] for arm in arms}
    start = clock()
    for number in range(repeats):
        if number >= least and clock() - start > seconds:
            break
        for arm in arms if number % 2 == 0 else reversed(arms):
            rounds[arm.name].append(dict(arm.run()))
    return rounds


def part(runs: Sequence[Mapping[str, float]], name: str = "total") -> Spread:
    """The spread of one part of an arm's runs, seconds."""
    return Spread.of([run[name] for run in runs])


def speed_ratio(runs: Sequence[Mapping[str, float]], base: Sequence[Mapping[str, float]], work: float = 1.0) -> Spread:
    """How many times the base's speed: one ratio a round, base seconds over own seconds, then median and quartiles.

    Args:
      runs: of the arm in question.
      base: of the arm it is compared with, from the same rounds.
      work: the arm's work over the base's, where they differ (a peer that is given fewer rows).
    """
    return Spread.of([work * b["total"] / a["total"] for a, b in zip(runs, base, strict=True)])


@dataclasses.dataclass(frozen=True)
class Growth:
    """Cost as a power of size: cost ~ size ** exponent.

    Attributes:
      exponent: slope of the least-squares line through (log size, log cost).
      error: its standard error; 0 for two points.
      points: how many sizes there were.
    """

    exponent: float
    error: float
    points: int


def growth(sizes: Sequence[float], costs: Sequence[float]) -> Growth:
    """Fits `Growth` to at least two different positive sizes and their positive costs."""
    x, y = np.log(np.asarray(sizes, np.float64)), np.log(np.asarray(costs, np.float64))
    if len(set(sizes)) < 2 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(f"two different positive sizes with positive costs are needed: {sizes}, {costs}")
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residual = y - y.mean() - slope * centred
    freedom = len(x) - 2
    error = math.sqrt(float(residual @ residual) / freedom / float(centred @ centred)) if freedom > 0 else 0.0
    return Growth(slope, error, len(x))
