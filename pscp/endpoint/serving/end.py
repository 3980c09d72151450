"""One end of a copy: its source or its sink, and the answers to the coordinator's requests.

The coordinator asks both ends with the same records (../asking/requests.py): the far one through
its agent (agent.py), the near one directly (../../transfer/lanes/lane.py). So push and pull differ
only in which end is which.

Not here: frames and descriptors (agent.py), what source and sink do (../reading/source.py,
../writing/sink.py), which modules answer what (../asking/answers.py).
"""

import errno
import functools
import os
from typing import TYPE_CHECKING, Callable, List, Optional, Tuple, Union

from ..asking import answers, requests
from ..asking.answers import Failed, Reply, failed_of, not_here, results
from ..frames import failures, system, wire
from ..reading import metadata, source
from ..reading.paths import marker_name, mount_of, open_named, to_bytes, to_text

if TYPE_CHECKING:  # the modules of a sink are loaded when it begins: they take 10 ms at a far end
    from typing import Protocol

    from ..streams import stream_server
    from ..there import leftovers
    from ..writing import fence, sink, verifying
    from . import frame_server

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
        self.search: Optional[leftovers.Search] = None  # which goes on from page to page

    # --- the role; each raises WireError where the end has another one

    def itself(self) -> "End":
        return self

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

    def file_sink(self) -> "verifying.VerifyingSink":
        """Return the sink of files that this end is; it may be one that writes nothing."""
        from ..writing import verifying

        if not isinstance(self.sink, verifying.VerifyingSink):
            raise not_here("sink of files")
        return self.sink

    def writing_sink(self) -> "sink.Sink":
        """Return the sink of files that this end is, which writes them."""
        from ..writing import sink

        if not isinstance(self.sink, sink.Sink):
            raise not_here("sink of files")
        return self.sink

    def answer(self, request: "requests.Request", reply: Reply) -> None:
        """Call `reply` with the answer: at once, or later, where that is a function that does."""
        try:
            role, act = answers.ANSWERS[type(request)]
            answer = act(getattr(self, role)(), request)
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
            from ..reading import synthetic

            make = synthetic.MadeUpSource
        return make(request.tops, request.rules, request.hash, request.block_bytes, request.strong)

    def _new_sink(self, request: requests.BeginSink) -> "verifying.VerifyingSink":
        from ..writing import sink

        if request.test:
            from ..writing import null_sink

            return null_sink.NullSink(request.hash, False)
        copy = sink.Copy(request.token, request.nonce, request.lane, request.earlier)
        policy = metadata.Policy(request.preserve, request.archive, self._umask)
        made = sink.Sink(request.root, copy, policy, request.hash, request.strong)
        if request.one_mount:
            made.root.mount = mount_of(made.root.fd)
        if request.made:
            made.root.mark(request.made, marker_name(request.token))
        if request.backup:
            from ..writing import backup

            suffix, folder = request.backup
            made.settler.keeper = backup.Keeper(made.root, made.parts, request.root, suffix, folder)
        if request.replaces:
            from ..there import mirror

            made.root.replaced = tuple(path and path + "/" for path in request.replaces)
            made.root.make_way = functools.partial(mirror.make_way, made)
        if request.link_dest:
            from ..there import linkdest

            made.linker = linkdest.Linker(made, *request.link_dest)
        return made

    def gather(self, request: requests.Gather) -> str:
        """Become the far end of a stream; return the path where other lanes are handed over."""
        from ..streams import stream_server

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


def _expand(of: End, request: requests.Expand) -> "List[Union[List[source.Top], failures.Data]]":
    act = functools.partial(source.expand, pattern=request.glob)
    return results((path, functools.partial(act, path)) for path in request.paths)


def _target(of: End, request: requests.Target) -> List[object]:
    from ..writing import placing

    path, names, folders, token, nonce, known, mkpath, backups = request
    target = placing.resolve(path, names, folders, make=bool(nonce), mkpath=mkpath, token=token)
    if backups:
        placing.beside(target.root, backups)
    if not nonce:
        return [*target, None]
    return [*target, _claim(of, requests.Claim(target.root, token, nonce, known))]


def _claim(of: End, request: requests.Claim) -> "fence.Claim":
    from ..writing import fence

    with system.closing(open_named(to_bytes(request.root))) as fd:
        return fence.claim(fd, *request[1:])


# --- of a source, and of a sink


def _digests(of: source.Source, request: requests.Digests) -> List[object]:
    return results(
        (file.path, functools.partial(of.digests, source.entry_of(file), extents, request.hash))
        for file, extents in request.files
    )


def _finish(of: "verifying.VerifyingSink", request: requests.Finish) -> "Callable[[Reply], None]":
    act = functools.partial(of.finish, *request)
    return lambda reply: act(lambda outcome: reply(outcome[0], outcome[0] is not None))


def _folders(of: "verifying.VerifyingSink", request: requests.Folders) -> Failed:
    failed = dict(failed_of(request.entries, of.finish_folder))
    for place, failure in failures.places(of.make_names_durable(request.entries)):
        if failure["errno"] != errno.ENOENT:  # of folders that held nothing, and were removed
            failed.setdefault(place, failure)
    return list(failed.items())


answers.add(
    answers.ITSELF,
    {
        requests.Ping: lambda of, request: None,
        requests.Learn: lambda of, request: None,
        **dict.fromkeys(requests.BEGINNINGS, End.begin),
        requests.End: lambda of, request: of.close(),
        requests.Cpu: lambda of, request: system.cpu_seconds(os.getppid()),
        requests.Expand: _expand,
        requests.Target: _target,
        requests.Claim: _claim,
        requests.Gather: End.gather,
        **dict.fromkeys(requests.OF_GATHERING, End.ask_gathering),
    },
)
answers.add(
    answers.SOURCE,
    {
        requests.Walk: lambda of, request: of.walk(*request),
        requests.Extents: lambda of, request: of.extents(source.entry_of(request[0]), request[1]),
        requests.Digests: _digests,
    },
)
answers.add(
    answers.SINK,
    {
        requests.Finish: _finish,
        requests.Make: lambda of, request: of.make(*request),
        requests.Discard: lambda of, request: of.discard(*request),
        requests.Sweep: lambda of, request: of.sweep(*request),
        requests.Revoke: lambda of, request: of.revoke(*request),
        requests.Release: lambda of, request: of.release(),
        requests.Unmark: lambda of, request: of.unmark(),
        requests.Folds: lambda of, request: of.folds(*request),
        requests.Folders: _folders,
    },
)
