"""The direct plane of a session (--plane): lanes over TCP, which agents at the far end take.

The first connection stays on SSH and carries no lane: its agent is asked to listen whenever lanes
are to be opened. Where this end cannot reach it, it is asked to connect to this end. Where neither
works the lanes are SSH's.

Not here: the lanes' agents (direct_agent.py), the keys (plane_keys.py), who is let in
(../endpoint/gate.py), the far end (../endpoint/direct.py).
Read next: direct_agent.py.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from pscp import errors
from pscp.connect.bootstrap import RemoteAgent, plane_modules
from pscp.connect.direct_agent import DirectAgent, PlainAgent
from pscp.connect.plane_keys import Identity, new_identity
from pscp.endpoint import failures, gate, link, requests
from pscp.log import Log
from pscp.options import MAX_PORT, Options
from pscp.transports.direct import PlainChannel, TlsPump

_SPARE = 8  # lanes that may follow while the far end still listens
_EARLY = 16  # lanes, where their number is not known yet
_FAILED_MAX = 3  # lanes over which nothing came; then there are to be no others
_FRESH_S = gate.OPEN_S * 0.8  # it is not counted upon for longer
_DIAL_S = 3.0  # a filtered port answers nothing
_LANES_MAX = 256  # tokens of a request

_log = Log("connect")

Note = Callable[[str], None]  # shows people a line


class Refused(Exception):
    """Raised where no lane can be opened directly; the text says why."""


class _Listening(NamedTuple):
    """A far end that listens."""

    port: int
    address: str  # that SSH came in on, as the far end sees it
    tokens: list[str]  # not used yet
    until_s: float


class _Keys:
    """The keys of both ends, made by a thread while ssh logs in."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._make, name="keys", daemon=True)
        self._thread.start()

    def _make(self) -> None:
        self._here, self._there = new_identity(), new_identity()

    def get(self) -> tuple[Identity, Identity]:
        """Return the keys of this end and of the far one."""
        self._thread.join()
        return self._here, self._there


