"""A row of a table of options: from it come the field, its check, and the words of it.

A table is a class whose fields are made by the methods of a Group: those that make up Options, the
Settings of a replication, and what single commands ask for. arguments.py makes parsers of
tables; scripts/docs the pages, the man pages, the completions and the keywords' types.

Not here: which options there are (copy_options.py, connection_options.py), how a value is read
(../ground/values.py), what does not go together (option_pairs.py).
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import Field, field
from typing import Any, NamedTuple, TypeVar

from pscp.ground.errors import UsageError
from pscp.ground.values import (
    KIB,
    MIB,
    check_argument,
    check_range,
    check_tuple,
    show_size,
)

_Documented = TypeVar("_Documented", bound=Callable[..., object])
KEYWORDS = "\nKeywords:"  # the heading of the last part of a docstring
Check = Callable[[str, Any], object]  # of an option's word and value; raises UsageError
Read = Callable[..., Any]  # what a text of the command line means; `what` is the option's name

COPYING = ("pscp",)
ALL = ("pscp", "pscp-pipe", "pscp-verify", "pscp-zfs")
MANIFEST_FORMATS = ("jsonl", "sha256sum", "bagit")
PROGRESS_STYLES = ("auto", "bar", "plain", "json", "none")

MAX_CONNECTIONS = 256  # each is an ssh process here and one or two at the far end
MIN_CHUNK_BYTES = 256 * KIB  # where blocks are no smaller
CHUNK_BYTES = 4 * MIB  # 2 to 4 MiB did best at 100 ms: 700 of 1,000 Mbit/s with 8 lanes
MAX_CHUNK_BYTES = 64 * MIB  # a pull over SFTP holds a chunk of each lane in memory until it matches
MAX_LIMIT_KBIT_S = 10**9  # 1 Tbit/s: more is a slip of the finger
TIMEOUT_S = 30  # ssh itself would wait for as long as the kernel sends SYNs: two minutes
MAX_SECONDS = 365 * 24 * 3600  # more is a slip of the finger
MAX_AGE_S = 1000 * MAX_SECONDS  # of a file


class Flag(NamedTuple):
    """How an option is given on the command line."""

    words: str  # such as "-c --connections N": what stands for its value comes last
    help: str
    const: object = None  # the value, where it takes none and is not just on or off
    read: Read | None = None  # in place of the row's
    action: str = ""  # argparse's; by itself "append" where the field is a tuple

    @property
    def names(self) -> list[str]:
        return [word for word in self.words.split() if word.startswith("-")]

    @property
    def metavar(self) -> str:
        last = self.words.split()[-1]
        return "" if last.startswith("-") else last


class Row(NamedTuple):
    """One option, but for the name, type and default of its field."""

    group: Group
    flags: tuple[Flag, ...]
    doc: str  # what the keyword means; by itself what the help says
    check: Check | None = None
    read: Read | None = None
    among: tuple[str, ...] = ()  # the values that there are, where there are few
    is_path: bool = False  # a pathlib.Path will do for a text
    # In place of the group's. Where pscp comes first, it is for copies alone to a program's calls.
    commands: tuple[str, ...] = ()


class Group(NamedTuple):
    """A group of options: its title in --help, and the commands that take it."""

    title: str
    commands: tuple[str, ...] = COPYING

    def row(self, default: object, flags: tuple[Flag, ...], doc: str = "", **more: Any) -> Any:
        """Return a field with this default, and its row; `more` are fields of Row."""
        meaning = doc or f"{flags[0].help[0].upper()}{flags[0].help[1:]}."
        row = Row(self, flags, meaning, **more)
        return field(default=default, metadata={"row": row})

    def flag(self, words: str, help: str, doc: str = "", default: bool = False, **more: Any) -> Any:
        return self.row(default, (Flag(words, help),), doc, **more)

    def value(
        self, words: str, help: str, doc: str = "", *, default: object = None, action: str = "",
        **more: Any,
    ) -> Any:  # fmt: skip
        return self.row(default, (Flag(words, help, action=action),), doc, **more)

    def path(self, words: str, help: str, doc: str = "", **more: Any) -> Any:
        return self.value(words, help, doc, check=check_argument, is_path=True, **more)

    def choice(
        self, words: str, help: str, among: tuple[str, ...], *, default: str | None = "auto",
        **more: Any,
    ) -> Any:  # fmt: skip
        check = _one_of(among)
        return self.value(words, help, default=default, check=check, among=among, **more)


def rows_of(table: type) -> Iterator[tuple[str, Any, Row]]:
    """Yield the name of each option of a table, its default and its row."""
    for name, each in getattr(table, "__dataclass_fields__", vars(table)).items():
        if isinstance(each, Field) and "row" in each.metadata:
            yield name, each.default, each.metadata["row"]


def with_keywords(*tables: type) -> Callable[[_Documented], _Documented]:
    """Return a decorator by which help() lists these tables' keywords, each with its default.

    Not `progress`, which in the API is a function. A name of two tables is the first one's.
    """
    lines: dict[str, str] = {}
    for table in tables:
        for name, default, row in rows_of(table):
            lines.setdefault(name, f"    {name}={default!r}: {row.doc}")
    lines.pop("progress", None)

    def add(call: _Documented) -> _Documented:
        call.__doc__ = "\n".join([inspect.cleandoc(call.__doc__ or ""), KEYWORDS, *lines.values()])
        return call

    return add


def check_row(table: object, name: str, default: object, row: Row) -> None:
    """Make texts of an option's paths, and check it. Raises UsageError."""
    value = getattr(table, name)
    if default == () and isinstance(value, str | (os.PathLike if row.is_path else str)):
        value = (value,)  # one of them
        object.__setattr__(table, name, value)
    if row.is_path:
        value = _as_texts(value)
        object.__setattr__(table, name, value)
    if isinstance(default, bool) and not isinstance(value, bool):  # "no" would count as True
        raise UsageError(f"{name} must be True or False, not {value!r}")
    if row.check is not None and not (value is None and default is None):
        flag = row.flags[0]
        row.check(name if flag.const is not None else flag.names[-1], value)


def _as_texts(value: object) -> object:
    """Return the text of a pathlib.Path or the like; those of several as a tuple."""
    if isinstance(value, tuple | list):
        return tuple(map(_as_texts, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else value


# --- checks


def whole(most: int, *, least: int = 1, show: Callable[[int], str] = str) -> Check:
    return lambda what, value: check_range(what, value, least, most, show)


def size(least: int, most: int) -> Check:
    return whole(most, least=least, show=show_size)


def seconds(most_s: int) -> Check:
    return whole(most_s, show="{} s".format)


def _one_of(among: tuple[object, ...]) -> Check:
    def check(what: str, value: object) -> None:
        if value not in among:
            raise UsageError(f"{what} must be one of {', '.join(map(str, among))}, not {value!r}")

    return check


def each_of(check: Check) -> Check:
    """Return the check of a tuple, each value of which passes this one."""

    def check_each(what: str, values: Any) -> None:
        for value in check_tuple(what, values):
            check(what, value)

    return check_each


def pattern(expression: str, noun: str, *hint: str) -> Check:
    """Return the check of a text; one that does not match is said not to be this."""

    def check(what: str, value: object) -> None:
        if not isinstance(value, str):
            raise UsageError(f"{what} must be a text, not {value!r}")
        if not re.fullmatch(expression, value):
            raise UsageError(f"{what}: {value!r} is not {noun}", *hint)

    return check
