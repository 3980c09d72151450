"""A bench for the core: a copy whose coordinator, lanes and agents are real, all in this process.

Each connection is a Link: the coordinator has one end of it as its Channel, an Agent in a thread
has the other, and two threads carry frames between them. A Fault says what happens to one frame of
a connection: it is lost with the connection, or with all of its host's, stands still, comes late,
comes twice, has a wrong bit, or is something else. The pauses of the program are short here
(QUICK), and nothing is synced.

Not here: connections through a real ssh that fail in these ways (tests/faults), the endpoint on a
simulated kernel (tests/model).
Read next: conftest.py.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

import pscp
from pscp.connect import bootstrap, one_host
from pscp.connect.known.host_setup import HostSetup
from pscp.connect.one_host import OneHost
from pscp.connect.openers import Opener
from pscp.endpoint.frames import wire
from pscp.endpoint.serving import agent
from pscp.ground.errors import PscpError
from pscp.ground.locations import Location
from pscp.progress.progress import Reporter
from pscp.transfer import lane_pool, negotiation
from pscp.transfer.lanes import in_flight, worker
from pscp.transfer.walk import comparing, file_job
from pscp.transports import Channel, Control
from pscp.transports.openssh import error_of
from pscp.transports.remote_command import STARTED

T = TypeVar("T")
KIB = 1024
CHUNK_BYTES, BLOCK_BYTES = 64 * KIB, 16 * KIB
STRETCH_BYTES = 2 * CHUNK_BYTES
PATIENCE_S = 20.0  # for a copy that takes milliseconds, on a machine that is busy

TO, FROM = "to", "from"  # the agent
# What a connection says before there are frames: nth 0, that python3 was found, which a lane waits
# for; nth 1, the marker of the agent, which takes no frame before.
START = "start"
KILL, CUT, STALL, HOLD, LATE = "kill", "cut", "stall", "hold", "late"
FAIL = "fail"  # of a START: the agent's program ends, as for want of memory
TWICE, FLIP, NONSENSE, CALL = "twice", "flip", "nonsense", "call"
HOST = "host"  # is lost with all its connections, and refuses the next `at`

# Frames of the first connection before it is a lane: HELLO, the first question, and a Ping.
QUESTIONS = {TO: 2, FROM: 3}

QUIET_S = 0.02  # a frame that comes late is passed on once no other has moved for so long
SILENCE_S = 1.5  # after which a lane is lost; an agent ticks every 40 ms
# No lane is silent for long by any of these: where one seems to be, it is the machine that is busy.
NO_SILENCE = {KILL, CUT, LATE, FAIL, TWICE, CALL, HOST}
# What takes seconds over a network: (module, name of its constant, value on the bench).
QUICK: tuple[tuple[Any, str, Any], ...] = (
    (agent, "TICK_S", 0.04),
    (bootstrap, "SILENCE_S", SILENCE_S),
    (one_host, "_PAUSE_MAX_S", 0.002),
    (negotiation, "_PAUSES_S", (0.001, 0.002, 0.004)),
    (worker, "_PAUSE_S", (0.001, 0.004)),
    (in_flight, "_PATIENCE_S", 0.03),
    (in_flight, "_ANSWER_S", 0.1),
    (lane_pool, "_END_S", 0.3),
    (lane_pool, "LET_GO_S", 0.3),
    (os, "fsync", lambda fd: None),
    (file_job, "_REUSE_BYTES", STRETCH_BYTES),  # several requests for a small file
    (file_job, "_REUSES_LEAST", 1),
    (comparing, "CHECK_BYTES", STRETCH_BYTES),
)

# What a NONSENSE frame holds in place of its payload; none of it is a right answer to anything.
PAYLOADS = (
    b"", b"7", b'"x"', b"{}", b"[7]", b"[[7]]", b'{"kind":7}', b"1e999", b"NaN", b"\xff" * 40,
    b"[" * 3000, b'[[[["x"]]]]', b'[null,"x"]',
)  # fmt: skip
STRANGE_ID = 1 << 40


class Fault(NamedTuple):
    """What happens to the `nth` frame, from 0 on, of those in one direction that match."""

    connection: int  # in the order in which they are opened, from 0 on
    way: str  # TO or FROM the agent; START
    nth: int
    do: str
    at: int = 0  # which bit is wrong; which nonsense it is; how many connections are refused
    type: int | None = None  # of frames that match (endpoint/frames/wire.py); None: any but TICK
    contains: str = ""  # only frames with this in their payload match


def asking(request: type) -> str:
    """Return what a fault's `contains` is for frames that make this request."""
    return f'"ask":"{request.__name__}"'


