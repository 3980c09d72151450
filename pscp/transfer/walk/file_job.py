"""The copy of one large file: its extents, its chunks, the retries, the finish.

The queue tells a FileJob what became of its chunks, one after the other (WorkQueue.settle()). It
ends in exactly one of Results.file_done() and Results.name_failed().

Not here: small files (items.py), the decision that a file is copied at all (decide.py),
the shape of answers (../pieces/answers.py).
Read next: ../lanes/lane.py.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, hashes, wire
from pscp.endpoint.reading import source
from pscp.endpoint.reading.files import Extent
from pscp.endpoint.streams.machine import Machine
from pscp.endpoint.there import lookup, reuse
from pscp.transfer.ending.ending import Ending
from pscp.transfer.pieces import answers, states
from pscp.transfer.pieces.plan import (
    Ask,
    Chunk,
    Failure,
    PlannedEntry,
    Work,
    batches,
    cut,
    joined,
    subtract,
)
from pscp.transfer.terms.copy_terms import CopyTerms
from pscp.transfer.terms.journal import FileNotes, ctime_of, rest_of
from pscp.transfer.terms.results import Results

# What an end hashes for one request: enough to outweigh a round trip, and little enough that what
# follows on the same lane does not wait long.
CHECK_BYTES = 64 * 1024 * 1024
# And what is compared with the file that is there for one request. These go before chunks: a lane
# that first sent what was found to differ would have the sink wait. And since chunks wait behind
# them at the sink, there are no more at once than keep it at work: four for each lane, and as many
# as it answers in a round trip.
_REUSE_BYTES, _REUSES_LEAST, _REUSE_S = 16 * 1024 * 1024, 4, 0.02
_HOPELESS_BYTES = 64 * 1024 * 1024  # if nothing of so much is the same, no more is compared

_numbers = itertools.count(1)


class FileJob:
    """A file that is copied by chunks. Only what the queue runs changes it."""

    may_be_short = False

    def __init__(
        self, terms: CopyTerms, results: Results, ending: Ending, item: PlannedEntry
    ) -> None:
        self.number, self.item = next(_numbers), item
        self.was_shared = False
        self._life = Machine(states.FILE, states.File.COPYING)
        self._terms, self._results, self._ending = terms, results, ending
        self._queue, self._counters = terms.queue, terms.counters
        self._failure: Failure | None = None
        self._holds = 0  # what must be over before the file can be finished
        self._receipt = 0  # for the chunks that landed
        self._journal_number = 0  # only what is written later knows it
        self._basis_bytes = 0  # of the file that is there
        self._compared_bytes = self._reused_bytes = 0  # of it
        # What is still to be compared, by requests, and what is to be sent after that.
        self._uncompared = deque[tuple[Iterator[list[Extent]], Iterator[Work]]]()
        self._reuses = 0  # requests under way; the first answer tells that the part has begun
        self._waiting: list[Iterator[Work]] = []  # for that answer
        self._owed_bytes = 0  # of data: not known to be in the part yet

    @property
    def is_closed(self) -> bool:
        """Return whether the file is done, or has failed."""
        return self._life.state is states.File.CLOSED

    # --- beginning

    def start(self, landed: FileNotes | None, compare: bool, basis_bytes: int) -> None:
        """Copy the file.

        Args:
            landed: what a journal knows of its part.
            compare: both ends hash what has landed, or the whole part where nothing is known of it;
                else the sink alone does, and the journal has the digests.
            basis_bytes: the size of the file that is there, from which the sink takes what is the
                same; 0: none.
        """
        item, self._basis_bytes = self.item, basis_bytes
        self._counters.begin_file(self.number, item.entry.path, item.entry.size)
        self._queue.write_later(self._note_begun)
        done = sorted(landed.digests) if landed is not None else []
        if landed is not None:
            self._later(self._compare(done) if compare else self._check_landed(landed))
        self._owed_bytes = _length(done)
        if "sparse" in item.entry.extra:
            self._ask_extents(0, done)
            return
        self._counters.add(bytes_total=item.entry.size)
        extents = list(subtract([(0, item.entry.size)], done))
        self._owed_bytes += _length(extents)
        if compare and landed is None:
            self._later(self._compare(extents))
        else:
            self._send(extents)

    def _note_begun(self) -> None:
        entry, known = self.item.entry, source.identity(self.item.known)
        self._journal_number = self._terms.journal.file(
            entry.path, known, self._terms.algorithm, rest_of(entry), ctime_of(entry)
        )

    def _note_landed(self, extent: Extent, digest: str) -> None:
        journal = self._terms.journal
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
                length = min(self._terms.next_chunk_bytes(), end - offset)
                self._holds += 1
                yield Chunk(self, offset, length)
                offset += length

    def _ask_extents(self, offset: int, done: list[Extent]) -> None:
        """Ask the source where a sparse file has data; the holes need no sending."""

        def then(answer: object) -> None:
            found, is_last = answers.extents(answer, offset, self.item.entry.size)
            self._counters.add(bytes_total=_length(found))
            after = None if is_last else sum(found[-1])
            missing = list(subtract(found, done))
            self._owed_bytes += _length(missing)
            self._send(missing, self._then_ask(after, done))
            self._release()

        self._holds += 1
        request = requests.Extents(source.listed(self.item.known), offset)
        self._queue.add(Ask(True, request, then, self._ask_failed))

    def _then_ask(self, after: int | None, done: list[Extent]) -> Iterator[Work]:
        """Ask for the extents that come `after` those that were sent, if there are more."""
        if after is not None and self._failure is None:
            self._ask_extents(after, done)
        yield from ()

    def _ask_failed(self, failure: Failure) -> None:
        self._fail(failure)
        self._release()

    # --- what is there already

    def _check_landed(self, landed: FileNotes) -> Iterator[Work]:
        """Have the sink hash what the journal says landed; take what matches, send the rest."""
        for group in batches(sorted(landed.digests), CHECK_BYTES):
            if self._failure is not None:
                return
            wanted = [landed.digests[extent] for extent in group]
            self._holds += 1
            request = self._digests_of_part(group, landed.algorithm)
            yield Ask(False, request, partial(self._compared, group, wanted), self._ask_failed)

    def _compare(self, extents: Iterable[Extent]) -> Iterator[Work]:
        for group in batches(cut(extents, self._terms.chunk_bytes), CHECK_BYTES):
            if self._failure is not None:
                return
            self._holds += 1
            yield self._ask_source(group, partial(self._then_sink, group))

    def _ask_source(self, group: list[Extent], then: Callable[[answers.Digests], None]) -> Ask:
        """Return the request for the source's digests of these extents."""

        def answered(answer: object) -> None:
            [found] = answers.digests(answer, [group])
            if isinstance(found, dict):
                self._ask_failed(answers.from_source(found))
            else:
                then(found)

        request = requests.Digests([(source.listed(self.item.known), group)], self._terms.algorithm)
        return Ask(True, request, answered, self._ask_failed)

    def _then_sink(self, group: list[Extent], wanted: answers.Digests) -> None:
        request = self._digests_of_part(group, self._terms.algorithm)
        then = partial(self._compared, group, wanted)
        self._queue.add(Ask(False, request, then, self._ask_failed))

    def _compared(self, group: list[Extent], wanted: Sequence[str | None], answer: object) -> None:
        [found] = answers.digests(answer, [group])
        # Where the part is gone or unreadable, all is sent.
        there = [None] * len(group) if isinstance(found, dict) else found
        missing = []
        for extent, mine, theirs in zip(group, wanted, there, strict=True):
            if mine is not None and mine == theirs:
                self._owed_bytes -= extent[1]
                self._counters.add(bytes_resumed=extent[1], chunks_verified=1)
                self._counters.add_to_file(self.number, extent[1])
                self._note_landed(extent, mine)
            else:
                missing.append(extent)
        self._send(missing)
        self._release()

    def _digests_of_part(self, group: list[Extent], algorithm: str) -> lookup.DigestsThere:
        return lookup.DigestsThere([(True, self.item.entry.path, group)], algorithm)

    # --- what the file that is there has

    def _send(self, extents: Iterable[Extent], then: Iterable[Work] = ()) -> None:
        """Send these extents, but for what the file that is there has of them, and `then` more."""
        wanted, basis_bytes = list(extents), self._basis_bytes
        rest = itertools.chain(self._chunks(subtract(wanted, [(0, basis_bytes)])), then)
        there = list(subtract(wanted, [(basis_bytes, wire.MAX_OFFSET)])) if basis_bytes else []
        self._counters.add(bytes_comparing=_length(there))
        groups = batches(cut(there, reuse.PIECE_BYTES), _REUSE_BYTES)
        self._uncompared.append((groups, rest))
        self._compare_more()

    @property
    def _may_reuse(self) -> bool:
        of_lane = _REUSES_LEAST + int(self._terms.context.rtt_s / _REUSE_S)
        return self._reuses < of_lane * max(self._counters.lanes_alive, 1)

    def _compare_more(self) -> None:
        """Have the next groups compared, as many as may be at once; after them send the rest."""
        while self._uncompared and self._may_reuse and self._failure is None:
            groups, rest = self._uncompared[0]
            group = next(groups, None)
            is_hopeless = self._compared_bytes >= _HOPELESS_BYTES and not self._reused_bytes
            if group is not None and not is_hopeless:
                self._reuse(group)
                continue
            self._uncompared.popleft()
            if group is not None:
                left = list(joined(itertools.chain(group, *groups)))
                self._counters.add(bytes_comparing=-_length(left))
                rest = itertools.chain(self._chunks(left), rest)
            if self._reuses and not self._compared_bytes:
                self._waiting.append(rest)
            else:
                self._later(rest)

    def _reuse(self, group: list[Extent]) -> None:
        """Have a group compared, and what is the same be taken."""
        self._holds += 1
        self._reuses += 1
        self.was_shared = True  # a lane that is lost meanwhile may make a part late
        self._queue.add(self._ask_source(group, partial(self._then_reuse, group)))

    def _then_reuse(self, group: list[Extent], wanted: answers.Digests) -> None:
        digests = [digest or "" for digest in wanted]  # "": the source is shorter by now
        request = reuse.Reuse(self.item.entry, group, digests, self._terms.algorithm)
        then = partial(self._reused, group)
        self._queue.add(Ask(False, request, then, self._ask_failed))

    def _reused(self, group: list[Extent], answer: object) -> None:
        receipt, found = answers.items(answer)
        pairs = list(zip(group, answers.items(found), strict=True))
        missing = [extent for extent, is_taken in pairs if not is_taken]
        length = _length(group)
        taken_bytes = length - _length(missing)
        self._compared_bytes += length
        self._reused_bytes += taken_bytes
        self._owed_bytes -= taken_bytes
        self._counters.add(bytes_comparing=-length, bytes_resumed=taken_bytes)
        self._counters.add(chunks_verified=len(group) - len(missing))
        self._counters.add_to_file(self.number, taken_bytes)
        if taken_bytes:
            self._take_receipt(answers.integer(receipt))
        waiting, self._waiting = self._waiting, []
        self._later(itertools.chain(*waiting, self._chunks(joined(missing))))
        self._reuses -= 1
        self._compare_more()
        self._release()

    # --- what lanes report

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        """Count a chunk that is written at the sink and matches."""
        self._take_receipt(receipt)
        if self._failure is None:
            self._owed_bytes -= chunk.length
            self._counters.add(bytes_done=chunk.length, bytes_sent=chunk.length, chunks_verified=1)
            self._counters.add_to_file(self.number, chunk.length)
            self._note_landed((chunk.offset, chunk.length), digest)
        self._release()

    def _take_receipt(self, receipt: int) -> None:
        """Learn in which part something was written: it must be one and the same."""
        self._receipt = self._receipt or receipt
        if receipt != self._receipt:
            self._fail_for(failures.SYSTEM, "its part was replaced")

    def mismatched(self, chunk: Chunk) -> None:
        """Send a chunk that arrived damaged once more; fail the file when that is damaged too."""
        self._counters.add(chunks_resent=1, bytes_sent=chunk.length)
        chunk.mismatches += 1
        if chunk.mismatches == 1 and self._failure is None:
            self._queue.add(chunk)
            return
        self._fail_for(failures.VERIFY, "arrived damaged twice")
        self._release()

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        self._ask_failed(failure)

    def _fail(self, failure: Failure) -> None:
        self._failure = self._failure or failure

    def _fail_for(self, kind: str, message: str) -> None:
        self._fail(failures.data(kind, self.item.entry.path, message))

    # --- finishing

    def _release(self) -> None:
        """Count one thing as over that the end waits for; finish or discard after the last one."""
        self._life.on(states.FileEvent.PIECE)
        self._holds -= 1
        if self._holds:
            return
        if self._owed_bytes:  # no way leads here; if one does, no file is made of it
            self._fail_for(failures.SYSTEM, "not all was copied: a defect of pscp")
        if self._failure is not None:
            self._discard()
        elif self._terms.options.strong:
            self._ask_strong()
        else:
            self._finish("")

    def _ask_strong(self) -> None:
        """Ask the source for the digest of the whole file, for the sink to compare with its own.

        That is for -s, and for a part that may have been made after the file got its final name.
        """
        self._life.on(states.FileEvent.COMPARE)
        wanted = self._terms.job.expected.get(self.item.entry.path)
        if wanted is not None:  # what the source has now does not matter
            self._finish(wanted)
            return

        whole = [(0, self.item.entry.size)]

        def then(answer: object) -> None:
            [found] = answers.digests(answer, [whole])
            if isinstance(found, dict):
                self._cannot_finish(answers.from_source(found))
            elif (digest := found[0]) is None:
                changed = failures.data(
                    failures.CHANGED, self.item.known.path, "changed while it was copied"
                )
                self._cannot_finish(answers.from_source(changed))
            else:
                self._finish(digest)

        file = source.listed(self.item.known)
        request = requests.Digests([(file, whole)], hashes.STRONG)
        self._queue.add(Ask(True, request, then, self._cannot_finish))

    def _finish(self, strong: str) -> None:
        self._life.on(states.FileEvent.FINISH)
        if self._receipt:
            self._ask_finish(strong)
        else:
            self._make(strong)

    def _ask_finish(self, strong: str) -> None:
        def then(_: object) -> None:
            if self._receipt == wire.SOME_PART and self.was_shared:
                self._ending.overtaken.append(self.item.entry)
            self._close()
            self._results.file_done(self.item, strong if self._terms.options.strong else "")

        request = requests.Finish(self.item.entry, strong, self._receipt)
        ask = Ask(False, request, then, self._cannot_finish, is_exclusive=True)
        # If the lost lane had finished it, another lane may have made the part anew. Where no inode
        # tells one part from another (SFTP), the digest does.
        if self._receipt == wire.SOME_PART and self.was_shared and not strong:
            ask.lost = self._ask_strong
        self._queue.add(ask)

    def _make(self, strong: str) -> None:
        def then(answer: object) -> None:
            self._receipt = answers.integer(answer)
            if not self._receipt:
                raise ValueError("a part without a receipt")
            self._ask_finish(strong)

        self.was_shared = True  # a lane that is lost meanwhile may make another part late
        make = requests.Make(self.item.entry)
        self._queue.add(Ask(False, make, then, self._cannot_finish))

    def _close(self) -> None:
        self._queue.write_later(lambda: self._terms.journal.done(self._journal_number))
        self._life.on(states.FileEvent.CLOSE)
        self._counters.end_file(self.number)
        # Another lane's FILE, which makes the part, may have come after what has removed it.
        if self.was_shared or self._failure is not None:
            self._ending.add_unwanted(self.item.entry.path, [""])

    def _cannot_finish(self, failure: Failure) -> None:
        self._fail(failure)
        self._discard()

    def _discard(self) -> None:
        self._life.on(states.FileEvent.DISCARD)

        def over(_: object) -> None:
            assert self._failure is not None
            self._close()
            self._results.name_failed(self.item, self._failure)

        discard = requests.Discard(self.item.entry.path, [""])
        self._queue.add(Ask(False, discard, over, over))


def _length(extents: Iterable[Extent]) -> int:
    return sum(length for _, length in extents)
