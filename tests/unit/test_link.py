"""The sockets of direct lanes: bytes arrive as they were sent, or not at all.

Not here: who may connect (test_gate.py), lanes over them (../faults/test_direct_plane.py).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pscp
from pscp.connect.direct_sockets import Identity, new_identity
from pscp.endpoint.frames import wire
from pscp.endpoint.plane import link
from pscp.transports import tls_pump

WAIT_S = 20.0
HERE, THERE, STRANGER = new_identity(), new_identity(), new_identity()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), WAIT_S)
        far, _ = server.accept()
    near.settimeout(None)
    return near, far


def in_thread(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def shaken(
    near: socket.socket, far: socket.socket, mine: Identity = HERE, its: Identity = THERE
) -> tuple[link.TlsLink, link.TlsLink, list[OSError]]:
    """Both ends after the handshake, by which each expects HERE and THERE; and what failed."""
    client = link.TlsLink(near, link.context(False, mine.both, THERE.certificate), False)
    server = link.TlsLink(far, link.context(True, its.both, HERE.certificate), True)
    failures: list[OSError] = []

    def serve() -> None:
        try:
            server.shake_hands(HERE.certificate)
        except OSError as error:
            failures.append(error)
            server.hang_up()

    thread = in_thread(serve)
    try:
        client.shake_hands(THERE.certificate)
    except OSError as error:
        failures.append(error)
        client.hang_up()
    thread.join(WAIT_S)
    return client, server, failures


@contextlib.contextmanager
def tls() -> Iterator[tuple[link.TlsLink, link.TlsLink]]:
    near, far = socket_pair()
    with near, far:
        client, server, failures = shaken(near, far)
        assert not failures
        yield client, server


def read_all(lane: link.TlsLink | link.PlainLink, count: int, room: int) -> bytes:
    """Read so many bytes through two spaces, as a decoder's; fewer at the end."""
    got = bytearray()
    while len(got) < count:
        spaces = [bytearray(wire.HEADER.size), bytearray(room)]
        number = lane.read([memoryview(each) for each in spaces])
        if not number:
            break
        got += b"".join(spaces_filled(spaces, number))
    return bytes(got)


def spaces_filled(spaces: list[bytearray], number: int) -> Iterator[bytearray]:
    for space in spaces:
        yield space[: min(number, len(space))]
        number -= min(number, len(space))


