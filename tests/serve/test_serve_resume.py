"""Uploads to pscp-serve that are cut: by the end of the client, or of the server, and what resumes.

Not here: uploads that go through (test_serve_clients.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import asyncssh
import pytest
from conftest import until

from serve.clients import BIG_BYTES, Clients, digest, random_file
from serve.server import Serving, run

NAME = "cut"


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path, "workers = 2") as made:
        yield made


@pytest.fixture
def clients(serving: Serving, tmp_path: Path) -> Clients:
    return Clients(serving, tmp_path)


def parts(serving: Serving) -> list[Path]:
    return [each for each in serving.home.iterdir() if each.name.endswith(".pscp-part")]


def part_bytes(serving: Serving) -> int:
    return sum(each.stat().st_size for each in parts(serving))


def begun(serving: Serving, clients: Clients, file: Path) -> subprocess.Popen[bytes]:
    """Have a slow sftp begin to put a file; return once some of it is there."""
    argv = ["sftp", *clients.options, "-l", "30000", "-b", "-", "127.0.0.1"]  # kbit/s
    client = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)
    assert client.stdin is not None
    client.stdin.write(f"put {file} {NAME}\n".encode())
    client.stdin.flush()
    until(lambda: part_bytes(serving) > BIG_BYTES // 8)
    return client


def end(client: subprocess.Popen[bytes]) -> None:
    os.killpg(client.pid, signal.SIGKILL)
    client.communicate()


def workers(serving: Serving) -> list[int]:
    path = f"/proc/{serving.process.pid}/task/{serving.process.pid}/children"
    return [int(word) for word in Path(path).read_text().split()]


def are_replaced(serving: Serving, before: list[int]) -> bool:
    now = workers(serving)
    return len(now) == 2 and not {*before} & {*now}


def test_a_client_that_is_killed_resumes(
    serving: Serving, clients: Clients, tmp_path: Path
) -> None:
    sha256 = random_file(tmp_path / "file", BIG_BYTES)
    end(begun(serving, clients, tmp_path / "file"))
    assert not (serving.home / NAME).exists() and not serving.events("upload")
    listed = clients.sftp("ls -l")
    assert NAME in listed and ".pscp-part" not in listed
    before_bytes = part_bytes(serving)
    assert str(before_bytes) in clients.sftp(f"ls -l {NAME}")
    clients.sftp(f"reput {tmp_path}/file {NAME}")
    assert digest(serving.home / NAME) == sha256 and not parts(serving)
    [event] = serving.events("upload")
    assert (event["sha256"], event["bytes"]) == (sha256, BIG_BYTES)


def test_a_server_that_is_killed_lets_resume(
    serving: Serving, clients: Clients, tmp_path: Path
) -> None:
    sha256 = random_file(tmp_path / "file", BIG_BYTES)
    client = begun(serving, clients, tmp_path / "file")
    before = workers(serving)
    for each in before:
        os.kill(each, signal.SIGKILL)
    end(client)
    until(partial(are_replaced, serving, before))
    assert not (serving.home / NAME).exists()
    clients.sftp(f"reput {tmp_path}/file {NAME}")
    assert digest(serving.home / NAME) == sha256 and not parts(serving)


def test_a_server_that_is_killed_while_files_land_has_none_by_half(serving: Serving) -> None:
    """Each is whole under its name, or a part, whenever its worker ends."""
    data = {f"file{number}": os.urandom(50_000 + number) for number in range(60)}

    async def upload(names: list[str], connection: asyncssh.SSHClientConnection) -> None:
        with contextlib.suppress(asyncssh.Error, OSError):
            client = await connection.start_sftp_client()
            for name in names:
                async with client.open(name, "wb") as file:
                    await file.write(data[name])
        connection.abort()

    def whole() -> set[str]:
        found = {each.name for each in serving.home.iterdir()} & {*data}
        assert all((serving.home / name).read_bytes() == data[name] for name in found)
        return found

    async def uploads(kill_at: int) -> None:
        missing = sorted({*data} - whole())
        logins = [await serving.connect() for _ in range(4)]  # all before any is killed
        tasks = [asyncio.create_task(upload(missing[n::4], each)) for n, each in enumerate(logins)]
        while len(whole()) < kill_at and not all(task.done() for task in tasks):
            await asyncio.sleep(0)
        for each in workers(serving):
            os.kill(each, signal.SIGKILL)
        await asyncio.gather(*tasks)

    for kill_at in (1, 20, 40):
        before = workers(serving)
        run(uploads(kill_at))
        assert len(whole()) < len(data)
        until(partial(are_replaced, serving, before))
    run(uploads(len(data)))
    assert whole() == {*data} and not parts(serving)


def test_a_server_that_is_killed_just_before_a_file_lands(serving: Serving, tmp_path: Path) -> None:
    sha256 = random_file(tmp_path / "file", BIG_BYTES)

    async def close() -> None:
        connection = await serving.connect()
        client = await connection.start_sftp_client()
        file = await client.open(NAME, "wb")
        await file.write((tmp_path / "file").read_bytes())
        with (serving.state / "names" / "alice").open() as names:
            fcntl.flock(names, fcntl.LOCK_EX)  # nothing gets its name until it is let go
            closing = asyncio.create_task(file.close())
            while [part.stat().st_size for part in parts(serving)] != [BIG_BYTES]:
                await asyncio.sleep(0)
            before = workers(serving)
            for each in before:
                os.kill(each, signal.SIGKILL)
            until(partial(are_replaced, serving, before))
            with pytest.raises((asyncssh.Error, OSError)):
                await closing
        connection.abort()

    async def resume() -> None:
        async with await serving.connect() as connection:
            client = await connection.start_sftp_client()
            assert (await client.stat(NAME)).size == BIG_BYTES
            await (await client.open(NAME, "r+b")).close()

    run(close())
    assert [part.stat().st_size for part in parts(serving)] == [BIG_BYTES]
    assert not (serving.home / NAME).exists()
    parts(serving)[0].chmod(0o640)  # as it has just before it is renamed
    run(resume())
    assert digest(serving.home / NAME) == sha256 and not parts(serving)


def test_lftp_resumes(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    sha256 = random_file(tmp_path / "file", BIG_BYTES)
    end(begun(serving, clients, tmp_path / "file"))
    clients.lftp(f"put -c {tmp_path}/file -o {NAME}")
    assert digest(serving.home / NAME) == sha256 and not parts(serving)


def test_winscp_resumes(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    """It writes NAME.filepart, goes on at its size, and renames it."""
    sha256 = random_file(tmp_path / "file", BIG_BYTES)
    data = (tmp_path / "file").read_bytes()

    async def resume() -> None:
        first = await serving.connect()
        client = await first.start_sftp_client()
        file = await client.open(f"{NAME}.filepart", "wb")
        await file.write(data[:1_000_000])
        assert (await file.stat()).size == 1_000_000
        first.abort()
        async with await serving.connect() as second, second.start_sftp_client() as client:
            size_bytes = (await client.stat(f"{NAME}.filepart")).size
            assert size_bytes == 1_000_000
            async with client.open(f"{NAME}.filepart", "r+b") as file:
                await file.write(data[size_bytes:], offset=size_bytes)
            await client.rename(f"{NAME}.filepart", NAME)

    run(resume())
    assert digest(serving.home / NAME) == sha256 and not parts(serving)
    [event] = serving.events("upload")
    assert (event["path"], event["sha256"]) == (NAME, sha256)


def test_what_was_there_stays_until_the_whole_has_come(
    serving: Serving, clients: Clients, tmp_path: Path
) -> None:
    (serving.home / NAME).write_text("old")
    random_file(tmp_path / "file", BIG_BYTES)
    end(begun(serving, clients, tmp_path / "file"))
    assert (serving.home / NAME).read_text() == "old"


def test_a_folder_gets_the_name_of_an_upload_that_was_cut(serving: Serving) -> None:
    async def tries() -> None:
        connection = await serving.connect()
        client = await connection.start_sftp_client()
        file = await client.open("later", "wb")
        await file.write(b"some")
        await file.stat()
        connection.abort()
        async with await serving.connect() as connection:
            client = await connection.start_sftp_client()
            await client.mkdir("later")
            assert await client.isdir("later")

    run(tries())


def test_a_later_upload_takes_the_place_of_one_that_hangs(
    serving: Serving, clients: Clients
) -> None:
    async def both() -> None:
        first, second = await serving.connect(), await serving.connect()
        async with first, second:
            one, two = await first.start_sftp_client(), await second.start_sftp_client()
            hangs = await one.open(NAME, "wb")
            await hangs.write(b"first")
            async with two.open(NAME, "wb") as file:
                await file.write(b"second")
            with pytest.raises(asyncssh.SFTPError, match="another upload"):
                await hangs.close()

    run(both())
    assert (serving.home / NAME).read_text() == "second"
