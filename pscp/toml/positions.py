"""The line of each key and item of a TOML document, which tomllib does not tell.

It takes a text that tomllib has read without an error, and has tomllib read it statement by
statement. A place is the way to a value: ("job", "a", "sources", 2).

Not here: what the values may be (values.py).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

Place = tuple[str | int, ...]

MAX_DEPTH = 8  # of a place; what lies deeper in is at the line of what it is in


def lines_of(text: str) -> dict[Place, int]:
    """Return the line, counted from 1, where each value of a sound document is named first.

    A table that has a header of its own is at that; () is the document, at line 1. An array's items
    are at their lines, but those after one that goes over several at that one's first.
    """
    lines: dict[Place, int] = {(): 1}
    headers: dict[Place, int] = {}
    table: Place = ()
    array: Place = ()  # that is open: its end is on another line
    begin, part, items = 1, "", 0  # what is read, and how many items the array had before
    for number, row in enumerate(text.split("\n"), 1):
        part += f"{row}\n"
        known = "x = [" + part.lstrip(" \t,") if array else part
        whole = _read(known)
        found = whole if whole is not None else _read(f"{known}]")
        if found is None:
            continue
        is_header = not array and part.lstrip().startswith("[")
        pairs = enumerate(found["x"], items) if array else found.items()
        places = list(_places(() if is_header else array or table, pairs))
        for place in places:
            lines.setdefault(place, begin)
        if is_header:
            table = places[-1]
            headers[table] = begin
        if whole is not None:
            array, items = (), 0
        elif array:
            items += len(found["x"])
        else:
            array, items = _open_array(table, found)
        begin, part = number + 1, ""
    return {**lines, **headers}


def _read(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except ValueError:
        return None


def _places(place: Place, pairs: Iterable[tuple[str | int, Any]]) -> Iterator[Place]:
    for key, value in pairs:
        if len(place) < MAX_DEPTH:
            yield (*place, key)
            if isinstance(value, list):
                value = dict(enumerate(value))
            if isinstance(value, dict):
                yield from _places((*place, key), value.items())


def _open_array(place: Place, value: Any) -> tuple[Place, int]:
    """Return the place of the array that a statement begins, and how many items it has so far."""
    while isinstance(value, dict):
        [(key, value)] = value.items()
        place = (*place, key)
    return place, len(value)
