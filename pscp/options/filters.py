"""Filters as rsync's (rsync(1), FILTER RULES): each pattern becomes a regular expression.

The walk, which runs at either end, applies the expressions (../endpoint/reading/tree.py): to "/"
and the path below the root of the transfer, with a NUL behind that of a folder. All is bytes there,
as in rsync.

What rsync does where its manual is silent was read from its source (exclude.c, lib/wildmatch.c),
and a test asks the real one.

Not here: the files of --exclude-from (arguments.py), sizes and ages
(../transfer/walk/selection.py).
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

from pscp.endpoint.reading.paths import to_bytes

Filter = tuple[str, str]  # ("exclude" | "include", a pattern; for an end, a regular expression)

_ANY, _STAR, _STARS = r"[^/\0]", "*", "**"  # the last two stand for themselves until _joined()
_SLASH = ord("/")
_NAMED = re.compile(rb"\[:([^]]*):\]")
_GRAPH = range(33, 127)
_ALNUM = frozenset((string.ascii_letters + string.digits).encode())
_NAMED_CLASSES: dict[bytes, Iterable[int]] = {
    b"alnum": _ALNUM,
    b"alpha": string.ascii_letters.encode(),
    b"blank": b" \t",
    b"cntrl": (*range(1, 32), 127),
    b"digit": string.digits.encode(),
    b"graph": _GRAPH,
    b"lower": string.ascii_lowercase.encode(),
    b"print": range(32, 127),
    b"punct": [code for code in _GRAPH if code not in _ALNUM],
    b"space": b" \t\n\v\f\r",
    b"upper": string.ascii_uppercase.encode(),
    b"xdigit": string.hexdigits.encode(),
}


class _NoMatch(Exception):
    """The pattern is one that rsync never finds to match, such as a class without an end."""


def regexes(filters: Iterable[Filter]) -> list[Filter]:
    """Return (action, regular expression) pairs that decide as these filters do.

    The expressions are ASCII, for bytes.match() with DOTALL. Those of one action that stand side
    by side are one expression: 1000 names to exclude cost a path 3 microseconds, and not 300.
    """
    names = (f"g{number}" for number in itertools.count())
    found = []
    for action, group in itertools.groupby(filters, itemgetter(0)):
        shapes: dict[tuple[str, str], list[str]] = {}
        for _, pattern in group:
            try:
                before, body, after = _translated(to_bytes(pattern), names)
            except _NoMatch:
                continue
            shapes.setdefault((before, after), []).append(body)
        if shapes:
            several = (f"{b}(?:{'|'.join(bodies)}){a}" for (b, a), bodies in shapes.items())
            found.append((action, "|".join(several)))
    return found


def expanded(
    given: Iterable[Filter], lines_of: Callable[[str, str], Iterable[str]]
) -> list[Filter]:
    """Return filters for what a command line gives, as rsync reads it.

    `lines_of` is called for an "exclude-from" or "include-from", with that and the file. A pattern
    behind "+ " or "- " is to include or to exclude, whatever the option or the file is for; "!"
    drops the filters that stand before it.
    """
    found: list[Filter] = []
    for kind, text in given:
        action = kind.removesuffix("-from")
        for pattern in [text] if kind == action else lines_of(kind, text):
            if pattern == "!":
                found.clear()
            elif pattern.startswith(("+ ", "- ")):
                found.append(("include" if pattern[0] == "+" else "exclude", pattern[2:]))
            else:
                found.append((action, pattern))
    return found


def _translated(pattern: bytes, names: Iterator[str]) -> tuple[str, str, str]:
    """Return what stands before the pattern's own expression, that, and what stands behind it."""
    end = r"\0?\Z"
    if len(pattern) > 1 and pattern.endswith(b"/"):
        end, pattern = r"\0\Z", pattern[:-1]
    is_wild = any(code in pattern for code in b"*?[")
    crosses_slashes = b"**" in pattern
    if pattern.startswith(b"/"):
        before, pieces = "/", _pieces(pattern[1:], is_wild)
    elif not crosses_slashes:
        before, pieces = ".*/", _pieces(pattern, is_wild)
        if pieces.count("/") != pattern.count(b"/"):
            # One is in a class, where it matches nothing; but rsync counts it when it takes so many
            # names of the path's end.
            raise _NoMatch
    else:
        before, pieces = "", _pieces(pattern, is_wild)
        if not pattern.startswith(b"**"):
            pieces = [_STARS, "/", *pieces]
    if pattern.endswith(b"***") and pieces[-2:-1] == ["/"]:
        pieces = pieces[:-2]  # the folder itself, or whatever is in it
        end = r"(?:/.*|\0)\Z" if end.startswith(r"\0?") else r"(?:/.*)?\0\Z"
    return before, _joined(pieces, names), end


