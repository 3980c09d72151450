"""What a program calls: copy() for one copy, Session for several over the same connections.

Not here: the command line (cli/copy.py), the connections (connect/connections.py), how a copy goes
(transfer/coordinator.py).
Read next: transfer/copy.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO, TYPE_CHECKING

from pscp import errors
from pscp.connect.connections import Connections
from pscp.locations import Location, check_direction, parse_location
from pscp.options import Options
from pscp.progress import CallbackReporter, Counters, Reporter, Result, Silent

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.option_fields import OptionFields, SessionFields
    from pscp.stream.stream import Ran
    from pscp.transfer.path_list import PathList
    from pscp.transfer.relay import FarSource

_LARGE_BYTES = 8 * 1024 * 1024  # from here on a second connection may be of use

Source = str | Location | Sequence[str | Location]
Patterns = str | Sequence[str]
Progress = Callable[[Counters], object]


def copy(
    sources: Source,
    destination: str | Location,
    *,
    options: Options | None = None,
    exclude: Patterns = (),
    include: Patterns = (),
    reporter: Reporter | None = None,
    progress: Progress | None = None,
    keep_digests: bool = True,
    **fields: Unpack[OptionFields],
) -> Result:
    """Copy files and folders to or from one host, over several SSH connections.

    Args:
        sources: one location or several ("path", "host:path", a Location), all on one host. They,
            the destination or both are remote; from host to host all goes through here.
        destination: "path", "host:path" or a Location; with a "/" at its end a folder to copy
            into.
        options: the options of the copy; `fields` replace its own.
        exclude: a pattern, or several, of what to leave out, as rsync's (docs/filters.md).
        include: of what to copy though `exclude` or the option `filters` would leave it out.
        reporter: shows the copy while it runs, as the command line's display does.
        progress: is called about ten times a second with a snapshot of Counters.
        keep_digests: with strong=True the Result's `digests` map each path to its SHA-256; False
            saves the memory where there are very many files.
        fields: fields of Options, for instance recursive=True or connections=8. help(pscp.Options)
            lists them, and docs/api.md says what each means.

    Returns:
        A Result; its `failures` name each file that was not copied.

    Raises:
        UsageError: before anything is contacted.
        ConnectError: there is no usable far end.
        CopyError: the copy as a whole cannot go on.
        ProtocolError: the far end misbehaves.

    KeyboardInterrupt and other exceptions of signal handlers end the copy tidily; what had landed
    is kept.
    """
    chosen = _filtered(_options(options, fields), exclude, include)
    froms, to = _locations(sources, destination)
    host = to if to.is_remote else froms[0]
    with Session(host, chosen) as session:
        session.connections.keeps = False
        return session._copy(froms, to, chosen, reporter, progress, keep_digests=keep_digests)


class Session:
    """Connections to one host, kept for several copies. A context manager.

    `host` is "host", "user@host", "ssh://user@host:port", or a Location on it. `options` and
    `fields` are those of copy(), and hold for every call that does not say otherwise.

    With `transport` a paramiko.SSHClient or an asyncssh.SSHClientConnection that is connected, all
    lanes are channels of that connection, which stays open; `host` may be left out, and is then
    whatever the locations name. The event loop of asyncssh must run in another thread than those
    that call pscp, which block; asyncio.to_thread() is a way.
    """

    def __init__(
        self,
        host: str | Location | None = None,
        options: Options | None = None,
        **fields: Unpack[SessionFields],
    ) -> None:
        client = fields.pop("transport") if _is_client(fields.get("transport")) else None
        self.options = _options(options, fields)
        if isinstance(host, str):
            host = parse_location(host if ":" in host else f"{host}:")
        if host is None and client is None:
            raise errors.UsageError("a session needs a host, or a connection as its transport")
        if host is not None and host.host is None:
            raise errors.UsageError(f"{host.text} names no host")
        self._is_any_host = host is None
        if client is None:
            assert host is not None
            self.host, self.connections = host, Connections(host)
            return
        from pscp.connect.external import ExternalOpener
        from pscp.transports.external import place_of  # here: few programs hand one in

        self.host = host or place_of(client)
        opener = ExternalOpener(self.host, self.options, client)
        self.connections = Connections(self.host, opener)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connections.close(is_cut=kind is not None)

    def close(self) -> None:
        """End every connection."""
        self.connections.close()

    def copy(
        self,
        sources: Source,
        destination: str | Location,
        *,
        exclude: Patterns = (),
        include: Patterns = (),
        reporter: Reporter | None = None,
        progress: Progress | None = None,
        **fields: Unpack[OptionFields],
    ) -> Result:
        """As pscp.copy(), over this session's connections; the host must be this session's."""
        froms, to = _locations(sources, destination)
        host = to if to.is_remote else froms[0]
        if not self._is_any_host and _place(host) != _place(self.host):
            raise errors.UsageError(f"{host.text} is not on this session's host")
        options = _filtered(_options(self.options, fields), exclude, include)
        return self._copy(froms, to, options, reporter, progress)

    # --- streams

    def pipe_to(
        self, command: str | Sequence[str], **fields: Unpack[OptionFields]
    ) -> AbstractContextManager[IO[bytes]]:
        """A file object for writing: the standard input of a command at the far end.

        A list is executed as it is, a text by the user's shell there. When the block ends without
        an exception, the command sees the end of its input once all of it was verified; else it
        is ended first. Raises CommandFailed for another exit status than 0, and as copy() does.
        """
        from pscp.stream import stream

        return stream.piped(self.connections, self._stream_options(fields), True, command)

    def pipe_from(
        self, command: str | Sequence[str], **fields: Unpack[OptionFields]
    ) -> AbstractContextManager[IO[bytes]]:
        """A file object for reading: the standard output of a command at the far end.

        What is left of it when the block ends is read and dropped; with an exception the command
        is ended. Raises CommandFailed for another exit status than 0, and as copy() does.
        """
        from pscp.stream import stream

        return stream.piped(self.connections, self._stream_options(fields), False, command)

    def run(self, argv: Sequence[str], **fields: Unpack[OptionFields]) -> Ran:
        """Run a program at the far end, without a shell, and wait for it.

        Returns its exit status and what it wrote. Raises CopyError, and ends it, where its output
        is longer than 256 MiB, and as copy() does.
        """
        from pscp.stream import stream

        options = self._stream_options({"connections": 1, **fields})
        return stream.run(self.connections, options, argv)

    def _stream_options(self, fields: OptionFields) -> Options:
        return _options(self.options, fields).with_agent("a stream")

    # --- one copy

    def _copy(
        self,
        froms: list[Location],
        to: Location,
        options: Options,
        reporter: Reporter | None,
        progress: Progress | None,
        *,
        keep_digests: bool = True,
    ) -> Result:
        if options.transfer_test:
            options = options.with_agent("-t")
        reporter = reporter or Silent()
        if progress is not None:
            reporter = CallbackReporter(progress, reporter)
        listed = _read_list(options, froms) if options.files_from is not None else None
        if options.has_whole_paths:
            from pscp.transfer.relative import check_typed  # here: few copies need it

            for each in froms:
                check_typed(each.path)
        counters = Counters(started_s=time.monotonic())
        result: Result | None = None
        try:
            connections, is_push = self.connections, to.is_remote
            is_small = is_push and not _is_large(froms)
            for text in connections.check(options, is_push):
                if options.verbose:
                    reporter.note(text)
            is_something = not is_push or any(
                each.is_remote or os.path.lexists(each.path) for each in froms
            )
            if is_something:
                connections.start_logins(options, is_push=is_push, is_small=is_small)
            reporter.start(counters)
            from pscp.transfer.copy import Run  # most of the program; ssh logs in meanwhile
            from pscp.transfer.negotiation import CopyRequest

            if is_something:
                connections.check_logins(options, is_push=is_push, is_small=is_small)
            request = CopyRequest(
                connections, froms, to, options, reporter, counters, keep_digests, listed
            )
            with _far_source(froms, to, options) as far_source:
                result = Run(dataclasses.replace(request, far_source=far_source)).run()
            return result
        finally:
            reporter.stop(result)
            if listed is not None:
                listed.close()


def _read_list(options: Options, froms: Sequence[Location]) -> PathList:
    """Read the list of --files-from. Raises UsageError, CopyError."""
    from pscp.transfer.path_list import read_list  # here: few copies need it

    if len(froms) != 1:
        raise errors.UsageError("--files-from takes one SOURCE, which its paths are below")
    return read_list(options)


@contextlib.contextmanager
def _far_source(
    froms: list[Location], to: Location, options: Options
) -> Iterator[FarSource | None]:
    """Yield the connections to the source's host, if neither end of the copy is here."""
    if not (froms[0].is_remote and to.is_remote):
        yield None
        return
    from pscp.transfer.relay import FarSource  # here: few copies need it

    far_source = FarSource(Connections(froms[0]), options)
    is_cut = True
    try:
        yield far_source
        is_cut = False
    finally:
        far_source.close(is_cut=is_cut)


