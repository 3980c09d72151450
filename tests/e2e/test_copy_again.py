"""The same copy again sends only what is missing; and several copies share their connections.

Not here: copies that were cut short (their journals have tests of their own).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compare import assert_same_tree
from conftest import MakeServer
from servers.private import PrivateServer

import pscp
from e2e.ways import Way
from pscp.endpoint.there.reuse import PIECE_BYTES
from pscp.ground.processes import descendants, living
from pscp.ground.values import MIB

EVERY_WAY = True

SIZES = {"empty": 0, "small": 1000, "t/large": 5 * MIB + 1, "t/medium": 300_000}
ENDED_S = 20.0


def fill(folder: Path) -> None:
    for name, size in SIZES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(random.Random(name).randbytes(size))


# --- again


def test_a_second_run_sends_nothing(way: Way) -> None:
    fill(way.source)
    total = sum(SIZES.values())
    first, second = way.copy("."), way.copy(".")
    assert (first.ok, first.files, first.bytes_sent) == (True, 4, total)
    assert (second.ok, second.files, second.files_resumed) == (True, 0, 4)
    assert (second.bytes_sent, second.bytes_resumed, second.bytes) == (0, total, total)
    assert_same_tree(way.source, way.destination)


def write_at(path: Path, place: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), data, place)


@pytest.fixture
def sparse(way: Way) -> Path:
    """A file of 1 TiB with three stretches of data, copied once; the copy is what is returned."""
    path = way.source / "sparse"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
        for place in (0, 300 << 30, (1 << 40) - MIB):
            os.pwrite(file.fileno(), random.Random(place).randbytes(MIB), place)
    assert way.copy("sparse").bytes_sent == 3 * MIB
    return way.destination / "sparse"


@pytest.mark.needs_agent(reason="SFTP does not tell where holes are")
def test_a_sparse_file_a_second_time_costs_what_differs_of_its_data(way: Way, sparse: Path) -> None:
    result = way.copy("sparse")
    assert (result.ok, result.files_resumed, result.bytes_sent) == (True, 1, 0)
    assert result.bytes_resumed == 3 * MIB
    in_a_hole = 700 << 30
    write_at(sparse, in_a_hole, bytes(MIB))  # zeros are the same
    result = way.copy("sparse")
    assert (result.ok, result.files_resumed, result.bytes_sent) == (True, 1, 0)
    for place, sent_bytes in ((1, PIECE_BYTES), (300 << 30, PIECE_BYTES), (in_a_hole, 0)):
        write_at(sparse, place, b"other")
        result = way.copy("sparse")
        assert (result.ok, result.files, result.bytes_sent) == (True, 1, sent_bytes)
        assert result.bytes_sent + result.bytes_resumed == 3 * MIB
        with open(way.source / "sparse", "rb") as here, open(sparse, "rb") as there:
            assert os.pread(here.fileno(), 5, place) == os.pread(there.fileno(), 5, place)


def test_only_what_changed_is_sent(way: Way) -> None:
    fill(way.source)
    way.copy(".")
    (way.source / "small").write_bytes(b"y" * SIZES["small"])  # as large as before
    (way.source / "new").write_bytes(b"new")
    os.utime(way.source / "t" / "medium")
    result = way.copy(".")
    assert (result.files, result.files_resumed, result.bytes_sent) == (2, 3, 1003)
    assert_same_tree(way.source, way.destination)


def test_one_byte_that_changed_at_the_destination(way: Way) -> None:
    fill(way.source)
    way.copy(".")
    for at in (0, -1):
        for name in ("small", "t/medium", "t/large"):
            damaged = bytearray((way.destination / name).read_bytes())
            damaged[at] ^= 1
            (way.destination / name).write_bytes(damaged)
        result = way.copy(".", strong=at == 0)
        assert (result.ok, result.files, result.files_resumed) == (True, 3, 1)
        assert_same_tree(way.source, way.destination)


# --- sessions


@pytest.fixture
def own(make_sshd: MakeServer) -> PrivateServer:
    return make_sshd()


def logins(server: PrivateServer) -> int:
    return server.log.count("Accepted publickey")


def connect(way: Way, server: PrivateServer, connections: int = 1) -> pscp.Session:
    return pscp.Session(
        server.host, config_file=server.ssh_config, batch=True, connections=connections,
        transport=way.transport, remote=way.remote,
    )  # fmt: skip


def test_a_session_logs_in_once(way: Way, own: PrivateServer) -> None:
    """Whatever becomes of its copies."""
    fill(way.source)
    with connect(way, own) as session:
        mine = dataclasses.replace(way, server=own, session=session)
        for number in range(4):
            assert mine.copy(".", to=f"{number}").ok
            assert_same_tree(way.source, way.destination / f"{number}")
        back = dataclasses.replace(mine, is_push=not mine.is_push)
        assert back.copy("t", to="other way").ok
        assert_same_tree(way.source / "t", way.destination / "other way")
        (way.source / "gone").symlink_to("nowhere")
        assert not mine.copy(".").ok
        with pytest.raises(pscp.PscpError):
            mine.copy("small", "t", to="small")
        with pytest.raises(pscp.UsageError):
            session.copy("elsewhere:/x", str(way.destination))
        (way.source / "gone").unlink()
        assert mine.copy(".").files_resumed == 4
        assert logins(own) == 1


def in_a_child(act: Callable[[], object]) -> None:
    """Do this in a fork of this process, which then unwinds what it is in."""
    if (pid := os.fork()) == 0:
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


FOREIGN = "^this session belongs to another process; open one after the fork$"


@contextlib.contextmanager
def exits_here() -> Iterator[None]:
    """What a child unwinds ends here, and not in pytest."""
    ours = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != ours:
            os._exit(0 if isinstance(sys.exception(), SystemExit) else 1)


def test_b1_a_fork_leaves_the_session_to_the_process_that_opened_it(
    push: Way, own: PrivateServer
) -> None:
    """Its calls went over the parent's connections, in the midst of what that sent."""
    fill(push.source)
    place = f"{own.host}:{push.destination}"
    source = str(push.source / "small")

    def refused() -> None:
        for call in (
            lambda: session.copy(source, f"{place}/child"),
            lambda: session.run("true"),
            lambda: session.pipe_to("cat").__enter__(),
            lambda: session.pipe_from("echo").__enter__(),
            session.__enter__,
        ):
            with pytest.raises(pscp.UsageError, match=FOREIGN):
                call()
        session.cancel()
        with connect(push, own) as after:
            assert after.run("echo one").out == b"one\n"
        session.close()

    with exits_here(), connect(push, own) as session:
        session.copy(source, f"{place}/parent")
        in_a_child(refused)
        assert session.run("echo two").out == b"two\n"
        with session.pipe_to(["sh", "-c", f"cat > {push.destination}/piped"]) as file:
            file.write(b"once")
            in_a_child(lambda: None)
            file.write(b" and all")
        session.copy(source, f"{place}/again")
    assert (push.destination / "piped").read_bytes() == b"once and all"
    assert not (push.destination / "child").exists()
    assert logins(own) == 2


