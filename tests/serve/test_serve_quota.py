"""Quotas of pscp-serve hold against who means to get round them, and what fails costs nothing.

Not here: that they are refused at all (test_serve_rules.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import asyncssh
import pytest

from pscp.serve import content as contents
from pscp.serve import programs
from pscp.serve.account import Account
from pscp.serve.settings import User
from serve.server import Serving, run, until

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
    names = [*home.rglob("*")]
    user = User("counted", str(home), frozenset(["write"]), quota_bytes=_QUOTA_BYTES)
    account = Account(str(serving.state), user)
    sizes = {(each := name.lstat()).st_ino: each.st_size for name in names if is_file(name)}
    until(lambda: account.used == (sum(sizes.values()), len(names)))
    account.close()
    run(empty(serving))


def is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


async def put(serving: Serving, name: str, size_bytes: int) -> None:
    async with await serving.connect("counted") as connection:
        await write(await connection.start_sftp_client(), name, size_bytes)


async def write(client: asyncssh.SFTPClient, name: str, size_bytes: int) -> None:
    async with client.open(name, "wb") as file:
        await file.write(bytes(size_bytes))


async def empty(serving: Serving) -> None:
    async with await serving.connect("counted") as connection:
        client = await connection.start_sftp_client()
        for name in await client.listdir("."):
            if name not in (".", ".."):
                await client.rmtree(name) if await client.isdir(name) else await client.remove(name)


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


def test_what_is_open_holds_its_bytes_after_it_was_replaced(serving: Serving, home: Path) -> None:
    """What a session of a user's has open, of whichever process, is on the disk."""

    async def tries() -> None:
        first, second = await serving.connect("counted"), await serving.connect("counted")
        async with first, second:
            client, other = await first.start_sftp_client(), await second.start_sftp_client()
            held = [await client.open("new", "wb")]
            await held[0].write(bytes(50_000))
            await held[0].stat()
            held.append(await other.open("new", "wb"))  # 40,000 of "kept", 50,000 without a name
            await held[1].write(bytes(20_000))
            with pytest.raises(asyncssh.SFTPError, match="quota"):
                await held[1].close()
            with pytest.raises(asyncssh.SFTPError, match="taken its place"):
                await held[0].close()
            held = [await client.open("kept", "rb"), await other.open("kept", "rb")]
            await client.remove("kept")
            await write(client, "more", 30_000)
            for each in held:
                with pytest.raises(asyncssh.SFTPError, match="quota"):
                    await write(client, "new", 40_000)
                await each.close()
            await write(client, "new", 40_000)

    run(tries())
    assert (home / "new").stat().st_size == 40_000


def test_folders_and_links_are_files_of_the_quota(serving: Serving, home: Path) -> None:
    async def tries() -> None:
        async with await serving.connect("counted") as connection:
            client = await connection.start_sftp_client()
            await client.mkdir("folder")
            await client.link("kept", "folder/same")
            await client.posix_rename("kept", "folder/same")  # which does nothing
            await client.remove("kept")  # and its bytes stay
            await client.symlink("same", "folder/soft")
            await client.mkdir("other")
            await client.posix_rename("folder", "other")  # in the place of an empty folder
            for number in range(17):
                await client.mkdir(f"other/{number}")
            for attempt in (
                client.mkdir("new"), client.symlink("x", "new"), client.link("other/same", "new"),
            ):  # fmt: skip
                with pytest.raises(asyncssh.SFTPError, match="quota"):
                    await attempt
            for attempt in (client.mkdir("other"), client.rmdir("other"), client.remove("other")):
                with pytest.raises(asyncssh.SFTPError):
                    await attempt

    run(tries())


def test_what_lies_there_is_counted_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "folder").mkdir(parents=True)
    (home / "file").write_bytes(bytes(1000))
    (home / "folder" / "hard").hardlink_to(home / "file")
    (home / "folder" / "soft").symlink_to(".")
    account = Account(str(tmp_path), User("a", str(home), frozenset(), quota_files=9))
    for _ in range(2):
        account.count_once()
        assert account.used == (1000, 4)
    account.close()


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
    fd = os.open(tmp_path / "part", os.O_RDWR | os.O_CREAT, 0o710)
    content = contents.Content(fd, account, None, None)
    monkeypatch.setattr(contents, "_write_all", fails)
    with pytest.raises(OSError, match="No space"):
        content.write(0, [bytes(5000)], 5000)
    assert account.used[0] - before_bytes == 1000
    content.close()
    account.close()


def test_what_a_program_has_open_that_is_being_started_is_given_back(tmp_path: Path) -> None:
    """It has all files of its process until it runs."""
    (tmp_path / "file").write_bytes(bytes(50))
    account = Account(str(tmp_path), User("a", str(tmp_path), frozenset(), quota_bytes=1 << 30))
    account.charge(50, 1)
    folder_fd, (begun, begins), (go, goes) = os.open(tmp_path, os.O_PATH), os.pipe(), os.pipe()
    held = account.opened(b"file", folder_fd)

    def is_started() -> None:
        os.write(begins, b"x")
        os.read(go, 1)

    def lose() -> None:
        with account.losing(folder_fd, b"file"):
            os.unlink(b"file", dir_fd=folder_fd)

    with ThreadPoolExecutor(2) as pool:
        started = pool.submit(programs.run, str(tmp_path), ["true"], preexec_fn=is_started)
        os.read(begun, 1)
        account.release(held)
        lost = pool.submit(lose)
        wait([lost], timeout=0.2)  # until it is done; where it may not be yet, it waits for us
        os.write(goes, b"x")
        assert started.result().returncode == 0
        lost.result()
    assert account.used == (0, 0)
    for fd in (folder_fd, begun, begins, go, goes):
        os.close(fd)
    account.close()


def test_a_cut_while_another_handle_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(str(tmp_path), User("a", str(tmp_path), frozenset(), quota_bytes=1 << 30))
    opened = [os.open(tmp_path / "part", os.O_RDWR | os.O_CREAT, 0o710) for _ in range(2)]
    writes, cuts = (contents.Content(fd, account, None, None) for fd in opened)
    writes.write(0, [bytes(50)], 50)
    with ThreadPoolExecutor(1) as pool:

        def cut_before(fd: int, data: bytes, offset: int) -> int:
            done = pool.submit(cuts.truncate, 0)
            wait([done], timeout=0.2)  # until it is done; where it may not be yet, it waits for us
            return os.pwrite(fd, data, offset)

        monkeypatch.setattr(contents, "_write_all", cut_before)
        writes.write(50, [bytes(50)], 50)
    assert account.used[0] == os.fstat(opened[0]).st_size
    writes.close()
    cuts.close()
    account.close()


def test_sparse_files_without_end_are_counted(tmp_path: Path) -> None:
    account = Account(str(tmp_path), User("a", str(tmp_path), frozenset(), quota_files=9))
    account.charge((1 << 63) - 1)
    account.charge((1 << 63) - 1)
    assert account.used[0] == (1 << 63) - 1
    account.close()
