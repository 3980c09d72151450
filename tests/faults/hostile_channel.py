"""A lane's channel at whose far end a scenario runs in a thread of this process.

Not here: the scenarios (hostile_agent.py), the same as a process behind -S (test_hostile.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import traceback

from faults.hostile_agent import scenario
from pscp.ground.errors import PscpError
from pscp.transports import Channel
from pscp.transports.openssh import error_of

_END_S = 10.0


class HostileChannel(Channel):
    """As the channel of an ssh that runs hostile_agent.py."""

    pid = os.getpid()

    def __init__(self, text: str) -> None:
        self._text = text
        self._near, self._far = socket.socketpair()
        self.read_fd = self.write_fd = self._near.fileno()
        self.error_fd, self._its_error_fd = os.pipe()
        self._lock = threading.Lock()  # guards what follows
        self._status: int | None = None  # of its end
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"hostile {text[:30]}")
        self._thread.start()

    def _run(self) -> None:
        fd, status = self._far.fileno(), 0
        try:
            scenario(self._text, (fd, fd, self._its_error_fd)).main()
        except (BrokenPipeError, ConnectionResetError):
            pass
        except BaseException:
            status = 1
            with contextlib.suppress(OSError):
                os.write(self._its_error_fd, traceback.format_exc().encode())
        self._ended(status)
        os.close(self._its_error_fd)
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):  # else what it has not read resets the connection
            while self._far.recv(1 << 16):
                pass
        self._far.close()

    def _ended(self, status: int) -> None:
        with self._lock:
            self._status = status if self._status is None else self._status

    def end(self) -> None:
        self._ended(-signal.SIGTERM)
        with self._lock, contextlib.suppress(OSError):
            if not self._is_closed:
                self._near.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end()
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if is_first:
            self._near.close()
            os.close(self.error_fd)
            self._thread.join(_END_S)

    def explain(self, messages: str, /) -> PscpError:
        self._thread.join(_END_S)
        assert self._status is not None, "it does not end"
        return error_of(self._status, messages)
