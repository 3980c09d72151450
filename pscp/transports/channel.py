"""Channels: their interface, and the part that those which consist of three pipes share.

Not here: the kinds of channels (openssh.py, mux_channel.py, direct.py, libraries/external.py,
../sftp/channel.py), the sockets of further channels (control_sockets.py).
"""

from __future__ import annotations

import math
import os
import threading
from typing import Protocol

from pscp.endpoint.frames import system
from pscp.ground.errors import PscpError
from pscp.ground.leaving import LoginProcess
from pscp.transports.control_sockets import Control

# The exit status of a process that cannot carry a channel, as of ssh(1). Programs that load nothing
# of pscp, to start at once, have the number themselves.
FAILED_STATUS = 255

# What a channel ends at: None is an agent, which has to be sent, or any other command; else it is
# SFTP, and this is how what lands is verified there (--verify).
Kind = str | None
AGENT: Kind = None


class Channel(Protocol):
    """One byte pipe to a command at the far end, by its descriptors here."""

    read_fd: int  # the command's standard output
    write_fd: int  # the command's standard input
    error_fd: int  # the standard error of the command and of the transport
    control: Control | None = None  # the socket by which channels share its connection
    kind: Kind = AGENT  # what is at its other end
    marker: bytes = b""  # what comes before the output of the agent, once that was sent
    is_logging_in: bool = True  # nothing has come yet from what is at its other end
    opening_s: float = math.inf  # a round trip, and what held it up; infinite where it is not known

    @property
    def pid(self) -> int:
        """The process that encrypts, or one that hands over its descriptors; 0: this one."""
        ...

    @property
    def login(self) -> LoginProcess | None:
        """The process that logs in, or has done so; None: that one has ended, or serves others."""
        return None

    def login_over(self) -> None:
        """Note that something has come from what is at the other end."""
        self.is_logging_in = False

    def read(self, spaces: list[memoryview]) -> int:
        """Read what has come into the spaces, and return the number of bytes; 0 at the end."""
        return os.readv(self.read_fd, spaces)

    def write(self, header: bytes, payload: system.Payload) -> None:
        """Write a frame. Raises OSError, ConnectionLost."""
        system.send(self.write_fd, header, payload)

    def answers(self, limit_s: float) -> bool:
        """Return whether a connection that was kept open answers within this time.

        True for a channel with a login of its own, of which nothing is known yet.
        """
        return True

    def end(self) -> None:
        """End the channel, from any thread; a thread that reads or writes sees its end."""

    def let_go(self, patience_s: float) -> None:
        """Let a login that nobody needs any more end by itself, but only so long; then close.

        The far end sees the end of its input. sshd counts a login that is cut as an offence. A
        channel without a login of its own is closed at once.
        """
        self.close()

    def close(self) -> None:
        """End the channel and close the descriptors. Idempotent."""

    def explain(self, messages: str, /) -> PscpError:
        """Return why the channel ended, given the text that came on `error_fd`."""
        ...

    def close_data_fds(self) -> None:
        """Close read_fd and write_fd here, since a child process has them now."""
        raise AssertionError("this channel is not given to a child process")


class Pipes(Channel):
    """The part of a channel that is three pipes; another program, or a thread, has `far_fds`."""

    def __init__(self) -> None:
        far_in, self.write_fd = os.pipe()
        self.read_fd, far_out = os.pipe()
        self.error_fd, far_error = os.pipe()
        self.far_fds = (far_in, far_out, far_error)
        self._closing = threading.Lock()  # held where descriptors are closed or replaced
        self._open_fds = [self.write_fd, self.read_fd, self.error_fd]
        for fd in (self.write_fd, self.read_fd):
            system.widen_pipe(fd)

    def close_data_fds(self) -> None:
        self._close_fds(2)

    def _close_fds(self, count: int) -> None:
        with self._closing:
            for fd in (self.write_fd, self.read_fd, self.error_fd)[:count]:
                if fd in self._open_fds:
                    self._open_fds.remove(fd)
                    os.close(fd)

    def _end_input(self) -> None:
        with self._closing:
            if self.write_fd in self._open_fds:
                end_input(self.write_fd, self.error_fd)


def end_input(fd: int, read_only_fd: int) -> None:
    """Let the reader of this pipe see its end, and every later write to it fail.

    The number stays in use, since another thread may be about to write to it.
    """
    try:
        read_fd, write_fd = os.pipe()
    except OSError:  # there are no more descriptors
        os.dup2(read_only_fd, fd, inheritable=False)
        return
    os.close(read_fd)
    os.dup2(write_fd, fd, inheritable=False)
    os.close(write_fd)
