"""Who is let in to the direct plane, and who is not (endpoint/plane/gate.py).

Not here: the lanes behind it (test_link.py, ../faults/test_direct_plane.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from pscp.endpoint.plane import gate

WAIT_S = 10.0
Address = tuple[str, int]


class Guarded:
    """A gate that runs in a thread, on the loopback."""

    def __init__(self, count: int) -> None:
        self.tokens = [gate.new_token() for _ in range(count)]
        self.admitted: list[socket.socket] = []
        listening = gate.listen("127.0.0.1", (0, 0), lambda sock: None)
        self.address: Address = listening.getsockname()
        stopping, self._stop = os.pipe()
        entry = gate.Gate(listening, self.tokens, stopping)
        self._thread = threading.Thread(target=entry.run, args=(self.admitted.append,))

    def begin(self) -> None:
        self._thread.start()

    def stranger(self, sent: bytes = b"") -> socket.socket:
        sock = socket.create_connection(self.address, WAIT_S)
        sock.sendall(sent)
        return sock

    def knock(self, token: str) -> socket.socket:
        sock = gate.dial(self.address, lambda sock: None, WAIT_S)
        try:
            gate.knock(sock, token)
        except OSError:
            sock.close()
            raise
        return sock

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._stop)
        self._stop = -1

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.stop()
        self.join()
        for sock in self.admitted:
            sock.close()


@pytest.fixture
def guarded() -> Iterator[Callable[[int], Guarded]]:
    made: list[Guarded] = []

    def make(count: int, *, begins: bool = True) -> Guarded:
        made.append(Guarded(count))
        if begins:
            made[-1].begin()
        return made[-1]

    yield make
    for each in made:
        each.close()


def is_shut_out(sock: socket.socket) -> bool:
    """Whether the other end closes the connection without a word."""
    with sock:
        try:
            return sock.recv(1) == b""
        except ConnectionResetError:
            return True


def first_half(token: str) -> bytes:
    return bytes.fromhex(token)[: gate.TOKEN_BYTES]


def test_each_token_admits_one(guarded: Callable[[int], Guarded]) -> None:
    entry = guarded(3)
    for token in list(entry.tokens):
        with entry.knock(token) as sock:
            sock.sendall(b"frame")
    entry.join()  # all tokens were used
    assert [sock.recv(5, socket.MSG_WAITALL) for sock in entry.admitted] == [b"frame"] * 3
    with pytest.raises(ConnectionRefusedError):
        entry.stranger()


def test_a_used_token_counts_no_more(guarded: Callable[[int], Guarded]) -> None:
    entry = guarded(2)
    first, second = entry.tokens
    with entry.knock(first):
        assert is_shut_out(entry.stranger(first_half(first)))
        with pytest.raises(OSError, match=r"not let in|reset"), entry.knock(first):
            pass
        with entry.knock(second):
            entry.join()
    assert len(entry.admitted) == 2


@pytest.mark.parametrize(
    "sent", [b"\0" * gate.TOKEN_BYTES, b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n"]
)
def test_a_stranger_is_told_nothing(guarded: Callable[[int], Guarded], sent: bytes) -> None:
    entry = guarded(1)
    assert is_shut_out(entry.stranger(sent))
    with entry.knock(entry.tokens[0]):
        entry.join()
    assert len(entry.admitted) == 1


def test_the_answer_is_no_token(guarded: Callable[[int], Guarded]) -> None:
    """The second half, which only an answer has, lets nobody in."""
    entry = guarded(1)
    second = bytes.fromhex(entry.tokens[0])[gate.TOKEN_BYTES :]
    assert is_shut_out(entry.stranger(second))
    assert not entry.admitted


def test_half_a_token_waits_for_the_rest(guarded: Callable[[int], Guarded]) -> None:
    entry = guarded(1)
    token = bytes.fromhex(entry.tokens[0])
    with entry.stranger(token[:7]) as sock:
        sock.sendall(token[7 : gate.TOKEN_BYTES])
        assert sock.recv(gate.TOKEN_BYTES, socket.MSG_WAITALL) == token[gate.TOKEN_BYTES :]
        entry.join()


def test_what_follows_a_token_is_the_lane_s(guarded: Callable[[int], Guarded]) -> None:
    entry = guarded(1)
    with entry.stranger(first_half(entry.tokens[0]) + b"a frame"):
        entry.join()
        assert entry.admitted[0].recv(7, socket.MSG_WAITALL) == b"a frame"


def test_strangers_hold_nobody_up(guarded: Callable[[int], Guarded]) -> None:
    """Silent ones, those who close at once, those with half a token, and then one of ours."""
    entry = guarded(1)
    with entry.stranger(), entry.stranger(first_half(entry.tokens[0])[:5]):
        entry.stranger().close()
        entry.stranger(b"half").close()
        with entry.knock(entry.tokens[0]):
            entry.join()


def test_a_flood_drops_the_oldest(guarded: Callable[[int], Guarded]) -> None:
    entry = guarded(1)
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(entry.stranger()) for _ in range(3 * gate._WAITING_MAX)]
        stack.enter_context(entry.knock(entry.tokens[0]))
        entry.join()
        assert all(is_shut_out(sock) for sock in flood)


def test_the_time_is_over(guarded: Callable[..., Guarded], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "OPEN_S", 0.05)
    entry = guarded(1, begins=False)
    with entry.stranger() as waiting:
        entry.begin()
        entry.join()
        assert is_shut_out(waiting)
    assert not entry.admitted


def test_it_ends_when_the_other_end_closes(guarded: Callable[[int], Guarded]) -> None:
    entry = guarded(2)
    with entry.knock(entry.tokens[0]), entry.stranger() as waiting:
        entry.stop()
        entry.join()
        assert is_shut_out(waiting)
    assert len(entry.admitted) == 1


def test_something_else_answers() -> None:
    """A connection that was taken by somebody who does not know the second half is not used."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = gate.dial(server.getsockname(), lambda sock: None, WAIT_S)
        other, _ = server.accept()
        with sock, other:
            token = gate.new_token()
            other.sendall(first_half(token))  # an echo
            with pytest.raises(OSError, match="something else answers"):
                gate.knock(sock, token)


def test_no_port_of_a_range_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            gate.listen("127.0.0.1", (port, port), lambda sock: None)