Step = tuple[str, int, str]  # the way, a frame's type, and what it contains


def at_steps(steps: Mapping[str, Sequence[Step]]) -> pytest.MarkDecorator:
    """Run a test, which takes is_push and step, at each step of a push and of a pull."""
    return pytest.mark.parametrize(
        ("is_push", "step"),
        [(name == "push", step) for name, found in steps.items() for step in found],
        ids=lambda value: (
            f"{value[0]}-{wire.NAMES[value[1]]}-{value[2]}"
            if isinstance(value, tuple)
            else ("pull", "push")[value]
        ),
    )


class Bench:
    """The connections of the copies of one test."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = faults
        self.choose_silence(hung_up=-1)
        self.bugs: list[str] = []  # tracebacks of agents
        self.notes: list[str] = []  # what users of the copies were told
        self.call: Callable[[], object] = lambda: None  # what CALL does before its frame goes on
        self._before = set(threading.enumerate())
        self.changed = threading.Condition()  # guards what follows
        self.links: list[Link] = []
        self.is_released = False
        self._moved_s = time.monotonic()
        self.held = 0  # frames that stand still, or did
        self._refusals: dict[str, int] = {}  # connections that a host refuses

    # --- what a test does

    def session(self, **fields: Any) -> pscp.Session:
        """Return a session whose connections are links of this bench."""
        sizes = {"chunk_bytes": CHUNK_BYTES, "block_bytes": BLOCK_BYTES}
        chosen = {"connections": 2, "timeout_s": 1, **sizes}  # a login has two seconds
        session = pscp.Session("bench:", batch=True, remote="agent", **{**chosen, **fields})
        session.connections = self.one_host(session.host)
        return session

    def one_host(self, place: Location) -> OneHost:
        """Return the connections to a host, which are links of this bench."""
        return OneHost(place, MemoryOpener(self, place.host or ""))

    def copy(self, from_: Path, to: Path, is_push: bool, **fields: Any) -> pscp.Result:
        """Copy what is in one folder to another; raises what the copy raises.

        Fails where it does not come to an end. Late frames are not released by this.
        """
        far = ("", "bench:") if is_push else ("bench:", "")
        froms, dest = f"{far[0]}{from_}/.", f"{far[1]}{to}"
        fields = {"recursive": True, **fields}

        def run() -> pscp.Result:
            with self.session(**fields) as session:
                return session.copy(froms, dest, reporter=Notes(self.notes), raises=False)

        return self.ends(run)

    def ends(self, run: Callable[[], T], held_s: float = 0.0) -> T:
        """Call this in a thread, and return or raise what comes of it; fail if nothing does.

        With `held_s` the frames that stand still go on after so many seconds.
        """
        found: list[T | BaseException] = []

        def call() -> None:
            try:
                found.append(run())
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=call, name="bench", daemon=True)
        thread.start()
        if held_s:
            thread.join(held_s)
            self.release()
        thread.join(PATIENCE_S)
        if not found:
            stacks = shown_stacks(self._before)
            self.kill_all()
            raise AssertionError(f"it does not end:\n{stacks}")
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    def until_held(self, count: int = 1) -> None:
        """Wait until so many frames stand still, or have done so."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.held >= count, PATIENCE_S), "none is held"

    def release(self) -> None:
        """Have all frames go on that stand still; from now on none does."""
        with self.changed:
            self.is_released = True
            self.changed.notify_all()

    def close(self) -> None:
        """Release what stands still, and wait for all to end. Fails for bugs and what is left."""
        self.release()
        until_s = time.monotonic() + PATIENCE_S
        while left := [each for each in threading.enumerate() if each not in self._before]:
            left[0].join(max(0.0, until_s - time.monotonic()))
            if time.monotonic() > until_s:
                stacks = shown_stacks(self._before)
                self.kill_all()
                raise AssertionError(f"threads are left:\n{stacks}")
        assert not self.bugs, "\n".join(self.bugs)
        assert all(link.channel.is_closed for link in self.links), "a channel was not closed"

    def kill_all(self) -> None:
        self.release()
        for link in list(self.links):
            link.kill()

    # --- what links do

    def choose_silence(self, hung_up: int) -> None:
        """Have silence be noticed soon where there may be some, once this link has ended."""
        if bootstrap.SILENCE_S <= PATIENCE_S:  # else it is a test's own
            left = [fault for fault in self.faults if fault.connection != hung_up]
            is_patient = all(fault.do in NO_SILENCE for fault in left)
            vars(bootstrap)["SILENCE_S"] = PATIENCE_S if is_patient else SILENCE_S

    def connect(self, host: str) -> Link:
        with self.changed:
            link = Link(self, len(self.links), host, is_refused=self._refusals.get(host, 0) > 0)
            self._refusals[host] = max(0, self._refusals.get(host, 0) - 1)
            self.links.append(link)
        link.start()
        return link

    def lose_host(self, host: str, refusals: int) -> None:
        """Lose all connections to a host, which then refuses so many."""
        with self.changed:
            self._refusals[host] = refusals
            lost = [link for link in self.links if link.host == host]
        for link in lost:
            link.kill()

    def moved(self) -> None:
        with self.changed:
            self._moved_s = time.monotonic()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        with self.changed:
            self.held += 1
            self.changed.notify_all()
            self.changed.wait_for(is_so)

    def wait_for_quiet(self, is_over: Callable[[], bool]) -> None:
        """Wait until no frame has moved for a while: all others came before this one."""
        with self.changed:
            while not (self.is_released or is_over()):
                left_s = self._moved_s + QUIET_S - time.monotonic()
                if left_s <= 0:
                    return
                self.changed.wait(left_s)


