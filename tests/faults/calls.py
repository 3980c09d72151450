"""Has system calls wait, as on a slow disk, or fail, as on a filesystem that cannot do them.

interpose(FOLDER, NUMBER) has FOLDER/calls.json in force, which is a list of rules:

    call         fsync | rename | unlink | link | pwrite | flock; inodes, which are weak then; or
                 names, in which upper and lower case are one then
    connections  numbers in the order of their start; null for all of them
    contains     only for files with this in their path
    errno        the call fails with this number; null: it waits

A call that waits makes FOLDER/waiting-NUMBER, and goes on when FOLDER/go is there.

Runs with nothing but the standard library: python -I -S. Not here: who runs it (far_end.py for an
agent, conftest.py for the command).
"""

from __future__ import annotations

import builtins
import fcntl
import io
import os
import time

from faults.relay import rules_in, touch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Rule = dict[str, Any]  # as above
    Call = Callable[..., Any]
    What = int | str | bytes | os.PathLike[str]  # a system call is about: a descriptor, or a path

POLL_S = 0.002
MODULES = {"flock": fcntl}  # the others are of os
INO = 1  # its place in a stat_result


def interpose(folder: str, number: int) -> None:
    """In this process, from now on."""
    acts: dict[str, Callable[[Rule, str, int], None]]
    acts = {"inodes": weaken_inodes, "names": fold_names}
    for rule in rules_in(f"{folder}/calls.json"):
        if rule["connections"] is None or number in rule["connections"]:
            acts.get(rule["call"], wrap)(rule, folder, number)


def wrap(rule: Rule, folder: str, number: int) -> None:
    module = MODULES.get(rule["call"], os)
    plain = getattr(module, rule["call"])

    def call(what: What, *more: Any, **named: Any) -> Any:
        if rule["contains"] in path_of(what):
            if rule["errno"] is not None:
                raise OSError(rule["errno"], os.strerror(rule["errno"]))
            touch(f"{folder}/waiting-{number}")
            while not os.path.exists(f"{folder}/go"):
                time.sleep(POLL_S)
        return plain(what, *more, **named)

    setattr(module, rule["call"], call)


def path_of(what: What) -> str:
    return os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fsdecode(what)


def fold_names(rule: Rule, folder: str, number: int) -> None:
    """Whoever looks up a name, or gives one, gets that in lower case: what is told is not."""

    def folding(plain: Call) -> Call:
        def call(*words: Any, **named: Any) -> Any:
            return plain(*(lower(word) for word in words), **named)

        return call

    for name in ("open", "stat", "rename", "unlink", "link", "mkdir", "symlink"):
        setattr(os, name, folding(getattr(os, name)))


def lower(word: Any) -> Any:
    return word.lower() if isinstance(word, bytes) and not word.startswith(b"/") else word


def weaken_inodes(rule: Rule, folder: str, number: int) -> None:
    """Inode numbers are others in each process, and the mount is one of which that is known."""
    plain_open, other = builtins.open, int.from_bytes(os.urandom(3), "big")

    def changed(plain: Call) -> Call:
        def call(*words: Any, **named: Any) -> Any:
            found = plain(*words, **named)
            return os.stat_result((found[0], found[INO] ^ other, *found[2:]), fields(found))

        return call

    def opened(path: Any, *words: Any, **named: Any) -> Any:
        file = plain_open(path, *words, **named)
        if path != "/proc/self/mountinfo":
            return file
        with file:
            lines = [line.partition(" - ")[0] + " - fuse.sshfs x rw\n" for line in file]
        return io.StringIO("".join(lines))

    os.stat, os.fstat = changed(os.stat), changed(os.fstat)
    builtins.open = opened  # type: ignore[assignment]  # it has overloads


def fields(found: os.stat_result) -> dict[str, Any]:
    """What a stat_result has beside its ten numbers."""
    ten = os.stat_result.__match_args__
    names = [name for name in dir(found) if name.startswith("st_") and name not in ten]
    return {name: getattr(found, name) for name in names}
