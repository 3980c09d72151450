"""The two ends of a replication: commands run here, and at the far end over pscp's connections.

A session does one thing at a time, so each dataset that is sent has one of its own. Only the first
session may ask for a password; where others cannot log in, all wait for it.

Not here: which commands (commands.py), how a stream is cut and put together again
(../stream/stream.py). Read next: inventory.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pscp.calls.api import Session
from pscp.ground import errors, stops
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.options.options import UNCOMPRESSED, Options
from pscp.progress.progress import LiveCounters
from pscp.stream.pipe import Target
from pscp.stream.stream import NOT_FOUND, Program, Ran, Stream

_log = Log("zfs")
_ENDS_S = 1.0  # for a program to end after it closed its end of the stream
_UNREAD = 128 + signal.SIGPIPE  # the status of a program here whose output nobody reads any more
_ENDED_BY_US = -signal.SIGTERM  # the status of a far program whose stream was cut short


class PipeStatuses(NamedTuple):
    """A producer and a consumer that ended. A negative status is the signal that ended it."""

    producer: Ran
    consumer: Ran
    bytes: int  # that went from one to the other


def run_here(argv: Sequence[str]) -> Ran:
    """Run a command on this machine, without a shell. Any thread may call."""
    env = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=env
        )
    except OSError as error:
        return Ran(NOT_FOUND, b"", f"{argv[0]}: {error.strerror}".encode())
    _log.debug("here, status %d: %s", done.returncode, shlex.join(argv))
    return Ran(done.returncode, done.stdout, done.stderr)


class Link:
    """The far end, over as many sessions to the host as there are users of it at once.

    It connects when it is first used. Any thread may call. Raises ConnectError where the
    connection is lost.
    """

    most_lanes = 0  # at once, of all streams together

    def __init__(self, host: Location, options: Options, note: Callable[[str], None]) -> None:
        if options.compress:
            raise errors.UsageError(
                "-C: zfs sends what it has compressed as it is; ssh would compress it again"
            )
        words = (*options.ssh_options, UNCOMPRESSED)  # nor because ssh_config says so
        options = dataclasses.replace(options, ssh_options=words)
        self._host, self._options, self._note = host, options, note
        self._changed = threading.Condition()  # guards what follows
        self._lanes = 0  # of all streams, now
        self._free: list[Session] = []
        self._all: list[Session] = []
        self._may_open = True
        self._is_closed = False
        self._stop = stops.Stop()  # of all that runs over this link

    def run(self, argv: Sequence[str]) -> Ran:
        """Run a command at the far end and wait for it."""
        with self._session() as session:
            ran = session.run(argv)
            _log.debug("there, status %d: %s", ran.status, shlex.join(argv))
            return ran

    def pipe(
        self,
        producer: Sequence[str],
        consumer: Sequence[str],
        is_push: bool,
        progress: Callable[[int], object],
    ) -> PipeStatuses:
        """Run the producer (push: here), and the consumer at the other end.

        A consumer whose producer failed, or to whom bytes are missing, is killed before its stdin
        is closed. `progress` gets the bytes that went over since it was called last.
        """
        _log.debug("stream from %s to %s", shlex.join(producer), shlex.join(consumer))
        here, there = (producer, consumer) if is_push else (consumer, producer)
        counters = ReportingCounters(progress, self._count_lanes)
        with self._session() as session, Program(list(here), is_push) as program:
            options = session.options
            stream = Stream(
                session.connections,
                options,
                is_push=is_push,
                target=Target(tuple(there)),
                counters=counters,
                note=self._note,
            )
            if is_push:
                stream.input_was_whole = program.ended_well
            cut: errors.CopyError | None = None
            try:
                status: int | None = stream.run(program.fd)
            except errors.CopyError as error:
                if not program.has_ended(_ENDS_S):
                    raise
                status, cut = None, error
            if status is None or (not is_push and status):
                program.end()  # before its input is
            near = program.wait()
            if cut is not None and near.status in (0, _UNREAD):  # it is not why
                raise cut
        far = Ran(_ENDED_BY_US if status is None else status, b"", stream.err)
        sender, receiver = (near, far) if is_push else (far, near)
        return PipeStatuses(sender, receiver, counters.bytes_done)

    def _count_lanes(self, more: int) -> None:
        with self._changed:
            self._lanes += more
            self.most_lanes = max(self.most_lanes, self._lanes)

    def close(self) -> None:
        """End what runs over this link."""
        self._stop.stop(errors.Cancelled("the connections were closed"))
        with self._changed:
            self._is_closed, free = True, list(self._free)
            self._changed.notify_all()
        for session in free:
            session.close()

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        """Have a session that nobody else uses; what runs in this block ends with the link."""
        with self._stop.here():
            session = self._take_session()
            try:
                yield session
            finally:
                with self._changed:
                    self._free.append(session)
                    is_closed = self._is_closed
                    self._changed.notify_all()
                if is_closed:
                    session.close()

    def _take_session(self) -> Session:
        """Return a session that nobody uses. Raises ConnectError where none can be had."""
        while True:
            with self._changed:
                self._stop.check()
                if self._free:
                    return self._free.pop()
                is_first = not self._all
                self._may_open &= not any(each.connections.has_one_login for each in self._all)
                if not is_first and not self._may_open:
                    self._changed.wait()
                    continue
                options = self._options
                if not is_first:
                    options = dataclasses.replace(options, batch=True)
                session = Session(self._host, options)
                self._all.append(session)
            if is_first or self._logs_in(session):
                return session

    def _logs_in(self, session: Session) -> bool:
        """Return whether one more session logs in without a prompt; if not, none is tried again."""
        try:
            session.run(["true"])
            return True
        except errors.ConnectError:
            session.close()
            self._may_open = False
            return False
        except BaseException:
            session.close()
            raise


class ReportingCounters(LiveCounters):
    """Counters of a stream that call functions with the bytes that have landed, and the number of
    lanes that have come up (below 0: have gone).
    """

    def __init__(self, progress: Callable[[int], object], lanes: Callable[[int], object]) -> None:
        super().__init__()
        self._progress, self._lanes = progress, lanes

    def add(self, **deltas: int) -> None:
        super().add(**deltas)
        if landed := deltas.get("bytes_done"):
            self._progress(landed)
        if lanes := deltas.get("lanes_alive"):
            self._lanes(lanes)