def _pieces(pattern: bytes, is_wild: bool) -> list[str]:
    """Return an expression for each character, class and star of a pattern."""
    if not is_wild:
        return [_literal(code) for code in pattern]
    found: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        at += 1
        if char == b"*":
            rest = pattern[at:].lstrip(b"*")
            found.append(_STARS if len(rest) < len(pattern) - at else _STAR)
            at = len(pattern) - len(rest)
        elif char == b"?":
            found.append(_ANY)
        elif char == b"[":
            members, at = _class(pattern, at)
            found.append(_set(members))
        else:
            if char == b"\\":
                char = _needed(pattern, at)
                at += 1
            found.append(_literal(char[0]))
    return found


def _joined(pieces: list[str], names: Iterator[str]) -> str:
    """Return the pieces as one expression, which does not try in vain for long."""
    *blocks, last = _split(pieces, _STARS)
    texts = [_between(_split(block, _STAR), "[^/]*", names, is_end=False) for block in blocks]
    texts.append(_between(_split(last, _STAR), "[^/]*", names, is_end=True))
    return _between([[text] for text in texts], ".*", names, is_end=True)


def _between(parts: list[list[str]], star: str, names: Iterator[str], is_end: bool) -> str:
    """Return the parts with stars between them.

    What stands behind a star is settled where it matches first: if the rest does not match behind
    that, it matches behind no later place either. The last part is not settled where the pattern
    ends with it. (Python has atomic groups since 3.11; this is how one does without.)
    """
    first, *others = ("".join(part) for part in parts)
    found = [first]
    for place, part in enumerate(others, 1):
        if is_end and place == len(others):
            found.append(f"{star}{part}")
        else:
            name = next(names)
            found.append(f"(?=(?P<{name}>{star}?{part}))(?P={name})")
    return "".join(found)


def _split(pieces: list[str], star: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for piece in pieces:
        if piece == star:
            parts.append([])
        else:
            parts[-1].append(piece)
    return parts


def _class(pattern: bytes, at: int) -> tuple[set[int], int]:
    """Return what the class whose "[" is before this place matches, and the place behind its "]".

    Raises _NoMatch where it has no end, or names a class that there is not.
    """
    is_not = pattern[at : at + 1] in (b"!", b"^")
    begin = at = at + is_not
    members: set[int] = set()
    previous = 0  # what may begin a range
    while at == begin or _needed(pattern, at) != b"]":
        char = _needed(pattern, at)
        named = _NAMED.match(pattern, at)
        if named:
            if named[1] not in _NAMED_CLASSES:
                raise _NoMatch
            members.update(_NAMED_CLASSES[named[1]])
            previous, at = 0, named.end()
            continue
        is_range = char == b"-" and previous and _needed(pattern, at + 1) != b"]"
        at += is_range
        if _needed(pattern, at) == b"\\":
            at += 1
        code = _needed(pattern, at)[0]
        members.update(range(previous, code + 1) if is_range else [code])
        previous = 0 if is_range else code
        at += 1
    if is_not:
        members = set(range(256)) - members
    return members - {0, _SLASH}, at + 1


def _needed(pattern: bytes, at: int) -> bytes:
    """Return the character at this place. Raises _NoMatch behind the last one."""
    if at >= len(pattern):
        raise _NoMatch
    return pattern[at : at + 1]


def _set(members: set[int]) -> str:
    """Return an expression for one of these characters. Raises _NoMatch if there is none."""
    if not members:
        raise _NoMatch
    ranges: list[list[int]] = []
    for code in sorted(members):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(f"\\x{first:02x}-\\x{last:02x}" for first, last in ranges) + "]"


def _literal(code: int) -> str:
    return chr(code) if code in _ALNUM or code == _SLASH else f"\\x{code:02x}"