class DirectPlane:
    """Opens the direct lanes of one session to one host. Any thread may use it."""

    def __init__(self, address: str, new_control: Callable[[Options], RemoteAgent]) -> None:
        """Make the plane to a host's name or address, with no connection yet.

        `new_control` logs in, without asking, where the control connection was lost.
        """
        self._address, self._new_control = address, new_control
        self._turn = threading.Lock()  # held while the far end is asked; guards what follows
        self._control: RemoteAgent | None = None
        self._keys: _Keys | None = None
        self._listening: _Listening | None = None
        # The tokens of a request that was made early, and when that was.
        self._early: tuple[list[str], float] | None = None
        self._dials = False  # the far end has to connect to this one
        self._failed = 0  # lanes over which nothing ever came; 0 once one has worked
        self._has_worked = False
        self._refused = ""

    @property
    def refused(self) -> str:
        """Why this session opens no direct lanes; "" while it does."""
        return self._refused

    def prepare(self, options: Options) -> None:
        """Begin to make keys, if lanes of this session will need them."""
        if options.plane == "tls":
            with self._turn:
                self._keys = self._keys or _Keys()

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
        with self._turn:
            control, self._control = self._control, None
            self._listening = self._early = None
        if control is not None:
            control.close()

    def expect(self, options: Options, control: RemoteAgent) -> None:
        """Ask the far end to listen for the lanes that first() will open; its answer can wait."""
        count = options.connections or _EARLY
        tokens = [gate.new_token() for _ in range(min(count + _SPARE, _LANES_MAX))]
        with self._turn:
            control.ask_early(self._request(options, 0, tokens))
            self._early = tokens, time.monotonic()

    # --- lanes

    def first(
        self, options: Options, control: RemoteAgent, count: int, note: Note
    ) -> list[RemoteAgent]:
        """Open the first lanes, and keep the connection by which they were asked for.

        Raises Refused where none could be opened, and ConnectError where that connection is lost.
        """
        with self._turn:
            self._control = control
        try:
            lanes = self._open(options, count, note)
        except (Refused, errors.ConnectError) as error:
            with self._turn:
                self._control = self._listening = None
                self._refused = str(error)
            raise
        threading.Thread(target=self._hear, args=(control,), name="control", daemon=True).start()
        return lanes

    def _settle(self, is_working: bool) -> None:
        """Note that something came over a lane, or that it ended before anything did."""
        with self._turn:
            self._has_worked = self._has_worked or is_working
            self._failed += not is_working
            if not self._has_worked and self._failed >= _FAILED_MAX and not self._refused:
                self._refused = "the lanes were lost before anything came"
                _log.debug("direct lanes: %s", self._refused)

    def connect(self, options: Options) -> RemoteAgent:
        """Open one more lane. Raises ConnectError."""
        try:
            return self._open(options, 1, _log_note)[0]
        except Refused as error:
            raise errors.ConnectionLost(str(error)) from None

    def _open(self, options: Options, count: int, note: Note) -> list[RemoteAgent]:
        """Open so many lanes, or as many as can be. Raises Refused where it is none."""
        reason: Refused | None = None
        if not self._dials:
            listening = self._listens(options, count, note)
            try:
                return self._dialled(options, listening)
            except Refused as error:
                _log.debug("direct lanes: %s", error)
                reason = error
        try:
            lanes = self._accepted(options, count, note)
        except Refused as error:
            raise Refused(f"{reason or error}") from None
        self._dials = True
        return lanes

    def _listens(self, options: Options, count: int, note: Note) -> _Listening:
        """Return a far end that listens for so many lanes. The lanes in `tokens` are the caller's.

        Raises Refused.
        """
        with self._turn:
            spare = self._listening
            if self._early is not None and self._control is not None:
                spare = self._answered_early(self._control, *self._early, note)
                self._early = None
            if spare is None or len(spare.tokens) < count or time.monotonic() > spare.until_s:
                tokens = [gate.new_token() for _ in range(min(count + _SPARE, _LANES_MAX))]
                address, port = self._ask(options, 0, tokens, note)
                spare = _Listening(port, address, tokens, time.monotonic() + _FRESH_S)
            self._listening = spare._replace(tokens=spare.tokens[count:])
            return spare._replace(tokens=spare.tokens[:count])

    def _answered_early(
        self, control: RemoteAgent, tokens: list[str], asked_s: float, note: Note
    ) -> _Listening | None:
        """Return the far end that was asked early to listen; None if it is lost."""
        try:
            address, port = _address_in(control.early_answer(), note)
        except errors.ConnectionLost:
            return None
        return _Listening(port, address, tokens, asked_s + _FRESH_S)

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

        Raises Refused, and ConnectError where no control connection can be had.
        """
        request = self._request(options, dial, tokens)
        control = self._control
        try:
            if control is None:
                raise errors.ConnectionLost("no control connection")
            answer = control.ask(request)
        except errors.ConnectionLost:
            if control is not None:
                control.close()
            self._control = None
            self._control = control = self._new_control(options)
            answer = control.ask(request)
        return _address_in(answer, note)

    def _identities(self, options: Options) -> tuple[Identity, Identity]:
        if options.plane != "tls":
            return Identity("", ""), Identity("", "")
        self._keys = self._keys or _Keys()
        return self._keys.get()

    # --- to the far end

    def _dialled(self, options: Options, listening: _Listening) -> list[RemoteAgent]:
        """Connect a lane for each token, all at once. Raises Refused where none was let in."""
        places = _places(self._address, listening)

        def dial(number: int, token: str) -> RemoteAgent:
            pump = _new_pump(options, number)
            try:
                sock = _connected(places, options, number)
                return self._lane(options, sock, pump, token=token)
            except BaseException:
                if pump is not None:
                    pump.close()
                raise

        return _all_at_once(dial, listening.tokens)

    def _lane(
        self, options: Options, sock: socket.socket, pump: TlsPump | None, *, token: str
    ) -> RemoteAgent:
        """Return the agent at the other end of a connection, which is taken over.

        With a token the connection was made from here, and is not let in yet. Raises OSError.
        """
        control = self._control
        if control is None:
            sock.close()
            raise OSError("no control connection")
        if pump is None:
            try:
                if token:
                    gate.knock(sock, token)
            except BaseException:
                sock.close()
                raise
            return PlainAgent(PlainChannel(sock), control, self._settle)
        here, there = self._identities(options)
        pump.begin(sock, own=here.both, peer=there.certificate, token=token, is_server=not token)
        return DirectAgent(pump, "tls", control, self._settle)

    # --- from the far end

    def _accepted(self, options: Options, count: int, note: Note) -> list[RemoteAgent]:
        """Have the far end connect so many lanes to this one. Raises Refused where none came."""
        tokens = [gate.new_token() for _ in range(count)]
        first, last = options.plane_ports
        try:
            address = _own_address(self._address)
            listening = gate.listen(address, (first, last), partial(_prepare, options))
        except OSError as error:
            raise Refused(f"cannot listen here: {error.strerror}") from None
        stopping, stop = os.pipe()
        port, entry = listening.getsockname()[1], gate.Gate(listening, tokens, stopping)
        admitted: list[socket.socket] = []
        thread = threading.Thread(target=entry.run, args=(admitted.append,), daemon=True)
        thread.start()
        try:
            with self._turn:
                self._ask(options, port, tokens, note)
            thread.join()
        finally:
            os.close(stop)
            thread.join()

        def begin(number: int, sock: socket.socket) -> RemoteAgent:
            pump = _new_pump(options, number)
            try:
                return self._lane(options, sock, pump, token="")
            except BaseException:
                if pump is not None:
                    pump.close()
                raise

        return _all_at_once(begin, admitted)

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
    """Return the address and the port of an answer. Raises Refused where it is a failure."""
    answer, failed = reply
    if failed:
        raise Refused(f"the far end: {failures.checked(answer)['message']}")
    match answer:
        case [str(address), int(port), str(text)] if 0 < port <= MAX_PORT:
            if text:
                note(text)
            return address, port
    raise errors.ProtocolError("an answer of another shape: no address")


T = TypeVar("T")


def _all_at_once(open_lane: Callable[[int, T], RemoteAgent], of: list[T]) -> list[RemoteAgent]:
    """Open a lane for each of these, in threads. Raises Refused if none could be opened."""
    lanes: list[RemoteAgent] = []
    reasons = ["no connection came"]

    def run(number: int, one: T) -> None:
        try:
            lanes.append(open_lane(number, one))
        except OSError as error:
            reasons.append(error.strerror or str(error))

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(of)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not lanes:
        raise Refused(reasons[-1])
    return lanes


def _places(address: str, listening: _Listening) -> list[tuple[str, int]]:
    """Return where the far end may be reached: its own address, if the host's name has it.

    Else the name's addresses first: what the far end sees may be behind a translation.
    """
    port, own = listening.port, listening.address
    try:
        found = socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM)
    except OSError:
        found = []
    named = list(dict.fromkeys(str(where[0]) for *_, where in found))
    return [(each, port) for each in ([own] if own in named else [*named, own])]


def _connected(places: list[tuple[str, int]], options: Options, number: int) -> socket.socket:
    """Return a socket that is connected to the first place that answers. Raises OSError."""
    source = options.bind[number % len(options.bind)] if options.bind else ""
    failure = OSError("no address")

    def prepare(sock: socket.socket) -> None:
        _prepare(options, sock)
        if source:
            sock.bind((source, 0))

    for place in places:
        try:
            return gate.dial(place, prepare, _DIAL_S)
        except OSError as error:
            failure = error
    raise failure


def _new_pump(options: Options, number: int) -> TlsPump | None:
    if options.plane != "tls":
        return None
    return TlsPump(options.cpus[number % len(options.cpus)] if options.cpus else None)


def _prepare(options: Options, sock: socket.socket) -> None:
    sizes = options.rcvbuf_bytes or 0, options.sndbuf_bytes or 0
    link.prepare(sock, options.congestion or "", *sizes)


def _own_address(address: str) -> str:
    """Return the address of this machine from which it reaches this one. Raises OSError."""
    family, kind, *_, where = socket.getaddrinfo(address, 9, 0, socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as sock:
        sock.connect(where)
        return str(sock.getsockname()[0])


def _log_note(text: str) -> None:
    _log.debug("%s", text)
