"""One end of a copy: its source or its sink, and the answers to the coordinator's requests.

The coordinator asks both ends with the same records (requests.py): the far one through its agent
(agent.py), the near one directly (../transfer/lanes/lane.py). So push and pull differ only in which
end is which.

Not here: frames and descriptors (agent.py), what source and sink do (source.py, sink.py).
"""

import errno
import functools
import os
from typing import TYPE_CHECKING, Callable, Dict, Iterable, List, Optional, Tuple, TypeVar, Union

from . import failures, metadata, requests, source, system, tree, wire
from .paths import marker_name, to_bytes, to_text

if TYPE_CHECKING:  # the modules of a sink are loaded when it begins: they take 10 ms at a far end
    from typing import Protocol

    from . import fence, files, frame_server, leftovers, null_ends, sink, stream_server

    class ChunkSource(frame_server.Role, Protocol):
        """Sends chunks of files, or of a stream."""

        def send_chunk(self, id_: int, offset: int, length: int, send: wire.Send) -> None: ...
        def close(self) -> None: ...

    class ChunkSink(frame_server.Sink, Protocol):
        """Takes chunks of files, or of a stream."""

        def complete(
            self, id_: int, offset: int, length: int, digest: bytes
        ) -> Tuple[bool, int, Optional[failures.Data]]: ...
        def close(self) -> None: ...

    class Stream(Protocol):
        """Makes the lanes of a stream, at either end of it."""

        def lane(
            self, request: requests.BeginStream
        ) -> Tuple[Optional[ChunkSource], Optional[ChunkSink]]: ...


T = TypeVar("T")
Reply = Callable[[object, bool], None]  # (answer, or failure data; whether it failed)
Failed = List[Tuple[int, failures.Data]]  # the place and the failure of each item that failed


