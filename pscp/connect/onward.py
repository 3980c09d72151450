"""Connections from the source's host to the sink's (--direct), as the sink's agents have them.

Each goes through a connection to the source's host, whose agent runs an ssh of that host's. What
the coordinator and the sink's agent say to each other passes through; the data does not come here.
A thread a connection ("onward") makes it, and passes on what comes.

Not here: the far side (../endpoint/serving/onward.py), which chunks go that way
(../transfer/onward.py), the direct plane, beside SSH (direct_plane.py).
Read next: ../endpoint/serving/onward.py.
"""

from __future__ import annotations

import base64
import itertools
import os
import threading
from collections.abc import Callable

from pscp.connect.agent_program import bundle, copy_modules
from pscp.connect.bootstrap import RemoteAgent, new_marker, shaped
from pscp.connect.known.host_setup import HostSetup
from pscp.connect.openers import Opener
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, system, wire
from pscp.endpoint.serving import onward
from pscp.ground import errors
from pscp.ground.contexts import start_thread
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.options.options import Options
from pscp.transports import Channel, Control, SshSetup
from pscp.transports.openssh import error_of
from pscp.transports.remote_command import command

Connect = Callable[[Callable[[Channel], None]], RemoteAgent]  # to the source's host
Reply = Callable[[object, bool], None]

_TELL_BYTES = 512 * 1024  # in one request
_DIAL = 0  # the number of that request; the others count from 1 on
_JOIN_S = 5.0  # for the thread to end, once its connection is ended

_log = Log("connect")


def words(host: Location, options: Options) -> list[str]:
    """Return the command line of the ssh at the source's host: its own setup, and nothing asked.

    Of the user's words it has the host, the user, the port, the cipher and the compression.
    """
    theirs = Options(
        port=options.port,
        cipher=options.cipher,
        compress=options.compress,
        address_family=options.address_family,
        timeout_s=options.timeout_s,
        batch=True,
    )
    setup = SshSetup(alive_is_ours=True)
    argv = setup.argv(host, theirs, may_prompt=False, number=0, control=None)
    return [*argv, command()]


