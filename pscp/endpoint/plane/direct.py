"""The direct plane at the far end: a process that listens, and one for each lane that it lets in.

The agent that SSH has started is asked for it (OpenPlane). Each lane's process is a copy of that
agent, so it starts at once, and ends with its connection.

Not here: who is let in (gate.py), the sockets (link.py), what a lane's agent does
(../serving/agent.py).
Read next: gate.py.
"""

import contextlib
import functools
import os
import signal
import socket
import sys
import traceback
from typing import Callable, List, Tuple

from ..asking import requests
from ..frames import failures, wire
from . import congestion, gate, link

Serve = Callable[[link.Link], None]  # serves a lane until it ends
_DIAL_S = 10.0
# A pipe, once there is one: its writing end is open as long as this agent lives, and no longer.
_living: List[int] = []


def open_plane(request: requests.OpenPlane, serve: Serve) -> Tuple[object, bool]:
    """Return the answer, and whether it is a failure. `serve` is run in each lane's process."""
    try:
        lanes = Lanes(request, serve)
        where = os.environ.get("SSH_CONNECTION", "").split()
        if len(where) != 4 or len(request.tokens) > gate.TOKENS_MAX:
            raise failures.Refusal(failures.UNSUPPORTED, "", "no address that SSH came in on")
        if request.dial:
            return lanes.dial(where[0]), False
        return lanes.listen(where[2]), False
    except (*failures.EXPECTED, ImportError, ValueError) as error:
        if isinstance(error, (ImportError, ValueError)):
            error = failures.Refusal(failures.UNSUPPORTED, "", str(error))
        return failures.from_exception(error, ""), True


class Lanes:
    """The common part of the lanes of one request."""

    def __init__(self, request: requests.OpenPlane, serve: Serve) -> None:
        """Raises OSError where this Python has no TLS 1.3, and ssl.SSLError for a bad key."""
        self._request, self._serve = request, serve
        self._rcvbuf, self._sndbuf = request.buffers
        self._note = ""
        if request.plane == "tls":
            self._context = link.context(not request.dial, request.own, request.peer)

    def listen(self, address: str) -> Tuple[str, int, str]:
        """Listen at this address, in a process of its own, and return where; and a note, or ""."""
        first, last = self._request.ports
        listening = gate.listen(address, (first, last), self._prepare)
        port = listening.getsockname()[1]
        if not _living:
            _living.extend(os.pipe())
        entry = gate.Gate(listening, self._request.tokens, os.dup(_living[0]))

        def admit(sock: socket.socket) -> None:
            try:
                if os.fork() == 0:
                    _run_and_exit(lambda: self._enter(entry, sock))
            finally:
                sock.close()

        def run() -> None:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no lane's process is waited for
            entry.run(admit)

        try:
            _in_background(run)
        finally:
            entry.close()
        return address, port, self._note

    def _enter(self, entry: gate.Gate, sock: socket.socket) -> None:
        entry.close()
        self._begin(sock, True)

    def dial(self, address: str) -> Tuple[str, int, str]:
        """Connect to the coordinator, each lane in a process of its own."""
        for token in self._request.tokens:
            _in_background(functools.partial(self._connect, address, token))
        return address, self._request.dial, self._note

    def _connect(self, address: str, token: str) -> None:
        sock = gate.dial((address, self._request.dial), self._prepare, _DIAL_S)
        gate.knock(sock, token)
        self._begin(sock, False)

    def _prepare(self, sock: socket.socket) -> None:
        try:
            link.prepare(sock, self._request.congestion, self._rcvbuf, self._sndbuf)
        except OSError as error:
            self._note = "the far end cannot use %s: %s" % (
                self._request.congestion,
                error.strerror,
            )
            link.prepare(sock, "", self._rcvbuf, self._sndbuf)

    def _begin(self, sock: socket.socket, is_server: bool) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a stream's command is waited for
        if not self._request.congestion:
            congestion.follow(congestion.LiveSocket(sock))
        if self._request.plane != "tls":
            self._serve(link.PlainLink(sock))
            return
        lane = link.TlsLink(sock, self._context, is_server)
        lane.shake_hands(self._request.peer)
        self._serve(lane)


def _in_background(run: Callable[[], None]) -> None:
    """Run this in a process that nobody waits for, and that does not have SSH's channel."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            for fd in (nothing, *_living):
                os.close(fd)
            _run_and_exit(run)
    finally:
        os._exit(0)


def _run_and_exit(run: Callable[[], None]) -> None:
    """Run this, and end the process. What went wrong is written to standard error."""
    status = 1
    try:
        with contextlib.suppress(OSError):  # nobody reads standard error any more
            try:
                run()
                status = 0
            except (OSError, wire.WireError) as error:
                sys.stderr.write("pscp agent: a direct lane: %s\n" % error)
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(status)