SIZES = st.lists(
    st.one_of(
        st.sampled_from([0, 1, wire.HEADER.size, 16 * 1024, 64 * 1024, 64 * 1024 + 1]),
        st.integers(0, 200_000),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@given(SIZES, SIZES, st.integers(1, 300_000))
def test_frames_both_ways_at_once(to: list[int], back: list[int], room: int) -> None:
    """Each frame of several threads arrives whole: none is within another."""
    with tls() as ends:
        got: dict[int, bytes] = {}

        def send(end: int, number: int, size: int) -> None:
            ends[end].send(wire.HEADER.pack(1, number, 0, size, 0, 0, 0), bytes([number]) * size)

        def read(end: int, sizes: list[int]) -> None:
            whole = sum(sizes) + len(sizes) * wire.HEADER.size
            got[end] = read_all(ends[end], whole, room)

        threads = [in_thread(lambda: read(0, back)), in_thread(lambda: read(1, to))]
        for end, sizes in enumerate((to, back)):
            for number, size in enumerate(sizes):
                threads.append(in_thread(functools.partial(send, end, number, size)))
        for thread in threads:
            thread.join(WAIT_S)
        for end, sizes in enumerate((back, to)):
            assert frames_in(got[end]) == dict(enumerate(sizes))


def frames_in(data: bytes) -> dict[int, int]:
    """The sizes of frames by their numbers; fails where a payload is not its own."""
    found: dict[int, int] = {}
    while data:
        _, number, _, size, *_ = wire.HEADER.unpack_from(data)
        payload = data[wire.HEADER.size : wire.HEADER.size + size]
        assert payload == bytes([number]) * size
        found[number] = size
        data = data[wire.HEADER.size + size :]
    return found


@pytest.mark.parametrize(("mine", "its"), [(STRANGER, THERE), (HERE, STRANGER)])
def test_another_certificate_is_refused(mine: Identity, its: Identity) -> None:
    """The server's before anything is sent; the client's before anything of it is read."""
    near, far = socket_pair()
    with near, far:
        client, server, failures = shaken(near, far, mine, its)
        assert failures
        with pytest.raises(OSError, match=r"."):
            client.send(b"header", b"payload")
            assert server.read([memoryview(bytearray(10))]) == 0
            raise OSError("nothing came")


def test_no_handshake_comes() -> None:
    near, far = socket_pair()
    with near, far:
        far.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        far.shutdown(socket.SHUT_WR)
        lane = link.TlsLink(near, link.context(False, HERE.both, THERE.certificate), False)
        with pytest.raises(OSError, match=r"."):
            lane.shake_hands(THERE.certificate)


class Relayed:
    """A TLS connection with somebody in between, who passes the client's records on by bytes."""

    def __init__(self) -> None:
        self.near, self.mitm_near = socket_pair()
        self.mitm_far, self.far = socket_pair()
        self.sockets = (self.near, self.mitm_near, self.mitm_far, self.far)
        stop = threading.Event()
        back = in_thread(lambda: self._pass(self.mitm_far, self.mitm_near, None))
        to = in_thread(lambda: self._pass(self.mitm_near, self.mitm_far, stop))
        self.client, self.server, failures = shaken(self.near, self.far)
        assert not failures
        stop.set()
        self.client.send(b"", b"last")  # wakes the thread, which passes it on
        assert self.server.read([memoryview(bytearray(4))]) == 4
        to.join(WAIT_S)
        self._back = back

    def _pass(self, a: socket.socket, b: socket.socket, stop: threading.Event | None) -> None:
        with contextlib.suppress(OSError):
            while data := a.recv(1 << 16):
                # Asked before the other end can know of it: only then is it the last for sure.
                is_last = stop is not None and stop.is_set()
                b.sendall(data)
                if is_last:
                    return

    def records(self, payload: bytes) -> bytes:
        """What the client sends for this, which goes no further."""
        self.client.send(b"", payload)
        data = b""
        while len(data) < len(payload) + 22 * (len(payload) // 16384 + 1):
            data += self.mitm_near.recv(1 << 20)
        return data

    def close(self) -> None:
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._back.join(WAIT_S)
        for sock in self.sockets:
            sock.close()


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    between = Relayed()
    yield between
    between.close()


@pytest.mark.parametrize("at", [0, 3, 5, 500, -1])
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_record_that_is_cut_or_changed_gives_no_bytes(
    relayed: Relayed, at: int, is_cut: bool
) -> None:
    records = bytearray(relayed.records(b"x" * 1000))
    records[at] ^= 1
    relayed.mitm_far.sendall(records[:at] if is_cut else records)
    relayed.mitm_far.shutdown(socket.SHUT_WR)
    with contextlib.suppress(OSError):
        assert relayed.server.read([memoryview(bytearray(2000))]) == 0


def test_a_record_comes_twice(relayed: Relayed) -> None:
    records = relayed.records(b"x" * 1000)
    relayed.mitm_far.sendall(records * 2)
    space = bytearray(3000)
    with pytest.raises(OSError, match=r"."):
        got = relayed.server.read([memoryview(space)])
        assert space[:got] == b"x" * 1000
        relayed.server.read([memoryview(space)])


def test_a_lane_is_lent_and_taken_back() -> None:
    """What another process writes and reads is encrypted; then the lane is the agent's again."""
    with tls() as (client, server):
        with server.lend_fds() as (read_fd, write_fd):
            client.send(b"", b"to the other")
            assert os.read(read_fd, 100) == b"to the other"
            os.write(write_fd, b"from the other")
            assert read_all(client, 14, 100) == b"from the other"
        client.send(b"", b"to its own")
        assert read_all(server, 10, 100) == b"to its own"
        server.send(b"", b"its own answer")
        assert read_all(client, 14, 100) == b"its own answer"


def test_a_lent_lane_ends() -> None:
    with tls() as (client, server), server.lend_fds() as (read_fd, _):
        client.hang_up()
        assert os.read(read_fd, 100) == b""


def test_a_hang_up_wakes_the_reader_and_the_sender() -> None:
    with tls() as (client, server):
        ended = threading.Event()

        def send() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.send(b"", b"x" * (1 << 20))
            ended.set()

        thread = in_thread(send)
        assert client.read([memoryview(bytearray(10))]) == 10
        server.hang_up()
        assert ended.wait(WAIT_S)
        thread.join(WAIT_S)


def test_a_plain_lane_sends_a_file_s_pages() -> None:
    near, far = socket_pair()
    with near, far:
        link.PlainLink(near).send(b"h" * wire.HEADER.size, b"payload")
        assert read_all(link.PlainLink(far), wire.HEADER.size + 7, 100).endswith(b"hpayload")


@pytest.mark.parametrize("has_memfd", [True, False])
def test_keys_are_on_no_disk(has_memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    fd = link.nameless(b"a key")
    try:
        assert os.fstat(fd).st_nlink == 0
        assert os.fstat(fd).st_mode & 0o077 == 0 or has_memfd
        assert os.read(fd, 10) == b"a key"
    finally:
        os.close(fd)


def test_a_key_encrypts_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    client, server, failures = shaken(*socket_pair())
    with client.socket, server.socket:
        monkeypatch.setattr(link, "KEY_BYTES", 1000)
        client.send(b"a" * 1000, b"")
        with pytest.raises(OSError, match="encrypted enough"):
            client.send(b"b", b"")
        assert failures == []


def test_a_python_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "HAS_TLS", False)
    with pytest.raises(OSError, match=r"no TLS 1\.3"):
        link.context(True, HERE.both, THERE.certificate)


# --- the program of a lane


def test_w4_a_lane_that_is_not_let_in_is_lost_as_any_other() -> None:
    """Its exit status was that of an agent that has failed, which ended the whole copy."""
    here, there = socket.socketpair()
    lane, peer = socket.socketpair()
    peer.close()
    package = str(Path(pscp.__file__).parent.parent)
    with here, there, lane:
        argv = [sys.executable, tls_pump.__file__, package, str(there.fileno())]
        child = subprocess.Popen(argv, stderr=subprocess.PIPE, pass_fds=[there.fileno()])
        settings = {"is_server": False, "peer": "", "own": "", "token": "0" * 32}
        socket.send_fds(here, [json.dumps(settings).encode()], [lane.fileno()])
        _, messages = child.communicate(timeout=120)
    assert child.returncode == 255, messages
    assert messages.startswith(b"Connection closed: a direct lane: ")
