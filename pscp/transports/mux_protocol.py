"""Requests to an ssh that lets others use its connection: OpenSSH's PROTOCOL.mux, version 4.

With them a channel needs no process of its own, and whether its connection still answers is known
after one round trip.

Not here: the channel that such a session becomes (mux_channel.py), the sockets of the libraries'
programs, whose protocol is our own (libraries/mux_server.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

_VERSION = 4
_HELLO = 0x00000001
_NEW_SESSION = 0x10000002
_ALIVE_CHECK = 0x10000004
_TERMINATE = 0x10000005
_STOP_LISTENING = 0x10000009
_PERMISSION_DENIED, _FAILURE = 0x80000002, 0x80000003
_EXIT_MESSAGE, _ALIVE, _SESSION_OPENED = 0x80000004, 0x80000005, 0x80000006
_NO_ESCAPE = 0xFFFFFFFF
_MESSAGE_MAX_BYTES = 256 * 1024  # as in mux.c

_ANSWER_S = 0.5  # for the answer to a request that would be obeyed later as well
LOCAL_S = 2.0  # an ssh on this machine answers in this time, also on a busy one


class MuxRefusal(OSError):
    """The ssh, or the server, refuses a request."""


class Message(NamedTuple):
    """A message of the ssh, whose first number is that of a request, or of a session."""

    kind: int
    body: bytes

    @property
    def value(self) -> int:
        """The number that follows the first one. Raises ConnectionError where there is none."""
        if len(self.body) < 8:
            raise ConnectionError("a message of another shape")
        return int(struct.unpack_from(">I", self.body, 4)[0])

    @property
    def text(self) -> str:
        """The text that follows the first number. Raises ConnectionError where there is none."""
        return self.body[8 : 8 + self.value].decode(errors="replace")


class MuxMaster:
    """A connection to the socket of such an ssh. One thread reads; any thread may end it."""

    def __init__(self, path: str) -> None:
        """Connect, and greet. Raises OSError."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(LOCAL_S)
            self._socket.connect(path)
            self._send(_HELLO, _VERSION)
        except BaseException:
            self._socket.close()
            raise

    def _send(self, kind: int, *numbers: int, rest: bytes = b"") -> None:
        body = struct.pack(f">{1 + len(numbers)}I", kind, *numbers) + rest
        self._socket.sendall(struct.pack(">I", len(body)) + body)

    def ask_alive(self) -> None:
        """Ask for the number of the ssh's process, which an ALIVE message will bring."""
        self._send(_ALIVE_CHECK, 0)

    def ask_session(
        self, text: str, environment: Sequence[str], fds: Sequence[int], *, is_subsystem: bool
    ) -> None:
        """Ask for a session with a command, or a subsystem, and hand over three descriptors."""
        words = [b"", text.encode(errors="surrogateescape")]  # the terminal's type; the command
        words += [os.fsencode(each) for each in environment]
        rest = b"".join(struct.pack(">I", len(word)) + word for word in words)
        # An empty string, which is reserved; no terminal, no X11, no agent.
        self._send(_NEW_SESSION, 1, 0, 0, 0, 0, int(is_subsystem), _NO_ESCAPE, rest=rest)
        for fd in fds:
            socket.send_fds(self._socket, [b"\0"], [fd])

    def receive(self, limit_s: float) -> Message:
        """Return the next message. Raises TimeoutError after so long, OSError at the end."""
        until_s = time.monotonic() + limit_s
        (length,) = struct.unpack(">I", self._read(4, until_s))
        if not 4 <= length <= _MESSAGE_MAX_BYTES:
            raise ConnectionError("a message of another shape")
        data = self._read(length, until_s)
        message = Message(struct.unpack_from(">I", data)[0], data[4:])
        if message.kind == _HELLO and message.body[:4] != struct.pack(">I", _VERSION):
            raise ConnectionError("an ssh with another protocol for its socket")
        if message.kind in (_PERMISSION_DENIED, _FAILURE):
            raise MuxRefusal(message.text)
        return message

    def _read(self, count: int, until_s: float) -> bytes:
        found = b""
        while len(found) < count:
            self._socket.settimeout(max(0.001, until_s - time.monotonic()))
            data = self._socket.recv(count - len(found))
            if not data:
                raise ConnectionError("the ssh that has the connection ended")
            found += data
        return found

    def wait_for_session(self, limit_s: float) -> int:
        """Wait until the server has opened the session, and return the process of the ssh.

        Raises MuxRefusal, TimeoutError after so long, and OSError if the ssh ends.
        """
        until_s, pid = time.monotonic() + limit_s, 0
        while True:
            message = self.receive(until_s - time.monotonic())
            if message.kind == _ALIVE:
                pid = message.value
            elif message.kind == _SESSION_OPENED:
                return pid

    def wait_for_exit(self, limit_s: float) -> int:
        """Return the session's exit status. Raises TimeoutError, and OSError if there is none."""
        until_s = time.monotonic() + limit_s
        while True:
            message = self.receive(until_s - time.monotonic())
            if message.kind == _EXIT_MESSAGE:
                return message.value

    def end(self) -> None:
        """End the session that was asked for, and whoever reads here. From any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    # --- of a connection as a whole

    def terminate(self) -> None:
        """Have the ssh end, with all that uses its connection. Raises OSError."""
        self._send(_TERMINATE, 0)
        self._wait_for_answer()

    def stop(self) -> None:
        """Have the ssh let nobody in any more; it ends once nobody uses its connection.

        Raises OSError.
        """
        self._send(_STOP_LISTENING, 0)
        self._wait_for_answer()

    def _wait_for_answer(self) -> None:
        with contextlib.suppress(ConnectionError):  # it has ended already
            while self.receive(_ANSWER_S).kind == _HELLO:
                pass


def process_of(path: str) -> int | None:
    """Return the process of the ssh that listens at this socket; None if none does."""
    try:
        with contextlib.closing(MuxMaster(path)) as master:
            master.ask_alive()
            while (message := master.receive(LOCAL_S)).kind != _ALIVE:
                pass
            return message.value
    except OSError:
        return None
