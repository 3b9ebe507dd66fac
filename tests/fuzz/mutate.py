"""Inputs made from others: edits of bytes, and edits of values that leave an input valid JSON."""

import json
import random
from collections.abc import Sequence
from typing import Any

# What readers treat in a way of their own.
_TEXT = '{ } [ ] , : " \\ \n \r\n \t \0 /* \u2028 \ufeff null true false NaN Infinity -0 0 1 -1 1e999 "" [] {} \\ud83d'
TOKENS = [*_TEXT.encode().split(b" "), b" ", b"[" * 50, b'{"a":' * 50, b"\xff\xfe", b"\xff", b"\xc0\xaf", b"\xed\xa0"]
VALUES = [None, True, False, 0, 1, -1, 0.5, 1e308, -0.0, float("nan"), float("inf"), 2**31, 10**30, 10**400]
VALUES += ["", " ", "a", "\0", "\ud83d", "\u202e", "=1", "../x", "7", "nan", "x" * 300]
VALUES += [[], [[]], [1, "a", None], {}, {"a": {}}, [{}]]


def mutate(rng: random.Random, pool: Sequence[bytes], words: Sequence[str], most: int = 4000) -> bytes:
    """An input made from one of `pool`, at most `most` bytes long.

    Args:
      rng: what decides.
      pool: inputs, of which several may be mixed.
      words: names of fields, and values that mean something to the reader.
    """
    data = rng.choice(pool)
    if rng.random() < 0.6:
        try:
            lines = [json.loads(line) for line in data.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            lines = []
        if lines:
            for _ in range(rng.choice((1, 1, 2, 4))):
                place = rng.randrange(len(lines))
                lines[place] = _edit_value(rng, lines[place], words)
            return b"\n".join(json.dumps(line).encode() for line in lines)[:most]
    edited = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        _edit_bytes(rng, edited, pool, words)
    return bytes(edited[:most])


def _edit_value(rng: random.Random, value: Any, words: Sequence[str], depth: int = 0) -> Any:
    """`value` with one change somewhere in it."""
    if depth < 6 and isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return value | {rng.choice(words): _new_value(rng, words)}
            case 2:
                return {(rng.choice(words) if name == key else name): item for name, item in value.items()}
            case 3:
                other = rng.choice(list(value))
                return value | {key: value[other], other: value[key]}
            case _:
                return value | {key: _edit_value(rng, value[key], words, depth + 1)}
    if depth < 6 and isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        if rng.random() < 0.3:
            return value[:place] + value[place + 1 :]
        if rng.random() < 0.3:
            return [*value, value[place]]
        return [*value[:place], _edit_value(rng, value[place], words, depth + 1), *value[place + 1 :]]
    if rng.random() < 0.2:
        return rng.choice(([value], {"role": value, "content": value}, str(value)))
    return _new_value(rng, words)


def _new_value(rng: random.Random, words: Sequence[str]) -> Any:
    if rng.random() < 0.5:
        return rng.choice(VALUES)
    if rng.random() < 0.5:
        return rng.choice(words)
    return rng.choice((rng.randint(-9, 9), rng.random(), rng.randint(0, 10**6), chr(rng.randrange(0x110000))))


def _edit_bytes(rng: random.Random, data: bytearray, pool: Sequence[bytes], words: Sequence[str]) -> None:
    place = rng.randint(0, len(data))
    end = min(len(data), place + rng.choice((1, 2, 5, 20, 200)))
    match rng.randrange(9):
        case 0:
            data[place:place] = rng.choice(TOKENS)
        case 1:
            data[place:end] = rng.choice(TOKENS)
        case 2:
            data[place:end] = json.dumps(rng.choice(words)).encode()
        case 3:
            del data[place:end]
        case 4:
            del data[place:]
        case 5:
            data[place:place] = data[place:end] * rng.choice((1, 2, 10))
        case 6:
            data[place:end] = rng.randbytes(end - place)
        case 7:
            if place < len(data):
                data[place] ^= 1 << rng.randrange(8)
        case 8:
            other = rng.choice(pool)
            start = rng.randint(0, len(other))
            data[place:end] = other[start : start + rng.choice((5, 50, 500))]
