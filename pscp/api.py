"""What a program calls: copy() for one copy, Session for several over the same connections.

Not here: the command line (cli.py), how a copy goes (coordinator.py).
Read next: coordinator.py.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from pscp import errors
from pscp.bootstrap import Far, command
from pscp.channels import SshSetup, open_channel
from pscp.channels.openssh import resolve
from pscp.coordinator import Coordinator, as_error, choose_hash
from pscp.crew import Crew, sink_question, source_question
from pscp.endpoint import failures, metadata, sink, source
from pscp.endpoint.end import End
from pscp.endpoint.wire import WireError
from pscp.journal import Journal, token_of
from pscp.lane import Lane
from pscp.options import Location, Options, check_direction, parse_location
from pscp.plan import expected_name
from pscp.progress import CallbackReporter, Counters, Reporter, Result, Silent
from pscp.progress import Failure as Reported

Source = str | Location | Sequence[str | Location]
Progress = Callable[[Counters], object]


def copy(
    sources: Source,
    destination: str | Location,
    *,
    options: Options | None = None,
    reporter: Reporter | None = None,
    progress: Progress | None = None,
    **fields: Any,
) -> Result:
    """Copy files and folders to or from one host, over several SSH connections.

    `sources` is one location or several ("path", "host:path", a Location); either they or the
    destination are remote. `fields` are fields of Options, for instance recursive=True or
    connections=8. `progress` is called about ten times a second with a snapshot of Counters.

    Returns a Result; its `failures` name each file that was not copied. Raises UsageError before
    anything is contacted, ConnectError where there is no usable far end, CopyError where the copy
    as a whole cannot go on, ProtocolError for a far end that misbehaves. KeyboardInterrupt and
    other exceptions of signal handlers end the copy tidily; what had landed is kept.
    """
    chosen = _options(options, fields)
    froms, to = _locations(sources, destination)
    host = to if to.is_remote else froms[0]
    with Session(host, chosen) as session:
        session.keeps = False
        return session._copy(froms, to, chosen, reporter, progress)


class Session:
    """Connections to one host, kept for several copies. A context manager.

    `host` is "host", "user@host", "ssh://user@host:port", or a Location on it.
    """

    def __init__(self, host: str | Location, options: Options | None = None, **fields: Any) -> None:
        self.options = _options(options, fields)
        self.keeps = True
        if isinstance(host, str):
            host = parse_location(host if ":" in host else f"{host}:")
        if host.host is None:
            raise errors.UsageError(f"{host.text} names no host")
        self.host = host
        self._setup: SshSetup | None = None
        self._idle: list[Far] = []
        self._note: Callable[[str], None] | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """End every connection."""
        while self._idle:
            self._idle.pop().close()

    def copy(
        self, sources: Source, destination: str | Location, *,
        reporter: Reporter | None = None, progress: Progress | None = None, **fields: Any,
    ) -> Result:  # fmt: skip
        """As pscp.copy(), over this session's connections; the host must be this session's."""
        froms, to = _locations(sources, destination)
        host = to if to.is_remote else froms[0]
        if (host.user, host.host, host.port) != (self.host.user, self.host.host, self.host.port):
            raise errors.UsageError(f"{host.text} is not on this session's host")
        return self._copy(froms, to, _options(self.options, fields), reporter, progress)

    # --- one copy

    def _copy(
        self, froms: list[Location], to: Location, options: Options,
        reporter: Reporter | None, progress: Progress | None,
    ) -> Result:  # fmt: skip
        told = reporter or Silent()
        if progress is not None:
            told = CallbackReporter(progress, told)
        run = _Run(self, froms, to, options, told)
        result: Result | None = None
        told.start(run.counters)
        try:
            result = run.run()
            return result
        finally:
            told.stop(result)

    def _connected(self, options: Options, note: Callable[[str], None]) -> list[Far]:
        """The connections that are open; if there is none, a first one, which may prompt."""
        while self._idle and self._idle[0].is_closed():
            self._idle.pop(0).close()
        if not self._idle:
            for attempt in range(_FIRST_ATTEMPTS):
                try:
                    self._idle.append(self._open(options, None, True, note))
                    break
                except errors.ConnectionLost:
                    if attempt == _FIRST_ATTEMPTS - 1:
                        raise
                    time.sleep(1 << attempt)
        fars, self._idle = self._idle, []
        return fars

    def _open(
        self, options: Options, lane: Lane | None, may_prompt: bool,
        note: Callable[[str], None] | None,
    ) -> Far:  # fmt: skip
        if self._setup is None:
            self._setup = resolve(self.host, options)
        channel = open_channel(self.host, options, self._setup, command(), may_prompt)
        if lane is not None:
            lane.channel = channel
        far = Far(channel, note)
        if self._setup.far_aes is None and isinstance(far.hello.get("aes"), bool):
            self._setup = dataclasses.replace(self._setup, far_aes=far.hello["aes"])
        return far


# A first connection that was closed before the login: sshd's MaxStartups, most likely.
_FIRST_ATTEMPTS = 4


class _Run:
    """One copy of a session."""

    def __init__(
        self, session: Session, froms: list[Location], to: Location, options: Options,
        reporter: Reporter,
    ) -> None:  # fmt: skip
        self.counters = Counters(started_s=time.monotonic())
        self._session, self._froms, self._to = session, froms, to
        self._options, self._reporter = options, reporter
        self._is_push = to.is_remote
        self._near = End(metadata.current_umask())
        self._missing: list[Reported] = []

    def run(self) -> Result:
        token = self._token()
        tops = self._expanded_near() if self._is_push else []
        journal = Journal(token, keep=self._options.resume)
        complete = False
        try:
            fars = self._session._connected(self._options, self._reporter.note)
            try:
                result = self._copy(fars, tops, token, journal)
                complete = result.ok
                return result
            finally:
                self._session._idle += fars
        finally:
            journal.close(complete)

    def _token(self) -> str:
        """The same for the same command, run by the same user on the same machine."""
        where = (socket.gethostname(), str(os.getuid()))
        froms = [os.path.abspath(f.path) if self._is_push else f.text for f in self._froms]
        to = self._to.text if self._is_push else os.path.abspath(self._to.path)
        return token_of(*where, str(self._is_push), *froms, to)

    def _copy(
        self, fars: list[Far], tops: list[source.Top], token: str, journal: Journal
    ) -> Result:
        algorithm = choose_hash(fars[0])
        tops = tops or self._expanded_far(fars[0])
        if not tops:
            return self._result(None, None)
        target = self._target(fars[0], tops, token)
        crew = Crew(
            self._options, self.counters, self._is_push, algorithm, self._connect,
            self._reporter.note, self._session.keeps,
        )  # fmt: skip
        coordinator = Coordinator(self._options, self.counters, self._reporter, journal, crew)
        coordinator.failures += self._missing
        crew.begin(
            source_question(tops, self._options, algorithm, self._is_push),
            sink_question(target[0], token, self._options, algorithm),
            [fars.pop(0) for _ in range(min(len(fars), crew.count))],
        )
        try:
            coordinator.run(tops, target)
        finally:
            crew.end()
            fars += crew.kept
        return self._result(coordinator, crew)

    def _connect(self, lane: Lane) -> Far:
        return self._session._open(self._options, lane, False, None)

    # --- before the lanes

    def _ask(self, of_near: bool, far: Far, question: dict[str, Any]) -> Any:
        """Ask one end before there are lanes. Raises DestinationError for its refusal."""
        found: list[tuple[Any, bool]] = []
        if of_near:
            self._near.answer(question, lambda answer, failed: found.append((answer, failed)))
        else:
            found.append(far.ask(question))
        answer, failed = found[0]
        if failed:
            data = _checked(answer)
            raise errors.DestinationError(f"{data['path']}: {data['message']}")
        return answer

    def _expanded_near(self) -> list[source.Top]:
        tops: list[source.Top] = []
        for location in self._froms:
            try:
                tops += source.expand(location.path, False)
            except failures.Refusal as error:
                raise errors.UsageError(f"{error.path}: {error}") from None
        return tops

    def _expanded_far(self, far: Far) -> list[source.Top]:
        paths = [location.path for location in self._froms]
        answer = self._ask(False, far, {"ask": "expand", "paths": paths, "glob": True})
        tops: list[source.Top] = []
        try:
            for path, found in zip(paths, answer, strict=True):
                if isinstance(found, dict):
                    self._report_missing(_checked(found))
                    continue
                for each in found:
                    tops.append(self._checked_top(path, source.Top(*each)))
        except (TypeError, ValueError) as error:
            raise errors.ProtocolError(f"sources of another shape: {error}") from None
        return tops

    def _checked_top(self, path: str, top: source.Top) -> source.Top:
        """Only what was asked for, by its name, may come from a far end (-T: any name)."""
        if self._options.strict_names and not expected_name(path, top.name):
            raise errors.ProtocolError(f"the far end sends {top.name!a} for {path!a}")
        return top

    def _report_missing(self, data: failures.Data) -> None:
        error = as_error(data)
        self.counters.add(files_total=1, files_failed=1)
        self._missing.append(Reported(error.path, type(error).__name__, error.message))
        self._reporter.note(f"{error.path}: {error.message}")

    def _target(self, far: Far, tops: list[source.Top], token: str) -> Any:
        names = [top.name for top in tops]
        for name in names:
            if names.count(name) > 1 or (not name and len(names) > 1):
                message = (
                    f"{name}: several sources have this name"
                    if name
                    else ("the contents of a folder cannot be copied together with other sources")
                )
                raise errors.DestinationError(message)
        if self._options.transfer_test:
            return sink.Target("", names, [])
        question = {
            "ask": "target", "path": self._to.path, "names": names,
            "folders": [top.is_folder for top in tops], "token": token,
        }  # fmt: skip
        answer = self._ask(not self._is_push, far, question)
        try:
            target = sink.Target(*answer)
            if len(target.names) != len(names):
                raise ValueError("names")
        except (TypeError, ValueError) as error:
            raise errors.ProtocolError(f"a destination of another shape: {error}") from None
        return target

    # --- after them

    def _result(self, coordinator: Coordinator | None, crew: Crew | None) -> Result:
        counters = self.counters
        return Result(
            files=counters.files_done,
            files_resumed=counters.files_resumed,
            files_skipped=counters.files_skipped,
            bytes=counters.bytes_done + counters.bytes_resumed,
            bytes_sent=counters.bytes_sent,
            bytes_resumed=counters.bytes_resumed,
            chunks_verified=counters.chunks_verified,
            chunks_resent=counters.chunks_resent,
            connections=crew.most_alive if crew else 1,
            connections_lost=counters.connections_lost,
            seconds=time.monotonic() - counters.started_s,
            digests=coordinator.digests if coordinator else {},
            failures=tuple(coordinator.failures if coordinator else self._missing),
        )


def _checked(answer: Any) -> failures.Data:
    try:
        return failures.checked(answer)
    except WireError as error:
        raise errors.ProtocolError(str(error)) from None


def _options(options: Options | None, fields: dict[str, Any]) -> Options:
    try:
        return dataclasses.replace(options or Options(), **fields)
    except TypeError as error:
        raise errors.UsageError(f"no such option: {error}") from None


def _locations(sources: Source, destination: str | Location) -> tuple[list[Location], Location]:
    listed = [sources] if isinstance(sources, str | Location) else list(sources)
    froms = [parse_location(each) if isinstance(each, str) else each for each in listed]
    to = parse_location(destination) if isinstance(destination, str) else destination
    if not froms:
        raise errors.UsageError("there is no source")
    check_direction(froms, to)
    return froms, to
