"""Copies that are drawn, once with whole folders compared, and once file by file: of both must come
the same.

Not here: what that must be (../oracle.py), which folders are compared (test_folder_check.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import draws
import pytest
from cases import OWN
from soak.trial import Trial, Way
from tree_data import scan

import pscp
from core.link import Bench, Notes
from pscp.endpoint.there import listings
from pscp.ground.errors import UsageError
from pscp.options.options import Options
from pscp.transfer import copy
from pscp.transfer.walk.decide import may_check_folders

EXAMPLES = int(os.environ.get("PSCP_FOLDERS_EXAMPLES", 60))
SEED = int(os.environ.get("PSCP_FOLDERS_SEED", 1))

DRAWN = (
    "link_dest", "delete", "backup", "backup_dir", "suffix", "update", "existing", "chmod", "chown",
    "min_size_bytes", "max_size_bytes", "min_age_s", "max_age_s", "numeric_ids", "relative",
    "filters", "dry_run", "check", "copy_links", "itemize", "max_delete", "ignore_existing",
)  # fmt: skip
SAMPLES = {**draws.SAMPLES, "chown": ("0:0", "1:1", ":1"), "itemize": (True,)}
# What a snapshot's options say of which files are linked.
MEETING = ("update", "backup", "backup_dir", "min_size_bytes", "max_size_bytes", "min_age_s",
           "max_age_s", "delete", "dry_run", "chmod")  # fmt: skip
# What is counted in the same way by both; bytes of what nobody asked about are not.
COUNTED = (
    "files", "files_unchanged", "files_linked", "files_skipped", "files_left_out", "files_deleted",
    "metadata_set", "files_resumed", "ok",
)  # fmt: skip


class Told(Notes):
    """Keeps all that is told of a copy, as sets: its order is no one's promise."""

    def __init__(self, wants_files: bool) -> None:
        super().__init__([])
        self.wants_files = wants_files
        self.all: set[tuple[object, ...]] = set()

    def line(self, text: str) -> None:
        self.all.add(("line", text))

    def file(self, path: str, outcome: str, digest: str, is_new: bool = True) -> None:
        self.all.add(("file", path, outcome, is_new))

    def differs(self, path: str, why: str, is_new: bool) -> None:
        self.all.add(("differs", path, why, is_new))

    def gone(self, text: str) -> None:
        self.all.add(("gone", text))


def draw_options(rng: random.Random) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = {"archive": True} if rng.random() < 0.7 else {"preserve": True}
        found["recursive"] = True
        names = rng.sample(DRAWN, rng.randrange(5))
        if rng.random() < 0.6:
            names = ["link_dest", *rng.sample(MEETING, rng.randrange(4))]
        found |= {name: rng.choice(SAMPLES[name]) for name in names}
        with contextlib.suppress(UsageError):
            if not draws.refusal(found):
                Options(**{**found, "verbose": "itemize" in found})
                return found


@contextlib.contextmanager
def opened(root: bytes) -> Iterator[dict[bytes, int]]:
    """Let the owner read all below a folder meanwhile; gives the modes that are closed else."""
    closed: dict[bytes, int] = {}
    for folder, folders, files in os.walk(root):
        for full in (os.path.join(folder, name) for name in (*folders, *files)):
            mode = stat.S_IMODE(os.lstat(full).st_mode)
            if mode & 0o400 == 0 or (os.path.isdir(full) and mode & 0o500 != 0o500):
                os.chmod(full, mode | 0o700)
                closed[os.path.relpath(full, root)] = mode
    try:
        yield closed
    finally:
        for path in sorted(closed, reverse=True):
            os.chmod(os.path.join(root, path), closed[path])


def remove(root: bytes | Path) -> None:
    subprocess.run(["chmod", "-R", "u+rwX", root], check=True)
    shutil.rmtree(root)


def facts(root: bytes, since_ns: int) -> dict[bytes, Any]:
    """Return what lies below a folder; folders that this copy made, or changed, are of now."""
    names: dict[int, bytes] = {}
    found = {}
    with opened(root) as closed:
        for path, node in scan(root).items():
            first = names.setdefault(node.inode, path) if node.inode else path
            mtime_ns = min(node.mtime_ns, since_ns)
            full = os.path.join(root, path) if path else root
            more = {
                name: os.getxattr(full, name, follow_symlinks=False)
                for name in os.listxattr(full, follow_symlinks=False)
            }
            node = node._replace(inode=0, mtime_ns=mtime_ns, mode=closed.get(path, node.mode))
            if not path.endswith(
                OWN
            ):  # which is left by what fails, and has another name each time
                found[path] = node, first, more
    return found


