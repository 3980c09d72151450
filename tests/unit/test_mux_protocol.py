"""What an ssh may answer at its socket, and what becomes of it.

Not here: a real ssh (../e2e/test_persist.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pscp.ground.errors import ConnectionFull, ConnectionLost
from pscp.transports import Control, Request
from pscp.transports.mux_channel import MuxChannel, sent_environment
from pscp.transports.mux_protocol import MuxMaster, process_of

HELLO = struct.pack(">III", 8, 1, 4)
ALIVE = struct.pack(">IIII", 12, 0x80000005, 0, 4711)
OPENED = struct.pack(">IIII", 12, 0x80000006, 1, 0)
REASON = "Session open refused by peer"
REFUSED = struct.pack(">IIII", 12 + len(REASON), 0x80000003, 1, len(REASON)) + REASON.encode()
EXIT = struct.pack(">IIII", 12, 0x80000004, 0, 7)

Serve = Callable[[bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """serve(ANSWER): the path of a socket where each client gets this, and then the end."""
    folder = Path(tempfile.mkdtemp(prefix="pk"))
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def answering(listener: socket.socket, answer: bytes) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):  # it may have closed already
                client.sendall(answer)
                client.shutdown(socket.SHUT_WR)
                while True:  # what is handed over is closed, as by an ssh that ends
                    data, fds, _, _ = socket.recv_fds(client, 4096, 3)
                    for fd in fds:
                        os.close(fd)
                    if not data:
                        break

    def make(answer: bytes) -> str:
        path = str(folder / str(len(listeners)))
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[-1].bind(path)
        listeners[-1].listen()
        threads.append(threading.Thread(target=answering, args=(listeners[-1], answer)))
        threads[-1].start()
        return path

    yield make
    for listener, thread in zip(listeners, threads, strict=True):
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
    shutil.rmtree(folder)


def opened(path: str) -> MuxChannel:
    return MuxChannel(Control(path, False, "60"), Request("true"), ["LANG=C"])


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        HELLO,
        HELLO[:5],
        struct.pack(">III", 8, 1, 5) + ALIVE,  # another version
        struct.pack(">I", 3) + b"abc",
        struct.pack(">I", 1 << 31),
        HELLO + REFUSED,
    ],
    ids=["nothing", "hello", "cut", "version", "short", "long", "refused"],
)
def test_what_is_no_ssh(answer: bytes, serve: Serve) -> None:
    path = serve(answer)
    assert process_of(path) is None
    channel = opened(path)
    try:
        assert not channel.answers(5.0)
        assert isinstance(channel.explain(""), ConnectionLost | ConnectionFull)
    finally:
        channel.close()


@pytest.mark.parametrize(("status", "said"), [(EXIT, "status 7"), (b"", "")])
def test_a_session_and_its_status(serve: Serve, status: bytes, said: str) -> None:
    channel = opened(serve(HELLO + ALIVE + OPENED + status))
    try:
        assert channel.answers(5.0)
        if status:
            assert channel.answers(5.0) and channel.pid == 4711
        error = channel.explain("")
        assert said in error.message and isinstance(error, ConnectionLost) is (not status)
    finally:
        channel.close()
        channel.close()


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost):
        opened(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        MuxMaster(str(tmp_path / "none"))


def test_silence_has_an_end() -> None:
    """The socket of a listener that never accepts takes what is written."""
    folder = Path(tempfile.mkdtemp(prefix="pk"))
    path = str(folder / "s")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            channel = opened(path)
            assert not channel.answers(0.01)
            assert isinstance(channel.explain(""), ConnectionLost)
            channel.close()
    finally:
        shutil.rmtree(folder)


def test_the_environment_is_what_ssh_would_send(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in (("LANG", "C"), ("LC_ALL", "C.UTF-8"), ("SECRET", "no")):
        monkeypatch.setenv(name, value)
    assert sent_environment(("LANG", "LC_*"), ("A=b",)) == ["LANG=C", "LC_ALL=C.UTF-8", "A=b"]
