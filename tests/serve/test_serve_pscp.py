"""pscp as a client of pscp-serve: by each rule, cut and resumed, and what of it others may touch.

Not here: other clients (test_serve_clients.py), sequences of requests (test_serve_model.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncssh
import pytest
from asyncssh import FXF_CREAT, FXF_EXCL, FXF_READ, FXF_TRUNC, FXF_WRITE
from conftest import until

import pscp
from serve.clients import BIG_BYTES, Clients, digest, random_file
from serve.server import Serving, run

USERS = {
    "both": '["read", "write"]', "writes": '"write"', "adds": '["read", "append-only"]',
    "drops": '"append-only"',
}  # fmt: skip
TABLES = "".join(
    f'[user.{name}]\nfolder = "{name}"\nrules = {rules}\nkeys = "alice.pub"\n'
    for name, rules in USERS.items()
)
LIMITED = '[user.limited]\nfolder = "limited"\nrules = "write"\nkeys = "alice.pub"\n'
LIMITED += "quota-bytes = 1000000\nquota-files = 100\n"
FENCE = ".0123abcd.pscp-run"
PART = f".a.{'0' * 16}.{'0' * 14}.pscp-part"
REFUSED = (asyncssh.SFTPPermissionDenied, asyncssh.SFTPFailure)

Copy = Callable[..., pscp.Result]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("serve")
    for name in (*USERS, "limited"):
        (folder / name).mkdir()
    with Serving(folder, "workers = 2", TABLES + LIMITED) as made:
        yield made


@pytest.fixture
def config(serving: Serving, tmp_path: Path) -> Path:
    found = tmp_path / "config"
    options = Clients(serving, tmp_path).options[:-2]
    words = [option.removeprefix("-o").replace("=", " ", 1) for option in options]
    found.write_text("Host there\n HostName 127.0.0.1\n " + "\n ".join(words) + "\n")
    return found


@pytest.fixture
def copy(config: Path) -> Copy:
    return functools.partial(
        pscp.copy, recursive=True, config_file=str(config), batch=True, remote="sftp",
        connections=3, chunk_bytes=1 << 20,
    )  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    (made / "sub").mkdir(parents=True)
    random_file(made / "big", BIG_BYTES)
    for number in range(30):
        (made / "sub" / f"{number}").write_bytes(b"x" * number)
    return made


def files(root: Path) -> dict[str, str]:
    """The digests of all files below a folder, pscp's own among them."""
    found = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): digest(path) for path in found}


def told(serving: Serving, user: str) -> dict[str, str]:
    events = serving.events("upload")
    return {each["path"]: each["sha256"] for each in events if each["user"] == user}


@pytest.mark.parametrize("user", USERS)
def test_a_copy(serving: Serving, copy: Copy, tree: Path, user: str) -> None:
    """Who may only add, or not read, was refused; parts and a fence stayed."""
    for _ in range(2):  # of files of the same size and time the second one says nothing
        assert copy(f"{tree}/.", f"{user}@there:/copied", preserve=True).ok
        assert files(serving.folder / user) == {f"copied/{n}": d for n, d in files(tree).items()}
    assert told(serving, user) == files(serving.folder / user)


@pytest.mark.parametrize("user", USERS)
def test_a_copy_that_is_cut_goes_on(
    serving: Serving, copy: Copy, config: Path, tmp_path: Path, user: str
) -> None:
    """All was sent anew."""
    sha256 = random_file(tmp_path / "cut", 2 * BIG_BYTES)
    to = f"{user}@there:/cut"
    words = ["-q", "-F", str(config), "--remote", "sftp", "-c", "3", "--chunk-size", "1M"]
    argv = [sys.executable, "-m", "pscp", *words, "-l", "40M", str(tmp_path / "cut"), to]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as begun:
        home = serving.folder / user

        def landed_bytes() -> int:
            parts = home.glob(".cut.*.pscp-part")
            return sum(each.stat().st_blocks * 512 for each in parts)

        until(lambda: landed_bytes() > BIG_BYTES)
        begun.send_signal(signal.SIGKILL)
        begun.communicate()
    result = copy(str(tmp_path / "cut"), to)
    assert result.ok and result.bytes_resumed > 1 << 20
    assert [each.name for each in home.glob(".*")] == []
    assert digest(home / "cut") == sha256 == told(serving, user)["cut"]


@pytest.mark.parametrize("user", ["adds", "drops"])
def test_what_has_landed_stays(serving: Serving, copy: Copy, tmp_path: Path, user: str) -> None:
    (tmp_path / "once").write_text("first")
    assert copy(str(tmp_path / "once"), f"{user}@there:/once").ok
    (tmp_path / "once").write_text("second")
    with pytest.raises(pscp.FilesFailed, match="File exists"):
        copy(str(tmp_path / "once"), f"{user}@there:/once")
    assert (serving.folder / user / "once").read_text() == "first"
    assert [*(serving.folder / user).glob(".*")] == []


