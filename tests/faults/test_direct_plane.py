"""The direct planes, with somebody between the ends: lanes are cut, filtered, forbidden, refused.

Not here: who is let in (../unit/test_gate.py), TLS (../unit/test_link.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree
from e2e.ways import Notes

import pscp
from faults.conftest import MIB, Way, fill, until
from faults.test_lanes_lost import assert_copied
from pscp.connect import direct_sockets
from pscp.connect.one_host import OneHost
from pscp.ground.processes import descendants
from pscp.transfer.lanes import worker

BIG_BYTES = 24 * MIB + 7
PLANES = pytest.mark.parametrize("plane", ["tls", "plain"])


class Between:
    """A relay on the loopback, through which the lanes go."""

    def __init__(self) -> None:
        self.lanes = 0  # that were begun
        self.passed = 0  # bytes, both ways
        self.meet: Callable[[Between, bytearray], bool] = lambda between, data: True
        self._server = socket.create_server(("127.0.0.1", 0))
        self._to: tuple[str, int] = ("", 0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._closing = threading.Event()
        self._begin(self._accept)

    def places(self, host: str, own: str, port: int) -> list[tuple[str, int]]:
        self._to = own, port
        return [self._server.getsockname()]

    def _begin(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self._sockets.append(near)
                self.lanes += 1
                try:
                    far = socket.create_connection(self._to)
                except OSError:
                    near.close()
                    continue
                self._sockets.append(far)
                self._begin(self._carry, near, far)
                self._begin(self._carry, far, near)

    def _carry(self, a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(a.recv(1 << 16)):
                with self._lock:
                    self.passed += len(data)
                    if not self.meet(self, data):
                        break
                if not data:  # it was held back, and so is all that follows
                    self._closing.wait()
                b.sendall(data)
        for sock in (a, b):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def cut_all(self) -> None:
        """End every lane."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self.cut_all()
        for thread in self._threads:
            thread.join(20)
        for sock in (self._server, *self._sockets):
            sock.close()


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    relay = Between()
    monkeypatch.setattr(direct_sockets, "places", relay.places)
    monkeypatch.setattr(worker, "_PAUSE_S", (0.02, 0.05))
    yield relay
    relay.close()


class Once:
    """Does something to the first piece of data after so many bytes."""

    def __init__(self, after: int, act: Callable[[bytearray], bool]) -> None:
        self._after, self._act, self.done = after, act, False

    def __call__(self, between: Between, data: bytearray) -> bool:
        if self.done or between.passed < self._after:
            return True
        self.done = True
        return self._act(data)


def cut(data: bytearray) -> bool:
    return False


def hold(data: bytearray) -> bool:
    data.clear()
    return True


class Said(Notes):
    """Keeps the notes."""

    @property
    def of_plane(self) -> list[str]:
        return [text for text in self.texts if text.startswith("--plane")]


@PLANES
def test_lanes_are_cut_and_come_again(way: Way, plane: Any, between: Between) -> None:
    fill(way.source / "big", BIG_BYTES)
    between.meet = Once(6 * MIB, cut)
    result = way.copy(connections=2, plane=plane, chunk_bytes=MIB)
    assert_copied(way, result)
    assert result.connections_lost == 1
    assert between.lanes >= 2  # the other one may have done the rest meanwhile


@PLANES
def test_a_filtered_port_is_dialled_from_there(
    push: Way, plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_sockets, "places", lambda *_: [closed_port()])
    fill(push.source / "big", 3 * MIB)
    said = Said()
    with session(push, plane) as there:
        result = there.copy(*push.locations(), reporter=said)
        assert not said.of_plane
    assert_copied(push, result)


def closed_port() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address: tuple[str, int] = server.getsockname()
    return address


@contextlib.contextmanager
def session(way: Way, plane: Any, config: str = "") -> Iterator[pscp.Session]:
    with pscp.Session(
        way.server.host,
        config_file=config or way.server.ssh_config, plane=plane, recursive=True, batch=True,
        connections=2, resume=False,
    ) as there:  # fmt: skip
        yield there


def assert_over_ssh(way: Way, there: pscp.Session, reason: str) -> None:
    """Two copies succeed, and why they are SSH's is said once."""
    fill(way.source / "big", 3 * MIB)
    said = Said()
    for _ in range(2):
        assert there.copy(*way.locations(), reporter=said).ok
    assert len(said.of_plane) == 1, said.texts
    assert reason in said.of_plane[0]
    assert_same_tree(way.source, way.destination)


