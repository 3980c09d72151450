"""The line of each key and item of a TOML document, which tomllib does not tell.

It takes a text that tomllib has read without an error, puts the number of its line in the place of
each value, and has tomllib read that. A place is the way to a value: ("job", "a", "sources", 2).

Not here: what the values mean (schema.py, config.py).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

Place = tuple[str | int, ...]

MAX_DEPTH = 8  # of a place; what lies deeper in is at the line of what it is in
_TOKEN = re.compile(
    r"""(?P<skipped>[ \t\r]+|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<text>\{[ \t]*\}|\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\])*"|'[^']*')
    |(?P<sign>[][{},=.])
    |(?P<bare>[^][{},=.\s#"']+)""",
    re.VERBOSE | re.DOTALL,
)


def lines_of(text: str) -> dict[Place, int]:
    """Return the line, counted from 1, where each value of a sound document is named first.

    A table that has a header of its own is at that; () is the document, at line 1.
    """
    marked, headers = _marked(text)
    found = {**headers, **dict(_values((), tomllib.loads(marked)))}
    lines: dict[Place, int] = {(): 1}
    for place, line in sorted(found.items(), key=lambda each: each[1]):
        for length in range(1, len(place) + 1):
            lines.setdefault(place[:length], line)
    return {**lines, **headers}


def _marked(text: str) -> tuple[str, dict[Place, int]]:
    """Return the document with lines for values, and the lines of the tables' headers.

    The line of an array is its first item; what is in it follows.
    """
    found, line, headers = list[str](), 1, dict[Place, int]()
    begin = 0  # of a header, in what was found
    opened = ""  # the brackets of values around this
    awaits = "key"  # or "header", "value", or "end": of a value
    for match in _TOKEN.finditer(f"{text}\n"):
        token = match[0]
        if match.lastgroup == "newline":
            if awaits == "header":
                headers[_place("".join(found[begin:]))] = line
            found.append(token)
            awaits = awaits if opened else "key"
        elif opened and token in "]}":
            found.append(token)
            opened, awaits = opened[:-1], "end"
        elif opened and token == ",":
            found.append(token)
            awaits = "value" if opened.endswith("[") else "key"
        elif awaits == "value" and token in "[{":
            found.append(f"[{line}," if token == "[" else "{")
            opened, awaits = opened + token, "value" if token == "[" else "key"
        elif awaits == "value" and match.lastgroup != "skipped":
            found.append(str(line))
            awaits = "end"
        elif awaits in ("key", "header") and match.lastgroup != "skipped":
            if token == "[" and awaits == "key":
                awaits, begin = "header", len(found)
            awaits = "value" if token == "=" else awaits
            found.append(token)
        line += token.count("\n")
    return "".join(found), headers


def _place(header: str) -> Place:
    """Return what a header leads to: [a."b".c] has three parts."""
    place: Place = ()
    inner: Any = tomllib.loads(header)
    while inner and len(place) < MAX_DEPTH:
        [(key, inner)] = inner.items()
        place, inner = (*place, key), inner[0] if isinstance(inner, list) else inner
    return place


def _values(place: Place, value: Any) -> Iterator[tuple[Place, int]]:
    if len(place) == MAX_DEPTH:
        while value and not isinstance(value, int):
            value = value[0] if isinstance(value, list) else next(iter(value.values()))
    if isinstance(value, int):
        yield place, value
    elif isinstance(value, list):
        if isinstance(value[0], int):  # else it is an array of tables, which have headers
            yield place, value.pop(0)
        for number, each in enumerate(value):
            yield from _values((*place, number), each)
    else:
        for key, each in value.items():
            yield from _values((*place, key), each)
