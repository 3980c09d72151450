"""One end of a copy: the source or the sink of it, and its answers to the coordinator's questions.

The coordinator asks both ends the same questions in the same words: the far one through its
agent (agent.py), the near one directly (../transfer/lane.py). So push and pull are one story with
the ends swapped.

Not here: frames and descriptors (agent.py), what source and sink do (source.py, sink.py).
"""

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from . import entries, failures, metadata, source, system, tree
from .paths import to_bytes, to_text

if TYPE_CHECKING:  # what only a sink needs is loaded with the question for one: 10 ms at a far end
    from . import fence, sink

Question = Dict[str, Any]
Reply = Callable[[Any, bool], None]  # (answer, or failure data; whether it failed)


class End:
    """Serves one copy after another; "begin" says what it is in the next one."""

    def __init__(self, umask: int, gathering: Any = None, serve: Any = None) -> None:
        """`gathering` has the stream, if this end is a lane of one; `serve` is for gather()."""
        self._umask, self.gathering, self._serve = umask, gathering, serve
        self.source: Optional[source.Source] = None
        self.sink: "Optional[sink.Sink]" = None
        self._search: Any = None

    def the_source(self) -> source.Source:
        assert self.source is not None
        return self.source

    def the_sink(self) -> "sink.Sink":
        assert self.sink is not None
        return self.sink

    def answer(self, asked: Question, reply: Reply) -> None:
        """Answer with reply(), now or (finish) once the file is durable."""
        try:
            if asked["ask"] == "finish":
                self._finish(asked, reply)
            elif asked["ask"] in OF_A_STREAM:
                getattr(self.gathering, asked["ask"])(asked, reply)
            else:
                reply(ANSWERS[asked["ask"]](self, asked), False)
        except failures.EXPECTED as error:
            reply(failures.from_exception(error, str(asked.get("path", ""))), True)

    def _finish(self, asked: Question, reply: Reply) -> None:
        entry = entries.entry(asked["entry"])

        def done(outcome: List[Optional[failures.Data]]) -> None:
            reply(outcome[0], outcome[0] is not None)

        self.the_sink().finish(entry, asked["strong"], asked["inode"], done)

    def begin(self, asked: Question) -> None:
        """Be the source or the sink of a copy. Raises OSError where the root cannot be opened."""
        self.drop_role()
        if asked["role"] == "stream":
            self.source, self.sink = self.gathering.lane(asked)
        elif asked["role"] == "source":
            rules = tree.Rules(*asked["rules"])
            tops = [source.Top(*top) for top in asked["tops"]]
            make = _null_ends().MadeUpSource if asked["test"] else source.Source
            self.source = make(tops, rules, asked["hash"], asked["block_bytes"], asked["strong"])
        elif asked["test"]:
            self.sink = _null_ends().NullSink(asked["hash"])
        else:
            self.sink = self._new_sink(asked)

    def _new_sink(self, asked: Question) -> "sink.Sink":
        from . import sink

        policy = metadata.Policy(asked["preserve"], asked["archive"], self._umask)
        copy = sink.Copy(asked["token"], asked["nonce"], asked["lane"], asked["earlier"])
        return sink.Sink(asked["root"], copy, policy, asked["hash"], asked["strong"])

    def gather(self, asked: Question) -> str:
        """Be the far end of a stream; returns where other lanes are handed over."""
        from . import stream_server

        self.end(asked)
        self.gathering = stream_server.Gathering(asked, self._umask, self._serve)
        return to_text(os.fsencode(self.gathering.path))

    def end(self, asked: Question) -> None:
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

    def expand(self, asked: Question) -> List[Any]:
        """Per path as typed, what it stands for, or its failure."""
        found: List[Any] = []
        for path in asked["paths"]:
            try:
                found.append(source.expand(path, asked["glob"]))
            except failures.EXPECTED as error:
                found.append(failures.from_exception(error, path))
        return found

    def target(self, asked: Question) -> List[Any]:
        """Where the copy lands: a Target's fields, then what fence.claim() says of it.

        "again" is the root and the names of a run that was cut short; None where there was none.
        """
        from . import placing

        make = bool(asked["nonce"])
        found = placing.resolve(
            asked["path"], asked["names"], asked["folders"], make, asked["again"]
        )
        return list(found) + [_claim(found.root, asked) if asked["nonce"] else None]

    def clean(self, asked: Question) -> Any:
        """A page of what cut copies left; without a path the next page of the same search."""
        from . import leftovers

        if asked["path"] is not None:
            self._search = leftovers.Search(asked["path"], asked["remove"])
        return self._search.page()

    def extents(self, asked: Question) -> Any:
        """Where a file has data from an offset on, and whether that is all."""
        if self.source is not None:
            return self.source.extents(source.known(asked["file"]), asked["offset"])
        return self.the_sink().extents(asked["file"], asked["offset"])

    def digests(self, asked: Question) -> List[Any]:
        """Per file the hex digests of its extents, or its failure."""
        found: List[Any] = []
        for value, extents in asked["files"]:
            try:
                if self.source is not None:
                    known = source.known(value)
                    found.append(self.source.digests(known, extents, asked["hash"]))
                else:
                    part, path = value
                    digests = self.the_sink().digests(path, part, extents, asked["hash"])
                    found.append(digests)
            except failures.EXPECTED as error:
                found.append(failures.from_exception(error, str(value[1])))
        return found


