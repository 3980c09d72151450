"""What pscp-serve does for a session at its own cost: copies, hashes, listings. None waits for it.

Not here: floods of requests (test_serve_hostile.py).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import asyncssh
import pytest

from pscp.serve import content as contents
from pscp.serve.account import Account
from pscp.serve.content import Content, SessionLoad
from pscp.serve.folder import Folder
from pscp.serve.landing import LandedFile, Place, Upload
from pscp.serve.reading import Listing
from pscp.serve.rules import Rules
from pscp.serve.settings import User
from serve.server import Serving, run

_STEP_BYTES = 1000
_OLD = bytes(range(250)) * 20


class Working:
    """A user's folder with an old file, and a session that changes it, without a server."""

    def __init__(self, folder: Path) -> None:
        user = User("a", str(folder / "home"), frozenset(["read", "write"]))
        (folder / "home").mkdir()
        self.file = folder / "home" / "file"
        self.file.write_bytes(_OLD)
        account = Account(str(folder / "state"), user)
        self.place = Place(Folder(user.folder), Rules(user), account)
        self.pool = ThreadPoolExecutor(2)
        self.steps: list[int] = []  # how much of the part there was at each

    def load(self, long: asyncio.Lock) -> SessionLoad:
        return SessionLoad(self.pool, long)

    def begin(self, load: SessionLoad) -> Upload:
        return self.place.begin(b"file", 0, load)

    def part_bytes(self) -> int:
        return sum(each.stat().st_size for each in self.file.parent.glob(".file.*"))


@pytest.fixture
def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Working]:
    monkeypatch.setattr(contents, "_STEP_BYTES", _STEP_BYTES)
    made = Working(tmp_path)
    yield made
    made.pool.shutdown()
    made.place.folder.close()
    made.place.account.close()


def test_reading_what_is_changed_copies_nothing(working: Working) -> None:
    async def tries() -> None:
        upload = working.begin(working.load(asyncio.Lock()))
        upload.writer.write(0, b"new")
        await upload.writer.drain()
        assert upload.content.read(0, 10) == b"new" + _OLD[3:10]
        assert upload.content.read(4000, 2000) == _OLD[4000:]
        assert upload.content.read(9000, 10) == b""
        assert working.part_bytes() == 3
        upload.close()

    run(tries())


def test_a_file_that_is_opened_and_closed_is_not_copied(working: Working) -> None:
    async def tries() -> LandedFile | None:
        load = working.load(asyncio.Lock())
        upload = working.begin(load)
        upload.times_ns = (1, 10**9)
        landed = await upload.finish(load, Mock())
        upload.close()
        return landed

    before = working.file.stat()
    assert run(tries()) is None
    after = working.file.stat()
    assert (after.st_ino, after.st_mtime) == (before.st_ino, 1)
    assert [*working.file.parent.iterdir()] == [working.file]


@pytest.mark.parametrize("cut", [None, 2500])
def test_a_write_beyond_the_end_copies_in_steps_while_others_go_on(
    working: Working, monkeypatch: pytest.MonkeyPatch, cut: int | None
) -> None:
    """One at a time of a user's, and no longer than its client is there."""
    copy, held = Content.copy, list[tuple[bool, int]]()
    long = asyncio.Lock()

    def watched(content: Content, until: int) -> bool:
        held.append((long.locked(), working.part_bytes()))
        return copy(content, until)

    monkeypatch.setattr(Content, "copy", watched)

    async def tries() -> None:
        load = working.load(long)
        changed = working.begin(load)
        if cut is not None:
            await changed.writer.truncate(cut)
        changed.writer.write(6000, b"end")
        await changed.finish(load, Mock())
        changed.close()

    run(tries())
    whole = _OLD if cut is None else _OLD[:cut]
    assert working.file.read_bytes() == whole.ljust(6000, b"\0") + b"end"
    assert held == [(True, size_bytes) for size_bytes in range(0, len(whole), _STEP_BYTES)]


def test_nobody_copies_for_a_client_that_is_gone(working: Working) -> None:
    async def tries() -> None:
        load = working.load(asyncio.Lock())
        changed = working.begin(load)
        load.is_lost = True
        changed.writer.write(6000, b"end")
        with pytest.raises(OSError, match="gone"):
            await changed.writer.drain()
        changed.close()

    run(tries())
    assert working.part_bytes() == _STEP_BYTES


def test_a_listing_of_many_parts_lets_others_go_on(tmp_path: Path) -> None:
    for number in range(1000):  # of another user's, so none of them is shown
        (tmp_path / f".{number}.{'0' * 16}.{'0' * 12}.pscp-part").touch()
    (tmp_path / "shown").touch()
    folder = Folder(str(tmp_path))
    listing = Listing(folder, b".", Rules(User("a", str(tmp_path), frozenset(["read"]))))
    turns = 0
    for expected in (asyncssh.SFTPName, StopAsyncIteration):
        name = listing.__anext__()
        try:
            while True:
                name.send(None)
                turns += 1
        except StopIteration as found:
            assert expected is asyncssh.SFTPName and found.value.filename == b"shown"
        except StopAsyncIteration:
            assert expected is StopAsyncIteration
    assert turns == 1001 // 64
    listing.close()
    folder.close()


def test_a_session_whose_close_takes_long_is_not_idle(tmp_path: Path) -> None:
    async def tries(serving: Serving) -> None:
        first, second = await serving.connect(), await serving.connect()
        async with first, second:
            client = await first.start_sftp_client()
            file = await client.open("file", "wb")
            await file.write(b"whole")
            with (serving.state / "names" / "alice").open() as names:
                fcntl.flock(names, fcntl.LOCK_EX)  # nothing lands until it is let go
                closing = asyncio.create_task(file.close())
                while not is_asked_for(names.fileno()):
                    await asyncio.sleep(0.01)
                await second.create_process(subsystem="sftp", encoding=None)
                await second.wait_closed()  # it did nothing, and began later
            await closing

    with Serving(tmp_path, "workers = 1\nidle = 1") as serving:
        run(tries(serving))
        assert (serving.home / "file").read_bytes() == b"whole"
        assert [each["why"] for each in serving.events("refused")] == ["it was idle"]


def is_asked_for(fd: int) -> bool:
    """Does somebody wait for the lock of this file?"""
    inode = str(os.fstat(fd).st_ino)
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and line.split()[6].endswith(f":{inode}") for line in lines)
