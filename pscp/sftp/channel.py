"""A channel to an SFTP server: sshd's subsystem, and a program here in the agent's place.

The program (agent.py) is a child process, so each lane's SFTP can use a processor of its own. For
the coordinator, the program and the channel below it are one Channel.

Not here: how the channel is opened (../transports/), what the program does (agent.py).
Read next: agent.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from pscp.endpoint.frames import wire
from pscp.ground.errors import ConnectionLost, NoAgent, NoSftp, ProtocolError, PscpError
from pscp.ground.leaving import LoginProcess
from pscp.ground.locations import Location
from pscp.options.options import Options
from pscp.sftp.protocol.packets import NO_SFTP_STATUS
from pscp.sftp.protocol.remote_hash import COMMAND
from pscp.transports import Channel, SshSetup, further_channel_argv
from pscp.transports.openssh import Child, last_line

_END_S = 2.0
_ERRORS_MAX_BYTES = 8 * 1024
_MAIN = (
    "import sys;sys.path.insert(0,sys.argv[1]);from pscp.sftp.agent import main;main(sys.argv[2])"
)


class SftpChannel(Child):
    """The channel of a lane over SFTP: the program, and the channel that it uses."""

    def __init__(self, below: Channel, host: Location, options: Options, setup: SshSetup) -> None:
        """Use `below`, which leads to the SFTP server of this host, and close it at the end.

        Hash programs run on a further channel of its connection, if that can have any.
        """
        self._below = below
        fds, program = (below.read_fd, below.write_fd), list[str]()
        package = str(Path(__file__).parent.parent.parent)
        try:
            if below.control is not None and options.verify == "auto":
                program = further_channel_argv(host, options, setup, below.control, COMMAND)
            settings = json.dumps({"fds": fds, "verify": options.verify, "program": program})
            argv = [sys.executable or "python3", "-I", "-c", _MAIN, package, settings]
            super().__init__(argv, False, None, None, pass_fds=fds)
        except BaseException:
            below.close()
            raise
        below.close_data_fds()
        self._own_error_fd, self.error_fd = self.error_fd, below.error_fd
        self.control, self.kind = below.control, options.verify

    @property
    def pid(self) -> int:
        return self._below.pid

    @property
    def login(self) -> LoginProcess | None:
        return self._below.login

    def login_over(self) -> None:
        self._below.login_over()

    def answers(self, limit_s: float) -> bool:
        return self._below.answers(limit_s)

    def end(self) -> None:
        """Let the program finish its tasks and end; the channel below ends with it."""
        self.login_over()
        if self._child.poll() is None:
            self._child.terminate()
            self._child.send_signal(signal.SIGCONT)  # a stopped one would not handle SIGTERM
        else:
            self._below.end()

    def close(self) -> None:
        super().close()
        self._below.close()

    def let_go(self, patience_s: float) -> None:
        self._child.kill()
        self._below.let_go(patience_s)
        self.close()

    def explain(self, said: str) -> PscpError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_END_S)
        status = self._child.returncode
        if status is not None and status > 0:
            has_words = select.select([self._own_error_fd], [], [], 0)[0]
            errors = os.read(self._own_error_fd, _ERRORS_MAX_BYTES) if has_words else b""
            words = last_line(errors.decode(errors="replace"))
            if status == NO_SFTP_STATUS:
                return _no_sftp(words)
            if status == wire.PROTOCOL_STATUS:
                return ProtocolError(f"over SFTP: {words.removeprefix('pscp: ')}")
            return ProtocolError(f"the program for SFTP failed: {words}")
        if status is not None and status < 0:
            return ConnectionLost(f"the program for SFTP was ended by signal {-status}")
        error = self._below.explain(said)
        if isinstance(error, NoAgent):
            return _no_sftp(last_line(said))
        return error


def _no_sftp(message: str) -> NoSftp:
    return NoSftp("the far end offers no SFTP" + (f"; it said: {message}" if message else ""))
