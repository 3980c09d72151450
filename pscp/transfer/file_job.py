"""One large file's way: its extents, its chunks, the retries, the finish.

A FileJob learns in outcomes of the queue what became of its chunks, so one thing after the other
(WorkQueue.settle()). It ends in exactly one of Copy.file_done() and Copy.file_failed().

Not here: small files (coordinator.py), the decision that a file is copied at all (resume.py).
Read next: lane.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from pscp.endpoint import failures, hashes, requests, source, wire
from pscp.endpoint.files import Extent
from pscp.progress import Counters
from pscp.transfer import states
from pscp.transfer.journal import AnyJournal, Landed
from pscp.transfer.plan import Ask, Chunk, Failure, Placed, Work, batches, cut, subtract
from pscp.transfer.work_queue import WorkQueue

# Hashed at an end for one question: long enough to outweigh a round trip, short enough that
# what waits behind it on the same lane does not wait long.
CHECK_BYTES = 64 * 1024 * 1024

_numbers = itertools.count(1)


class Copy(Protocol):
    """What a FileJob needs of the copy it belongs to."""

    queue: WorkQueue
    counters: Counters
    journal: AnyJournal
    algorithm: str
    chunk_bytes: int
    strong: bool

    def next_chunk_bytes(self) -> int: ...

    def file_done(self, item: Placed, digest: str) -> None: ...

    def file_failed(self, item: Placed, failure: Failure) -> None: ...

    def unwanted(self, path: str, nonces: list[str]) -> None: ...


class FileJob:
    """A file that is copied by chunks."""

    def __init__(self, copy: Copy, item: Placed) -> None:
        self.number = next(_numbers)
        self.item = item
        self.may_be_short = self.was_shared = False
        self._life = states.Machine(states.FILE, states.File.COPYING)
        self._copy, self._queue = copy, copy.queue
        self._failure: Failure | None = None
        self._holds = 0  # what must be over before the file can be finished
        self._receipt = 0  # for the chunks that landed
        self._journal_number = 0  # only what is written later knows it

    @property
    def is_closed(self) -> bool:
        """Is it done, or has it failed?"""
        return self._life.state is states.File.CLOSED

    # --- beginning

    def start(self, landed: Landed | None, compare: bool) -> None:
        """Copy the file. `landed` is what a journal knows of its part; with `compare` there is
        a part of which nothing is known, so both ends hash and only what differs is sent.
        """
        item = self.item
        self._queue.write_later(self._note_begun)
        if landed is not None:
            self._later(self._check_landed(landed))
        done = sorted(landed.digests) if landed is not None else []
        if "sparse" in item.entry.extra:
            self._ask_extents(0, done)
            return
        self._copy.counters.add(bytes_total=item.entry.size)
        extents = subtract([(0, item.entry.size)], done)
        if compare:
            self._later(self._compare(extents))
        else:
            self._later(self._chunks(extents))

    def _note_begun(self) -> None:
        self._journal_number = self._copy.journal.file(
            self.item.entry.path, source.identity(self.item.known), self._copy.algorithm
        )

    def _note_landed(self, extent: Extent, digest: str) -> None:
        journal = self._copy.journal
        self._queue.write_later(lambda: journal.chunk(self._journal_number, *extent, digest))

    def _later(self, work: Iterator[Work]) -> None:
        self._holds += 1

        def until_done() -> Iterator[Work]:
            yield from work
            self._release()

        self._queue.add(until_done())

    def _chunks(self, extents: Iterable[Extent]) -> Iterator[Work]:
        for offset, length in extents:
            end = offset + length
            while offset < end and self._failure is None:
                length = min(self._copy.next_chunk_bytes(), end - offset)
                self._holds += 1
                yield Chunk(self, offset, length)
                offset += length

    def _ask_extents(self, offset: int, done: list[Extent]) -> None:
        """A sparse file: the source tells where its data is; the holes need no sending."""
        known = self.item.known

        def then(answer: Any) -> None:
            found = checked_extents(answer[0], offset, self.item.entry.size)
            self._copy.counters.add(bytes_total=sum(length for _, length in found))
            after = None if answer[1] else sum(found[-1])
            self._later(self._chunks_and_then(list(subtract(found, done)), after, done))
            self._release()

        self._ask(True, requests.Extents(source.listed(known), offset), then)

    def _chunks_and_then(
        self, extents: list[Extent], after: int | None, done: list[Extent]
    ) -> Iterator[Work]:
        """More is asked for when this is handed out: a file may have any number of extents."""
        yield from self._chunks(extents)
        if after is not None and self._failure is None:
            self._ask_extents(after, done)

    def _ask(self, of_source: bool, request: requests.Request, then: Any) -> None:
        self._holds += 1
        self._queue.add(Ask(of_source, request, then, self._ask_failed))

    def _ask_failed(self, failure: Failure) -> None:
        self._fail(failure)
        self._release()

    # --- what is there already

    def _check_landed(self, landed: Landed) -> Iterator[Work]:
        """Have the sink hash what the journal says landed; take what matches, send the rest."""
        for group in batches(sorted(landed.digests), CHECK_BYTES):
            if self._failure is not None:
                return
            wanted = [landed.digests[extent] for extent in group]
            self._holds += 1
            request = self._digests_of_part(group, landed.algorithm)
            yield Ask(False, request, self._compared(group, wanted), self._ask_failed)

    def _compare(self, extents: Iterable[Extent]) -> Iterator[Work]:
        """Have both ends hash the same extents."""
        algorithm = self._copy.algorithm
        for group in batches(cut(extents, self._copy.chunk_bytes), CHECK_BYTES):
            if self._failure is not None:
                return
            self._holds += 1
            yield Ask(
                True,
                requests.Digests([(source.listed(self.item.known), group)], algorithm),
                self._then_sink(group, algorithm),
                self._ask_failed,
            )

    def _then_sink(self, group: list[Extent], algorithm: str) -> Any:
        def then(answer: Any) -> None:
            [wanted] = answer
            if isinstance(wanted, dict):
                self._ask_failed(failures.checked(wanted))
                return
            request = self._digests_of_part(group, algorithm)
            self._queue.add(Ask(False, request, self._compared(group, wanted), self._ask_failed))

        return then

    def _compared(self, group: list[Extent], wanted: list[Any]) -> Any:
        def then(answer: Any) -> None:
            [found] = answer
            if isinstance(found, dict):  # the part is gone or unreadable: send everything
                found = [None] * len(group)
            missing = []
            for extent, mine, theirs in zip(group, wanted, found, strict=True):
                if mine is not None and mine == theirs:
                    self._landed_earlier(extent, mine)
                else:
                    missing.append(extent)
            self._later(self._chunks(missing))
            self._release()

        return then

    def _digests_of_part(self, group: list[Extent], algorithm: str) -> requests.DigestsThere:
        return requests.DigestsThere([(True, self.item.entry.path, group)], algorithm)

    def _landed_earlier(self, extent: Extent, digest: str) -> None:
        self._copy.counters.add(bytes_resumed=extent[1], chunks_verified=1)
        self._note_landed(extent, digest)

    # --- what lanes tell

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        """The chunk is written at the sink and matches."""
        self._receipt = self._receipt or receipt
        if receipt != self._receipt:
            path = self.item.entry.path
            self._fail(failures.data(failures.SYSTEM, path, "its part was replaced meanwhile"))
        if self._failure is None:
            self._copy.counters.add(
                bytes_done=chunk.length, bytes_sent=chunk.length, chunks_verified=1
            )
            self._note_landed((chunk.offset, chunk.length), digest)
        self._release()

    def mismatched(self, chunk: Chunk) -> None:
        """What arrived is not what was sent: once more, and only once."""
        self._copy.counters.add(chunks_resent=1, bytes_sent=chunk.length)
        chunk.mismatches += 1
        if chunk.mismatches == 1 and self._failure is None:
            self._queue.add(chunk)
            return
        path = self.item.entry.path
        self._fail(failures.data(failures.VERIFY, path, "arrived damaged twice"))
        self._release()

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        """An end could not read or write it."""
        self._fail(failure)
        self._release()

    def _fail(self, failure: Failure) -> None:
        self._failure = self._failure or failure

    # --- finishing

    def _release(self) -> None:
        self._life.on(states.FileEvent.PIECE)
        self._holds -= 1
        if self._holds:
            return
        if self._failure is not None:
            self._discard()
        elif self._copy.strong:
            self._ask_strong()
        else:
            self._finish("")

    def _ask_strong(self) -> None:
        """Have the source tell the digest of the whole file, with which the sink compares what lies
        there: for -s, and where a part may have been made after the file got its final name.
        """
        self._life.on(states.FileEvent.COMPARE)
        known = self.item.known

        def then(answer: Any) -> None:
            [found] = answer
            if isinstance(found, dict) or not isinstance(found[0], str):
                failure = failures.data(failures.CHANGED, self.item.entry.path, "changed")
                self._fail(failures.checked(found) if isinstance(found, dict) else failure)
                self._discard()
            else:
                self._finish(found[0])

        file = source.listed(known)
        whole = requests.Digests([(file, [(0, self.item.entry.size)])], hashes.STRONG)
        self._queue.add(Ask(True, whole, then, self._cannot_finish))

    def _finish(self, strong: str) -> None:
        self._life.on(states.FileEvent.FINISH)
        if self._receipt:
            self._ask_finish(strong)
        else:
            self._make(strong)

    def _ask_finish(self, strong: str) -> None:
        def then(answer: Any) -> None:
            self._close()
            self._copy.file_done(self.item, strong if self._copy.strong else "")

        request = requests.Finish(self.item.entry, strong, self._receipt)
        ask = Ask(False, request, then, self._cannot_finish, is_exclusive=True)
        # Was it done already, then another lane may have made the part anew. Where no inode tells
        # one part from another (SFTP), the digest does.
        if self._receipt == wire.SOME_PART and self.was_shared and not strong:
            ask.lost = self._ask_strong
        self._queue.add(ask)

    def _make(self, strong: str) -> None:
        """A file that is one hole has no chunk that would make its part."""

        def then(answer: Any) -> None:
            self._receipt = int(answer)
            if not self._receipt:
                raise ValueError("a part without a receipt")
            self._ask_finish(strong)

        self.was_shared = True  # should a lane be lost meanwhile, it may make another one late
        make = requests.Make(self.item.entry)
        self._queue.add(Ask(False, make, then, self._cannot_finish))

    def _close(self) -> None:
        self._queue.write_later(lambda: self._copy.journal.done(self._journal_number))
        self._life.on(states.FileEvent.CLOSE)
        if self.was_shared:
            self._copy.unwanted(self.item.entry.path, [""])

    def _cannot_finish(self, failure: Failure) -> None:
        self._fail(failure)
        self._discard()

    def _discard(self) -> None:
        """Nothing good-looking is left of a file that failed."""
        self._life.on(states.FileEvent.DISCARD)

        def over(_: Any) -> None:
            assert self._failure is not None
            self._close()
            self._copy.file_failed(self.item, self._failure)

        discard = requests.Discard(self.item.entry.path, [""])
        self._queue.add(Ask(False, discard, over, over))


def checked_extents(answer: Any, offset: int, size: int) -> list[Extent]:
    """Extents as a far end told them: ascending and inside the file. Raises ValueError."""
    found = [(int(begin), int(length)) for begin, length in answer]
    for begin, length in found:
        if begin < offset or length <= 0 or begin + length > size:
            raise ValueError("an extent out of its place")
        offset = begin + length
    return found