class Notes(Reporter):
    """Keeps what a copy tells its user."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def note(self, text: str) -> None:
        self._notes.append(text)


class MemoryOpener(Opener):
    """Opens a session's channels as links of a bench."""

    logs_in = False

    def __init__(self, bench: Bench, host: str) -> None:
        self._bench, self._host = bench, host

    def open(
        self, setup: HostSetup, *, is_sftp: bool, may_prompt: bool, shared: Control | None = None
    ) -> MemoryChannel:
        assert not is_sftp
        return self._bench.connect(self._host).channel


class MemoryChannel(Channel):
    """The coordinator's end of a link."""

    pid = os.getpid()

    def __init__(self, link: Link, end: socket.socket, error_fd: int) -> None:
        self._link, self._socket = link, end
        self.read_fd = self.write_fd = end.fileno()
        self.error_fd = error_fd
        self._lock = threading.Lock()  # guards what follows
        self.is_closed = False

    def end(self) -> None:
        self._link.hang_up()

    def close(self) -> None:
        self.end()
        with self._lock:
            if not self.is_closed:
                self.is_closed = True
                self._socket.close()
                os.close(self.error_fd)

    def explain(self, messages: str, /) -> PscpError:
        return error_of(self._link.status, messages)


class Link:
    """One connection: its agent, and the threads that carry frames to it and from it."""

    def __init__(self, bench: Bench, number: int, host: str, *, is_refused: bool) -> None:
        self._bench, self.number, self.host = bench, number, host
        self._is_refused = is_refused
        near, self._near = socket.socketpair()
        self._of_agent, self._far = socket.socketpair()
        error_fd, self._error_fd = os.pipe()
        self.channel = MemoryChannel(self, near, error_fd)
        self.status = 255  # the exit status of an ssh: that of the agent, 255 for a lost connection
        self._lock = threading.Lock()  # held where sockets are shut down or closed; guards these
        self._is_hung_up = False  # the coordinator has ended it, or a fault did at its side
        self._is_behind = False  # frames for the agent stand still: they come once all is over
        self._is_still = False  # nothing is carried in either direction
        self._is_over = False
        self._is_known = False  # the agent says no HELLO; set before its thread is started
        self.carried = {TO: 0, FROM: 0}  # frames, without ticks; each is one thread's
        self._threads = [
            threading.Thread(target=run, name=f"{name} {number}", daemon=True)
            for name, run in (("to", self._to), ("from", self._from), ("agent", self._serve))
        ]

    def start(self) -> None:
        self._threads[0].start()

    def hang_up(self) -> None:
        """End the coordinator's side; what stands still for the agent comes to it late."""
        self._bench.choose_silence(self.number)
        with self._lock:
            self._is_hung_up = True
            self._shut(self._near)
            if not self._is_behind:
                self._shut(self._far)
        with self._bench.changed:
            self._bench.changed.notify_all()

    def kill(self) -> None:
        """Lose the connection with all that is on its way."""
        with self._lock:
            self._is_behind = False
        self.hang_up()

    def _shut(self, end: socket.socket) -> None:
        if not self._is_over:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    # --- the threads

    def _to(self) -> None:
        """Take the agent's program, which is here already; then carry frames to the agent."""
        with contextlib.suppress(OSError), self._near.makefile("rb") as incoming:
            self._say(0, STARTED)
            size = incoming.read(8)
            incoming.read(int(size or 0))
            marker = incoming.read(wire.MARKER_BYTES)
            if len(marker) == wire.MARKER_BYTES:
                self._is_known = marker.endswith(wire.WITHOUT_HELLO)
                self._say(1, marker)
                for thread in self._threads[1:]:
                    thread.start()
                self._carry(TO, incoming, self._far)
        drain(self._near)
        with self._lock:
            self._shut(self._far)
        for thread in self._threads[1:]:
            if thread.ident is not None:
                thread.join()
        self._close()

    def _say(self, nth: int, said: bytes) -> None:
        """Say what comes before frames, which may come late, or never."""
        if self._is_refused:
            self.kill()
        for fault in self._bench.faults:
            if fault[:3] == (self.number, START, nth):
                if fault.do == FAIL:
                    os.write(self._error_fd, b"MemoryError\n")
                    self.status = 1
                if fault.do in (KILL, FAIL):
                    self.kill()
                elif fault.do == LATE:
                    self._bench.wait_for_quiet(lambda: self._is_hung_up)
                elif fault.do == CALL:
                    self._bench.call()
                else:
                    self._bench.wait_until(lambda: self._bench.is_released or self._is_hung_up)
        self._near.sendall(said)

    def _from(self) -> None:
        with contextlib.suppress(OSError), self._far.makefile("rb") as incoming:
            self._carry(FROM, incoming, self._near)
        drain(self._far)
        with self._lock:  # as where an ssh ends with the command that it ran
            self._shut(self._near)

    def _serve(self) -> None:
        """Be the agent's process: as agent.main() does, with these descriptors for 0 and 1."""
        fd = self._of_agent.fileno()
        served = agent.Agent(agent.Pipes(fd, fd))
        try:
            served.run(self._is_known)
        except (BrokenPipeError, ConnectionResetError):
            pass
        except wire.WireError as error:
            with contextlib.suppress(OSError):  # nobody may want to know
                os.write(self._error_fd, f"pscp agent: {error}\n".encode())
            if not self._is_hung_up:
                self.status = wire.PROTOCOL_STATUS
        except BaseException:
            self._bench.bugs.append(traceback.format_exc())
        with self._lock:
            self._shut(self._of_agent)
        served.lose()  # or it would tick once more on a descriptor that is another's by then

    def _close(self) -> None:
        with self._lock:
            self._is_over = True
            for end in (self._near, self._far, self._of_agent):
                end.close()
            os.close(self._error_fd)

    # --- frames

    def _carry(self, way: str, incoming: Any, to: socket.socket) -> None:
        here = self.number, way
        waiting = [[fault, 0] for fault in self._bench.faults if fault[:2] == here]
        while len(frame := bytearray(incoming.read(wire.HEADER.size))) == wire.HEADER.size:
            frame += incoming.read(wire.HEADER.unpack(frame)[3])
            frames = [frame]
            for fault in due(waiting, frame):
                frames = self._meet(fault, way, frames)
            if self._is_still:
                frames = self._held(way, frames)
            if frame[0] != wire.TICK:
                self.carried[way] += 1
                self._bench.moved()
            for each in frames:
                self._pass(way, to, each)

    def _pass(self, way: str, to: socket.socket, frame: bytearray) -> None:
        try:
            to.sendall(frame)
        except OSError:
            if way == TO or not self._is_behind:
                raise  # else nobody hears an agent that comes late

    def _meet(self, fault: Fault, way: str, frames: list[bytearray]) -> list[bytearray]:
        """What becomes of this frame."""
        if fault.do in (KILL, HOST):
            self._lose(fault)
            return []
        if fault.do == CUT:
            with self._lock:
                self._is_behind = way == TO
            self.hang_up()
            return self._held(way, frames)
        if fault.do == STALL:
            self._is_still = True
        elif fault.do == HOLD:
            return self._held(way, frames)
        elif fault.do == LATE:
            self._bench.wait_for_quiet(lambda: self._is_hung_up)
        elif fault.do == CALL:
            self._bench.call()
        elif fault.do == TWICE:
            return frames * 2
        elif fault.do == FLIP:
            return [flipped(each, fault.at) for each in frames]
        elif fault.do == NONSENSE:
            return [nonsense(each, fault.at) for each in frames]
        return frames

    def _lose(self, fault: Fault) -> None:
        if fault.do == HOST:
            self._bench.lose_host(self.host, fault.at)
        self.kill()

    def _held(self, way: str, frames: list[bytearray]) -> list[bytearray]:
        """Wait until all is released. An answer to somebody who has hung up is lost."""
        bench = self._bench
        with self._lock:
            self._is_behind = self._is_behind or way == TO
        if way == TO:
            bench.wait_until(lambda: bench.is_released)
            return frames
        bench.wait_until(lambda: bench.is_released or self._is_hung_up)
        return frames if not self._is_hung_up else []


