"""What an error calls an option: `--retry-for 30m` to who typed a command, retry_for_s=1800 to a
program.

Messages and hints are written as for a command line; a call of the Python API has those of its
errors turned. A command's process says by as_typed() that a person has typed it.

Not here: the errors (../ground/errors.py), which options there are (copy_options.py,
connection_options.py, zfs_options.py).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pscp.ground import errors
from pscp.options.option_rows import Flag, Row, rows_of

_is_typed = False  # for the whole process: a command has it for itself, all threads included

# What stays as it is: a command of another program to try, and what is quoted.
_COMMANDS = (
    r'"[^"]*"|try: ssh [^;]*|\S+ -m pip [^;]*|\b(?:ls|ssh|ssh-keygen) -[^;,)]*'
    r"|\bs(?:sh|ftp) HOST [^;,)]*|\bzfs (?:allow|clone|destroy|list|receive|send|set) [^;,)]*"
)
_OPTION = (  # compiled where it is first used: it takes 1 ms, and few commands need it
    rf"""(?P<other>{_COMMANDS})|`?(?P<call>pscp\ --(?:clean|measure\ --save))\b`?"""
    r"""|(?<![\w-])(?P<word>--?[a-zA-Z][\w-]*)(?:\ (?P<value>'[^']*'|[^-\s,;:()][^\s,;:()]*))?"""
)
_CALLS = {  # what a command's words stand for that are no options of a copy
    "pscp --clean": "pscp.clean()", "pscp --measure --save": "pscp.measure(save=True)",
    "--measure": "pscp.measure()", "--fan-out": "pscp.fan_out()",
    "--exclude": "exclude", "--include": "include", "--allowed-signers": "allowed_signers",
    "--max-hosts": "max_hosts",
}  # fmt: skip


class _Keyword(NamedTuple):
    name: str
    default: Any
    row: Row
    flag: Flag


@contextlib.contextmanager
def as_typed() -> Iterator[None]:
    """Have all errors of this process call options as a command line does, while the block runs."""
    global _is_typed
    before, _is_typed = _is_typed, True
    try:
        yield
    finally:
        _is_typed = before


@contextlib.contextmanager
def in_keywords() -> Iterator[None]:
    """Have an error of this block, or of a call that it decorates, call options by their keywords,
    but within as_typed().
    """
    try:
        yield
    except errors.PscpError as error:
        if not _is_typed:
            _turn(error)
        raise


def _turn(error: errors.PscpError) -> None:
    if isinstance(error, errors.UsageError) and not error.hint:
        error.hint = "help(pscp.Options) lists the keywords"  # a command names its own --help
    if isinstance(error, errors.CopyRunning) and error.hint == errors.CopyRunning.hint:
        error.hint = "wait=True waits for it"
    if error.args and isinstance(error.args[0], str):
        # What a far program has said may stand in other messages, with letters of its own.
        is_ours = isinstance(error, errors.UsageError)
        error.args = (as_keywords(error.args[0], letters=is_ours), *error.args[1:])
    if error.hint:
        error.hint = as_keywords(error.hint)


def said(text: str) -> str:
    """Return a message of ours as as_keywords(), but within as_typed() as it is."""
    return text if _is_typed else as_keywords(text)


def to_programs(text: str) -> str:
    """Return what is to be said to programs alone, but "" within as_typed()."""
    return "" if _is_typed else text


def as_keywords(text: str, *, letters: bool = True) -> str:
    """Return a text in which options of the command line are called by their keywords, but for
    those of another command to try; without `letters` only those of more than one letter.
    """

    def called(word: str, value: str | None) -> str | None:
        if word in _CALLS:
            return _CALLS[word] + (f" {value}" if value else "")
        keyword = _keywords().get(word)
        return _called(keyword, value) if keyword is not None else None

    text = renamed(text, called, letters=letters)
    text = re.sub(r"\brun (the same|this) command again", r"make \1 call again", text)
    return re.sub(r"\b(min|max)_(\w+)_s in seconds", r"\1_\2_s", text)


def renamed(text: str, called: Callable[[str, str | None], str | None], *, letters: bool) -> str:
    """Return a text in which the options of our command lines are called otherwise.

    `called` gets a word and the value behind it, if there is one, and returns what stands for both,
    None where they stay. Without `letters` options of one letter stay: a far program may have said
    them.
    """

    def turned(found: re.Match[str]) -> str:
        word = found["call"] or found["word"]
        if found["other"] or (not letters and re.fullmatch("-[a-zA-Z]", word)):
            return found[0]
        return called(word, found["value"]) or found[0]

    return re.sub(_OPTION, turned, text)


@functools.cache
def _keywords() -> dict[str, _Keyword]:
    """Return what each word of the command lines is called, those of a copy before pscp-zfs's."""
    from pscp.options.connection_options import ConnectionOptions  # here: few errors need them
    from pscp.options.copy_options import CopyOptions
    from pscp.options.zfs_options import ZfsOptions

    return {
        word: _Keyword(name, default, row, flag)
        for table in (ZfsOptions, ConnectionOptions, CopyOptions)
        for name, default, row in rows_of(table)
        for flag in row.flags
        for word in flag.names
    }


def _called(keyword: _Keyword, value: str | None) -> str:
    """Return an option with the value that stands behind it, if that is one and no other word."""
    name, default, row, flag = keyword
    if flag.const is not None or default is True:
        name = f"{name}={flag.const if flag.const is not None else False}"
    if not value:
        return name
    if not flag.metavar:
        return f"{name} {value}"
    if value == flag.metavar:
        return name
    bare, known = value.strip("'"), None
    if value[0].isdigit() and row.read is not None:
        with contextlib.suppress(errors.UsageError):
            known = row.read(bare, name)
    elif value in row.among or value[0] in "'./" or "=" in value:
        known = (bare,) if isinstance(default, tuple) else bare
    return f"{name} {value}" if known is None else f"{name}={_shown(known)}"


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_shown, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
