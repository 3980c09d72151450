"""Changes of an input: of its bytes, and of the JSON in its lines.

A change of JSON keeps the rest of it well-formed, so that what is behind the parser is reached.

Not here: which inputs there are (targets.py), who chooses among them (fuzzing.py, test_corpus.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

NUMBERS = (
    0, 1, -1, 2, 7, 255, 256, 4096, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
    (1 << 61), (1 << 63) - 1, 1 << 63, -(1 << 63), (1 << 64) - 1, 1 << 64, 1 << 70, 10**30,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0.5, 1e300, float("inf"), float("-inf"), float("nan"), "", "\0", "a\0b",
    "\ud800", "\udcff", "x" * 300, "..", "../x", "a/../../x", "/etc", "/", ".", "a//b",
    "\u202e\x1b",
    "9" * 5000, [], {}, [[]], [[[[]]]], {"": {}}, *NUMBERS,
)  # fmt: skip
WORDS = (
    b"\0", b"\xff", b"\n", b"\r\n", b"\x80\xff", b"../", b"/", b"[", b"]", b"{", b"}", b'"', b"\\",
    b"[" * 2000, b"9" * 5000, b"NaN", b"Infinity", b"1e999", b"null", b"\\ud800", b"\\u0000",
    b"\xef\xbb\xbf", b"-", b"%", b"=", b",", b":", b"#",
)  # fmt: skip


def mutated(
    data: bytes, rng: random.Random, most_bytes: int, others: Sequence[bytes] = ()
) -> bytes:
    """Return the input with one change or a few; `others` are inputs that parts may come from."""
    for _ in range(1 + int(rng.expovariate(1.0))):
        lines = data.split(b"\n")
        places = [place for place, line in enumerate(lines) if line[:1] in (b"[", b"{")]
        if places and rng.random() < 0.75:
            place = rng.choice(places)
            lines[place : place + 1] = _line(lines[place], rng, lines)
            data = b"\n".join(lines)
        else:
            data = _bytes(data, rng, others)
    return data[:most_bytes]


def _line(line: bytes, rng: random.Random, lines: list[bytes]) -> list[bytes]:
    """Return what stands in place of a line."""
    chance = rng.random()
    if chance < 0.05:
        return []
    if chance < 0.12:
        return [line, line]
    if chance < 0.18:
        return [rng.choice(lines), line]
    try:
        value = json.loads(line)
        text = json.dumps(_value(value, rng), separators=(",", ":"))
    except (ValueError, RecursionError):
        return [_bytes(line, rng, lines)]
    return [text.encode()]


def _value(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with something in it changed."""
    is_deeper = isinstance(value, list | dict) and value and rng.random() < 0.85
    if not is_deeper:
        return _other(value, rng)
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    chance = rng.random()
    if chance < 0.06:
        del value[key]
    elif chance < 0.12 and isinstance(value, list):
        value.insert(rng.randrange(len(value) + 1), value[key])
    elif chance < 0.16:
        value[key] = value[rng.choice(keys)]
    else:
        value[key] = _value(value[key], rng)
    return value


def _other(value: Any, rng: random.Random) -> Any:
    chance = rng.random()
    if isinstance(value, bool) and chance < 0.6:
        return not value
    if isinstance(value, int) and chance < 0.6:
        near = value + rng.choice((1, -1, 255, -255))
        return rng.choice((near, value * 2, -value, value << 32, rng.choice(NUMBERS)))
    if isinstance(value, str) and chance < 0.6:
        at, more = rng.randrange(len(value) + 1), rng.choice(VALUES)
        changed = value[:at] + (more if isinstance(more, str) else str(more)[:400]) + value[at:]
        return rng.choice((changed, value[:at], value[at:], value * 2, value.swapcase()))
    if chance < 0.7:
        return [value]
    return rng.choice(VALUES)


def _bytes(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    size = rng.choice((1, 1, 2, 4, 8, 28, 1 + rng.randrange(64)))
    kind = rng.randrange(7)
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + size :]
    if kind == 2:
        return data[:at] + data[at : at + size] + data[at:]
    if kind == 3:
        width = rng.choice((1, 2, 4, 8))
        number = rng.choice(NUMBERS) & (1 << 8 * width) - 1
        return data[:at] + number.to_bytes(width, "big") + data[at + width :]
    if kind == 4:
        word = rng.choice(WORDS)
        return data[:at] + word + data[at + rng.choice((0, len(word))) :]
    if kind == 5 and others:
        other = rng.choice(others)
        begin = rng.randrange(len(other) + 1)
        return data[:at] + other[begin : begin + 4 * size] + data[at:]
    return data[:at] + rng.randbytes(size) + data[at + size :]
