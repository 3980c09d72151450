"""The comparison of two trees, for the tests: every name, kind and byte, and more where asked.

Not here: what an oracle expects of a copy (oracle.py). Read next: conftest.py.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import unavailable

StrPath = str | bytes | Path


def tree_digest(
    path: StrPath, *, modes: bool = False, times: bool = False, hard_links: bool = False
) -> dict[bytes, dict[str, Any]]:
    """What lies at `path`: name relative to it -> facts. The tree's own root is b".".

    Always: kind, SHA-256 and size of files, targets of symlinks. `modes`: permission bits, not
    of symlinks. `times`: mtime in ns, not of symlinks. `hard_links`: files that are one file
    share the name of the first of them. Two trees are the same where their digests are equal.
    """
    root = os.fsencode(path)
    first_names: dict[tuple[int, int], bytes] = {}
    found = {}
    for name in walk(root):
        full = os.path.join(root, name) if name != b"." else root
        status = os.lstat(full)
        facts = describe(full, status)
        if modes and not stat.S_ISLNK(status.st_mode):
            facts["mode"] = oct(stat.S_IMODE(status.st_mode))
        if times and not stat.S_ISLNK(status.st_mode):
            facts["mtime_ns"] = status.st_mtime_ns
        if hard_links and stat.S_ISREG(status.st_mode):
            facts["is"] = first_names.setdefault((status.st_dev, status.st_ino), name)
        found[name] = facts
    return found


def walk(root: bytes, below: bytes = b".") -> Iterator[bytes]:
    """Names in a fixed order, parents first, without following symlinks."""
    yield below
    full = os.path.join(root, below) if below != b"." else root
    if stat.S_ISDIR(os.lstat(full).st_mode):
        for name in sorted(os.listdir(full)):
            yield from walk(root, name if below == b"." else os.path.join(below, name))


def describe(full: bytes, status: os.stat_result) -> dict[str, Any]:
    if stat.S_ISREG(status.st_mode):
        with open(full, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"kind": "file", "bytes": status.st_size, "sha256": digest}
    if stat.S_ISLNK(status.st_mode):
        return {"kind": "symlink", "target": os.readlink(full)}
    if stat.S_ISDIR(status.st_mode):
        return {"kind": "folder"}
    return {"kind": f"special {stat.S_IFMT(status.st_mode):o}"}


def assert_same_tree(
    left: StrPath,
    right: StrPath,
    *,
    modes: bool = False,
    times: bool = False,
    hard_links: bool = False,
) -> None:
    """Fails with the names that differ, and how."""
    a, b = (
        tree_digest(path, modes=modes, times=times, hard_links=hard_links) for path in (left, right)
    )
    differing = {
        name: (a.get(name), b.get(name)) for name in {*a, *b} if a.get(name) != b.get(name)
    }
    assert not differing, differing


def allocated_bytes(path: StrPath) -> int:
    """The space that a file takes on disk, which is less than its size where it has holes."""
    return os.stat(path).st_blocks * 512  # stat(2): of 512 bytes whatever the file system's are


def rsync_finds(source: Path, destination: Path, *words: str) -> str:
    """What rsync with these options would still change, delete or set: "" where it would not."""
    if shutil.which("rsync") is None:
        unavailable("rsync is not installed")
    argv = ["rsync", "-n", "--checksum", "--itemize-changes", "--delete", *words]
    done = subprocess.run(
        [*argv, "--", f"{source}/.", f"{destination}/."], capture_output=True, text=True, check=True
    )
    return done.stdout


def rsync_made(source: Path, twin: Path, *words: str) -> Path:
    """The folder `twin`, into which rsync has copied from `source` with these options."""
    if shutil.which("rsync") is None:
        unavailable("rsync is not installed")
    subprocess.run(["rsync", *words, "--", f"{source}/", f"{twin}/"], check=True)
    return twin
