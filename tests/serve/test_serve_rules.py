"""What pscp-serve's users may do: rules, names, sizes, quotas, rates, and what follows an upload.

Not here: who may log in (test_serve_logins.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import stat
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import asyncssh
import pytest
from conftest import until

from pscp.serve import events, folder, landing
from pscp.serve.account import Account
from pscp.serve.content import SessionLoad
from pscp.serve.folder import Folder
from pscp.serve.landing import sweep
from pscp.serve.rules import Rules
from pscp.serve.settings import User
from serve.server import Serving, run

KEYS = 'keys = "alice.pub"\n'
USERS = f"""
[user.adds]
folder = "adds"
rules = ["read", "append-only"]
{KEYS}
[user.joins]
folder = "adds"
rules = ["read", "append-only"]
{KEYS}
[user.drops]
folder = "drops"
rules = "append-only"
{KEYS}
[user.reads]
folder = "reads"
rules = "read"
{KEYS}
[user.limited]
folder = "limited"
rules = ["read", "write"]
quota-bytes = 100000
quota-files = 4
largest = 60000
names = ["*.rec"]
mode = "600"
{KEYS}
[user.slow]
folder = "slow"
rules = "write"
rate = "16M"
{KEYS}
"""
REFUSED = (asyncssh.SFTPPermissionDenied, asyncssh.SFTPFailure, asyncssh.SFTPNoSuchFile)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("rules")
    for name in ("adds", "drops", "reads", "limited", "slow"):
        (folder / name).mkdir()
    settings = (
        f'workers = 2\nuploads = "uploads"\nafter-upload = ["touch", "-r", "{folder}/alice.pub"]'
    )
    with Serving(folder, settings, USERS) as made:
        yield made


class As:
    """A client of one user."""

    def __init__(self, serving: Serving, user: str) -> None:
        self._serving, self._user = serving, user

    async def __aenter__(self) -> asyncssh.SFTPClient:
        self._connection = await self._serving.connect(self._user)
        return await self._connection.start_sftp_client()

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()
        await self._connection.wait_closed()


async def put(client: asyncssh.SFTPClient, name: str, data: bytes = b"x") -> None:
    async with client.open(name, "wb") as file:
        await file.write(data)


def test_what_has_landed_stays_with_append_only(serving: Serving) -> None:
    below = serving.folder / "adds" / "sub"
    reference = (serving.folder / "alice.pub").stat().st_mtime_ns

    async def tries() -> None:
        async with As(serving, "adds") as client:
            await client.mkdir("sub")
            await put(client, "sub/one", b"first")
            for name in ("other", "one.filepart"):
                await put(client, f"sub/{name}")
            for attempt in (
                put(client, "sub/one", b"second"), client.open("sub/one", "ab"),
                client.remove("sub/one"), client.rename("sub/one", "sub/two"),
                client.posix_rename("sub/other", "sub/one"), client.truncate("sub/one", 1),
                client.posix_rename("sub/one.filepart", "sub/one"), client.rmdir("sub"),
                client.symlink("one", "sub/link"), client.link("sub/one", "sub/hard"),
            ):  # fmt: skip
                with pytest.raises((*REFUSED, asyncssh.SFTPFileAlreadyExists)):
                    await attempt
            until(lambda: (below / "one").stat().st_mtime_ns == reference)  # after-upload is over
            await client.utime("sub/one", (1, 1))  # what its own session has uploaded
            await client.rename("sub/one.filepart", "sub/two")
        async with As(serving, "adds") as client:
            with pytest.raises(REFUSED):
                await client.utime("sub/one", (2, 2))

    run(tries())
    assert {each.name for each in below.iterdir()} == {"one", "other", "two"}
    assert (below / "one").read_text() == "first" and (below / "one").stat().st_mtime == 1


def test_a_temporary_name_in_a_shared_folder_is_its_users(serving: Serving) -> None:
    async def tries() -> None:
        async with As(serving, "joins") as client:
            for name in ("own", "taken"):
                await put(client, f"{name}.filepart", b"mine")
        async with As(serving, "adds") as client:
            await put(client, "theirs.filepart", b"theirs")
            for rename in (client.rename, client.posix_rename):
                with pytest.raises(REFUSED):
                    await rename("taken.filepart", "taken")
        async with As(serving, "joins") as client:  # another session of the one who has put it
            with pytest.raises(REFUSED):
                await client.rename("theirs.filepart", "theirs")
            await client.rename("own.filepart", "own")

    if has_attributes(serving.folder):
        run(tries())
        names = {each.name for each in (serving.folder / "adds").iterdir()}
        assert names >= {"own", "taken.filepart", "theirs.filepart"}


def has_attributes(folder: Path) -> bool:
    try:
        os.setxattr(folder, "user.tried", b"")
    except OSError:
        return False
    return True


def test_an_open_handle_cannot_change_what_another_has_landed(serving: Serving) -> None:
    async def tries() -> None:
        async with As(serving, "adds") as one, As(serving, "adds") as two:
            first = await one.open("shared", "wb")
            await first.write(b"first")
            await first.stat()
            async with two.open("shared", "r+b") as second:  # resumes
                await second.write(b"second", offset=5)
            with pytest.raises(asyncssh.SFTPError):
                await first.write(b"CHANGED", offset=0)
                await first.close()

    run(tries())
    assert (serving.folder / "adds" / "shared").read_text() == "firstsecond"


@pytest.mark.parametrize("closes_first", [0, 1])
def test_the_digest_of_what_two_handles_have_written(serving: Serving, closes_first: int) -> None:
    name = f"both{closes_first}"

    async def tries() -> None:
        async with As(serving, "alice") as client:
            one = await client.open(name, "wb")
            await one.write(b"aaaa")
            await one.stat()
            two = await client.open(name, "r+b")
            await two.write(b"bb", offset=0)
            await two.stat()
            for file in (two, one) if closes_first else (one, two):
                await file.close()

    run(tries())
    told = [each["sha256"] for each in serving.events("upload") if each["path"] == name]
    assert told == [hashlib.sha256(b"bbaa").hexdigest()]


@pytest.mark.parametrize("change", ["write", "cut"])
def test_what_has_landed_changes_no_more(serving: Serving, change: str) -> None:
    """Its digest is in the log, and a command may have read it."""
    name = f"landed-{change}"

    async def tries() -> None:
        async with As(serving, "alice") as client, As(serving, "alice") as another:
            one = await client.open(name, "wb")
            await one.write(b"aaaa")
            await one.stat()
            two = await another.open(name, "r+b")
            await one.close()
            with pytest.raises(asyncssh.SFTPError, match="changes no more"):
                if change == "cut":
                    await two.setstat(asyncssh.SFTPAttrs(size=0))
                else:
                    await two.write(b"VIRUS", offset=0)
                await two.stat()

    run(tries())
    assert (serving.home / name).read_bytes() == b"aaaa"
    told = [each["sha256"] for each in serving.events("upload") if each["path"] == name]
    assert told == [hashlib.sha256(b"aaaa").hexdigest()]


def test_a_folder_with_a_temporary_name_stays_with_append_only(serving: Serving) -> None:
    async def tries() -> None:
        async with As(serving, "adds") as client:
            await client.mkdir("folder.part")
            await put(client, "folder.part/file")
            with pytest.raises(REFUSED):
                await client.rename("folder.part", "elsewhere")

    run(tries())
    assert (serving.folder / "adds" / "folder.part" / "file").exists()


def test_who_opens_a_name_while_it_lands_does_not_land_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    user = User("writes", str(tmp_path / "home"), frozenset(["write"]))
    how, rename = asyncssh.FXF_CREAT | asyncssh.FXF_TRUNC, folder.rename
    places = [
        landing.Place(Folder(user.folder), Rules(user), Account(str(tmp_path / "s"), user))
        for _ in range(2)
    ]
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as other:
        load = SessionLoad(pool)
        late: list[Future[landing.Upload]] = []

        def renamed(*of: Any, **how_else: Any) -> None:
            late.append(other.submit(places[1].begin, b"file", how, load))
            wait(late, timeout=0.2)  # until it is done; where it may not be yet, it waits for us
            rename(*of, **how_else)

        monkeypatch.setattr(landing, "rename", renamed)
        upload = places[0].begin(b"file", how, load)
        upload.content.write(0, [b"whole"], 5)
        upload.land(landing.LandedFile(upload.status(), ""), Mock())
        assert (tmp_path / "home" / "file").read_text() == "whole"
        late[0].result().close()
    upload.close()
    for place in places:
        place.folder.close()
        place.account.close()


def test_who_only_drops_sees_nothing(serving: Serving) -> None:
    async def tries() -> None:
        async with As(serving, "drops") as client:
            await put(client, "dropped")
            with pytest.raises(REFUSED):
                await client.listdir(".")
            with pytest.raises(REFUSED):
                await client.open("dropped", "rb")
        async with As(serving, "reads") as client:
            (serving.folder / "reads" / "file").write_text("there")
            async with client.open("file", "rb") as file:
                found: Any = await file.read()
            assert found == b"there"
            long = "long" * 50_000
            for attempt in (
                put(client, "new"), client.mkdir("new"), client.remove("file"), put(client, long)
            ):  # fmt: skip
                with pytest.raises(REFUSED):
                    await attempt

    run(tries())
    refused = [each["what"] for each in serving.events("refused") if each["user"] == "reads"]
    assert "open new" in refused and "remove file" in refused
    assert max(map(len, refused)) < 5000  # however long a path is that a client sends


def test_limits(serving: Serving) -> None:
    home = serving.folder / "limited"

    async def tries() -> None:
        async with As(serving, "limited") as client:
            await put(client, "a.rec", bytes(60_000))
            for name in ("a.exe", "a.exe.filepart", "a.exe.12345678.partial"):
                with pytest.raises(REFUSED, match="name"):
                    await put(client, name)
            with pytest.raises(asyncssh.SFTPError, match="larger than"):
                await put(client, "b.rec", bytes(60_001))
            with pytest.raises(asyncssh.SFTPError, match="quota"):
                await put(client, "c.rec", bytes(50_000))
            await client.remove("b.rec")
            await client.remove("c.rec")
            await put(client, "b.rec", bytes(30_000))
            await put(client, "a.rec", bytes(60_000)[:100])  # in the place of one that is larger
            await put(client, "b.rec.filepart", bytes(50_000))
            await client.posix_rename("b.rec.filepart", "b.rec")
            await put(client, "c.rec", b"third")
            await client.mkdir("folder")
            for attempt in (
                put(client, "d.rec"), client.mkdir("more"), client.symlink("a.rec", "e.rec"),
                client.link("a.rec", "f.rec"),
            ):  # fmt: skip
                with pytest.raises(asyncssh.SFTPError, match="quota"):
                    await attempt
            await client.rmdir("folder")
            with pytest.raises(REFUSED, match="name"):
                await client.rename("c.rec", "c.exe")
            await client.symlink("c.exe", "link.rec")
            with pytest.raises(REFUSED, match="name"):
                await put(client, "link.rec")
            await client.remove("link.rec")

    run(tries())
    assert {each.name: each.stat().st_size for each in home.iterdir()} == {
        "a.rec": 100, "b.rec": 50_000, "c.rec": 5
    }  # fmt: skip
    assert stat.S_IMODE((home / "a.rec").stat().st_mode) == 0o600
    user = User("limited", str(home), frozenset(["write"]), quota_bytes=100_000, quota_files=4)
    account = Account(str(serving.state), user)
    assert account.used == (50_105, 3)
    account.close()


def test_a_rate_holds(serving: Serving) -> None:
    size_bytes, begun_s = 8 << 20, time.monotonic()

    async def upload() -> None:
        async with As(serving, "slow") as client:
            await put(client, "file", bytes(size_bytes))

    run(upload())
    # 16 Mbit/s are 2 MB/s, and the first window comes at once.
    assert time.monotonic() - begun_s > (size_bytes - (2 << 20)) / 2_000_000 - 0.6


def test_a_rate_holds_for_what_is_sent_and_nobody_is_idle_meanwhile(tmp_path: Path) -> None:
    alice = '[user.alice]\nfolder = "alice"\nrules = "read"\nkeys = "alice.pub"\nrate = "8M"\n'
    serving = Serving(tmp_path, "idle = 1\nworkers = 1")
    serving.write("idle = 1\nworkers = 1", alice=alice)
    size_bytes, begun_s = 3 << 20, time.monotonic()
    (serving.home / "file").write_bytes(bytes(size_bytes))

    async def download() -> None:
        async with await serving.connect() as connection:
            await asyncssh.scp((connection, "file"), tmp_path / "got")

    with serving:
        run(download())
    assert (tmp_path / "got").stat().st_size == size_bytes
    assert time.monotonic() - begun_s > size_bytes / 1_000_000 - 1


def test_what_follows_an_upload(serving: Serving) -> None:
    async def upload() -> None:
        async with As(serving, "alice") as client:
            await put(client, "followed", b"12345")

    run(upload())
    lines = [json.loads(line) for line in (serving.folder / "uploads").read_text().splitlines()]
    [told] = [each for each in lines if each["path"] == str(serving.home / "followed")]
    assert (told["user"], told["bytes"], len(told["sha256"])) == ("alice", 5, 64)
    reference = (serving.folder / "alice.pub").stat().st_mtime_ns
    until(lambda: (serving.home / "followed").stat().st_mtime_ns == reference)


def test_what_is_told_of_an_upload_has_no_link_in_it_and_is_where_it_is(serving: Serving) -> None:
    async def upload() -> None:
        async with As(serving, "alice") as client:
            await client.makedirs("was/deep")
            await client.symlink("../beside", "was/deep/link")
            await client.symlink("was/deep", "short")
            await put(client, "short/link")
            await put(client, "short/temporary.part")
            await client.rename("short/temporary.part", "short/named")
            file = await client.open("was/moved", "wb")
            await client.rename("was", "now")
            await file.close()

    run(upload())
    told = [each["path"] for each in serving.events("upload")][-3:]
    assert told == ["was/beside", "was/deep/named", "now/moved"]
    assert {path.name for path in (serving.home / "now").iterdir()} == {"beside", "deep", "moved"}


def test_a_part_that_nobody_resumes_is_swept(serving: Serving, tmp_path: Path) -> None:
    async def leave(name: str) -> None:
        connection = await serving.connect()
        client = await connection.start_sftp_client()
        file = await client.open(name, "wb")
        await file.write(b"some")
        await file.stat()
        connection.abort()

    run(leave("old"))
    run(leave("new"))
    user = User("alice", str(serving.home), frozenset(["write"]))
    [old] = [each for each in serving.home.iterdir() if each.name.startswith(".old.")]
    os.utime(old, (1, 1))
    account = Account(str(tmp_path), user)
    until(lambda: sweep(user, account, 3600.0) == 1)
    account.close()
    assert not old.exists() and [*serving.home.glob(".new.*")]


def test_what_cannot_be_listed_does_not_land(serving: Serving) -> None:
    """Else pscp, say, would find it there, and nobody be told."""
    listed = serving.folder / "uploads"
    text = listed.read_text() if listed.exists() else ""

    async def upload() -> None:
        async with As(serving, "alice") as client:
            await put(client, "unlisted", b"12345")

    listed.unlink(missing_ok=True)
    listed.symlink_to("/dev/full")
    with pytest.raises(asyncssh.SFTPError):
        run(upload())
    assert not (serving.home / "unlisted").exists()
    [told] = [each for each in serving.events("uploads failed")]
    assert told["path"] == str(serving.home / "unlisted")
    listed.unlink()
    listed.write_text(text)
    run(upload())
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    assert told["path"] in [each["path"] for each in lines]


def test_a_line_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    lines, lock = tmp_path / "lines", str(tmp_path / "lock")
    events.append(str(lines), b"first\n", lock)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="No space"):
            events.append(str(lines), b"second\n", lock)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert lines.read_text() == "first\n"
    lines.write_text("first\nkilled in th")
    events.append(str(lines), b"third\n", lock)
    assert lines.read_text() == "first\nthird\n"


def test_a_name_that_seems_temporary_is_told_once_it_is_kept(serving: Serving) -> None:
    async def upload() -> None:
        async with As(serving, "alice") as client:
            await put(client, "vol.part", b"12345")
            await put(client, "renamed.part", b"12345")
            await client.rename("renamed.part", "renamed")
            await put(client, "other.part", b"untold")
            with pytest.raises(REFUSED):
                await client.rename("other.part", "renamed")  # which is there
            await client.remove("other.part")
            await client.mkdir("before")
            await put(client, "before/vol.part", b"123")
            await client.rename("before", "after")
            with pytest.raises(REFUSED):
                await client.link("vol.part", "hidden.rec")
            listed = (serving.folder / "uploads").read_text()
            assert "renamed" in listed and "vol.part" not in listed

    def paths() -> list[str]:
        lines = (serving.folder / "uploads").read_text().splitlines()
        return [json.loads(line)["path"] for line in lines]

    run(upload())
    until(lambda: str(serving.home / "after/vol.part") in paths())
    told = [name for name in ("vol.part", "renamed.part") if str(serving.home / name) in paths()]
    assert told == ["vol.part"]
    assert paths().count(str(serving.home / "renamed")) == 1
    assert not [path for path in paths() if "other.part" in path or "before" in path]
    assert [each["bytes"] for each in serving.events("upload") if each["path"] == "vol.part"] == [5]


def test_links_have_names_that_are_allowed(serving: Serving) -> None:
    async def tries() -> None:
        async with As(serving, "limited") as client:
            for name in ("linked.php", "linked.rec"):
                with contextlib.suppress(*REFUSED):
                    await client.symlink("a.rec", name)
            with contextlib.suppress(*REFUSED):
                await client.rename("linked.rec", "renamed.exe")

    run(tries())
    names = {each.name for each in (serving.folder / "limited").iterdir() if each.is_symlink()}
    (serving.folder / "limited" / "linked.rec").unlink()
    assert names == {"linked.rec"}


@pytest.mark.parametrize("version", [3, 6])
def test_owners_are_told_by_number(serving: Serving, version: int) -> None:
    (serving.home / "owned").write_text("x")

    found = list[asyncssh.SFTPAttrs]()

    async def look() -> None:
        async with await serving.connect("alice") as connection:
            client = await connection.start_sftp_client(sftp_version=version)
            names = await client.readdir(".")
            found.extend(each.attrs for each in names if each.filename == "owned")
            found.append(await client.stat("owned"))

    run(look())
    assert len(found) == 2
    for attrs in found:
        owners = (attrs.uid, attrs.gid) if version == 3 else (attrs.owner, attrs.group)
        assert owners in ((os.getuid(), os.getgid()), (str(os.getuid()), str(os.getgid())))


def test_nobody_waits_for_a_disk_on_which_another_s_file_lands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of the server itself takes the lock of a user's names."""
    (tmp_path / "home").mkdir()
    user = User("writes", str(tmp_path / "home"), frozenset(["write"]))
    place = landing.Place(Folder(user.folder), Rules(user), Account(str(tmp_path / "s"), user))
    synced, fsync = list[int](), os.fsync

    def synced_unlocked(fd: int) -> None:
        with (tmp_path / "s" / "names" / "writes").open() as names:
            fcntl.flock(names, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fsync(fd)
        synced.append(fd)

    monkeypatch.setattr(os, "fsync", synced_unlocked)
    with ThreadPoolExecutor(1) as pool:
        load = SessionLoad(pool)
        for name in (b"file", b"file.part"):
            upload = place.begin(name, asyncssh.FXF_CREAT | asyncssh.FXF_TRUNC, load)
            upload.content.write(0, [b"whole"], 5)
            assert upload.land(landing.LandedFile(upload.status(), ""), Mock()) is not None
            upload.close()
    assert len(synced) == 4  # file and folder
    place.folder.close()
    place.account.close()


def test_a_file_is_told_though_the_server_ends(tmp_path: Path) -> None:
    async def upload(serving: Serving) -> None:
        connection = await serving.connect()
        client = await connection.start_sftp_client()
        await put(client, "vol.part")
        file = await client.open("open", "wb")
        await file.write(bytes(100_000))
        await file.stat()
        serving.process.terminate()
        await connection.wait_closed()

    with Serving(tmp_path, 'workers = 1\nuploads = "uploads"') as serving:
        run(upload(serving))
    told = [json.loads(line)["path"] for line in (tmp_path / "uploads").read_text().splitlines()]
    assert told == [str(serving.home / "vol.part")]