def _null_ends() -> Any:
    from . import null_ends

    return null_ends


def _claim(root: str, asked: Question) -> "fence.State":
    """Make a run the one that owns the copy into this root, as fence.claim() does."""
    from . import fence

    fd = os.open(to_bytes(root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return fence.claim(fd, asked["token"], asked["nonce"], asked["known"])
    finally:
        os.close(fd)


def _each(
    act: "Callable[[sink.Sink, tree.Entry], None]", makes: bool = True
) -> Callable[[End, Question], Any]:
    """A question about many entries; the answer is [place, failure] of those that failed."""

    def answer(end: End, asked: Question) -> List[Any]:
        failed: List[Any] = []
        listed = [entries.entry(value) for value in asked["entries"]]
        for place, entry in enumerate(listed):
            try:
                act(end.the_sink(), entry)
            except failures.EXPECTED as error:
                failed.append([place, failures.from_exception(error, entry.path)])
        if makes:
            end.the_sink().make_names_durable(listed)
        return failed

    return answer


OF_A_STREAM = frozenset(["heard", "drained", "close_input", "abort"])  # Gathering's methods

ANSWERS: Dict[str, Callable[[End, Question], Any]] = {
    "begin": End.begin,
    "end": End.end,
    "gather": End.gather,
    "cpu": lambda end, asked: system.cpu_seconds(os.getppid()),
    "kernel": lambda end, asked: system.kernel_settings(),
    "digests": End.digests,
    "expand": End.expand,
    "clean": End.clean,
    "walk": lambda end, asked: end.the_source().walk(
        asked["after"], asked["restart"], asked["most"]
    ),
    "extents": End.extents,
    "target": End.target,
    "claim": lambda end, asked: _claim(asked["root"], asked),
    "release": lambda end, asked: end.the_sink().release(),
    "revoke": lambda end, asked: end.the_sink().revoke(asked["lane"]),
    "look": lambda end, asked: end.the_sink().look(asked["paths"]),
    "make": lambda end, asked: end.the_sink().make(entries.entry(asked["entry"])),
    "inherit": lambda end, asked: end.the_sink().inherit(
        entries.entry(asked["entry"]), asked["nonce"]
    ),
    "discard": lambda end, asked: end.the_sink().discard(asked["path"], asked["nonces"]),
    "adopt": _each(lambda to, entry: to.adopt(entry), makes=False),
    "hard_links": _each(lambda to, entry: to.hard_link(entry)),
    "folders": _each(lambda to, entry: to.finish_folder(entry)),
}
