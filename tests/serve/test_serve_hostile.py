"""Clients of pscp-serve that mean harm: paths that lead out, floods, what is never closed or read.

Not here: logins (test_serve_logins.py), what a user may do (test_serve_rules.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import pytest
from conftest import until

from pscp.serve import folder as folders
from pscp.serve.session import Packets
from serve.server import Serving, run

OPEN, CLOSE, READ, WRITE, STAT = 3, 4, 5, 6, 17
WRITES = 0x02 | 0x08 | 0x10  # write, create, truncate
REFUSED = asyncssh.SFTPError


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "secret").mkdir()
    (folder / "secret" / "file").write_text("secret")
    with Serving(folder, 'workers = 1\nopen-files = 20\nmemory = "64M"') as made:
        yield made


def text(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


class Raw:
    """A session of SFTP 3 that sends what it is told to."""

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        self.connection = connection

    async def begin(self) -> Raw:
        process = await self.connection.open_session(subsystem="sftp", encoding=None)
        self.writer, self.reader, _ = process
        self.send(1, struct.pack(">I", 3)[:0], number=3)
        await self.answer()
        return self

    def send(self, kind: int, data: bytes, number: int = 7) -> None:
        body = struct.pack(">BI", kind, number) + data
        self.writer.write(struct.pack(">I", len(body)) + body)

    async def answer(self) -> bytes:
        size_bytes = int.from_bytes(await self.reader.readexactly(4), "big")
        return bytes(await self.reader.readexactly(size_bytes))

    async def status(self) -> int:
        """The code of a status; 0 for any other answer."""
        answer = await self.answer()
        return int.from_bytes(answer[5:9], "big") if answer[0] == 101 else 0

    async def opened(self, name: bytes) -> bytes:
        self.send(OPEN, text(name) + struct.pack(">II", WRITES, 0))
        answer = await self.answer()
        assert answer[0] == 102, answer
        return answer[5:]


@contextlib.asynccontextmanager
async def raw(serving: Serving) -> AsyncIterator[Raw]:
    connection = await serving.connect()
    try:
        yield await Raw(connection).begin()
    finally:
        connection.abort()


PATHS = [
    "../secret/file", "/../secret/file", "x/../../secret/file", "absolute/file", "outside/file",
    "deep/../outside/file", "file", "./outside/../outside/file",
]  # fmt: skip


def links(home: Path) -> None:
    """Links that the machine's own people have left, which lead out."""
    (home / "deep").mkdir(exist_ok=True)
    for name, to in (
        ("outside", "../secret"), ("absolute", str(home.parent / "secret")),
        ("file", "../secret/file"),
    ):  # fmt: skip
        if not (home / name).is_symlink():
            (home / name).symlink_to(to)


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out(serving: Serving, path: str) -> None:
    links(serving.home)

    async def tries() -> None:
        async with await serving.connect() as connection:
            client = await connection.start_sftp_client()
            for attempt in (
                client.open(path, "rb"), client.open(path, "wb"), client.open(path, "ab"),
                client.listdir(path), client.truncate(path, 0), client.utime(path, (1, 1)),
                client.link(path, "mine"), client.chmod(path, 0o777), client.stat(path),
            ):  # fmt: skip
                with contextlib.suppress(REFUSED):  # chmod is taken, and does nothing
                    found = await attempt
                    assert not isinstance(found, asyncssh.SFTPClientFile), path
            with contextlib.suppress(REFUSED):
                await client.mkdir(os.path.dirname(path) + "/made")

    run(tries())
    secret = serving.folder / "secret"
    assert [each.name for each in secret.iterdir()] == ["file"]
    assert (secret / "file").read_text() == "secret" and (secret / "file").stat().st_nlink == 1
    assert (secret / "file").stat().st_mtime > 1 and (secret / "file").stat().st_mode & 0o002 == 0


