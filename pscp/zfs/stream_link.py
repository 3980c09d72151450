"""The far end over pscp's own connections: its commands, and streams over several lanes.

A session does one thing at a time, so each dataset that is sent has one of its own. Only the first
session may ask for a password; where others cannot log in, all wait for it.

Not here: how a stream is cut and put together again (stream/stream.py, stream/pipe.py).
Read next: runner.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

from pscp.calls.api import Session
from pscp.ground import errors
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.options.options import Options
from pscp.progress.progress import Counters
from pscp.stream.pipe import Target
from pscp.stream.stream import Program, Ran, Stream
from pscp.zfs.runner import NOT_FOUND, Link, Piped

_log = Log("zfs")
_ENDS_S = 1.0  # for a program to end after it closed its end of the stream
_ENDED_BY_US = -signal.SIGTERM  # the status of a far program whose stream was cut short


def open_link(host: Location, options: Options, note: Callable[[str], None]) -> Link:
    """Return a link to the host, which connects when it is first used."""
    return Sessions(host, options, note)


class Sessions:
    """A Link: as many sessions to the host as there are users of it at once."""

    def __init__(self, host: Location, options: Options, note: Callable[[str], None]) -> None:
        if options.compress:
            raise errors.UsageError(
                "-C: zfs sends what it has compressed as it is; ssh would compress it again"
            )
        words = (*options.ssh_options, "Compression=no")  # nor because ssh_config says so
        options = dataclasses.replace(options, ssh_options=words)
        self._host, self._options, self._note = host, options, note
        self._changed = threading.Condition()
        self._free: list[Session] = []
        self._all: list[Session] = []
        self._streams: list[Stream] = []
        self._may_open = True
        self._is_closed = False

    def run(self, argv: Sequence[str]) -> Ran:
        with self._session() as session:
            try:
                ran = session.run(argv)
            except errors.DestinationError as error:  # there is no such program
                return Ran(NOT_FOUND, b"", error.message.encode())
            _log.debug("there, status %d: %s", ran.status, shlex.join(argv))
            return ran

    def pipe(
        self,
        producer: Sequence[str],
        consumer: Sequence[str],
        is_push: bool,
        progress: Callable[[int], object],
    ) -> Piped:
        _log.debug("stream from %s to %s", shlex.join(producer), shlex.join(consumer))
        here, there = (producer, consumer) if is_push else (consumer, producer)
        counters = ReportingCounters(progress)
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
                stream.ended_well = program.ended_well
            with self._cuttable(stream):
                try:
                    status: int | None = stream.run(program.fd)
                except errors.CopyError:
                    if not program.has_ended(_ENDS_S):
                        raise
                    status = None
            if status is None or (not is_push and status):
                program.end()  # before its input is
            near = program.wait()
            if status is None and near.status == 0:
                raise errors.ConnectionLost("the stream ended early")
        far = Ran(_ENDED_BY_US if status is None else status, b"", stream.err)
        sender, receiver = (near, far) if is_push else (far, near)
        return Piped(sender, receiver, counters.bytes_done)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            streams, free, sessions = list(self._streams), list(self._free), list(self._all)
            self._changed.notify_all()
        for stream in streams:
            stream.cut_short()
        for session in sessions:  # the commands that are waited for
            session.cancel()
        for session in free:
            session.close()

    @contextlib.contextmanager
    def _cuttable(self, stream: Stream) -> Iterator[None]:
        with self._changed:
            self._streams.append(stream)
            if self._is_closed:
                stream.cut_short()
        try:
            yield
        finally:
            with self._changed:
                self._streams.remove(stream)

    # --- the sessions

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
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
                if self._is_closed:
                    raise errors.ConnectionLost("the connections were closed")
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


class ReportingCounters(Counters):
    """Counters of a stream that call a function with the bytes that have landed."""

    def __init__(self, progress: Callable[[int], object]) -> None:
        super().__init__()
        self._progress = progress

    def add(self, **deltas: int) -> None:
        super().add(**deltas)
        if landed := deltas.get("bytes_done"):
            self._progress(landed)
