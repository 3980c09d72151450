"""What is read from a real sftp-server, without ssh: more chunks at once than memory is for.

Read next: ../e2e/test_copy_sftp.py.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.source import Top
from pscp.endpoint.there import listings
from pscp.ground.values import MIB
from pscp.options import filters
from pscp.sftp import listings as sftp_listings
from pscp.sftp import tree as walk
from pscp.sftp.digests import Hashing
from pscp.sftp.placing import expand
from pscp.sftp.protocol.client import IN_FLIGHT_BYTES, Client
from pscp.sftp.protocol.event_loop import Loop
from pscp.sftp.protocol.packets import Attrs
from pscp.sftp.protocol.paths import Root
from pscp.sftp.protocol.tasks import Future, start
from pscp.sftp.source import Source

PATIENCE_S = 60.0
FOLDERS = ("/usr/lib/openssh", "/usr/libexec", "/usr/libexec/openssh", "/usr/lib/ssh")
CHUNK_BYTES = 4 * MIB
COUNT = 2 * IN_FLIGHT_BYTES // CHUNK_BYTES


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    found = shutil.which("sftp-server", path=os.pathsep.join(FOLDERS))
    if found is None:
        unavailable("sftp-server is not installed")
    home = tmp_path / "home [a]*"
    home.mkdir()
    pipe = subprocess.PIPE
    with subprocess.Popen([found], stdin=pipe, stdout=pipe, cwd=home) as child:
        yield child
        assert child.stdin is not None
        child.stdin.close()


def test_chunks_that_are_read_back_do_not_wait_for_each_other(
    server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    contents = [os.urandom(MIB) * (COUNT // 2 * CHUNK_BYTES // MIB) for _ in range(2)]
    digests: dict[tuple[int, int], bytes] = {}

    def send(type_: int, id_: int, offset: int, payload: Any, flags: int = 0) -> None:
        if type_ == wire.DIGEST:
            assert not flags, bytes(payload)
            digests[id_, offset] = bytes(payload[wire.COUNT.size :])

    source, loop = pulling(server, tmp_path, send)
    for id_, content in enumerate(contents):
        path = tmp_path / f"{id_}"
        path.write_bytes(content)
        os.utime(path, (1, 1))
        source.know(id_, tree.Entry(tree.FILE, 0, path.name, len(content), 0, 10**9, 0, {}))
    extents = [(id_, at * CHUNK_BYTES) for at in range(COUNT // 2) for id_ in range(2)]
    for id_, offset in extents:
        source.send_chunk(id_, offset, CHUNK_BYTES)
    late = loop.sleep(PATIENCE_S)
    loop.run_until(lambda: len(digests) == COUNT or late.done())
    assert list(digests) == extents
    for (id_, offset), digest in digests.items():
        assert digest == hashlib.sha256(contents[id_][offset : offset + CHUNK_BYTES]).digest()


@pytest.mark.parametrize("lost", [0, 1, CHUNK_BYTES + 1])
def test_a_file_and_its_chunks_are_read_back_once_and_many_reads_deep(
    server: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """As for a manifest, which has the digests of both; the file may be shorter by now."""
    asked: list[int] = []
    under_way = most = 0
    read = Client.read

    def counted(client: Client, handle: bytes, offset: int, length: int, landed: Any) -> None:
        def then(*answer: Any) -> None:
            nonlocal under_way
            under_way -= length
            landed(*answer)

        nonlocal under_way, most
        asked.append(length)
        under_way += length
        most = max(most, under_way)
        read(client, handle, offset, length, then)

    monkeypatch.setattr(Client, "read", counted)
    client, loop = client_of(server)
    content = os.urandom(MIB) * (IN_FLIGHT_BYTES // MIB) + os.urandom(CHUNK_BYTES + 5)
    (path := tmp_path / "file").write_bytes(content[: len(content) - lost])
    size = len(content)
    whole, starts = (0, size), range(0, size, CHUNK_BYTES)
    chunks = [(at, min(CHUNK_BYTES, size - at)) for at in starts]
    hashing = Hashing(client, None, True)
    task = start(hashing.hex_digests(os.fsencode(path), [whole, *chunks], "sha256"))
    settle(loop, task)
    there = path.read_bytes()
    assert task.result() == [
        hashlib.sha256(there[at : at + count]).hexdigest() if at + count <= len(there) else None
        for at, count in [whole, *chunks]
    ]
    assert sum(asked) <= size + 2 * client.read_bytes
    assert most > IN_FLIGHT_BYTES - client.read_bytes


def test_small_files_leave_handles_for_what_is_open_beside_them(
    server: subprocess.Popen[bytes],
) -> None:
    """Each has one to write, and one to be read again."""
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (100, 100))
    client, loop = client_of(server)
    settle(loop, start(client.get_limits()))
    turns = [start(client.handles.take(1)) for _ in range(100)]
    settle(loop, client.realpath(b"."))
    assert 1 < 2 * sum(turn.done() for turn in turns) < 80


def settle(loop: Loop, future: Future[Any]) -> None:
    loop.run_until(lambda: future.done())


def test_a_pattern_below_a_home_that_looks_like_one(
    server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    for name in ("x1", "x2", "y"):
        (tmp_path / "home [a]*" / name).touch()
    client, loop = client_of(server)
    for typed in ("x*", "~/x[12]", f"{tmp_path}/home*/x?"):
        found = start(expand(client, typed, True))
        settle(loop, found)
        assert [top.name for top in found.result()] == ["x1", "x2"]


def test_b6_a_home_that_nobody_named_is_its_contents(
    server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """As with the agent: a name that the far end alone knows is none to copy to."""
    client, loop = client_of(server)
    for typed, name in (("", ""), (".", ""), ("~", "home [a]*"), ("~/.", "")):
        found = start(expand(client, typed, True))
        settle(loop, found)
        [top] = found.result()
        assert (top.name, top.is_folder) == (name, True)
        assert os.path.samefile(top.path, tmp_path / "home [a]*")


class EndlessClient:
    """A server whose listing has no end."""

    def __init__(self) -> None:
        self.count, self.handles = 0, 0

    def _kept(self, value: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(value)
        return future

    def opendir(self, path: bytes) -> Future[Any]:
        self.handles += 1
        return self._kept(b"handle")

    def readdir(self, handle: bytes) -> Future[Any]:
        self.count += 100
        return self._kept([(b"n%d" % self.count, Attrs(mode=0o100644))] * 100)

    def close(self, handle: bytes) -> Future[Any]:
        self.handles -= 1
        return self._kept(None)


def test_d1_a_listing_without_end_is_given_up() -> None:
    client: Any = EndlessClient()
    task = start(walk.list_folder(client, b"/endless", 1_000_000))
    with pytest.raises(walk.TooLong):
        task.result()
    assert client.handles == 0
    assert 2_000 < client.count < 4_000


def test_d1_a_real_folder_with_a_million_names_is_no_listing_without_end() -> None:
    assert 1_000_000 * (walk._NAME_BYTES + 255) < walk._LISTING_BYTES


def test_d1_what_is_too_long_to_be_read_ahead_is_read_when_it_is_its_turn(
    server: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "_LISTING_BYTES", 32 * 1000)  # 1,000 to be read ahead
    for name in ("few", "many", "too many"):
        (tmp_path / "t" / name).mkdir(parents=True)
    for name, count in (("few", 2), ("many", 50), ("too many", 100)):
        for number in range(count):
            (tmp_path / "t" / name / f"{number:03}").touch()
    reader, loop = pulling(server, tmp_path / "t", lambda *_: None)
    asked = start(reader.walk(requests.Walk(None, True, 1000)))
    loop.run_until(lambda: asked.done())
    entries, is_last = asked.result()
    assert is_last
    found = [entry.path for entry in entries if entry.kind == tree.FILE]
    assert len(found) == 52
    [error] = [entry for entry in entries if entry.kind == tree.ERROR]
    assert (error.path, error.extra["path"]) == ("too many/", "too many")
    assert "more names" in str(error.extra["message"])


def test_folders_that_are_left_out_are_not_listed(
    server: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even ahead of their turn, which never comes."""
    for name in ("no1", "no2", "yes"):
        (tmp_path / "t" / name / "below").mkdir(parents=True)
    listed: list[str] = []
    list_folder = walk.list_folder

    async def recorded(client: Client, path: bytes, most_bytes: int) -> list[tuple[bytes, Attrs]]:
        listed.append(os.path.relpath(path.decode(), tmp_path))
        return await list_folder(client, path, most_bytes)

    monkeypatch.setattr(walk, "list_folder", recorded)
    given = filters.regexes([("exclude", "no?/")])
    reader, loop = pulling(server, tmp_path / "t", lambda *_: None, given)
    asked = start(reader.walk(requests.Walk(None, True, 1000)))
    settle(loop, asked)
    assert [entry.path for entry in asked.result()[0]] == ["", "yes", "yes/below"]
    assert listed == ["t", "t/yes", "t/yes/below"]