def ended(pids: set[int]) -> bool:
    deadline_s = time.monotonic() + ENDED_S
    while pids & {process.pid for process in living()} and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return not pids & {process.pid for process in living()}


@pytest.mark.needs_ssh(reason="a direct lane outlives its login")
@pytest.mark.parametrize("where", ["near", "far"])
def test_a_session_survives_the_end_of_its_connections(
    way: Way, own: PrivateServer, where: str
) -> None:
    fill(way.source)
    before = descendants(os.getpid())  # the server and its sessions among them
    with connect(way, own, 2) as session:
        mine = dataclasses.replace(way, server=own, session=session)
        for number in range(2):
            assert mine.copy(".", to=f"{number}").ok
            assert_same_tree(way.source, way.destination / f"{number}")
            for thread in threading.enumerate():
                if thread.name == "leaving":  # logins that were under way at the copy's end
                    thread.join()
            logged_in = logins(own)
            far = {process.pid for process in descendants(own.pid)}
            near = {p.pid for p in descendants(os.getpid()) - before} - far
            assert near and far
            for pid in near if where == "near" else far:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert ended(near | far)  # one end follows the other
        assert mine.copy(".", to="last").ok
        assert_same_tree(way.source, way.destination / "last")
        assert logins(own) > logged_in
