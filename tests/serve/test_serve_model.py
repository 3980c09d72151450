"""Sequences of SFTP's requests at pscp-serve, against the same done to a folder by the system.

Not here: uploads that are cut (test_serve_resume.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import asyncssh
import pytest
from asyncssh import FXF_APPEND, FXF_CREAT, FXF_EXCL, FXF_READ, FXF_TRUNC, FXF_WRITE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.server import Serving

_NAMES = ["a", "b", "d", "d/a", "d/b", "d/e", "l", "l/a", "l/l", "d/l", "d/l/b"]
RUNS = f".a.{'0' * 16}.{'0' * 14}.pscp-part"  # of a copy by pscp, which lands when it is renamed
NAMES, OR_RUNS = st.sampled_from(_NAMES), st.sampled_from([*_NAMES, *[RUNS] * 4])
LINKS = [
    ("a", "l"), ("d", "l"), ("d/a", "l"), ("nothing", "l"), ("../out", "l"), ("../a", "d/l"),
    ("..", "d/l"), ("../b", "l/l"), ("../../out", "d/l/k"), ("../../../out", "l/d/l/k"),
]  # fmt: skip
DATA = st.binary(max_size=20)
OFFSETS = st.integers(0, 30)
MODES = st.sampled_from(
    [FXF_CREAT | FXF_TRUNC, FXF_CREAT, FXF_APPEND | FXF_CREAT, FXF_CREAT | FXF_EXCL, 0, FXF_TRUNC]
)
SECOND_MODES = st.sampled_from([FXF_CREAT | FXF_TRUNC, FXF_CREAT, FXF_APPEND | FXF_CREAT, 0])
WRITES = st.lists(st.tuples(OFFSETS, st.binary(min_size=1, max_size=20)), max_size=3)


class Write(NamedTuple):
    """An open file, written at some offsets, cut or not, and closed."""

    name: str
    flags: int
    writes: list[tuple[int, bytes]]
    cut: int | None


class Both(NamedTuple):
    """A file that is opened a second time while it is open, written by both, and closed."""

    name: str
    flags: tuple[int, int]
    writes: tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]
    closes_first: int  # of the two
    is_late: bool  # does the other write once more, when the file has landed?


class Rename(NamedTuple):
    old: str
    new: str
    replaces: bool


class HardLink(NamedTuple):
    to: str
    name: str


class Link(NamedTuple):
    to: str
    name: str


class Other(NamedTuple):
    what: str
    name: str


STEPS = st.one_of(
    st.builds(
        Write, OR_RUNS, MODES, st.lists(st.tuples(OFFSETS, DATA), max_size=4),
        st.none() | st.integers(0, 40),
    ),
    st.builds(
        Both, NAMES, st.tuples(MODES, SECOND_MODES), st.tuples(WRITES, WRITES), st.integers(0, 1),
        st.booleans(),
    ),
    st.builds(HardLink, OR_RUNS, OR_RUNS),
    st.builds(Rename, OR_RUNS, OR_RUNS, st.booleans()),
    st.sampled_from(LINKS).map(lambda drawn: Link(*drawn)),
    st.builds(Other, st.sampled_from(["mkdir", "rmdir", "remove", "read", "stat"]), OR_RUNS),
)  # fmt: skip


# Folders and links to begin with, which seldom come about by steps that are drawn.
_FOLDERS = [Other("mkdir", "d"), Other("mkdir", "d/a")]
BEGINS = st.sampled_from(
    [[], [*_FOLDERS, Link("..", "d/l")], [*_FOLDERS, Link("d/a", "l"), Link("../b", "l/l")]]
)


class Here:
    """A folder of this machine, in which the system does what is asked."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def do(self, step: Any) -> object:
        """Do a step; return what came of it: "failed", or what a client learns."""
        if any(map(self._is_outside, self._paths(step))):
            return "failed"
        try:
            if isinstance(step, Write):
                self._write(step)
            elif isinstance(step, Both):
                return self._both(step)
            elif isinstance(step, HardLink):
                new = self.root / step.name
                to = self.root / step.to
                if to.is_file() and not to.is_symlink() and to.stat().st_mode & 0o100:
                    return "failed"  # a part has no other name
                if step.to.endswith(RUNS):
                    return "failed"  # nobody was told of what has such a name
                os.link(self.root / step.to, new, follow_symlinks=False)
            elif isinstance(step, Rename):
                self._rename(self.root / step.old, self.root / step.new, step.replaces)
            elif isinstance(step, Link):
                return self._link(step)
            else:
                return self._other(step, self.root / step.name)
        except OSError:
            return "failed"
        return None

    def _paths(self, step: Any) -> list[str]:
        """What a step needs to be inside, links followed."""
        if isinstance(step, Write | Both) or getattr(step, "what", "") in ("read", "stat"):
            return [step.name]
        names = [step.old, step.new] if isinstance(step, Rename) else [step.name]
        names += [step.to] if isinstance(step, HardLink) else []
        return [os.path.dirname(name) for name in names]

    def _is_outside(self, name: str) -> bool:
        return not Path(os.path.realpath(self.root / name)).is_relative_to(self.root)

    def _link(self, step: Link) -> object:
        """Make a link, which is said in as few words as it can be."""
        above = os.path.relpath(os.path.realpath((self.root / step.name).parent), self.root)
        to = os.path.normpath(os.path.join(above, step.to))
        if to.startswith(".."):
            return "failed"
        (self.root / step.name).symlink_to(os.path.relpath(to, above))
        return None

    def _write(self, step: Write) -> None:
        flags = os.O_WRONLY
        for asked, its in (
            (FXF_CREAT, os.O_CREAT), (FXF_TRUNC, os.O_TRUNC), (FXF_APPEND, os.O_APPEND),
            (FXF_EXCL, os.O_EXCL),
        ):  # fmt: skip
            flags |= its if step.flags & asked else 0
        path = self.root / step.name
        is_runs = step.name == RUNS and (step.flags & FXF_EXCL or not path.is_symlink())
        if (
            is_runs
            and path.exists()
            and (step.flags & FXF_TRUNC or not path.stat().st_mode & 0o100)
        ):
            raise FileExistsError  # it is not begun anew, or has landed
        fd = os.open(path, flags & ~os.O_TRUNC, 0o700 if is_runs else 0o600)
        is_changed = bool(step.flags & FXF_TRUNC or any(data for _, data in step.writes))
        if not is_runs and (is_changed or step.cut is not None):
            os.close(fd)
            fd = os.open(self._own(step.name), flags & ~os.O_EXCL)
            os.fchmod(fd, 0o600)
        try:
            for offset, data in step.writes:
                os.lseek(fd, offset, os.SEEK_SET)
                os.write(fd, data)
            if step.cut is not None:
                os.ftruncate(fd, step.cut)
        finally:
            os.close(fd)

    def _own(self, name: str) -> Path:
        """Return a file's path, of which no other name is the same file: what lands is another."""
        path = Path(os.path.realpath(self.root / name))
        if path.stat().st_nlink > 1:
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
        return path

    def _both(self, step: Both) -> str:
        """Who opens it later takes its place, but goes on with what is there only in part."""
        first, second = step.flags
        name = self.root / step.name
        old = name.read_bytes() if name.exists() else None
        self._write(Write(step.name, first & ~FXF_TRUNC, [], None))  # may it be opened?
        takes = bool(second & FXF_TRUNC) or (old is not None and not first & FXF_TRUNC)
        data = bytearray(b"" if old is None or second & FXF_TRUNC or not takes else old)
        for flags, writes in zip(step.flags, step.writes, strict=True):
            for offset, more in [] if takes and writes is step.writes[0] else writes:
                at = len(data) if flags & FXF_APPEND else offset
                data.extend(bytes(max(at - len(data), 0)))
                data[at : at + len(more)] = more
        if old is None or data != old or not takes or second & FXF_TRUNC or step.writes[1]:
            self._own(step.name).write_bytes(data)
        is_changed = bool(old is None or first & FXF_TRUNC or step.writes[0])
        return "late" if step.is_late else "taken" if takes and is_changed else "shared"

    def _rename(self, old: Path, new: Path, replaces: bool) -> None:
        if not replaces and os.path.lexists(new) and os.path.lexists(old):
            raise FileExistsError
        if new.name == RUNS != old.name:
            raise PermissionError  # what is no part gets no part's name
        lands = old.name == RUNS != new.name and not old.is_symlink() and old.is_file()
        os.rename(old, new)
        if lands:
            new.chmod(0o600)

    def _other(self, step: Other, path: Path) -> object:
        if step.what == "read":
            return path.read_bytes()
        if step.what == "stat":
            status = path.stat()
            is_folder = stat.S_ISDIR(status.st_mode)
            return (is_folder, 0 if is_folder else status.st_size)
        getattr(os, step.what)(path)
        return None