def test_names_alike_of_a_folder_with_more_than_a_listing_takes_get_entries(
    server: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that takes the second for the first, whose entry never came, let it be replaced."""
    monkeypatch.setattr(listings, "NAMES_MOST", 3)
    monkeypatch.setattr(sftp_listings, "NAMES_MOST", 3)
    (tmp_path / "t").mkdir()
    for name in ("A", "X", "Y", "Z", "a"):
        (tmp_path / "t" / name).touch()
    reader, loop = pulling(server, tmp_path / "t", lambda *_: None)
    request = listings.WalkFolders(None, True, 1000)
    asked = start(reader.walk(request, kind=sftp_listings.ListingWalk))
    settle(loop, asked)
    [folder, *rest] = asked.result()[0]
    assert [entry.path for entry in rest] == ["A", "Z", "a"]
    assert listings.listing(folder.extra["list"]).files == 2


@pytest.mark.parametrize("other", ["removed", "made", "used"])
def test_lanes_make_way_for_one_folder(
    server: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Another lane removes the link that is in the folder's place first, and may make that."""
    place = tmp_path / "there"
    place.symlink_to("nowhere")
    remove = Client.remove

    def late(client: Client, path: bytes) -> Future[None]:
        place.unlink()
        if other != "removed":
            place.mkdir()
        if other == "used":
            (place / "file").touch()
        return remove(client, path)

    monkeypatch.setattr(Client, "remove", late)
    client, loop = client_of(server)
    root = Root(client, str(tmp_path))
    root.replaces = ("",)
    made = start(root.folder("there", "there/new", make=True))
    settle(loop, made)
    made.result()
    assert os.listdir(place) == ["file"] * (other == "used")


def client_of(server: subprocess.Popen[bytes]) -> tuple[Client, Loop]:
    assert server.stdin is not None and server.stdout is not None
    loop = Loop()
    client = Client(server.stdout.fileno(), server.stdin.fileno(), loop)
    loop.ins, loop.outs = [client.incoming], [client.out]
    loop.run_until(lambda: client.version.done())
    return client, loop


def pulling(
    server: subprocess.Popen[bytes], folder: Path, send: Any, given: Sequence[filters.Filter] = ()
) -> tuple[Source, Loop]:
    """The source end of a pull of what is in the folder, where all is read back."""
    client, loop = client_of(server)
    rules = tree.Rules(True, False, True, False, given)
    request = requests.BeginSource([Top("", str(folder), True)], rules, "sha256", 1, False, False)
    return Source(client, Hashing(client, None, True), request, send), loop
