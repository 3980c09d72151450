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
_HEADER = "\0"  # the key, in a table, of the line of its header
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
    return dict(_places((), tomllib.loads(_marked(text))))


def _marked(text: str) -> str:
    """Return the document with lines for values; they are the first items of arrays as well."""
    found, line, header_line = ['"\\u0000" = 1\n'], 1, 0
    opened = ""  # the brackets of values around this
    awaits = "key"  # or "value", or "end": of a value
    for match in _TOKEN.finditer(f"{text}\n"):
        token = match[0]
        if match.lastgroup == "newline":
            found.append(f'\n"\\u0000" = {header_line}\n' if header_line else "\n")
            header_line, awaits = 0, awaits if opened else "key"
        elif match.lastgroup == "skipped":
            pass
        elif opened and token in "]}":
            found.append(token)
            opened, awaits = opened[:-1], "end"
        elif opened and token == ",":
            found.append(token)
            awaits = "value" if opened.endswith("[") else "key"
        elif awaits == "key":
            header_line = header_line or (line if token == "[" else 0)
            found.append(token)
            awaits = "value" if token == "=" else "key"
        elif awaits == "value" and token in "[{":
            found.append(f"[{line}," if token == "[" else "{")
            opened, awaits = opened + token, "value" if token == "[" else "key"
        elif awaits == "value":
            found.append(str(line))
            awaits = "end"
        line += token.count("\n")
    return "".join(found)


def _places(place: Place, value: Any) -> Iterator[tuple[Place, int]]:
    yield place, _line(value)
    if len(place) < MAX_DEPTH and not isinstance(value, int):
        pairs = value.items() if isinstance(value, dict) else enumerate(value[1:])
        for key, each in pairs:
            if key != _HEADER:
                yield from _places((*place, key), each)


def _line(value: Any) -> int:
    """Return the line of a value: of its header, its bracket, or the first of what is in it."""
    while not isinstance(value, int):
        inner = value if isinstance(value, list) else [*value.values()]
        value = value[_HEADER] if _HEADER in value else inner[0]
    return value
