"""Rounding of sizes, so that requests of similar size share one compiled program."""

from collections import Counter
from collections.abc import Sequence


def bucket(size: int, least: int = 16) -> int:
    """The smallest of `least` * 1, 1.5, 2, 3, 4, 6, 8, ... that holds `size`: at most a half is padding."""
    value = least
    while value < size:
        # Alternate between times 3/2 and times 4/3: 16, 24, 32, 48, 64, 96, ...
        value = value * 3 // 2 if value % 3 else value * 4 // 3
    return value


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


# Padded tokens that are worth a program of their own. Compiling one takes as long as some thousand tokens of a small
# model on a CPU, and many more on an accelerator.
WORTH_COMPILING = 8192


def few_shapes(wanted: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Shapes for batches, each at least as wanted, so that few different ones are compiled.

    A smaller shape is kept where all its batches together save `WORTH_COMPILING` tokens over the next larger one.

    Args:
      wanted: for each batch its rows and then lengths, in tokens, each rounded up already; largest first.
    """
    batches = Counter(wanted)
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    kept: list[tuple[int, ...]] = []
    for shape, count in batches.items():
        larger = [other for other in kept if all(a >= b for a, b in zip(other, shape, strict=True))]
        nearest = min(larger, key=_tokens, default=None)
        if nearest is None or count * (_tokens(nearest) - _tokens(shape)) >= WORTH_COMPILING:
            kept.append(shape)
            nearest = shape
        found[shape] = nearest
    return [found[shape] for shape in wanted]


def _tokens(shape: tuple[int, ...]) -> int:
    return shape[0] * sum(shape[1:])
