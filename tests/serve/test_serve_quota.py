"""Quotas of pscp-serve hold against who means to get round them, and what fails costs nothing.

Not here: that they are refused at all (test_serve_rules.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from pscp.serve import upload
from pscp.serve.account import Account
from pscp.serve.settings import User
from serve.server import Serving, run

_QUOTA_BYTES = 100_000


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("quota")
    (folder / "counted").mkdir()
    users = (
        '[user.counted]\nfolder = "counted"\nrules = ["read", "write"]\nkeys = "alice.pub"\n'
        f"quota-bytes = {_QUOTA_BYTES}\nquota-files = 20\nlargest = 60000\n"
    )
    with Serving(folder, "workers = 2", users) as made:
        yield made


@pytest.fixture
def home(serving: Serving) -> Iterator[Path]:
    """The folder of a user with a quota, which holds one file, and is emptied and compared."""
    home = serving.folder / "counted"
    run(put(serving, "kept", 40_000))
    yield home
    lies = [each.lstat() for each in home.iterdir() if not each.is_symlink()]
    user = User("counted", str(home), frozenset(["write"]), quota_bytes=_QUOTA_BYTES)
    account = Account(str(serving.state), user)
    used = account.used
    account.close()
    run(empty(serving))
    assert used == (sum(each.st_size for each in lies), len(lies))


async def put(serving: Serving, name: str, size_bytes: int) -> None:
    async with await serving.connect("counted") as connection:
        client = await connection.start_sftp_client()
        async with client.open(name, "wb") as file:
            await file.write(bytes(size_bytes))


async def empty(serving: Serving) -> None:
    async with await serving.connect("counted") as connection:
        client = await connection.start_sftp_client()
        for name in await client.listdir("."):
            if name not in (".", ".."):
                await client.remove(name)


def test_a_link_that_is_replaced_gives_nothing_back(serving: Serving, home: Path) -> None:
    async def tries() -> None:
        async with await serving.connect("counted") as connection:
            client = await connection.start_sftp_client()
            for _ in range(3):
                await client.symlink("x" * 200, "one")
                await client.symlink("x" * 200, "two")
                await client.posix_rename("one", "two")  # a link over a link
                await client.remove("two")
            file = await client.open("new", "wb")
            await file.write(b"new")
            await client.symlink("x" * 200, "new")
            await file.close()  # a file over a link

    run(tries())


def test_what_was_replaced_cannot_be_cut_to_get_its_bytes_twice(
    serving: Serving, home: Path
) -> None:
    async def tries() -> None:
        async with await serving.connect("counted") as connection:
            client = await connection.start_sftp_client()
            first = await client.open("new", "wb")
            await first.write(bytes(50_000))
            await first.stat()
            async with client.open("new", "wb") as second:  # the first is counted no more
                await second.write(b"new")
            for attempt in (first.truncate(0), first.close()):
                with pytest.raises(asyncssh.SFTPError):
                    await attempt

    run(tries())


def test_what_another_handle_has_cut_is_counted_when_it_is_written_again(
    serving: Serving, home: Path
) -> None:
    async def tries() -> None:
        async with await serving.connect("counted") as connection:
            client = await connection.start_sftp_client()
            first = await client.open("new", "wb")
            await first.write(bytes(50_000))
            await first.stat()
            second = await client.open("new", "r+b")
            await second.truncate(0)
            await first.write(bytes(50_000), offset=0)
            await first.close()
            await second.close()

    run(tries())
    assert (home / "new").stat().st_size == 50_000


def test_a_cut_that_is_refused_leaves_no_part(serving: Serving, home: Path) -> None:
    async def tries() -> None:
        async with await serving.connect("counted") as connection:
            client = await connection.start_sftp_client()
            for size_bytes in (60_001, 1 << 62, (1 << 64) - 1):
                with pytest.raises(asyncssh.SFTPError):
                    await client.truncate("kept", size_bytes)
            assert (await client.stat("kept")).size == 40_000

    run(tries())
    assert [each.name for each in home.iterdir()] == ["kept"]


def test_a_full_disk_costs_no_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int, data: bytes, offset: int) -> int:
        os.pwrite(fd, data[:1000], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    account = Account(str(tmp_path), User("a", str(tmp_path), frozenset(), quota_bytes=1 << 30))
    before_bytes, _ = account.used
    fd = os.open(tmp_path / "part", os.O_RDWR | os.O_CREAT, 0o600)
    content = upload.Content(fd, account, None, None)
    monkeypatch.setattr(upload, "_write_all", fails)
    with pytest.raises(OSError, match="No space"):
        content.write(0, [bytes(5000)], 5000)
    assert account.used[0] - before_bytes == 1000
    content.close()
    account.close()


def test_sparse_files_without_end_are_counted(tmp_path: Path) -> None:
    account = Account(str(tmp_path), User("a", str(tmp_path), frozenset(), quota_files=9))
    account.charge((1 << 63) - 1)
    account.charge((1 << 63) - 1)
    assert account.used[0] == (1 << 63) - 1
    account.close()