class End:
    """Serves one copy after another: a Begin makes it the source or the sink of the next one."""

    def __init__(
        self,
        umask: int,
        stream: "Optional[Stream]" = None,
        serve: "Optional[stream_server.Serve]" = None,
    ) -> None:
        """`stream` is given where this end is a lane of one; `serve` is what gather() needs."""
        self._umask, self._stream, self._serve = umask, stream, serve
        self.gathering: Optional[stream_server.Gathering] = None
        self.source: Optional[ChunkSource] = None
        self.sink: Optional[ChunkSink] = None
        self._search: Optional[leftovers.Search] = None

    # --- the role; each raises WireError where the end has another one

    def the_source(self) -> "ChunkSource":
        """Return the source that this end is."""
        if self.source is None:
            raise not_here("source")
        return self.source

    def the_sink(self) -> "ChunkSink":
        """Return the sink that this end is."""
        if self.sink is None:
            raise not_here("sink")
        return self.sink

    def file_source(self) -> source.Source:
        """Return the source of files that this end is."""
        if not isinstance(self.source, source.Source):
            raise not_here("source of files")
        return self.source

    def file_sink(self) -> "null_ends.NullSink":
        """Return the sink of files that this end is; it may be one that writes nothing."""
        from . import null_ends

        if not isinstance(self.sink, null_ends.NullSink):
            raise not_here("sink of files")
        return self.sink

    def writing_sink(self) -> "sink.Sink":
        """Return the sink of files that this end is, which writes them."""
        from . import sink

        if not isinstance(self.sink, sink.Sink):
            raise not_here("sink of files")
        return self.sink

    def answer(self, request: "requests.Request", reply: Reply) -> None:
        """Call `reply` with the answer: at once, or later, where that is a function that does."""
        try:
            answer = ANSWERS[type(request)](self, request)
            answer(reply) if callable(answer) else reply(answer, False)
        except failures.EXPECTED as error:
            reply(failures.from_exception(error, requests.path_of(request)), True)

    # --- the change of the role

    def begin(self, request: requests.Begin) -> None:
        """Become the source or the sink of a copy. Raises OSError for a root that does not open."""
        self.drop_role()
        if isinstance(request, requests.BeginStream):
            if self._stream is None:
                raise not_here("stream")
            self.source, self.sink = self._stream.lane(request)
        elif isinstance(request, requests.BeginSource):
            self.source = self._new_source(request)
        else:
            self.sink = self._new_sink(request)

    def _new_source(self, request: requests.BeginSource) -> source.Source:
        make = source.Source
        if request.test:
            from . import made_up

            make = made_up.MadeUpSource
        return make(request.tops, request.rules, request.hash, request.block_bytes, request.strong)

    def _new_sink(self, request: requests.BeginSink) -> "null_ends.NullSink":
        from . import null_ends, sink

        if request.test:
            return null_ends.NullSink(request.hash, False)
        copy = sink.Copy(request.token, request.nonce, request.lane, request.earlier)
        policy = metadata.Policy(request.preserve, request.archive, self._umask)
        made = sink.Sink(request.root, copy, policy, request.hash, request.strong)
        if request.made:
            made.root.mark(request.made, marker_name(request.token))
        if request.backup:
            from . import backup

            made.settler.keeper = backup.Keeper(made.root, made.parts, *request.backup)
        if request.link_dest:
            from . import linkdest

            made.linker = linkdest.Linker(made, *request.link_dest)
        return made

    def gather(self, request: requests.Gather) -> str:
        """Become the far end of a stream; return the path where other lanes are handed over."""
        from . import stream_server

        self.close()
        if self._serve is None:
            raise not_here("stream")
        gathering = stream_server.Gathering(request, self._umask, self._serve)
        self._stream = self.gathering = gathering
        return to_text(os.fsencode(gathering.path))

    def ask_gathering(self, request: requests.OfGathering) -> "Callable[[Reply], None]":
        if self.gathering is None:
            raise not_here("stream")
        return functools.partial(self.gathering.answer, request)

    def close(self) -> None:
        """End the copy, and the stream that is gathered here, if there is one."""
        self.drop_role()
        if self._serve is not None and self.gathering is not None:
            self.gathering.close()
            self._stream = self.gathering = None

    def drop_role(self) -> None:
        """Close the source or the sink; be neither from now on."""
        roles = self.source, self.sink
        self.source = self.sink = None
        for role in roles:
            if role is not None:
                role.close()

    # --- answers of either end

    def expand(self, request: requests.Expand) -> "List[Union[List[source.Top], failures.Data]]":
        act = functools.partial(source.expand, pattern=request.glob)
        return results((path, functools.partial(act, path)) for path in request.paths)

    def target(self, request: requests.Target) -> List[object]:
        from . import placing

        path, names, folders, token, nonce, known, mkpath = request
        target = placing.resolve(path, names, folders, make=bool(nonce), mkpath=mkpath, token=token)
        if not nonce:
            return [*target, None]
        return [*target, self.claim(requests.Claim(target.root, token, nonce, known))]

    def claim(self, request: requests.Claim) -> "fence.Claim":
        from . import fence

        fd = os.open(to_bytes(request.root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return fence.claim(fd, request.token, request.nonce, request.known)
        finally:
            os.close(fd)

    def clean(self, request: requests.Clean) -> Dict[str, object]:
        from . import leftovers

        if request.path is not None:
            self._search = leftovers.Search(request.path, request.remove)
        if self._search is None:
            raise not_here("search")
        return self._search.page()

    # --- of a source

    def walk(self, request: requests.Walk) -> Tuple[List[tree.Entry], bool]:
        return self.file_source().walk(request.after, request.restart, request.most)

    def extents(self, request: requests.Extents) -> "Tuple[List[files.Extent], bool]":
        return self.file_source().extents(source.known(request.file), request.offset)

    def digests(self, request: requests.Digests) -> List[object]:
        act = self.file_source().digests
        return results(
            (file.path, functools.partial(act, source.known(file), extents, request.hash))
            for file, extents in request.files
        )

    # --- of a sink

    def finish(self, request: requests.Finish) -> "Callable[[Reply], None]":
        act = functools.partial(self.file_sink().finish, *request)
        return lambda reply: act(lambda outcome: reply(outcome[0], outcome[0] is not None))

    def make(self, request: requests.Make) -> int:
        return self.file_sink().make(request.entry)

    def discard(self, request: requests.Discard) -> Optional[bool]:
        return self.file_sink().discard(request.path, request.nonces)

    def revoke(self, request: requests.Revoke) -> None:
        self.file_sink().revoke(request.lane)

    def folders(self, request: requests.Folders) -> Failed:
        sink = self.file_sink()
        failed = dict(failed_of(request.entries, sink.finish_folder))
        for place, failure in failures.places(sink.make_names_durable(request.entries)):
            if failure["errno"] != errno.ENOENT:  # of folders that held nothing, and were removed
                failed.setdefault(place, failure)
        return list(failed.items())


def not_here(role: str) -> wire.WireError:
    """Return the error of a request that an end without this role cannot answer."""
    return wire.WireError("a request for a %s, which this end is not" % role)


def results(calls: "Iterable[Tuple[str, Callable[[], T]]]") -> "List[Union[T, failures.Data]]":
    """Make the call beside each path; return per path the result, or the failure as data."""
    results: List[Union[T, failures.Data]] = []
    for path, call in calls:
        try:
            results.append(call())
        except failures.EXPECTED as error:
            results.append(failures.from_exception(error, path))
    return results


def failed_of(entries: List[tree.Entry], act: Callable[[tree.Entry], None]) -> Failed:
    """Call `act` with each entry; return the place and the failure of those that failed."""
    calls = ((entry.path, functools.partial(act, entry)) for entry in entries)
    return failures.places(results(calls))


ANSWERS: Dict[type, Callable[..., object]] = {
    **dict.fromkeys([requests.Ping, requests.Learn], lambda end, request: None),
    requests.BeginSource: End.begin,
    requests.BeginSink: End.begin,
    requests.BeginStream: End.begin,
    requests.End: lambda end, request: end.close(),
    requests.Cpu: lambda end, request: system.cpu_seconds(os.getppid()),
    requests.Kernel: lambda end, request: system.kernel_settings(),
    requests.Expand: End.expand,
    requests.Target: End.target,
    requests.Claim: End.claim,
    requests.Clean: End.clean,
    requests.Gather: End.gather,
    **dict.fromkeys(requests.OF_GATHERING, End.ask_gathering),
    requests.Walk: End.walk,
    requests.Extents: End.extents,
    requests.Digests: End.digests,
    requests.Finish: End.finish,
    requests.Make: End.make,
    requests.Discard: End.discard,
    requests.Sweep: lambda end, request: end.file_sink().sweep(request.folders),
    requests.Revoke: End.revoke,
    requests.Release: lambda end, request: end.file_sink().release(),
    requests.Unmark: lambda end, request: end.file_sink().unmark(),
    requests.Folders: End.folders,
}