class There:
    """The same in the folder of a server's user."""

    def __init__(self, client: asyncssh.SFTPClient) -> None:
        self.client = client

    async def do(self, step: Any) -> object:
        try:
            if isinstance(step, Write):
                await self._write(step)
            elif isinstance(step, Both):
                return await self._both(step)
            elif isinstance(step, HardLink):
                await self.client.link(step.to, step.name)
            elif isinstance(step, Rename):
                rename = self.client.posix_rename if step.replaces else self.client.rename
                await rename(step.old, step.new)
            elif isinstance(step, Link):
                await self.client.symlink(step.to, step.name)
            else:
                return await self._other(step, step.name)
        except asyncssh.SFTPError:
            return "failed"
        return None

    async def _write(self, step: Write) -> None:
        flags = FXF_WRITE | step.flags
        file = await self.client.open(step.name, flags, encoding=None)
        for offset, data in step.writes:
            await file.write(data, offset)
        if step.cut is not None:
            await file.setstat(asyncssh.SFTPAttrs(size=step.cut))
        await file.close()

    async def _both(self, step: Both) -> str:
        files = []
        for flags, writes in zip(step.flags, step.writes, strict=True):
            path = step.name
            files.append(file := await self.client.open(path, FXF_WRITE | flags, encoding=None))
            for offset, data in writes:
                await file.write(data, offset)
            await file.stat()  # once it is written
        found = "shared"
        for place, file in enumerate(files[step.closes_first :] + files[: step.closes_first]):
            is_late = step.is_late and place == 1 and all(step.writes) and step.name != RUNS
            if is_late and found == "shared":  # what pscp makes lands when it is renamed
                with pytest.raises(asyncssh.SFTPError):
                    await file.write(b"late", 0)
                    await file.stat()
            try:
                await file.close()
            except asyncssh.SFTPError:
                assert file is files[0] or is_late
                found = "taken"
        return "late" if step.is_late else found

    async def _other(self, step: Other, path: str) -> object:
        if step.what == "read":
            async with self.client.open(path, FXF_READ, encoding=None) as file:
                return await file.read()
        if step.what == "stat":
            attrs = await self.client.stat(path)
            is_folder = attrs.type == asyncssh.FILEXFER_TYPE_DIRECTORY
            return (is_folder, 0 if is_folder else attrs.size)
        await getattr(self.client, step.what)(path)
        return None


