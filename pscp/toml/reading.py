"""Reads a file in TOML by a pydantic schema, or finds every mistake in it at once, with its line.

Not here: where a key stands (positions.py), which keys there are (whoever has the schema).
Read next: positions.py.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from pscp.ground.errors import UsageError
from pscp.ground.terminal_text import printable
from pscp.toml.positions import Place, lines_of

MAX_MISTAKES = 100  # shown at once
# What is plainer than pydantic's own words.
_PLAIN = {
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "int_type": "must be a whole number",
    "string_type": "must be a text",
    "too_short": "is empty",
}


@dataclass(frozen=True)
class Mistakes:
    """The mistakes in a file, line by line."""

    path: str
    lines: Mapping[Place, int]  # of everything in the file
    hint: str  # what a mistake leads to
    found: set[tuple[int, str]] = field(default_factory=set)

    def add(self, place: Place, text: str) -> None:
        """Note what is wrong at a place, or in it."""
        while place not in self.lines:
            place = place[:-1]
        self.found.add((self.lines[place], printable(text)))

    def has_any(self, places: Iterable[Place]) -> bool:
        """Return whether a mistake is on the line of one of these places that are in the file."""
        lines = {line for line, _ in self.found}
        return any(self.lines.get(place) in lines for place in places)

    def raise_any(self) -> None:
        if self.found:
            lines = (f"{self.path}:{line}: {text}" for line, text in sorted(self.found))
            raise UsageError("\n".join(lines), self.hint)


def parsed(path: str, which: str, hint: str) -> tuple[dict[str, Any], Mistakes]:
    """Return the document in a file, and what takes its mistakes.

    Args:
        path: The file.
        which: The hint where it cannot be read: how another is named.
        hint: What a mistake leads to, such as "nothing was run".

    Raises:
        UsageError: There is none, or it is no TOML.
    """
    text, line = "", 1
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig").replace("\r\n", "\n")
        return tomllib.loads(text), Mistakes(path, lines_of(text), hint)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", which) from None
    except RecursionError:
        why = "is nested too deep"
    except UnicodeDecodeError as error:
        line, why = error.object.count(b"\n", 0, error.start) + 1, "is not UTF-8"
    except ValueError as error:  # also a number with too many digits, or a NUL in the path
        found = re.fullmatch(r"(.*) \(at (?:line ([0-9]+), .*|end of document)\)", str(error), re.S)
        why = found[1] if found else str(error)
        line = int(found[2] or text.count("\n") + 1) if found else 1
    raise UsageError(f"{path}:{line}: {printable(why)}", hint)


@dataclass(frozen=True)
class Form:
    """What a document has to be."""

    schema: TypeAdapter[dict[str, Any]]
    depths: Mapping[object, int]  # of the keys in the tables of these names; of others it is 1
    unknown: Callable[..., str]  # says what is wrong with a key, by its place, that there is not
    pattern: str = ""  # what a key has to be that does not match its pattern

    def read(self, document: dict[str, Any], folder: str, wrong: Mistakes) -> dict[str, Any]:
        """Return the document as it is read; what is wrong in a key is noted and taken out."""
        while True:
            try:
                return self.schema.validate_python(document, context={"folder": folder})
            except ValidationError as errors:
                found = errors.errors(include_url=False, include_input=False)
                for error in (each for each in found if not _is_only_wrong_inside(each, found)):
                    depth = self.depths.get(error["loc"][0], 1)
                    wrong.add(*self._mistake(error, depth))
                    table: Any = document
                    *tables, key = error["loc"][:depth]
                    for name in tables:
                        table = table[name]
                    table.pop(key, None)
                    if len(wrong.found) >= MAX_MISTAKES:
                        wrong.raise_any()

    def _mistake(self, error: ErrorDetails, depth: int) -> tuple[Place, str]:
        """Return where pydantic has found a mistake, and what it is."""
        place = error["loc"]
        if error["type"] == "extra_forbidden":
            return place, self.unknown(*map(str, place))
        text, *inner = [_PLAIN.get(error["type"], error["msg"].replace("Input should", "must"))]
        if error["type"] == "string_pattern_mismatch":
            text = f"{place[-2]!r} {self.pattern}"
        if error["type"] == "value_error":
            text, *inner = error["ctx"]["error"].args
        return (*place, *inner), f"{'.'.join(map(str, place[:depth]))}: {text}"


def _is_only_wrong_inside(error: ErrorDetails, found: Sequence[ErrorDetails]) -> bool:
    """Return whether a list is called empty since none of its items is right."""
    place = error["loc"]
    others = (each["loc"] for each in found if len(each["loc"]) > len(place))
    return error["type"] == "too_short" and any(each[: len(place)] == place for each in others)


def nearest(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the word most like this one, or "" if there is none."""
    close = difflib.get_close_matches(word.lower(), [*words], 1)
    return f"; did you mean {close[0]}?" if close else ""
