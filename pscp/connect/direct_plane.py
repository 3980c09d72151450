"""The direct plane of a session (--plane): lanes over TCP, which agents at the far end take.

The first connection stays on SSH and carries no lane: its agent is asked to listen whenever lanes
are to be opened. Where this end cannot reach it, it is asked to connect to this end. Where neither
works the lanes are SSH's.

Not here: the lanes' agents, the keys, and how this end is connected (direct_sockets.py), who is let
in (../endpoint/plane/gate.py), the far end (../endpoint/plane/direct.py).
Read next: direct_sockets.py.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pscp.connect import direct_sockets
from pscp.connect.agent_program import plane_modules
from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.direct_sockets import DirectAgent, Identity, Keys, NoDirectLane
from pscp.connect.known.host_setup import DirectPath
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.plane import gate
from pscp.ground import errors
from pscp.ground.contexts import start_thread
from pscp.ground.locations import MAX_PORT
from pscp.ground.log import Log
from pscp.options.options import Options
from pscp.transports import Channel
from pscp.transports.direct import PlainChannel, TlsPump

_SPARE = 8  # lanes that may follow while the far end still listens
_EARLY = 16  # lanes, where their number is not known yet
_FAILED_MAX = 3  # lanes over which nothing came; then there are to be no others
_FRESH_S = gate.OPEN_S * 0.8  # it is not counted upon for longer
_CLOSED = "the session was closed before it had connected"

_log = Log("connect")

Note = Callable[[str], None]  # shows people a line
NewControl = Callable[[Options, Callable[[Channel], None]], RemoteAgent]
Kind = tuple[object, ...]  # what a far end that listens was told of the lanes


class _Listening(NamedTuple):
    """A far end that listens."""

    kind: Kind
    port: int
    address: str  # that SSH came in on, as the far end sees it
    tokens: list[str]  # not used yet
    until_s: float

    def is_for(self, kind: Kind, count: int) -> bool:
        """Return whether so many lanes of this kind will be let in."""
        has_more = len(self.tokens) >= count and time.monotonic() <= self.until_s
        return has_more and self.kind == kind


class _Early(NamedTuple):
    """A request to listen that was made early."""

    control: RemoteAgent
    kind: Kind
    tokens: list[str]
    asked_s: float


class DirectPlane:
    """Opens the direct lanes of one session to one host. Any thread may use it."""

    def __init__(self, path: DirectPath, new_control: NewControl) -> None:
        """Make the plane to a host, with no connection yet.

        `new_control` logs in, without asking, where the control connection was lost. It gets a
        function that takes the channel before its login.
        """
        self.path, self._new_control = path, new_control
        self._is_closed = False  # set by any thread, before that ends what is waited for
        self._channel: Channel | None = None  # of the login that `new_control` waits for
        self._dials = False  # the far end has to connect to this one; any thread sets it
        self._turn = threading.Lock()  # held while the far end is asked; guards what follows
        self._control: RemoteAgent | None = None
        self._keys: Keys | None = None
        self._listening: _Listening | None = None
        self._early: _Early | None = None
        self._failed = 0  # lanes over which nothing ever came
        self._has_worked = False
        self.refused = path.why_not  # why this session opens no direct lanes; "" while it does

    def prepare(self, options: Options) -> None:
        """Begin to make keys, if lanes of this session will need them."""
        if options.plane == "tls":
            with self._turn:
                self._keys = self._keys or Keys()

    def take_control(self) -> RemoteAgent | None:
        """Return the control connection, if there is one that is alive. The caller then has it."""
        with self._turn:
            control, self._control = self._control, None
            self._listening = self._early = None
        if control is not None and control.is_closed():
            control.close()
            return None
        return control

    def has_control(self) -> bool:
        """Return whether there is a control connection that is alive."""
        with self._turn:
            return self._control is not None and not self._control.is_closed()

    def close(self) -> None:
        """Close the control connection; whoever waits for it, or for another one, gets an error."""
        self._is_closed = True
        control = self._control
        for channel in (control.channel if control is not None else None, self._channel):
            if channel is not None:
                channel.end()
        with self._turn:
            self._take_over(None)
            self._early = None

    def expect(self, options: Options, control: RemoteAgent) -> None:
        """Ask the far end to listen for the lanes that first() will open; its answer can wait."""
        tokens = _tokens_for(options.connections or _EARLY)
        with self._turn:
            control.ask_early(self._request(options, 0, tokens))
            self._early = _Early(control, _kind(options), tokens, time.monotonic())

    # --- lanes

    def first(
        self, options: Options, control: RemoteAgent, count: int, note: Note
    ) -> list[RemoteAgent]:
        """Open a call's first lanes, and keep the connection by which they were asked for.

        Where another call has lanes already, its connection asks, and this one is closed. Raises
        NoDirectLane where none could be opened; then take_control() returns the one that asked.
        Raises ConnectError where it is lost, and no other one can be had.
        """
        with self._turn:
            is_alive = self._control is not None and not self._control.is_closed()
            if not is_alive:
                self._take_over(control)
        if is_alive:
            control.close()
        try:
            return self._open(options, count, note)
        except NoDirectLane as error:
            self.refused = str(error)
            raise

    def _settle(self, is_working: bool) -> None:
        """Note that something came over a lane, or that it ended before anything did."""
        with self._turn:
            self._has_worked = self._has_worked or is_working
            self._failed += not is_working
            if not self._has_worked and self._failed >= _FAILED_MAX and not self.refused:
                self.refused = "the lanes were lost before anything came"
                _log.debug("direct lanes: %s", self.refused)

    def connect(self, options: Options) -> RemoteAgent:
        """Open one more lane. Raises ConnectError."""
        try:
            return self._open(options, 1, partial(_log.debug, "%s"))[0]
        except NoDirectLane as error:
            raise errors.ConnectionLost(str(error)) from None

    def _open(self, options: Options, count: int, note: Note) -> list[RemoteAgent]:
        """Open so many lanes, or as many as can be. Raises NoDirectLane where it is none."""
        reason: NoDirectLane | None = None
        if not self._dials:
            listening = self._listens(options, count, note)
            try:
                return self._dialled(options, listening)
            except NoDirectLane as error:
                _log.debug("direct lanes: %s", error)
                reason = error
                self._forget(listening)
            if self.path.is_proxied:  # the far end sees another host than this one
                raise reason
        try:
            lanes = self._accepted(options, count, note)
        except NoDirectLane as error:
            raise reason or error from None
        self._dials = True
        return lanes

    def _forget(self, listening: _Listening) -> None:
        """Count no longer upon a far end that let no connection in."""
        with self._turn:
            if self._listening is not None and self._listening.port == listening.port:
                self._listening = None

    def _listens(self, options: Options, count: int, note: Note) -> _Listening:
        """Return a far end that listens for so many lanes. The lanes in `tokens` are the caller's.

        Raises NoDirectLane.
        """
        with self._turn:
            if self._control is not None and self._control.is_closed():
                self._listening = None  # it has closed its port
            spare, kind = self._listening, _kind(options)
            early, self._early = self._early, None
            if early is not None and early.control is self._control and early.kind == kind:
                spare = self._answered_early(early, note)
            if spare is None or not spare.is_for(kind, count):
                tokens = _tokens_for(count)
                address, port = self._ask(options, 0, tokens, note)
                spare = _Listening(kind, port, address, tokens, time.monotonic() + _FRESH_S)
            self._listening = spare._replace(tokens=spare.tokens[count:])
            return spare._replace(tokens=spare.tokens[:count])

    def _answered_early(self, early: _Early, note: Note) -> _Listening | None:
        """Return the far end that was asked early to listen; None if it is lost."""
        try:
            address, port = _address_in(early.control.early_answer(), note)
        except errors.ConnectionLost:
            return None
        return _Listening(early.kind, port, address, early.tokens, early.asked_s + _FRESH_S)

    def _request(self, options: Options, dial: int, tokens: list[str]) -> requests.OpenPlane:
        here, there = self._identities(options)
        return requests.OpenPlane(
            plane_modules(),
            options.plane,
            dial,
            list(options.plane_ports),
            tokens,
            there.both,
            here.certificate,
            options.congestion or "",
            [options.rcvbuf_bytes or 0, options.sndbuf_bytes or 0],
        )

    def _ask(self, options: Options, dial: int, tokens: list[str], note: Note) -> tuple[str, int]:
        """Ask the far end to listen, or to connect to our port; return the address and the port.

        Raises NoDirectLane, and ConnectError where no control connection can be had.
        """
        return _address_in(self._answer(options, self._request(options, dial, tokens)), note)

    def _answer(self, options: Options, request: requests.OpenPlane) -> tuple[object, bool]:
        """Ask over the control connection; where that was lost, over a new one."""
        if self._control is not None:
            try:
                return self._control.ask(request)
            except (errors.ConnectError, errors.ProtocolError) as error:
                _log.debug("the control connection: %s", error.message)
                self._take_over(None)
        if self._is_closed:
            raise errors.ConnectionLost(_CLOSED)
        try:
            control = self._new_control(options, self._logs_in)
        finally:
            self._channel = None
        self._take_over(control)
        if self._is_closed:
            self._take_over(None)
            raise errors.ConnectionLost(_CLOSED)
        return control.ask(request)

    def _logs_in(self, channel: Channel) -> None:
        self._channel = channel
        if self._is_closed:
            channel.end()

    def _take_over(self, control: RemoteAgent | None) -> None:
        """Have another control connection, or none; close the one before. With _turn held."""
        before, self._control = self._control, control
        if before is control:
            return
        self._listening = None
        if before is not None:
            before.close()
        if control is not None:
            start_thread("control", self._hear, control)

    def _identities(self, options: Options) -> tuple[Identity, Identity]:
        if options.plane != "tls":
            return Identity("", ""), Identity("", "")
        self._keys = self._keys or Keys()
        return self._keys.get()

    # --- to the far end

    def _dialled(self, options: Options, listening: _Listening) -> list[RemoteAgent]:
        """Connect a lane for each token, all at once. Raises NoDirectLane where none was let in."""
        places = direct_sockets.places(self.path.host, listening.address, listening.port)

        def dial(number: int, token: str) -> RemoteAgent:
            connect = partial(direct_sockets.connected, places, options, number)
            return self._lane(options, number, connect, token)

        return direct_sockets.all_at_once(dial, listening.tokens)

    def _lane(
        self, options: Options, number: int, connect: Callable[[], socket.socket], token: str
    ) -> RemoteAgent:
        """Return the agent at the other end of the connection that `connect` makes, or has made.

        With a token it is made from here, and is not let in yet. Raises OSError.
        """
        if options.plane == "tls":
            return self._tls_lane(options, TlsPump(options.cpu(number)), connect, token)
        sock = connect()
        try:
            control = self._control_of_lane()
            if token:
                gate.knock(sock, token)
        except BaseException:
            sock.close()
            raise
        return DirectAgent(PlainChannel(sock), "plain", control, self._settle)

    def _tls_lane(
        self, options: Options, pump: TlsPump, connect: Callable[[], socket.socket], token: str
    ) -> RemoteAgent:
        """Have the process, which starts meanwhile, take over the connection. Raises OSError."""
        try:
            with connect() as sock:
                control, (here, there) = self._control_of_lane(), self._identities(options)
                keys = here.both, there.certificate
                pump.begin(sock, *keys, token=token, is_server=not token)
        except BaseException:
            pump.close()
            raise
        return DirectAgent(pump, "tls", control, self._settle)

    def _control_of_lane(self) -> RemoteAgent:
        control = self._control
        if control is None:
            raise OSError("no control connection")
        return control

    # --- from the far end

    def _accepted(self, options: Options, count: int, note: Note) -> list[RemoteAgent]:
        """Have the far end connect so many lanes to here. Raises NoDirectLane where none came."""
        tokens = [gate.new_token() for _ in range(count)]
        first, last = options.plane_ports
        try:
            address = direct_sockets.own_address(self.path.host)
            listening = gate.listen(
                address, (first, last), partial(direct_sockets.prepare, options)
            )
        except OSError as error:
            raise NoDirectLane(f"cannot listen here: {error.strerror}") from None
        stopping, stop = os.pipe()
        port, entry = listening.getsockname()[1], gate.Gate(listening, tokens, stopping)
        admitted: list[socket.socket] = []
        thread = start_thread(None, entry.run, admitted.append)
        try:
            with self._turn:
                self._ask(options, port, tokens, note)
            thread.join()
            os.close(stop)
        except BaseException:
            os.close(stop)
            thread.join()
            for sock in admitted:
                sock.close()
            raise

        def begin(number: int, sock: socket.socket) -> RemoteAgent:
            return self._lane(options, number, lambda: sock, "")

        return direct_sockets.all_at_once(begin, admitted)

    # --- the control connection

    def _hear(self, control: RemoteAgent) -> None:
        """Read what lanes' agents write to standard error, until there is another connection.

        It comes over SSH, which would stand still if nobody read it.
        """
        waiting = select.poll()
        waiting.register(control.channel.error_fd, select.POLLIN)
        while True:
            ready = waiting.poll(1000)
            with self._turn:
                if self._control is not control:
                    return
                if ready and not control.read_messages():
                    return


def _address_in(reply: tuple[object, bool], note: Note) -> tuple[str, int]:
    """Return the address and the port of an answer. Raises NoDirectLane where it is a failure."""
    answer, failed = reply
    if failed:
        raise NoDirectLane(f"the far end: {failures.parse_failure(answer)['message']}")
    match answer:
        case [str(address), int(port), str(text)] if 0 < port <= MAX_PORT:
            if text:
                note(text)
            return address, port
    raise errors.ProtocolError("an answer of another shape: no address")


def _tokens_for(count: int) -> list[str]:
    """Return the tokens of so many lanes, and of some that may follow."""
    return [gate.new_token() for _ in range(min(count + _SPARE, gate.TOKENS_MAX))]


def _kind(options: Options) -> Kind:
    sizes = options.rcvbuf_bytes, options.sndbuf_bytes
    return options.plane, options.plane_ports, options.congestion, *sizes