def test_a_copy_beyond_the_quota_leaves_nothing(
    serving: Serving, copy: Copy, tmp_path: Path
) -> None:
    random_file(tmp_path / "much", 3 << 20)
    random_file(tmp_path / "enough", 900_000)
    with pytest.raises(pscp.FilesFailed, match="quota"):
        copy(str(tmp_path / "much"), "limited@there:/much")
    assert [*(serving.folder / "limited").iterdir()] == []
    assert copy(str(tmp_path / "enough"), "limited@there:/enough").ok  # as all was given back


def test_no_more_files_are_opened_at_once_than_the_server_lets(
    serving: Serving, copy: Copy, tmp_path: Path
) -> None:
    """What could not be opened to be hashed was taken for changed, and sent again."""
    many = tmp_path / "many"
    many.mkdir()
    for number in range(300):
        (many / f"{number}").write_bytes(b"x" * 1000)
    for found in (0, 300):
        result = copy(str(many), "both@there:/", connections=1)
        assert (result.files, result.files_resumed) == (300 - found, found)


def test_modes_that_are_the_servers_are_not_set_again(
    serving: Serving, copy: Copy, tmp_path: Path
) -> None:
    """Each further copy gave all files and folders their modes, which the server does not take."""
    tree = tmp_path / "nightly"
    (tree / "sub").mkdir(parents=True)
    for path, mode in ((tree / "closed", 0o600), (tree / "sub" / "open", 0o666)):
        path.write_bytes(b"x" * 10)
        path.chmod(mode)
    os.utime(tree / "closed", (10**9, 10**9))
    for more in ({}, {"checksum": True}):  # by folders, and file by file
        copy(str(tree), "both@there:/", archive=True)
        again = copy(str(tree), "both@there:/", archive=True, **more)
        assert again.files_unchanged + again.files_resumed == 2
        assert (again.files, again.metadata_set) == (0, 0)
        assert copy(str(tree), "both@there:/", archive=True, check=True, **more).ok
    os.utime(tree / "closed", (10**9 + 5, 10**9 + 5))  # times are the client's
    assert copy(str(tree), "both@there:/", archive=True, checksum=True).metadata_set == 1
    assert (serving.folder / "both" / "nightly" / "closed").stat().st_mtime == 10**9 + 5


def test_a_link_that_is_made_again_is_no_upload(
    serving: Serving, copy: Copy, tmp_path: Path
) -> None:
    """Each night's copy had the file of a link taken up once more."""
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "a").write_text("text")
    (linked / "b").hardlink_to(linked / "a")
    for _ in range(3):
        copy(str(linked), "both@there:/", archive=True)
        found = serving.folder / "both" / "linked"
        assert found.joinpath("a").samefile(found / "b")
    events = [each["path"] for each in serving.events("upload") if "linked" in each["path"]]
    assert sorted(events) == ["linked/a", "linked/b"]
    assert [*found.glob(".*")] == []


