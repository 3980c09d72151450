"""Has system calls wait, as on a slow disk, or fail, as on a filesystem that cannot do them.

`calls.py FOLDER NUMBER STAGE` runs STAGE, a program's text, with FOLDER/calls.json in force. That
is a list of rules:

    call         fsync | rename | unlink | link | pwrite | flock; inodes, which are weak then; or
                 names, in which upper and lower case are one then
    connections  numbers in the order of their start; null for all of them
    contains     only for files with this in their path
    errno        the call fails with this number; null: it waits

A call that waits makes FOLDER/waiting-NUMBER, and goes on when FOLDER/go is there.

Runs with nothing but the standard library: python -I -S. Not here: who runs it (far_end.py for an
agent, conftest.py for the command).
"""

import builtins
import fcntl
import io
import json
import os
import sys
import time
from pathlib import Path

POLL_S = 0.002
MODULES = {"flock": fcntl}  # the others are of os
INO = 1  # its place in a stat_result


def interpose(folder, number):
    """In this process, from now on."""
    for rule in json.loads((Path(folder) / "calls.json").read_text()):
        if rule["connections"] is None or number in rule["connections"]:
            act = {"inodes": weaken_inodes, "names": fold_names}.get(rule["call"], wrap)
            act(rule, Path(folder), number)


def wrap(rule, folder, number):
    module = MODULES.get(rule["call"], os)
    plain = getattr(module, rule["call"])

    def call(what, *more, **named):
        if rule["contains"] in path_of(what):
            if rule["errno"] is not None:
                raise OSError(rule["errno"], os.strerror(rule["errno"]))
            (folder / f"waiting-{number}").touch()
            while not (folder / "go").exists():
                time.sleep(POLL_S)
        return plain(what, *more, **named)

    setattr(module, rule["call"], call)


def path_of(what):
    return os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fsdecode(what)


def fold_names(rule, folder, number):
    """Whoever looks up a name, or gives one, gets that in lower case: what is told is not."""

    def folding(plain):
        def call(*words, **named):
            return plain(*(lower(word) for word in words), **named)

        return call

    for name in ("open", "stat", "rename", "unlink", "link", "mkdir", "symlink"):
        setattr(os, name, folding(getattr(os, name)))


def lower(word):
    return word.lower() if isinstance(word, bytes) and not word.startswith(b"/") else word


def weaken_inodes(rule, folder, number):
    """Inode numbers are others in each process, and the mount is one of which that is known."""
    plain_open, other = builtins.open, int.from_bytes(os.urandom(3), "big")

    def changed(plain):
        def call(*words, **named):
            found = plain(*words, **named)
            return os.stat_result((found[0], found[INO] ^ other, *found[2:]), fields(found))

        return call

    def opened(path, *words, **named):
        file = plain_open(path, *words, **named)
        if path != "/proc/self/mountinfo":
            return file
        with file:
            lines = [line.partition(" - ")[0] + " - fuse.sshfs x rw\n" for line in file]
        return io.StringIO("".join(lines))

    os.stat, os.fstat, builtins.open = changed(os.stat), changed(os.fstat), opened


def fields(found):
    """What a stat_result has beside its ten numbers."""
    names = [name for name in dir(found) if name.startswith("st_")]
    return {name: getattr(found, name) for name in names}


if __name__ == "__main__":
    interpose(sys.argv[1], int(sys.argv[2]))
    exec(compile(sys.argv[3], "stage", "exec"), {"__name__": "__main__"})
