"""Rounding of sizes, so that requests of similar size share one compiled program."""


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
