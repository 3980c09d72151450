"""Sends the agent over a fresh channel, reads its HELLO, and exchanges frames with it.

A random marker separates what a login prints from the agent's output. An agent of which all is
known, since another one of its host has said HELLO, is sent frames as soon as it is started.

Not here: what is sent (agent_program.py), what comes on standard error (messages.py), the way
there (transports/), the remote command (transports/remote_command.py), which frames a lane
exchanges after the HELLO (transfer/lanes/lane.py).
Read next: ../endpoint/serving/agent.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from pscp.connect.agent_program import bundle
from pscp.connect.logins.authenticator import Patience
from pscp.connect.messages import READS_MAX, Messages
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import session, system, wire
from pscp.ground import errors
from pscp.ground.contexts import with_context
from pscp.ground.stops import ended_by
from pscp.transports import Channel
from pscp.transports.channel import AGENT
from pscp.transports.openssh import last_line
from pscp.transports.remote_command import STARTED

_BANNER_MAX_BYTES = 64 * 1024  # what a login may print before the agent speaks
_SHOW_AFTER_S = 0.2  # standard error is shown so long after it came, unless an error repeats it
_LOOK_S = 0.01  # between two looks whether ssh has made its socket, as it does once it is let in
_STOP_S = 3.0  # for the answer to what has begun at the far end, once a call is to end
_SHOWN_MAX = 200  # characters of a login's output in an error
_HANGUP = select.POLLHUP | getattr(select, "POLLRDHUP", 0)  # the latter is Linux's, of sockets
_RTT_MAX_S = 60.0  # a longer round trip in the HELLO of a program for SFTP is refused
SILENCE_S = 60.0  # an agent ticks every 10 s, so after this the agent or the path is dead
# What is raised where an answer is used that has another shape than it should have;
# struct.error for a frame that is too short.
_OF_TYPE = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError)
MISSHAPEN = (wire.WireError, struct.error, *_OF_TYPE)


class FirstSteps(NamedTuple):
    """The steps of a session's first connection, beside those of each."""

    when_let_in: Callable[[Channel], None]  # called once the host lets the login in
    request: requests.Request | None = None  # sent to the agent with its program


class Facts(NamedTuple):
    """The far host's Python, system and hashes, as an agent told them in its HELLO."""

    hello: Mapping[str, object] = {}
    hashes: Mapping[str, float] = {}  # the MB/s of each digest that it has


def new_marker(*, says_hello: bool = True) -> bytes:
    """Return a channel's marker, which also tells the agent whether to say HELLO."""
    return os.urandom(wire.MARKER_BYTES - 1) + (
        wire.WITH_HELLO if says_hello else wire.WITHOUT_HELLO
    )


def send_agent(channel: Channel, *, is_known: bool = False) -> None:
    """Send the agent, if the channel needs one, and the channel's marker, unless that was done.

    One that is known says no HELLO. A command that ended already is no error here: its messages
    will tell more than a broken pipe.
    """
    if channel.marker:
        return
    channel.marker = new_marker(says_hello=not is_known or channel.kind is not AGENT)
    program = bundle() if channel.kind is AGENT else b""
    size = b"%08d" % len(program) if program else b""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        system.write_all(channel.write_fd, [size, program, channel.marker])


