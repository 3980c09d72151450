"""The line of each key and item of a TOML document, which tomllib does not tell.

It reads only what tomllib has read without an error, so it looks at the shape of the text and
judges nothing. A place is the way to a value: ("job", "a", "sources", 2).

Not here: what the values mean (schema.py, config.py).
"""

from __future__ import annotations

import re
import tomllib
from typing import NamedTuple

Place = tuple[str | int, ...]

MAX_DEPTH = 8  # of a place; what lies deeper in is at the line of what it is in

_TOKEN = re.compile(
    r"""(?P<skipped>[ \t\r]+|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\])*"|'[^']*')
    |(?P<sign>[][{},=.])
    |(?P<bare>[^][{},=.\s#"']+)""",
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def lines_of(text: str) -> dict[Place, int]:
    """Return the line, counted from 1, where each value of a sound document is named first.

    A table that has a header of its own is at that; () is the document, at line 1.
    """
    scan = _Scan(text)
    while scan.token.kind != "end":
        scan.statement()
    return scan.lines


class _Scan:
    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {(): 1}
        self._table: Place = ()
        self._tokens, line = [], 1
        for match in _TOKEN.finditer(text):
            if match.lastgroup != "skipped":
                self._tokens.append(_Token(str(match.lastgroup), match[0], line))
            line += match[0].count("\n")
        self._tokens = [*self._tokens, _Token("end", "", line)][::-1]

    @property
    def token(self) -> _Token:
        """The next token, which is not taken yet."""
        return self._tokens[-1]

    def statement(self) -> None:
        if self.token.kind == "newline":
            self._take()
        elif self.token.text == "[":
            self._header()
        else:
            self._pair(self._table)

    def _header(self) -> None:
        line = self.token.line
        while self.token.text == "[":  # [[...]] is an array, whose tables count as one here
            self._take()
        place = self._named((), line)
        while self.token.text == "]":
            self._take()
        self.lines[place] = line
        self._table = place

    def _pair(self, table: Place) -> None:
        place = self._named(table, self.token.line)
        self._take()  # =
        self._value(place)

    def _value(self, place: Place) -> None:
        self.lines.setdefault(place, self.token.line)
        opened = self.token.text
        if opened not in ("[", "{"):
            while self.token.text not in (",", "]", "}") and self.token.kind not in _ENDS:
                self._take()
            return
        self._take()
        closing = {"[": "]", "{": "}"}[opened]
        number = 0
        while self.token.text != closing:
            if self.token.kind == "newline" or self.token.text == ",":
                self._take()
            elif opened == "{":
                self._pair(place)
            else:
                self._value((*place, number)[:MAX_DEPTH])
                number += 1
        self._take()

    def _named(self, place: Place, line: int) -> Place:
        """Take a key, and return what it leads to from this place: a."b".c has three parts."""
        while self.token.text not in ("=", "]"):
            token = self._take()
            if token.text != "." and len(place) < MAX_DEPTH:
                is_quoted = token.kind == "text"
                [part] = tomllib.loads(f"{token.text} = 0") if is_quoted else [token.text]
                place = (*place, part)
                self.lines.setdefault(place, line)
        return place

    def _take(self) -> _Token:
        return self._tokens.pop()


_ENDS = ("newline", "end")