def test_links_that_lead_out_are_not_made(serving: Serving) -> None:
    async def tries() -> None:
        async with await serving.connect() as connection:
            client = await connection.start_sftp_client()
            await client.mkdir("below")
            for to in ("../secret", "../../secret", "below/../../x", ".."):
                with pytest.raises(REFUSED):
                    await client.symlink(to, "bad")
            await client.symlink("/below", "good")  # absolute for the client, not for the machine
            await client.symlink("..", "below/up")
            async with client.open("good/up/below/file", "wb") as file:
                await file.write(b"inside")
            for to in (
                "../secret",
                "../../secret",
            ):  # of where the link is, not of how it is called
                with pytest.raises(REFUSED):
                    await client.symlink(to, "good/up/below/up/bad")
            # A link that led inside where it was, and is moved, leads nowhere.
            await client.rename("below/up", "up")
            with pytest.raises(REFUSED):
                await client.listdir("up")

    run(tries())
    assert os.readlink(serving.home / "good") == "below"
    assert (serving.home / "below" / "file").read_text() == "inside"


def test_no_link_leads_to_a_part(serving: Serving) -> None:
    """A part has a name that can be told from the file's and the user's, who may share a folder."""

    async def tries() -> None:
        async with await serving.connect() as connection:
            client = await connection.start_sftp_client()
            other = await client.open("unfinished", "wb")
            await other.write(b"unfinished")
            await other.stat()
            [part] = [each.name for each in serving.home.glob(".unfinished.*")]
            await client.mkdir("above")
            for to, name in ((part, "to-part"), (f"/{part}/x", "x"), (f"../{part}", "above/link")):
                with pytest.raises(REFUSED):
                    await client.symlink(to, name)
            (serving.home / "left").symlink_to(part)  # by the machine's own people
            for how in ("wb", "r+b", "ab"):
                with pytest.raises(REFUSED):
                    await client.open("left", how)
            await other.close()

    run(tries())
    assert (serving.home / "unfinished").read_text() == "unfinished"


@pytest.mark.parametrize("has_openat2", [True, False])
def test_a_link_swapped_in_between_check_and_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_openat2: bool
) -> None:
    """A folder on the way becomes a link that leads out, and a folder again, all the while."""
    monkeypatch.setattr(folders, "HAS_OPENAT2", has_openat2 and folders.HAS_OPENAT2)
    home, secret = tmp_path / "home", tmp_path / "secret"
    for each in (home, home / "real", secret):
        each.mkdir()
    (home / "real" / "file").write_text("mine")
    (secret / "file").write_text("secret")
    (home / "link").symlink_to("../secret")
    os.rename(home / "real", home / "way")
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            os.rename(home / "way", home / "real")
            os.rename(home / "link", home / "way")
            os.rename(home / "way", home / "link")
            os.rename(home / "real", home / "way")

    swapping = threading.Thread(target=swap)
    swapping.start()
    root, read, refused = folders.Folder(str(home)), 0, 0
    try:
        while read < 50 or refused < 50:
            try:
                fd = root.open(b"way/file", os.O_RDONLY)
            except OSError:
                refused += 1
                continue
            with os.fdopen(fd) as file:
                assert file.read() == "mine"
            read += 1
    finally:
        is_over.set()
        swapping.join()
        root.close()


def test_offsets_and_sizes_out_of_range(serving: Serving) -> None:
    async def tries() -> None:
        async with raw(serving) as session:
            handle = await session.opened(b"offsets")
            for offset in (1 << 63, (1 << 64) - 1, (1 << 63) - 2):
                session.send(WRITE, handle + struct.pack(">Q", offset) + text(b"data"))
                assert await session.status() != 0
                session.send(READ, handle + struct.pack(">QI", offset, 100))
                assert await session.status() != 0
            session.send(WRITE, handle + struct.pack(">QI", 0, 0xFFFFFFFF) + b"short")
            assert await session.status() != 0
            session.send(WRITE, handle)
            assert await session.status() != 0

    run(tries())


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF, 300_000])
def test_a_request_of_a_size_that_none_has(serving: Serving, length: int) -> None:
    async def tries() -> bytes:
        async with raw(serving) as session:
            session.writer.write(struct.pack(">I", length) + bytes(100))
            return bytes(await session.reader.read())

    assert run(tries()) == b""