class OnwardChannel(Channel):
    """One byte pipe to the sink's agent, through the agent at the source's host.

    What comes is in a pipe, as of a process; what goes is told, in whole frames.
    """

    pid = 0  # no process here encrypts for it
    write_fd = -1

    def __init__(self, connect: Connect, way: tuple[Location, Location], options: Options) -> None:
        """Begin to connect; `way` is from which host to which."""
        self.marker = new_marker()
        self._connect, self._way, self._words = connect, way, words(way[1], options)
        self.read_fd, output = os.pipe()
        self.error_fd, errors_fd = os.pipe()
        self._pipes = {onward.OUTPUT: output, onward.ERRORS: errors_fd}  # the thread's
        self._numbers = itertools.count(_DIAL + 1)
        # What the thread sets, and others read:
        self._agent: RemoteAgent | None = None  # once it was asked to dial
        self._status: int | None = None  # ssh's, once it has ended
        self._error: errors.PscpError | None = None  # why the way to the source's host ended
        # Who sends puts a reply in, and the thread takes it out: one operation each.
        self._replies: dict[int, Reply] = {}
        self._lock = threading.Lock()  # guards what follows
        self._below: Channel | None = None  # to the source's host
        self._left: RemoteAgent | None = None  # that of the source's host, once that is over
        self._is_ended = self._is_closed = False
        self._thread = start_thread("onward", self._run)

    # --- what is sent; by the thread that has the lane

    def write(self, header: bytes, payload: system.Payload) -> None:
        """Have the source's host pass a frame on, before whatever is asked of it next."""
        assert isinstance(payload, bytes)  # no data goes this way
        frame = header + payload
        for begin in range(0, len(frame), _TELL_BYTES):
            text = base64.b64encode(frame[begin : begin + _TELL_BYTES]).decode("ascii")
            self._send(next(self._numbers), onward.Tell(text))

    def ask(self, request: requests.Request, reply: Reply) -> None:
        """Ask the agent at the source's host; `reply` is called by this channel's thread.

        What it raises of ProtocolError, or for an answer of another shape, ends the channel.
        """
        number = next(self._numbers)
        self._replies[number] = reply
        self._send(number, request)

    def send(self, type_: int, id_: int, payload: bytes) -> None:
        """Send a frame to the agent at the source's host. Raises ConnectionLost."""
        if self._agent is None:
            raise errors.ConnectionLost("the connection closed")
        self._agent.send(type_, id_, 0, payload)

    def _send(self, number: int, request: requests.Request) -> None:
        self.send(wire.ASK, number, requests.to_json(request))

    # --- what comes; by the thread

    def _run(self) -> None:
        agent: RemoteAgent | None = None
        try:
            with shaped():
                agent = self._connect(self._opened)
                self._dial(agent)
                while (frame := agent.receive()) is not None:
                    if frame.type == wire.REPLY:
                        self._take(frame)
                raise agent.explain()
        except errors.PscpError as error:
            self._fail(error)
        except OSError:  # nobody reads the pipes any more
            self._fail(errors.ConnectionLost("the connection closed"))
        finally:
            self._end_pipes()
            self._leave(agent)

    def _opened(self, channel: Channel) -> None:
        with self._lock:
            self._below, is_ended = channel, self._is_ended
        if is_ended:
            channel.end()

    def _dial(self, agent: RemoteAgent) -> None:
        _, is_failed = agent.ask(requests.Learn(copy_modules(["onward"])))
        if is_failed:
            raise errors.ProtocolError("the far end does not take a module")
        first = b"%08d" % len(bundle()) + bundle() + self.marker
        text = base64.b64encode(first).decode("ascii")
        agent.send(wire.ASK, _DIAL, 0, requests.to_json(onward.Dial(self._words, text)))
        self._agent = agent

    def _take(self, frame: wire.Frame) -> None:
        answer, is_failed = frame.json(), bool(frame.flags & wire.FAILED)
        if frame.id != _DIAL:
            reply = self._replies.pop(frame.id, None)
            if reply is None:
                raise errors.ProtocolError("a REPLY frame that was not asked for")
            reply(answer, is_failed)
        elif is_failed:
            why = failures.parse_failure(answer)["message"]
            raise errors.ConnectError(f"{self._way[0].login}: cannot run ssh: {why}", self._hint())
        elif isinstance(answer, int):
            self._status = answer
            self._end_pipes()
        else:
            kind, text = answer if isinstance(answer, list) else (None, None)
            if not isinstance(text, str) or kind not in self._pipes:
                raise errors.ProtocolError("what comes onward has another shape")
            system.write_all(self._pipes[kind], [base64.b64decode(text)])

    def _leave(self, agent: RemoteAgent | None) -> None:
        """End the connection to the source's host. close() closes it: a lane may be sending."""
        if agent is None:
            return
        agent.channel.end()
        with self._lock:
            self._left, was_closed = agent, self._is_closed
        if was_closed:
            agent.close()

    def _end_pipes(self) -> None:
        pipes, self._pipes = self._pipes, {}
        for fd in pipes.values():
            os.close(fd)

    def _fail(self, error: errors.PscpError) -> None:
        self._error = error
        _log.debug("from %s to %s: %s", self._way[0].login, self._way[1].login, error.message)

    # --- as any channel

    def end(self) -> None:
        with self._lock:
            self._is_ended, below = True, self._below
        if below is not None:
            below.end()

    def close(self) -> None:
        self.end()
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        for fd in (self.read_fd, self.error_fd):
            os.close(fd)
        self._thread.join(_JOIN_S)
        with self._lock:
            left = self._left
        if left is not None:
            left.close()

    def explain(self, messages: str, /) -> errors.PscpError:
        """Return why it ended: what the source's host, its ssh or the sink's host says."""
        if self._status is None:
            return self._error or errors.ConnectionLost("the connection closed")
        error = error_of(self._status, messages)
        message = f"from {self._way[0].login} to {self._way[1].login}: {error.message}"
        if isinstance(error, errors.AuthenticationError | errors.HostKeyError):
            return errors.ConnectError(message, self._hint())
        hint = self._hint() if isinstance(error, errors.Unreachable) else error.hint
        return type(error)(message, hint)

    def _hint(self) -> str:
        near, far = (each.login for each in self._way)
        return (
            f"leave out --direct, and all goes through this machine; or let {near} log in to {far} "
            "by itself: with a key and a known host of its own, or with -o ForwardAgent=yes"
        )


class OnwardOpener(Opener):
    """Opens the channels of the connections to the sink's host.

    Nobody is asked for their logins, and what is remembered of that host is of the path from here.
    """

    why_no_plane = "the lanes are the source's host's"

    def __init__(self, connect: Connect, source: Location, sink: Location) -> None:
        self._connect, self._way = connect, (source, sink)

    def open(
        self, setup: HostSetup, *, is_sftp: bool, may_prompt: bool, shared: Control | None = None
    ) -> Channel:
        return OnwardChannel(self._connect, self._way, setup.options)
