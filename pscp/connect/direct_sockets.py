"""A lane of the direct plane at this end: an agent over a TCP connection instead of SSH; where the
far end may be reached and from where; with TLS the keys of the session, in memory only.

Not here: when a connection is made (direct_plane.py), its channel (../transports/direct.py), who
lets whom in (../endpoint/plane/gate.py).
Read next: ../transports/direct.py.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.logins.authenticator import Patience
from pscp.endpoint.frames import session, wire
from pscp.endpoint.plane import gate, link
from pscp.ground import errors
from pscp.ground.contexts import start_thread
from pscp.ground.libraries import check_installed
from pscp.options.options import Options
from pscp.transports import Channel

_DIAL_S = 3.0  # a filtered port answers nothing
# The ends' clocks may differ; a certificate counts only while its session asks for lanes.
_YEARS = 2000, 2100


def check() -> None:
    """Raise UsageError if the package that makes keys is not installed."""
    check_installed("cryptography", before="--plane tls: ")


class Identity(NamedTuple):
    """One end's private key and certificate (PEM)."""

    key: str
    certificate: str

    @property
    def both(self) -> str:
        return self.key + self.certificate


def new_identity() -> Identity:
    """Make a key, and a certificate that it has signed itself."""
    import datetime  # here: this takes 0.1 s to load, while ssh logs in

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    begin, end = (datetime.datetime(year, 1, 1) for year in _YEARS)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pscp")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity(private.decode("ascii"), certificate.public_bytes(pem).decode("ascii"))


class Keys:
    """The keys of both ends, made by a thread while ssh logs in."""

    def __init__(self) -> None:
        """Raises UsageError if the package that makes them is not installed."""
        check()
        self._thread = start_thread("keys", self._make)

    def _make(self) -> None:
        self._here, self._there = new_identity(), new_identity()

    def get(self) -> tuple[Identity, Identity]:
        """Return the keys of this end and of the far one."""
        self._thread.join()
        return self._here, self._there


class DirectAgent(RemoteAgent):
    """An agent on the machine where SSH has started another one, of which everything is known."""

    def __init__(
        self, channel: Channel, plane: str, control: RemoteAgent, settle: Callable[[bool], None]
    ) -> None:
        """`settle` is called once: with True when a frame has come, with False if none ever does.

        Something else than an agent may take connections in the place of the far end.
        """
        self.plane, self._rtt_s = plane, control.rtt_s
        self._settle: Callable[[bool], None] | None = settle
        super().__init__(channel, facts=control.facts)

    def receive(self) -> wire.Frame | None:
        try:
            frame = super().receive()
        except errors.PscpError:
            self._settled(False)
            raise
        if self._settle is not None:
            self._settled(frame is not None)
        return frame

    def _settled(self, is_working: bool) -> None:
        settle, self._settle = self._settle, None
        if settle is not None:
            settle(is_working)

    def _greet(self, patience: Patience, is_known: bool) -> None:
        self.rtt_s, self._seen = self._rtt_s, None
        self.session.advance(session.HELLO)


class NoDirectLane(Exception):
    """Raised where no lane can be opened directly; the text says why."""


T = TypeVar("T")


def all_at_once(open_lane: Callable[[int, T], RemoteAgent], of: list[T]) -> list[RemoteAgent]:
    """Open a lane for each of these, in threads. Raises NoDirectLane if none could be opened."""
    lanes: list[RemoteAgent] = []
    reasons = ["no connection came"]

    def run(number: int, one: T) -> None:
        try:
            lanes.append(open_lane(number, one))
        except OSError as error:
            reasons.append(error.strerror or str(error))
        except errors.PscpError as error:  # there are too many processes, or open files
            reasons.append(error.message)

    for thread in [start_thread(None, run, number, one) for number, one in enumerate(of)]:
        thread.join()
    if not lanes:
        raise NoDirectLane(reasons[-1])
    return lanes


def places(host: str, own: str, port: int) -> list[tuple[str, int]]:
    """Return where the far end may be reached: its own address, if the host's name has it.

    Else the name's addresses first: what the far end sees may be behind a translation.
    """
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except OSError:
        found = []
    named = list(dict.fromkeys(str(where[0]) for *_, where in found))
    return [(each, port) for each in ([own] if own in named else [*named, own])]


def connected(to: list[tuple[str, int]], options: Options, number: int) -> socket.socket:
    """Return a socket that is connected to the first place that answers. Raises OSError."""
    source = options.address(number)
    failure = OSError("no address")

    def bind(sock: socket.socket) -> None:
        prepare(options, sock)
        if source:
            sock.bind((source, 0))

    for place in to:
        try:
            return gate.dial(place, bind, _DIAL_S)
        except OSError as error:
            failure = error
    raise failure


def prepare(options: Options, sock: socket.socket) -> None:
    sizes = options.rcvbuf_bytes or 0, options.sndbuf_bytes or 0
    link.prepare(sock, options.congestion or "", *sizes)


def own_address(address: str) -> str:
    """Return the address of this machine from which it reaches this one. Raises OSError."""
    family, kind, *_, where = socket.getaddrinfo(address, 9, 0, socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as sock:
        sock.connect(where)
        return str(sock.getsockname()[0])