def disturb(rng: random.Random, root: bytes) -> None:
    """Give some files attributes, other owners or another name, or close something; keep times."""
    nodes = scan(root)
    for path in rng.sample(sorted(nodes), min(len(nodes), rng.randrange(5))):
        how = rng.choice(("attribute", "owner", "name", "closed"))
        if nodes[path].kind in ("file", "folder") and path.count(b"/"):
            with contextlib.suppress(PermissionError, FileExistsError):  # in a closed folder
                disturb_one(rng, os.path.join(root, path), how, nodes[path].kind == "file")


def disturb_one(rng: random.Random, full: bytes, how: str, is_file: bool) -> None:
    above = os.stat(os.path.dirname(full))
    if how == "attribute":
        os.setxattr(full, "user.drawn", rng.choice((b"1", b"2")))
    elif how == "owner":
        os.chown(full, rng.choice((-1, 1)), 1)
    elif how == "name" and is_file:
        os.link(full, full + b"2")
    elif how == "closed":
        os.chmod(full, 0)
    os.utime(os.path.dirname(full), ns=(above.st_atime_ns, above.st_mtime_ns))


class Pair:
    """A copy that is done twice, from and to the same."""

    def __init__(self, home: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.given = draw_options(self.rng)
        self.home, self.is_push = home, self.rng.random() < 0.5
        self.wants_files = self.rng.random() < 0.7
        way = Way("push" if self.is_push else "pull")
        self.trial = Trial(home, way, self.given, seed)
        self.trial.draw(has_oddities=self.rng.random() < 0.3)
        self.since_ns = time.time_ns()
        self.kept = self.trial.home / "kept"
        for root in (self.trial.source, self.trial.there):
            if self.rng.random() < 0.4:
                disturb(self.rng, root)
        self._copy(self.trial.there, self.kept)

    def done(self, times: int = 2) -> list[Any]:
        """Copy, and again; return what came of each time."""
        found = []
        for _ in range(times):
            sources, to = self.trial.locations("bench")
            bench, told = Bench(), Told(self.wants_files)
            # One lane, so that both copies meet the same.
            with bench.session(connections=1, verbose="itemize" in self.given) as session:
                do = partial(session.copy, sources, to, reporter=told, raises=False, **self.given)
                result = bench.ends(do)
            bench.close()
            found.append((self._told(result), told.all, facts(self.trial.there, self.since_ns)))
        remove(self.trial.there)
        self._copy(self.kept, self.trial.there)
        return found

    def _copy(self, one: bytes | Path, other: bytes | Path) -> None:
        with opened(os.fsencode(one)) as closed:
            subprocess.run(["cp", "-a", one, other], check=True)
        for path in sorted(closed, reverse=True):
            os.chmod(os.path.join(os.fsencode(other), path), closed[path])

    def _told(self, result: pscp.Result) -> dict[str, Any]:
        counted = {name: getattr(result, name) for name in COUNTED}
        if os.geteuid() != 0:  # a folder that is opened up for links has another mode meanwhile
            del counted["metadata_set"]
        return {**counted, "failures": {(each.path, each.message) for each in result.failures}}


def test_of_folders_that_are_compared_comes_what_does_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = listings._compare
    compared = linked = 0

    def counted(*args: Any) -> Any:
        nonlocal compared, linked
        found = compare(*args)
        compared += 1
        linked += len(found[2]) if found else 0
        return found

    monkeypatch.setattr(listings, "_compare", counted)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for seed in range(SEED, SEED + EXAMPLES):
        pair = Pair(tmp_path, seed)
        with monkeypatch.context() as patch:
            patch.setattr(listings, "NAMES_MOST", pair.rng.choice((2, 16384)))
            of_each = []
            for check in (may_check_folders, lambda _: False):
                patch.setattr(copy, "may_check_folders", check)
                of_each.append(pair.done())
                shutil.rmtree(tmp_path / "state", ignore_errors=True)
        by_folders, by_files = of_each
        for number, (one, other) in enumerate(zip(by_folders, by_files, strict=True)):
            for mine, its in zip(one, other, strict=True):
                assert mine == its, (seed, number, pair.given, differences(mine, its))
        remove(pair.trial.home)
    assert compared > EXAMPLES
    assert linked > EXAMPLES / 10


def differences(one: Any, other: Any) -> list[Any]:
    """Return what one has and the other has not, of each."""
    if isinstance(one, dict):
        one, other = one.items(), other.items()
    return [[row for row in mine if row not in its] for mine, its in ((one, other), (other, one))]
