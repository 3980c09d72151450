"""A channel of a connection that an earlier run, or the user's own ssh, keeps open.

The ssh that has the connection gets the other ends of our pipes, and moves the bytes itself.

Not here: what is said to it (mux_protocol.py), who finds its socket (../connect/persistent.py).
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import time
from collections.abc import Sequence

from pscp.ground import errors
from pscp.transports.channel import FAILED_STATUS, Pipes
from pscp.transports.control_sockets import USERS, Control
from pscp.transports.mux_protocol import MuxMaster, MuxRefusal
from pscp.transports.openssh import error_of, last_line
from pscp.transports.ssh_settings import Request

_END_S = 2.0  # for the exit status, once the pipes have ended


class MuxChannel(Pipes):
    """A session on a connection that is open already."""

    pid = 0  # that of the ssh, once it has answered

    def __init__(self, control: Control, request: Request, environment: Sequence[str]) -> None:
        """Ask for the session. Raises ConnectionLost if no ssh listens at the socket."""
        self._path, self._is_users = control.path, control.persist == USERS
        self._failure: errors.PscpError | None = None  # why the session was not opened
        self._is_open, self._asked_s = False, time.monotonic()
        try:
            self._master = MuxMaster(control.path)
        except OSError as error:
            raise errors.ConnectionLost(f"a connection that was kept: {error}") from None
        super().__init__()
        self.control = control
        try:
            self._master.ask_alive()
            self._master.ask_session(
                request.text, environment, self.far_fds, is_subsystem=request.is_subsystem
            )
        except OSError as error:
            self.close()
            raise errors.ConnectionLost(f"a connection that was kept: {error}") from None
        finally:
            for fd in self.far_fds:
                os.close(fd)

    def answers(self, limit_s: float) -> bool:
        """Return whether the server opens the session within this time.

        A connection whose server is silent is given up for everybody who comes later; those who
        use it already decide for themselves.
        """
        if not self._is_open and self._failure is None:
            try:
                self.pid = self._master.wait_for_session(limit_s)
                self._is_open, self.opening_s = True, time.monotonic() - self._asked_s
            except MuxRefusal as error:
                self._failure = error_of(FAILED_STATUS, str(error))
            except TimeoutError:
                self._failure = errors.ConnectionLost(f"no answer after {limit_s:.0f} s")
                if not self._is_users:
                    self._retire()
            except OSError as error:
                self._failure = errors.ConnectionLost(str(error))
        return self._is_open

    def _retire(self) -> None:
        with contextlib.suppress(OSError), contextlib.closing(MuxMaster(self._path)) as master:
            master.stop()

    def end(self) -> None:
        self._master.end()
        self._end_input()

    def close(self) -> None:
        self.end()
        self._close_fds(3)
        self._master.close()

    def explain(self, messages: str, /) -> errors.PscpError:
        if self._failure is not None:
            return self._failure
        try:
            return error_of(self._master.wait_for_exit(_END_S), messages)
        except OSError:
            return errors.ConnectionLost(last_line(messages) or "the connection closed")


def sent_environment(patterns: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Return what ssh would send of the environment: SendEnv's `patterns`, SetEnv's `settings`."""
    found = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    return [*found, *settings]