def _is_client(value: object) -> bool:
    return value is not None and not isinstance(value, str)


def _place(host: Location) -> tuple[object, ...]:
    return host.user, host.host, host.port


def _is_large(froms: list[Location]) -> bool:
    """Return whether these local sources may be worth several connections."""
    try:
        return any(
            each.is_remote or os.path.isdir(each.path) or os.stat(each.path).st_size >= _LARGE_BYTES
            for each in froms
        )
    except OSError:
        return False


def _options(options: Options | None, fields: OptionFields | SessionFields) -> Options:
    try:
        return dataclasses.replace(options or Options(), **fields)
    except TypeError as error:
        raise errors.UsageError(f"no such option: {error}") from None


def _filtered(options: Options, exclude: Patterns, include: Patterns) -> Options:
    """Return the options with these patterns before its own filters: first `include`."""
    words = {"include": include, "exclude": exclude}
    for word, given in words.items():
        if not isinstance(given, Sequence) or isinstance(given, bytes):
            raise errors.UsageError(f"{word} must be a pattern or several, not {given!r}")
        words[word] = [given] if isinstance(given, str) else given
    added = [(word, pattern) for word, given in words.items() for pattern in given]
    return dataclasses.replace(options, filters=(*added, *options.filters)) if added else options


def _locations(sources: Source, destination: str | Location) -> tuple[list[Location], Location]:
    listed = [sources] if isinstance(sources, str | Location) else list(sources)
    froms = [parse_location(each) if isinstance(each, str) else each for each in listed]
    to = parse_location(destination) if isinstance(destination, str) else destination
    if not froms:
        raise errors.UsageError("there is no source")
    check_direction(froms, to)
    return froms, to