def test_what_is_written_is_hashed_by_the_server(config: Path, tmp_path: Path) -> None:
    """All was read back."""
    random_file(tmp_path / "big", BIG_BYTES)
    argv = [sys.executable, "-m", "pscp", "-vv", "-F", str(config), "--remote", "sftp"]
    done = subprocess.run(
        [*argv, str(tmp_path / "big"), "drops@there:/hashed"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "over SFTP; verified by: check-file (sha256)" in done.stderr


# --- who else comes near a part


@contextlib.asynccontextmanager
async def clients(serving: Serving, *users: str) -> AsyncIterator[list[asyncssh.SFTPClient]]:
    """Each has a connection of its own."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for user in users:
            connection = await stack.enter_async_context(await serving.connect(user))
            found.append(await stack.enter_async_context(connection.start_sftp_client()))
        yield found


async def put(client: asyncssh.SFTPClient, name: str, body: bytes) -> None:
    async with client.open(name, FXF_WRITE | FXF_CREAT, encoding=None) as file:
        await file.write(body)


async def refuses(what: object) -> None:
    with pytest.raises(REFUSED):
        await what  # type: ignore[misc]


def test_only_a_part_that_has_not_landed_is_read_without_the_right(serving: Serving) -> None:
    home = serving.folder / "writes"

    async def go() -> None:
        async with clients(serving, "writes") as (client,):
            await put(client, PART, b"secret")
            async with client.open(PART, FXF_READ, encoding=None) as file:
                body: object = await file.read()
                assert body == b"secret"
            await client.rename(PART, "landed")
            await refuses(client.open("landed", FXF_READ))
            await refuses(client.rename("landed", PART))
            (home / "private").write_text("another's")
            (home / "private").chmod(0o700)  # as a part has
            await refuses(client.rename("private", PART))
            await refuses(client.link("private", PART))
            for name in ("landed", "private"):
                await client.symlink(name, PART)
                await refuses(client.open(PART, FXF_READ))
                await client.remove(PART)
            await client.link("landed", PART)
            await refuses(client.open(PART, FXF_READ))
            await refuses(client.open(PART, FXF_READ | FXF_WRITE))
            await client.remove(PART)
            async with client.open(FENCE, FXF_WRITE | FXF_CREAT, encoding=None) as file:
                await file.write(b"the run")
            await refuses(client.open(FENCE, FXF_READ))
            await refuses(client.rename(FENCE, PART))
            await refuses(client.link(FENCE, PART))
            await client.remove(FENCE)

    run(go())


@pytest.mark.parametrize("name", [PART, "plain"])
def test_what_was_written_is_read_by_another_handle(serving: Serving, name: str) -> None:
    """A write is answered before it is made: chunks were read back too early, and sent again."""

    async def go() -> None:
        async with clients(serving, "both") as (client,):
            file = await client.open(name, FXF_WRITE | FXF_CREAT, encoding=None)
            for number in range(20):
                await file.write(b"%6d" % number, 0)
                async with client.open(name, FXF_READ, encoding=None) as other:
                    body: object = await other.read()
                    assert body == b"%6d" % number
            await file.close()
            await client.remove(name)

    run(go())


@pytest.mark.parametrize("user", ["both", "drops"])
def test_a_part_that_has_landed_is_written_no_more(serving: Serving, user: str) -> None:
    async def go() -> None:
        async with clients(serving, user, user) as (client, late):
            for flags in (FXF_EXCL, FXF_TRUNC):
                first = await client.open(PART, FXF_WRITE | FXF_CREAT, encoding=None)
                await first.write(b"first ")
                await refuses(late.open(PART, FXF_WRITE | FXF_CREAT | flags))
                second = await late.open(PART, FXF_WRITE | FXF_CREAT, encoding=None)
                await second.write(b"second", 6)
                await first.close()
                await second.fsync()
                name = f"written-{flags}"
                await client.rename(PART, name)
                await second.write(b"CHANGED", 0)
                await refuses(second.close())
                assert (serving.folder / user / name).read_bytes() == b"first second"
                assert told(serving, user)[name] == digest(serving.folder / user / name)

    run(go())


@pytest.mark.parametrize("name", [PART, FENCE, ".made.0123abcd.pscp-part"])
def test_no_part_has_a_final_name_that_did_not_land(serving: Serving, name: str) -> None:
    async def go() -> None:
        async with clients(serving, "both") as (client,):
            async with client.open(name, FXF_WRITE | FXF_CREAT, encoding=None) as file:
                await file.write(b"half")
                await refuses(client.link(name, "final"))
                if name != PART:
                    await refuses(client.rename(name, "final"))
            await client.remove(name)

    run(go())


def test_of_renames_at_once_one_counts(serving: Serving) -> None:
    """The one that failed gave what had landed the mode of a part again."""
    home = serving.folder / "drops"
    (home / "taken").write_bytes(b"")

    async def one(number: int, found: list[asyncssh.SFTPClient]) -> None:
        one, another, late = found
        await put(one, PART, b"good" * 3)
        handle = await late.open(PART, FXF_WRITE, encoding=None)
        name = f"one-{number}"
        tried = await asyncio.gather(
            one.rename(PART, "taken"), another.rename(PART, name), late.open(PART, FXF_WRITE),
            another.rename(PART, name), return_exceptions=True,
        )  # fmt: skip
        assert tried[1] is None or tried[3] is None
        await handle.write(b"EVIL", 0)
        await refuses(handle.close())
        assert (home / name).read_bytes() == b"good" * 3
        assert (home / name).stat().st_mode & 0o777 == 0o640

    async def go() -> None:
        async with clients(serving, "drops", "drops", "drops") as found:
            for number in range(30):
                await one(number, found)

    run(go())


def test_a_number_that_is_used_again_is_another_file(serving: Serving) -> None:
    """The log had the digest of the file that had its inode number before."""
    home = serving.folder / "both"

    async def go() -> None:
        async with clients(serving, "both", "both") as (client, second):
            for number, by in enumerate((client, second)):
                await put(client, PART, b"first")
                await by.remove(PART)
                async with by.open(PART, FXF_WRITE | FXF_CREAT, encoding=None) as file:
                    await file.write(b"ond", 3)
                    await file.write(b"sec", 0)
                name = f"again-{number}"
                await client.rename(PART, name)
                [said] = [each for each in serving.events("upload") if each["path"] == name]
                assert (said["sha256"], said["bytes"]) == (digest(home / name), 6)

    run(go())


def test_what_is_written_while_it_is_hashed_is_hashed(serving: Serving) -> None:
    home, size_bytes = serving.folder / "both", 32 << 20

    async def go() -> None:
        async with clients(serving, "both", "both") as (client, late):
            for number in range(3):
                name = f"hashed-{number}"
                async with client.open(PART, FXF_WRITE | FXF_CREAT, encoding=None) as file:
                    await file.setstat(asyncssh.SFTPAttrs(size=size_bytes))
                handle = await late.open(PART, FXF_WRITE, encoding=None)
                await asyncio.gather(client.rename(PART, name), handle.write(b"late", 0))
                with contextlib.suppress(*REFUSED):  # where it came too late
                    await handle.close()
                assert told(serving, "both")[name] == digest(home / name)

    run(go())


def test_what_is_being_hashed_when_its_client_goes_has_not_landed(serving: Serving) -> None:
    """It had its name, and nobody was told."""
    logouts = len(serving.events("logout"))

    async def go() -> None:
        connection = await serving.connect("writes")
        client = await connection.start_sftp_client()
        async with client.open(PART, FXF_WRITE | FXF_CREAT, encoding=None) as file:
            await file.setstat(asyncssh.SFTPAttrs(size=1 << 30))
        renaming = asyncio.create_task(client.rename(PART, "gone"))
        with contextlib.suppress(TimeoutError):  # it is sent, and takes longer
            await asyncio.wait_for(asyncio.shield(renaming), 0.05)
        connection.abort()
        await asyncio.gather(renaming, return_exceptions=True)
        await connection.wait_closed()

    run(go())
    until(lambda: len(serving.events("logout")) > logouts)
    home = serving.folder / "writes"
    assert (home / "gone").exists() == ("gone" in told(serving, "writes"))
    assert (home / "gone").exists() != (home / PART).exists()
    (home / PART).unlink(missing_ok=True)


def test_the_times_of_what_has_landed_stay(serving: Serving) -> None:
    async def go() -> None:
        async with clients(serving, "drops", "drops") as (client, late):
            await put(client, PART, b"x")
            handle = await late.open(PART, FXF_WRITE, encoding=None)
            await client.rename(PART, "timed")
            await handle.setstat(asyncssh.SFTPAttrs(atime=1, mtime=1))
            await handle.close()
            await refuses(late.setstat("timed", asyncssh.SFTPAttrs(atime=1, mtime=1)))

    run(go())
    assert (serving.folder / "drops" / "timed").stat().st_mtime > 1


def test_what_a_copy_makes_for_itself_is_swept_once_nobody_has_come_back(tmp_path: Path) -> None:
    """Parts alone, whatever times their source has: the fence and the marker say where it lands."""
    home, names = tmp_path / "alice", (PART, FENCE, ".made.0123abcd.pscp-part")

    async def go(serving: Serving) -> None:
        async with (
            await serving.connect() as connection, connection.start_sftp_client() as client,
        ):  # fmt: skip
            for name in names:
                async with client.open(name, FXF_WRITE | FXF_CREAT, encoding=None) as file:
                    await file.write(b"x")
                    await file.setstat(asyncssh.SFTPAttrs(atime=1, mtime=1))

    with Serving(tmp_path, "workers = 1") as serving:
        run(go(serving))
    with Serving(tmp_path, 'workers = 1\nkeep-parts = "1h"') as serving:
        assert serving.login()
    assert (home / PART).stat().st_mtime == 1
    (home / PART).chmod(0o640)  # as one that was cut as it landed
    until(lambda: time.time() - (home / PART).stat().st_ctime > 1)
    with Serving(tmp_path, 'workers = 1\nkeep-parts = "1s"') as serving:
        until(lambda: serving.events("swept"))
    assert {each.name for each in home.iterdir()} == {*names[1:], "tried"}


def test_who_may_only_add_removes_what_a_copy_makes_for_itself_alone(serving: Serving) -> None:
    async def go() -> None:
        async with clients(serving, "adds") as (client,):
            for name in (PART, ".0123abcd.pscp-run", ".made.0123abcd.pscp-part", "file"):
                async with client.open(name, "wb") as file:
                    await file.write(b"x")
                if name == "file":
                    await refuses(client.remove(name))
                else:
                    await client.remove(name)
            await refuses(client.rename("file", PART))

    asyncio.run(go())
    assert [*(serving.folder / "adds").glob(".*")] == []