def test_a_request_that_comes_byte_by_byte_is_not_kept_so() -> None:
    got: list[bytes] = []
    packets = Packets(got.append)
    for byte in struct.pack(">IB", 100_001, STAT) + bytes(99_999):
        packets.feed(bytes([byte]))
        assert len(packets._pieces) < 300
    assert packets.part_bytes == 100_000
    packets.feed(b"\1")
    assert got == [bytes([STAT]) + bytes(99_999) + b"\1"]


def test_handles_that_are_never_closed(serving: Serving) -> None:
    async def tries() -> None:
        async with raw(serving) as session:
            for number in range(20):
                await session.opened(b"open%d" % number)
            session.send(OPEN, text(b"one more") + struct.pack(">II", WRITES, 0))
            assert await session.status() != 0
            session.send(11, text(b"/"))  # and no folder
            assert await session.status() != 0

    before = descriptors(serving)
    run(tries())
    until(lambda: descriptors(serving) <= before)


def worker(serving: Serving) -> int:
    path = f"/proc/{serving.process.pid}/task/{serving.process.pid}/children"
    return int(Path(path).read_text().split()[0])


def descriptors(serving: Serving) -> int:
    return len(os.listdir(f"/proc/{worker(serving)}/fd"))


def memory_bytes(serving: Serving) -> int:
    for line in Path(f"/proc/{worker(serving)}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def test_sessions_without_end(serving: Serving) -> None:
    async def tries() -> int:
        connection = await serving.connect()
        opened = 0
        with contextlib.suppress(asyncssh.ChannelOpenError):
            for opened in range(100):  # noqa: B007
                await connection.open_session(subsystem="sftp", encoding=None)
        connection.abort()
        return opened

    assert run(tries()) == 10


def test_answers_that_nobody_takes(serving: Serving) -> None:
    """Reads of a large file without end, of which the client takes nothing."""
    with (serving.home / "large").open("wb") as file:
        file.truncate(1 << 30)

    async def flood() -> None:
        async with raw(serving) as session:
            session.send(OPEN, text(b"large") + struct.pack(">II", 1, 0))
            handle = (await session.answer())[5:]
            session.writer.channel.pause_reading()
            for number in range(4000):
                session.send(READ, handle + struct.pack(">QI", number << 17, 1 << 18))
            async with await serving.connect() as other:  # nobody else waits for it
                client = await other.start_sftp_client()
                async with client.open("meanwhile", "wb") as file:
                    await file.write(b"served")

    before_bytes = memory_bytes(serving)
    run(asyncio.wait_for(flood(), 60))
    assert memory_bytes(serving) - before_bytes < 64 << 20
    assert (serving.home / "meanwhile").read_bytes() == b"served"


def test_a_flood_of_requests(serving: Serving) -> None:
    async def flood() -> None:
        async with raw(serving) as session:
            asked = 10_000
            for _ in range(asked):
                session.send(STAT, text(b"/nothing"))
            for _ in range(asked):
                assert await session.status() == 2

    before_bytes = memory_bytes(serving)
    run(asyncio.wait_for(flood(), 120))
    assert memory_bytes(serving) - before_bytes < 64 << 20


def test_clients_that_are_gone_before_their_answers_are_no_news(tmp_path: Path) -> None:
    """asyncio warns of what is written to a connection that is lost."""

    async def ask_and_go(serving: Serving) -> None:
        async with raw(serving) as session:
            for _ in range(300):
                session.send(STAT, text(b"/nothing"))
            assert await session.status() == 2

    with Serving(tmp_path, "workers = 1") as serving:  # which says nothing to standard error
        for _ in range(3):
            run(asyncio.wait_for(ask_and_go(serving), 60))
