"""One end of a copy: the source or the sink of it, and its answers to the coordinator's requests.

The coordinator asks both ends with the same records (requests.py): the far one through its
agent (agent.py), the near one directly (../transfer/lane.py). So push and pull are one story with
the ends swapped.

Not here: frames and descriptors (agent.py), what source and sink do (source.py, sink.py).
"""

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from . import failures, metadata, requests, source, system, tree, wire
from .paths import to_bytes, to_text

if TYPE_CHECKING:  # what only a sink needs is loaded with the request for one: 10 ms at a far end
    from . import fence, sink

Reply = Callable[[Any, bool], None]  # (answer, or failure data; whether it failed)


class End:
    """Serves one copy after another; a Begin says what it is in the next one."""

    def __init__(self, umask: int, gathering: Any = None, serve: Any = None) -> None:
        """`gathering` has the stream, if this end is a lane of one; `serve` is for gather()."""
        self._umask, self._serve = umask, serve
        self.gathering: Any = gathering
        self.source: Optional[source.Source] = None
        self.sink: "Optional[sink.Sink]" = None
        self._search: Any = None

    def the_source(self) -> source.Source:
        if self.source is None:
            raise not_here("source")
        return self.source

    def the_sink(self) -> "sink.Sink":
        if self.sink is None:
            raise not_here("sink")
        return self.sink

    def answer(self, request: "requests.Request", reply: Reply) -> None:
        """Answer with reply(), now or (Finish, and some of a stream) once there is an answer."""
        try:
            if isinstance(request, requests.Finish):
                self._finish(request, reply)
            elif type(request) in OF_A_STREAM:
                if self.gathering is None:
                    raise not_here("stream's far end")
                OF_A_STREAM[type(request)](self, request, reply)
            else:
                reply(ANSWERS[type(request)](self, request), False)
        except failures.EXPECTED as error:
            reply(failures.from_exception(error, requests.path_of(request)), True)

    def _finish(self, request: requests.Finish, reply: Reply) -> None:
        def done(outcome: List[Optional[failures.Data]]) -> None:
            reply(outcome[0], outcome[0] is not None)

        self.the_sink().finish(request.entry, request.strong, request.receipt, done)

    # --- what this end is

    def begin(self, request: requests.Begin) -> None:
        """Be the source or the sink of a copy. Raises OSError where the root cannot be opened."""
        self.drop_role()
        if isinstance(request, requests.BeginStream):
            self.source, self.sink = self.gathering.lane(request)
        elif isinstance(request, requests.BeginSource):
            make = _null_ends().MadeUpSource if request.test else source.Source
            self.source = make(
                request.tops, request.rules, request.hash, request.block_bytes, request.strong
            )
        elif request.test:
            self.sink = _null_ends().NullSink(request.hash)
        else:
            self.sink = self._new_sink(request)

    def _new_sink(self, request: requests.BeginSink) -> "sink.Sink":
        from . import sink

        policy = metadata.Policy(request.preserve, request.archive, self._umask)
        copy = sink.Copy(request.token, request.nonce, request.lane, request.earlier)
        return sink.Sink(request.root, copy, policy, request.hash, request.strong)

    def gather(self, request: requests.Gather) -> str:
        """Be the far end of a stream; returns where other lanes are handed over."""
        from . import stream_server

        self.close()
        self.gathering = stream_server.Gathering(request, self._umask, self._serve)
        return to_text(os.fsencode(self.gathering.path))

    def close(self) -> None:
        """The copy is over, and so is a stream that was gathered here."""
        self.drop_role()
        if self._serve is not None and self.gathering is not None:
            self.gathering.close()
            self.gathering = None

    def drop_role(self) -> None:
        source_end, sink_end = self.source, self.sink
        self.source = self.sink = None
        if source_end is not None:
            source_end.close()
        if sink_end is not None:
            sink_end.close()

    # --- answers of either end

    def expand(self, request: requests.Expand) -> List[Any]:
        found: List[Any] = []
        for path in request.paths:
            try:
                found.append(source.expand(path, request.glob))
            except failures.EXPECTED as error:
                found.append(failures.from_exception(error, path))
        return found

    def target(self, request: requests.Target) -> List[Any]:
        from . import placing

        make = bool(request.nonce)
        found = placing.resolve(
            request.path, request.names, request.folders, make=make, again=request.again
        )
        if not request.nonce:
            return [*found, None]
        claim = requests.Claim(found.root, request.token, request.nonce, request.known)
        return [*found, self.claim(claim)]

    def claim(self, request: requests.Claim) -> "fence.State":
        from . import fence

        fd = os.open(to_bytes(request.root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return fence.claim(fd, request.token, request.nonce, request.known)
        finally:
            os.close(fd)

    def clean(self, request: requests.Clean) -> Any:
        from . import leftovers

        if request.path is not None:
            self._search = leftovers.Search(request.path, request.remove)
        if self._search is None:
            raise not_here("search")
        return self._search.page()

    # --- of a source

    def walk(self, request: requests.Walk) -> Any:
        return self.the_source().walk(request.after, request.restart, request.most)

    def extents(self, request: requests.Extents) -> Any:
        return self.the_source().extents(source.known(request.file), request.offset)

    def digests(self, request: requests.Digests) -> List[Any]:
        found: List[Any] = []
        for file, extents in request.files:
            try:
                known = source.known(file)
                found.append(self.the_source().digests(known, extents, request.hash))
            except failures.EXPECTED as error:
                found.append(failures.from_exception(error, file.path))
        return found

    # --- of a sink

    def extents_there(self, request: requests.ExtentsThere) -> Any:
        return self.the_sink().extents(request.path, request.offset)

    def digests_there(self, request: requests.DigestsThere) -> List[Any]:
        found: List[Any] = []
        for is_part, path, extents in request.files:
            try:
                found.append(self.the_sink().digests(path, is_part, extents, request.hash))
            except failures.EXPECTED as error:
                found.append(failures.from_exception(error, path))
        return found

    def look(self, request: requests.Look) -> List[Any]:
        return self.the_sink().look(request.paths)

    def inherit(self, request: requests.Inherit) -> bool:
        return self.the_sink().inherit(request.entry, request.nonce)

    def make(self, request: requests.Make) -> int:
        return self.the_sink().make(request.entry)

    def discard(self, request: requests.Discard) -> bool:
        return self.the_sink().discard(request.path, request.nonces)

    def revoke(self, request: requests.Revoke) -> None:
        self.the_sink().revoke(request.lane)

    def adopt(self, request: requests.Adopt) -> List[Any]:
        return _each(request.entries, self.the_sink().adopt)

    def hard_links(self, request: requests.HardLinks) -> List[Any]:
        return self._each_named(request.entries, self.the_sink().hard_link)

    def folders(self, request: requests.Folders) -> List[Any]:
        return self._each_named(request.entries, self.the_sink().finish_folder)

    def _each_named(self, listed: List[tree.Entry], act: Callable[[tree.Entry], None]) -> List[Any]:
        failed = _each(listed, act)
        self.the_sink().make_names_durable(listed)
        return failed


def not_here(role: str) -> wire.WireError:
    """The error of a request to an end that has another role, or none."""
    return wire.WireError("a request for a %s, which this end is not" % role)


def _null_ends() -> Any:
    from . import null_ends

    return null_ends


def _each(listed: List[tree.Entry], act: Callable[[tree.Entry], None]) -> List[Any]:
    """Do this with many entries; returns [place, failure] of those that failed."""
    failed: List[Any] = []
    for place, entry in enumerate(listed):
        try:
            act(entry)
        except failures.EXPECTED as error:
            failed.append([place, failures.from_exception(error, entry.path)])
    return failed


OF_A_STREAM: Dict[type, Callable[[End, Any, Reply], None]] = {
    requests.Heard: lambda end, request, reply: end.gathering.heard(request, reply),
    requests.Drained: lambda end, request, reply: end.gathering.drained(request, reply),
    requests.CloseInput: lambda end, request, reply: end.gathering.close_input(request, reply),
    requests.Abort: lambda end, request, reply: end.gathering.abort(reply),
}

ANSWERS: Dict[type, Callable[[End, Any], Any]] = {
    requests.Ping: lambda end, request: None,
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
    requests.Walk: End.walk,
    requests.Extents: End.extents,
    requests.Digests: End.digests,
    requests.ExtentsThere: End.extents_there,
    requests.DigestsThere: End.digests_there,
    requests.Look: End.look,
    requests.Inherit: End.inherit,
    requests.Make: End.make,
    requests.Discard: End.discard,
    requests.Revoke: End.revoke,
    requests.Release: lambda end, request: end.the_sink().release(),
    requests.Adopt: End.adopt,
    requests.HardLinks: End.hard_links,
    requests.Folders: End.folders,
}