def test_neither_end_reaches_the_other(push: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_sockets, "places", lambda *_: [closed_port()])

    def refuse(address: str) -> str:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(direct_sockets, "own_address", refuse)
    with session(push, "tls") as there:
        assert_over_ssh(push, there, "refused")


def test_nothing_comes_over_the_lanes(push: Way, between: Between) -> None:
    """W5: the copy in which they are lost says it, and not only the next one."""
    fill(push.source / "big", 3 * MIB)
    between.meet = lambda relay, data: False
    said = Said()
    with session(push, "tls") as there:
        assert there.copy(*push.locations(), reporter=said).ok
    assert said.of_plane == [
        "--plane tls: the lanes were lost before anything came; going over SSH"
    ]


def test_ssh_config_forbids_it(push: Way, tmp_path: Path) -> None:
    config = tmp_path / "forbidding"
    text = Path(push.server.ssh_config).read_text()
    config.write_text(f"{text}\nHost *\n  SetEnv PSCP_PLANE=ssh\n")
    with session(push, "tls", str(config)) as there:
        assert_over_ssh(push, there, "ssh_config forbids it")


def test_planes_take_turns_in_one_session(push: Way) -> None:
    """No copy goes over a lane of another plane; one login is enough for all."""
    fill(push.source / "big", 3 * MIB)
    said = Said()
    with session(push, "ssh") as there:
        for plane in ("tls", "plain", "ssh", "plain", "tls", "ssh"):
            result = there.copy(*push.locations(), reporter=said, plane=plane)
            assert result.ok
            assert result.plane == plane
            planes = {far.plane for far in there.connections.idle._agents}
            assert plane in planes
            assert planes <= {plane, "ssh"}  # as a login is that ends when its copy is over
    assert not said.of_plane
    assert_same_tree(push.source, push.destination)


def test_a_lane_stands_still(way: Way, between: Between) -> None:
    """What it holds is taken over, and nobody waits for its silence to end."""
    fill(way.source / "big", BIG_BYTES)
    between.meet = once = Once(6 * MIB, hold)
    result = way.copy(connections=2, plane="tls", chunk_bytes=MIB)
    assert_copied(way, result)
    assert once.done


def test_through_a_jump_host_where_it_is_asked_for(push: Way) -> None:
    fill(push.source / "big", 3 * MIB)
    result = push.copy(plane="tls", jump=push.server.host)
    assert_copied(push, result)
    assert result.plane == "tls"


@pytest.mark.parametrize("with_lanes", [False, True], ids=["alone", "with all lanes"])
def test_the_control_connection_is_killed(way: Way, between: Between, with_lanes: bool) -> None:
    """A lane that is lost after that comes again by way of another login."""
    fill(way.source / "big", BIG_BYTES)

    def kill(data: bytearray) -> bool:
        assert isinstance(there.connections, OneHost)
        control = there.connections._plane
        assert control is not None and control._control is not None
        os.kill(control._control.channel.pid, 9)
        if with_lanes:
            between.cut_all()
        return False

    between.meet = once = Once(6 * MIB, kill)
    with session(way, "tls") as there:
        result = there.copy(*way.locations(), chunk_bytes=MIB)
    assert_copied(way, result)
    assert once.done
    assert result.connections_lost >= 1


def test_a_stream_loses_a_lane(way: Way, between: Between) -> None:
    data = fill(way.source / "big", BIG_BYTES)
    between.meet = once = Once(6 * MIB, cut)
    with session(way, "tls") as there:
        if way.is_push:
            with there.pipe_to(f"cat > {way.destination}/got") as to:
                to.write(data)
        else:
            with there.pipe_from(f"cat {way.source}/big") as source:
                (way.destination / "got").write_bytes(source.read())
    assert once.done
    assert (way.destination / "got").read_bytes() == data


@pytest.mark.parametrize(("plane", "kind"), [("tls", signal.SIGINT), ("plain", signal.SIGKILL)])
def test_it_is_ended_and_goes_on(push: Way, plane: str, kind: signal.Signals) -> None:
    """Every process at the far end ends soon, and the port is closed; what has landed is kept."""
    data = fill(push.source / "big", 64 * MIB)
    words = ("--plane", plane, "-c", "2")
    running = push.start(*words, "-l", "80000")
    until(lambda: push.journaled_bytes() >= 4 * MIB, "data lands")
    running.send(kind)
    assert running.ended().code in (130, -signal.SIGKILL)
    until(lambda: not descendants(push.server.pid), "agents end")
    ended = push.finish(*words)
    assert ended.end["bytes_resumed"] >= 4 * MIB
    assert (push.destination / "big").read_bytes() == data
