"""The calls of a program: copy() for one copy, Session for several over the same connections.

Not here: the same for asyncio (../aio/__init__.py), what the arguments mean (call_arguments.py),
how a call is ended early (../ground/stops.py), the command line (../cli/copy.py), the connections
(../connect/connections.py), how a copy goes (../transfer/coordinator.py).
Read next: ../transfer/copy.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO, TYPE_CHECKING

from pscp.calls.call_arguments import (
    Command,
    Patterns,
    Place,
    Source,
    check_functions,
    command_words,
    connections_to,
    filtered,
    fitted,
    host_of,
    is_client,
    locations,
    making_of,
    read_list,
    seconds,
    with_cluster,
    worth_of,
)
from pscp.connect.connections import Connections
from pscp.connect.one_host import OneHost
from pscp.ground import errors, stops
from pscp.ground.counters import Counters, LiveCounters
from pscp.ground.locations import Location, as_location, parse_location
from pscp.ground.log import Log
from pscp.options.connection_options import OF_A_CONNECTION
from pscp.options.keywords import in_keywords
from pscp.options.option_rows import with_keywords
from pscp.options.options import Options, check_concern, with_fields
from pscp.progress.callbacks import FileEvent, ProgramReporter
from pscp.progress.progress import (
    CallbackReporter,
    Reporter,
    Result,
    checked,
)

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.manifests.making import Making
    from pscp.options.option_fields import OptionFields, SessionFields
    from pscp.stream.stream import Ran
    from pscp.transfer.terms.copy_terms import JobTerms

Progress = Callable[[Counters], object]
OnFile = Callable[[FileEvent], object]

_log = Log("api")


@with_keywords(Options)
@in_keywords()
def copy(
    sources: Source,
    destination: Place,
    *,
    options: Options | None = None,
    exclude: Patterns = (),
    include: Patterns = (),
    reporter: Reporter | None = None,
    progress: Progress | None = None,
    on_file: OnFile | None = None,
    keep_digests: bool = True,
    terms: JobTerms | None = None,
    raises: bool = True,
    wait: bool | float = False,
    **fields: Unpack[OptionFields],
) -> Result:
    """Copy files and folders to or from one host, or several as one, over SSH connections.

    Args:
        sources: one location or several ("path", "host:path", a Path of this machine, a Location),
            all on one host, at least one; "-" is a file. With both remote all goes through here.
        destination: a location; with a "/" at its end a folder to copy into (a Path has none).
        options: the options of the copy; the keywords below replace its own.
        exclude: a pattern, or several, of what to leave out, as rsync's (docs/filters.md).
        include: of what to copy though `exclude` or the option `filters` would leave it out.
        reporter: shows the copy while it runs, as the command line's display does.
        progress: is called about ten times a second with a snapshot of Counters.
        on_file: is called with a FileEvent of each file; threads of the copy wait for it, in turn.
        keep_digests: with strong=True keep each path's SHA-256, in the Result's `digests`.
        terms: what a job asks beside: see help(pscp.JobTerms).
        raises: with False a Result is returned where files failed, too; its `failures` name them.
        wait: for the same copy, while that is running: with True, or so many seconds at most.

    Raises:
        FilesFailed: at the end, where files failed; all others were copied.
        UsageError: before anything is contacted.
        ConnectError: there is no usable far end.
        CopyError: the copy as a whole cannot go on.
        ProtocolError: the far end misbehaves.
        What a function that it is given, or a signal handler, raises: it ends the copy tidily.
    """
    chosen = filtered(with_fields(options or Options(), fields, copy), exclude, include)
    froms, to = locations(sources, destination)
    with _OneCopy(to if to.is_remote else froms[0], chosen) as session:
        session.connections.keeps = chosen.manifest is not None
        shown = reporter, progress, on_file
        result = session._copy(
            froms, to, chosen, shown, keep_digests=keep_digests, terms=terms, wait_s=seconds(wait)
        )
    return checked(result) if raises else result


@with_keywords(Options)
class Session:
    """Connections to one host, kept for several copies. A context manager.

    `host` is "host", "user@host", "ssh://user@host:port", or a Location on it. `options` and
    `fields` are those of copy(), and hold for every call that does not say otherwise; those that
    make a connection what it is, such as `port` or `cipher`, hold for all. Any thread may call,
    several at once, each with as many `connections`. A session that is closed, or that a forked
    process has from its parent, refuses every call (UsageError).

    With `transport` a paramiko.SSHClient or an asyncssh.SSHClientConnection that is connected, all
    lanes are channels of that connection, which stays open; `host` may be left out, and is then
    whatever the locations name. The event loop of asyncssh must run in another thread than those
    that call pscp, which block; pscp.aio.Session sees to that.
    """

    _connect: Callable[[Location], Connections] = OneHost

    @in_keywords()
    def __init__(
        self,
        host: str | Location | None = None,
        options: Options | None = None,
        **fields: Unpack[SessionFields],
    ) -> None:
        client = fields.pop("transport") if is_client(fields.get("transport")) else None
        self.options = with_fields(options or Options(), fields, Session)
        self._lock = threading.Lock()  # guards what follows
        self._calls: list[stops.Stop] = []  # of the calls that run now
        self._is_closed = False
        if isinstance(host, str):
            host = parse_location(host if ":" in host else f"{host}:")
        elif host is not None:
            host = as_location(host)
        if host is None and client is None:
            raise errors.UsageError("a session needs a host, or a connection as its transport")
        if host is not None and host.host is None:
            raise errors.UsageError(f"{host.text} names no host", 'such as "host" or "user@host"')
        self._is_any_host = host is None
        if client is None:
            assert host is not None
            self.host, self.connections = host, self._connect(host)
            return
        from pscp.calls.external import ExternalOpener
        from pscp.transports.libraries.external import place_of  # here: few programs hand one in

        self.host = host or place_of(client)
        opener = ExternalOpener(self.options, client)
        self.connections = OneHost(self.host, opener)

    def __enter__(self) -> Session:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(is_cut=kind is not None)

    def cancel(self) -> None:
        """End the calls of this session that run now: each raises Cancelled in its own thread.

        From any thread, any number of times. A call that begins later is not ended: for a deadline
        asyncio.timeout() around a call of pscp.aio is better. It does not wait for the ends, which
        are those of a KeyboardInterrupt: what had landed is kept. The session can be used again.
        """
        if self.connections.is_foreign:
            return
        with self._lock:
            calls = list(self._calls)
        for stop in calls:
            stop.stop(errors.Cancelled("the program has cancelled this"))

    def close(self) -> None:
        """End every connection, once the calls that still run have ended, as by cancel().

        It does not wait for them: the last one closes the connections.
        """
        self._close(is_cut=False)

    def _close(self, *, is_cut: bool) -> None:
        if self.connections.is_foreign:
            return
        with self._lock:
            self._is_closed = True
            is_idle = not self._calls
        if is_idle:
            self.connections.close(is_cut=is_cut)
        else:
            self.cancel()

    def _check_open(self) -> None:
        self.connections.check_process()
        if self._is_closed:
            raise errors.UsageError("the session is closed", "make another pscp.Session")

    @contextlib.contextmanager
    def _call(self) -> Iterator[stops.Stop]:
        """Run a block as a call that cancel() and close() end."""
        self.connections.check_process()  # the lock may be held in the other process
        stop = stops.current() or stops.Stop()
        has_begun = False
        try:
            with self._lock:
                self._check_open()
                has_begun = True
                self._calls.append(stop)
            yield stop
        finally:
            with self._lock:
                if has_begun:
                    self._calls.remove(stop)
                is_last = has_begun and self._is_closed and not self._calls
            if is_last:
                self.connections.close(is_cut=True)

    @in_keywords()
    def copy(
        self,
        sources: Source,
        destination: Place,
        *,
        exclude: Patterns = (),
        include: Patterns = (),
        reporter: Reporter | None = None,
        progress: Progress | None = None,
        on_file: OnFile | None = None,
        terms: JobTerms | None = None,
        raises: bool = True,
        wait: bool | float = False,
        **fields: Unpack[OptionFields],
    ) -> Result:
        """Copy as pscp.copy() does, over this session's connections, from or to its host."""
        froms, to = locations(sources, destination)
        host = to if to.is_remote else froms[0]
        if not self._is_any_host and host_of(host) != host_of(self.host):
            raise errors.UsageError(f"{host.text} is not on this session's host")
        options = filtered(self._options_with(fields, Session.copy), exclude, include)
        shown = reporter, progress, on_file
        result = self._copy(froms, to, options, shown, terms=terms, wait_s=seconds(wait))
        return checked(result) if raises else result

    # --- streams

    def pipe_to(
        self, command: Command, **fields: Unpack[OptionFields]
    ) -> AbstractContextManager[IO[bytes]]:
        """A file object for writing: the standard input of a command at the far end.

        A list is executed as it is, a text by the user's shell there. When the block ends without
        an exception, the command sees the end of its input once all of it was verified; else it
        is ended first. Raises CommandFailed for another exit status than 0, and as copy() does; its
        `err` has the last 64 KiB of what the command wrote, to its standard output as well.
        """
        return self._piped(True, command_words(command), fields)

    def pipe_from(
        self, command: Command, **fields: Unpack[OptionFields]
    ) -> AbstractContextManager[IO[bytes]]:
        """A file object for reading: the standard output of a command at the far end.

        What is left of it when the block ends is read and dropped; with an exception, or once the
        file is closed, the command is ended. Raises CommandFailed as pipe_to() does; its `err` has
        the last 64 KiB of the command's standard error.
        """
        return self._piped(False, command_words(command), fields)

    @in_keywords()
    def run(
        self, command: Command, *, timeout: float | None = None, **fields: Unpack[OptionFields]
    ) -> Ran:
        """Run a command at the far end, and wait for it.

        A list is executed as it is, a text by the user's shell there. Returns its exit status (127:
        there is no such program) and what it wrote. Raises TimedOut, and ends it, where it is not
        over after `timeout` seconds, CopyError where its output is longer than 256 MiB, and as
        copy() does.
        """
        from pscp.stream import stream

        words, timeout_s = command_words(command), seconds(timeout, "timeout")
        options = self._stream_options({"connections": 1, **fields})
        with self._call() as stop, stop.here():
            return stream.run(self.connections, options, words, timeout_s)

    @contextlib.contextmanager
    def _piped(
        self, is_push: bool, words: str | list[str], fields: OptionFields
    ) -> Iterator[IO[bytes]]:
        from pscp.stream import stream

        with in_keywords(), self._call() as stop:
            options = self._stream_options(fields)
            with stream.piped(self.connections, options, is_push, words, stop) as file:
                yield file

    def _options_with(self, fields: OptionFields, call: Callable[..., object]) -> Options:
        """Return a call's options. Raises UsageError where they ask for another connection."""
        options = with_fields(self.options, fields, call)
        for name in OF_A_CONNECTION:
            if getattr(options, name) != getattr(self.options, name):
                message = f"{name} is for a whole session: its calls share their connections"
                raise errors.UsageError(message, f"make another pscp.Session with {name}=")
        return options

    def _stream_options(self, fields: OptionFields) -> Options:
        check_concern("a command", fields, "verify")
        if "timeout_s" in fields:
            message = "timeout_s is for logging in, and says nothing to a command"
            raise errors.UsageError(message, "run() has timeout; a session has timeout_s")
        options = self._options_with(fields, Session.run).with_agent("a stream")
        return dataclasses.replace(options, direct=False)  # which is for copies

    # --- one copy

    def _copy(
        self,
        froms: list[Location],
        to: Location,
        options: Options,
        reporters: tuple[Reporter | None, Progress | None, OnFile | None],
        *,
        keep_digests: bool = True,
        terms: JobTerms | None = None,
        wait_s: float = 0.0,
    ) -> Result:
        options = fitted(options, terms, froms, to)
        given, progress, on_file = reporters
        check_functions(progress=progress, on_file=on_file)
        with self._call() as stop, stop.here(), making_of(options, froms, to) as making:
            if making is not None:
                on_file = making.noting(on_file)
            reporter: Reporter = ProgramReporter(given or Reporter(), on_file)
            if progress is not None:
                reporter = CallbackReporter(progress, reporter, stop.stop)
            return self._run(
                froms, to, options, reporter,
                keep_digests=keep_digests, terms=terms, making=making, wait_s=wait_s,
            )  # fmt: skip

    def _run(
        self,
        froms: list[Location],
        to: Location,
        options: Options,
        reporter: Reporter,
        *,
        keep_digests: bool,
        terms: JobTerms | None,
        making: Making | None,
        wait_s: float,
    ) -> Result:
        host = (to if to.is_remote else froms[0]).login
        listed = read_list(options)
        counters = LiveCounters(started_s=time.monotonic(), host=host)
        result: Result | None = None
        try:
            with _logins(self.connections, froms, options) as logins:
                is_push = to.is_remote
                worth = worth_of(froms)
                _check(logins, options, is_push, reporter)
                is_something = not is_push or any(
                    each.is_remote or os.path.lexists(each.path) for each in froms
                )
                if is_something and not wait_s:  # else nobody logs in before it may begin
                    logins.start_logins(options, is_push=is_push, worth=worth)
                reporter.start(counters)
                from pscp.transfer.copy import Run  # most of the program; ssh logs in meanwhile
                from pscp.transfer.onward import with_far_source
                from pscp.transfer.terms.copy_terms import CopyRequest

                if is_something:
                    logins.check_logins(options, is_push=is_push, worth=worth)
                request = CopyRequest(
                    logins, froms, to, options, reporter, counters, keep_digests, listed,
                    wait_s=wait_s,
                )  # fmt: skip
                if terms is not None:
                    request = dataclasses.replace(request, job=terms)
                with with_far_source(request) as far, with_cluster(far) as whole:
                    result = Run(whole).run()
                    if making is not None:
                        there = self.connections if is_push else None
                        result = making.finish(result, there, whole.movers, counters, reporter)
            return result
        finally:
            reporter.stop(result)
            if listed is not None:
                listed.close()


class _OneCopy(Session):
    """The session of a single copy, whose host may be several that see one place."""

    _connect = staticmethod(connections_to)


def _check(logins: Connections, options: Options, is_push: bool, reporter: Reporter) -> None:
    """Refuse what cannot be, before anybody is contacted; note what -v says."""
    for text in logins.check(options, is_push):
        _log.info("%s", text)
        if options.itemize:
            reporter.note(text)


@contextlib.contextmanager
def _logins(
    connections: Connections, froms: list[Location], options: Options
) -> Iterator[Connections]:
    """Yield what logs in first: these connections, or with --direct those to the source's host."""
    if not options.direct:
        yield connections
        return
    with OneHost(froms[0]) as to_source:
        yield to_source