def due(waiting: list[list[Any]], frame: bytearray) -> Iterator[Fault]:
    """Yield the faults whose turn it is with this frame."""
    for place in list(waiting):
        fault, seen = place
        is_any = fault.type is None and frame[0] != wire.TICK
        if (is_any or fault.type == frame[0]) and fault.contains.encode() in frame[
            wire.HEADER.size :
        ]:
            place[1] += 1
            if seen == fault.nth:
                waiting.remove(place)
                yield fault


def flipped(frame: bytearray, bit: int) -> bytearray:
    bit %= 8 * len(frame)
    found = bytearray(frame)
    found[bit // 8] ^= 1 << bit % 8
    return found


def nonsense(frame: bytearray, at: int) -> bytearray:
    """Return a well-formed frame that is no answer: of another payload, type, file or place."""
    type_, flags, _, _, id_, offset, _ = wire.HEADER.unpack_from(frame)
    payload = bytes(frame[wire.HEADER.size :])
    strange = [(type_, each, id_, offset, flags) for each in PAYLOADS]
    others = wire.NAMES.keys() - {type_, wire.TICK}  # an agent that only ticks is waited for
    strange += [(each, payload, id_, offset, flags) for each in sorted(others)]
    strange += [
        (type_, payload, STRANGE_ID, offset, flags),
        (type_, payload, id_, offset + 1, flags),
    ]
    return bytearray(wire.frame(*strange[at % len(strange)]))


NONSENSES = len(PAYLOADS) + len(wire.NAMES)  # kinds of nonsense that there are


def drain(end: socket.socket) -> None:
    """Read what is left: a socket that is closed before that resets its other end."""
    with contextlib.suppress(OSError):
        while end.recv(1 << 16):
            pass


def shown_stacks(known: set[threading.Thread]) -> str:
    """Return where each thread stands that is not known."""
    frames = sys._current_frames()
    found = []
    for thread in threading.enumerate():
        if thread not in known and thread.ident in frames:
            stack = "".join(traceback.format_stack(frames[thread.ident])[-6:])
            found.append(f"--- {thread.name}\n{stack}")
    return "\n".join(found)