def tree(root: Path) -> dict[str, object]:
    """What lies below a folder: links by where they lead, files by their bytes."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("model"), 'workers = 1\nuploads = "uploads"') as made:
        (made.folder / "uploads").touch()
        yield made


@pytest.fixture(scope="module")
def client(serving: Serving) -> Iterator[tuple[asyncio.AbstractEventLoop, asyncssh.SFTPClient]]:
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(serving.connect())
    yield loop, loop.run_until_complete(connection.start_sftp_client())
    connection.close()
    loop.run_until_complete(connection.wait_closed())
    loop.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[*HealthCheck])
@given(steps=st.builds(list.__add__, BEGINS, st.lists(STEPS, max_size=12)))
def test_a_sequence_of_requests(
    serving: Serving, client: tuple[asyncio.AbstractEventLoop, asyncssh.SFTPClient], tmp_path: Path,
    steps: list[Any],
) -> None:  # fmt: skip
    loop, sftp = client
    here, there = Here(tmp_path / "here"), There(sftp)
    here.root.mkdir(exist_ok=True)
    for path in (*here.root.iterdir(), *serving.home.iterdir()):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for step in steps:
        assert here.do(step) == loop.run_until_complete(there.do(step)), step
        assert tree(here.root) == tree(serving.home), step
    # What has its name was told, and changed no more.
    digests = {
        hashlib.sha256(found).hexdigest()
        for name, found in tree(serving.home).items()
        if isinstance(found, bytes) and not name.endswith(RUNS)
    }
    listed = map(json.loads, (serving.folder / "uploads").read_text().splitlines())
    assert digests <= {each["sha256"] for each in listed}
    assert digests <= {each["sha256"] for each in serving.events("upload")}