class RemoteAgent:
    """An agent that is running at the far end, and the channel to it."""

    plane = "ssh"  # what carries the frames

    def __init__(
        self,
        channel: Channel,
        notice: Callable[[str], None] | None = None,
        patience: Patience | None = None,
        facts: Facts | None = None,
        first: FirstSteps | None = None,
    ) -> None:
        """Send the agent, unless it was sent already, and wait for its HELLO.

        Args:
            channel: the channel to the remote command.
            notice: shows people a line of what the login prints.
            patience: the time for the login; without it SILENCE_S.
            facts: what another agent of the host has told; then this waits for the login alone.
            first: the steps of a session's first connection, beside those of each.

        Raises ConnectError (its subclass tells why there is no agent) and ProtocolError.
        """
        self.channel = channel
        self._messages = Messages(channel, notice)
        self.rtt_s = math.inf  # the shortest round trip of a request and its reply
        self.decoder = wire.Decoder()
        self.facts = facts or Facts()
        self._when_let_in = first.when_let_in if first is not None else None
        # Sent with the agent; its answer is not received yet.
        self._ahead = first.request if first is not None and not self.is_sftp else None
        self.start_s = math.inf  # from when python3 was found to the HELLO: two round trips or more
        self._seen: bytes | None = b""  # what came before the marker; None: that has come
        self.was_kept = False  # from an earlier copy: it may have died unnoticed
        self._early_s = 0.0  # when the latest early request was made
        self._early = 0  # requests that were made early, and are not answered yet
        self._answers: list[tuple[object, bool]] = []  # to such requests
        self.session = session.Session(session.COORDINATOR)
        self._sending = threading.Lock()  # of a lane that relays, two threads send
        self._poll = select.poll()
        for fd in (channel.read_fd, channel.error_fd):
            self._poll.register(fd, select.POLLIN)
        try:
            with ended_by(lambda error: channel.end()):
                self._greet(patience or Patience(SILENCE_S, lambda: 0.0), facts is not None)
            self._messages.show()
        except BaseException as error:
            channel.close()
            self._messages.show(str(error))
            raise
        self._messages.notice = None
        self.cipher = self._messages.cipher  # of the connection; "": not known

    @property
    def hello(self) -> Mapping[str, object]:
        """The fields of the agent's HELLO (docs/protocol.md)."""
        return self.facts.hello

    @property
    def hashes(self) -> Mapping[str, float]:
        """The MB/s of each digest that it has."""
        return self.facts.hashes

    def _greet(self, patience: Patience, is_known: bool) -> None:
        send_agent(self.channel, is_known=is_known)
        if self._ahead is not None:
            with contextlib.suppress(errors.ConnectionLost):  # as in send_agent()
                self.send(wire.ASK, 0, 0, requests.to_json(self._ahead))
        self._read_until(partial(self._wait_for_login, patience), STARTED, self.channel.marker)
        self._note_let_in()
        started_s = time.monotonic()
        if self.channel.marker.endswith(wire.WITHOUT_HELLO):
            self.session.advance(session.HELLO)
        else:
            self._skip_banner(partial(self._wait_for_login, patience))
            self._take_hello()
            self.start_s = time.monotonic() - started_s

    def _take_hello(self) -> None:
        frame = self.receive()
        if frame is None:
            raise self.explain()
        with shaped("a HELLO"):
            hello = frame.json()
        self.session.advance(session.HELLO)
        hashes = hello.get("hashes") if isinstance(hello, dict) else None
        if not isinstance(hello, dict) or not isinstance(hashes, dict):
            raise errors.ProtocolError("a HELLO of another shape")
        speeds = {str(k): v for k, v in hashes.items() if isinstance(v, float) and v > 0}
        if self.is_sftp and "rtt_s" in hello:  # over SFTP a request may take several round trips
            self.rtt_s = _checked_rtt_s(hello["rtt_s"])
        self.facts = Facts(hello, speeds)

    # --- frames from the agent

    def receive(self) -> wire.Frame | None:
        """Return the next frame, valid until the next call; None when the channel ended.

        Raises ConnectionLost after a minute of silence, ProtocolError for what is no frame,
        ConnectError where no agent has begun, and CopyError where the stream that it is a lane of
        has lost its far end.
        """
        try:
            if self._seen is not None:
                self._skip_banner(self._wait)
            frame = self.decoder.next()
            while frame is None:
                spaces = self.decoder.spaces()
                self._wait()
                count = self.channel.read(spaces)
                if count == 0:
                    return None
                self.decoder.filled(count)
                frame = self.decoder.next()
                if frame is None and self.decoder.is_trickling(count):
                    time.sleep(wire.GATHER_S)
            self.session.check(frame)
            if frame.type == wire.REFUSED:
                raise _refused(frame)
            return frame
        except wire.WireError as error:
            raise errors.ProtocolError(str(error)) from None

    def _wait(self) -> None:
        """Wait until the agent has written something; read the standard error meanwhile."""
        while self.channel.read_fd not in (ready := self._wait_for_s(SILENCE_S)):
            if not ready:
                raise errors.ConnectionLost(f"nothing came for {SILENCE_S:.0f} s")

    def _wait_for_s(self, limit_s: float) -> dict[int, int]:
        """Wait for so long. Read the standard error, and return the descriptors that have input."""
        ready = dict(self._poll.poll(None if limit_s == math.inf else limit_s * 1000))
        if self.channel.error_fd in ready and not self._messages.read():
            self._poll.unregister(self.channel.error_fd)
        return ready

    def read_messages(self) -> bool:
        """Read what has come on standard error, without waiting. Return False at its end."""
        return self.channel.error_fd not in self._wait_for_s(0) or not self._messages.is_over

    def explain(self) -> errors.PscpError:
        """Return why the channel ended."""
        for _ in range(READS_MAX):
            if self.channel.error_fd not in self._wait_for_s(0):
                break
        messages = self._messages.text()
        error = self.channel.explain(messages)
        has_begun = self.hello and self._seen is None
        if has_begun and isinstance(error, errors.NoAgent):
            return errors.ProtocolError(f"the agent failed: {last_line(messages)}")
        if has_begun and isinstance(error, errors.NoSftp):
            return errors.ConnectionLost("the far end ended SFTP")
        return error

    def _read_until(self, wait: Callable[[], None], *words: bytes) -> None:
        """Read what comes before the marker, until one of these words has come."""
        seen = self._seen or b""
        while not any(word in seen for word in words):
            wait()
            data = os.read(self.channel.read_fd, 4096)
            self._seen = seen = seen + data
            if len(seen) > _BANNER_MAX_BYTES:
                raise _no_agent(seen)
            if not data:
                raise self._ended_early(seen)
        self.channel.login_over()

    def _skip_banner(self, wait: Callable[[], None]) -> None:
        """Read past what a login prints, up to the marker; show it to people."""
        self._read_until(wait, self.channel.marker)
        banner, _, rest = (self._seen or b"").partition(self.channel.marker)
        self._seen = None
        self.decoder.feed(rest)
        banner = banner.replace(STARTED, b"")
        if banner and self._messages.notice is not None:
            self._messages.notice(banner.decode(errors="replace").rstrip("\r\n"))

    def _wait_for_login(self, patience: Patience) -> None:
        """Wait until something comes, as long as the login may take; show people its messages."""
        ready, said_s = dict[int, int](), time.monotonic()
        while self.channel.read_fd not in ready:
            silent_s = time.monotonic() - said_s
            show_s = _SHOW_AFTER_S - silent_s if self._messages.has_unshown else math.inf
            look_s = _LOOK_S if self._when_let_in is not None else math.inf
            ready = self._wait_for_s(max(0.0, min(patience.left_s(), show_s, look_s)))
            if ready:
                said_s = time.monotonic()
            elif show_s <= look_s:
                self._messages.show()
            control = self.channel.control
            if look_s < math.inf and control is not None and os.path.exists(control.path):
                self._note_let_in()

    def _note_let_in(self) -> None:
        tell, self._when_let_in = self._when_let_in, None
        if tell is not None:
            tell(self.channel)

    def _ended_early(self, seen: bytes) -> errors.PscpError:
        """Return why the channel ended before the marker came."""
        error, said, has_python = self.explain(), seen.replace(STARTED, b""), STARTED in seen
        if not (isinstance(error, errors.NoAgent) or (has_python and self._is_lost_alone(error))):
            return error
        if has_python:  # it may be as well as ever the next time
            why = last_line(self._messages.text()) or "it said nothing"
            return errors.AgentFailed(f"the agent failed as it began: {why}")
        return _no_agent(said) if said.strip() else error

    def _is_lost_alone(self, error: errors.PscpError) -> bool:
        """Return whether the connection is there for others, so that a signal ended the agent."""
        control = self.channel.control
        if control is None or control.is_master or not isinstance(error, errors.ConnectionLost):
            return False
        return control.is_alive()

    # --- frames to the agent

    def send(
        self,
        type_: int,
        id_: int = 0,
        offset: int = 0,
        payload: system.Payload = b"",
        flags: int = 0,
    ) -> None:
        """Send one frame; the payload is bytes, or a Block of a file. Raises ConnectionLost."""
        header = wire.header(type_, payload, id_, offset, flags)
        try:
            with self._sending:
                self.channel.write(header, payload)
        except (BrokenPipeError, ConnectionResetError):
            raise errors.ConnectionLost("the connection closed") from None

    @property
    def is_sftp(self) -> bool:
        """Return whether the far end has no agent, but SFTP."""
        return self.channel.kind is not AGENT

    def is_closed(self) -> bool:
        """Return whether the far end has hung up, without reading from it."""
        poll = select.poll()
        poll.register(self.channel.read_fd, _HANGUP)
        return bool(dict(poll.poll(0)).get(self.channel.read_fd, 0) & _HANGUP)

    def close(self) -> None:
        self.channel.close()

    def ask(self, request: requests.Request, is_slow: bool = False) -> tuple[object, bool]:
        """Make a request while no lane serves this channel.

        Returns the answer, and whether it is a failure. Raises ConnectError, ProtocolError. If it
        is the request that was sent with the agent, it is not made again.

        With `is_slow` the answer takes time, so the round trip is measured by a Ping before it.
        """
        with self._answering(is_slow):
            ahead, self._ahead = self._ahead, None
            answer = self._reply() if ahead is not None else (None, False)
            if ahead == request:
                return answer
        begun_s = time.monotonic()
        has_early = self._early > 0
        with self._answering(is_slow):
            for each in [requests.Ping(), request] if is_slow else [request]:
                self.send(wire.ASK, 0, 0, requests.to_json(each))
            self._receive_early()
            answer = self._reply()
            if not has_early:
                self.rtt_s = min(self.rtt_s, time.monotonic() - begun_s)
            return self._reply() if is_slow else answer

    @contextlib.contextmanager
    def _answering(self, is_slow: bool = False) -> Iterator[None]:
        """Run a block that reads answers. If it is cut short, who asks next would get the rest.

        With `is_slow` something begins at the far end that the caller has to end, over this very
        channel: so a stop leaves it time for its answer.
        """
        late = threading.Timer(_STOP_S, with_context(self.channel.end))
        late.daemon = True
        with ended_by(lambda error: late.start() if is_slow else self.channel.end()):
            try:
                yield
            except BaseException:
                if not is_slow:
                    self.channel.end()
                raise
            finally:
                late.cancel()

    def ask_early(self, request: requests.Request) -> None:
        """Make a request whose answer early_answer() returns, before or after others are made.

        The round trip is measured by a Ping before it, as that answer may take time.
        """
        self._early_s = time.monotonic()
        for each in (requests.Ping(), request):
            self.send(wire.ASK, 0, 0, requests.to_json(each))
        self._early += 1

    def early_answer(self) -> tuple[object, bool]:
        """Return the answer to the latest such request; those to earlier ones are dropped."""
        with self._answering():
            self._receive_early()
        answers, self._answers = self._answers, []
        return answers[-1]

    def _receive_early(self) -> None:
        """Receive the answers to early requests, which come before any other."""
        while self._early:
            self._reply()
            self.rtt_s = min(self.rtt_s, time.monotonic() - self._early_s)
            self._answers.append(self._reply())
            self._early -= 1

    def _reply(self) -> tuple[object, bool]:
        while True:
            frame = self.receive()
            if frame is None:
                raise self.explain()
            if frame.type == wire.REPLY:
                with shaped():
                    return frame.json(), bool(frame.flags & wire.FAILED)


@contextlib.contextmanager
def shaped(what: str = "an answer") -> Iterator[None]:
    """Run a block that uses what the far end sent. Raises ProtocolError if its shape is another."""
    try:
        yield
    except MISSHAPEN as error:
        raise errors.ProtocolError(f"{what} of another shape: {error}") from None


def _checked_rtt_s(value: object) -> float:
    """Return the round trip's seconds, if they are possible: Python's JSON has NaN and infinity.

    Raises ProtocolError.
    """
    if not isinstance(value, float) or not 0 <= value <= _RTT_MAX_S:
        raise errors.ProtocolError(f"a HELLO with a round trip of {value!r} s")
    return value


def _refused(frame: wire.Frame) -> Exception:
    """Return the error of an agent's last frame."""
    why = str(frame.json())[:_SHOWN_MAX]
    if why == wire.STREAM_GONE:  # a new connection brings no other
        return errors.CopyError(why)
    return wire.WireError(f"the agent ended: {why}")


def _no_agent(seen: bytes) -> errors.NoAgent:
    shown = last_line(seen.decode(errors="replace"))[:_SHOWN_MAX]
    return errors.NoAgent(f"the far end did not start the agent; it said: {shown}")
