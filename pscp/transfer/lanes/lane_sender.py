"""The sending half of a lane: a piece of work becomes frames, or calls of the near end.

Not here: which work there is (../coordinator.py), the lane's life (lane.py), what comes back
(lane_receiver.py), what an end does (endpoint/).
Read next: ../../endpoint/source.py.
"""

from __future__ import annotations

from functools import partial

from pscp.endpoint import failures, requests, source, system, tree, wire
from pscp.transfer.lanes.lane_ends import LaneEnds
from pscp.transfer.lanes.relay import RelayEnd
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Ask, Chunk, Job, Pack, Work


class LaneSender:
    """Sends one piece of work after the other. Only the lane's sending thread uses it."""

    def __init__(self, ends: LaneEnds) -> None:
        self._ends = ends
        self._far, self._near, self._near_lock = ends.far, ends.near, ends.near_lock
        self._is_push = ends.context.is_push
        self._expected = ends.expected
        self._onward = ends.near.onward if isinstance(ends.near, RelayEnd) else None
        self._announced: dict[int, Job] = {}  # the files that both ends know, by their numbers

    def start(self, number: int, work: Work) -> None:
        """Send what begins this piece of work. Raises ConnectionLost."""
        if isinstance(work, Chunk):
            self._announce(work)
            if self._is_push:
                self._send_chunk(number, work)
            else:
                self._get_chunk(number, work)
        elif isinstance(work, Ask):
            self._ask(number, work)
        elif self._is_push:
            self._send_pack(number, work)
        else:
            pack = requests.Pack([source.listed(known) for known in work.files])
            self._far.send(wire.ASK, number, 0, requests.to_json(pack))

    def _announce(self, chunk: Chunk) -> None:
        """Announce the chunk's file to both ends, and have them forget the files that are done."""
        job = chunk.job
        if job.number in self._announced:
            return
        busy = self._expected.job_numbers()
        closed = [n for n, known in self._announced.items() if known.is_closed and n not in busy]
        for number in closed:
            del self._announced[number]
            self._far.send(wire.FILE, number)
            with self._near_lock:
                (self._near.source or self._near.the_sink()).forget(number)
        self._announced[job.number] = job
        known, entry = job.item.known, job.item.entry
        there: tree.Entry | source.Known = entry if self._is_push else source.listed(known)
        self._far.send(wire.FILE, job.number, 0, wire.to_json(there))
        with self._near_lock:
            if self._near.source is not None:
                self._near.source.know(job.number, known)
            else:
                self._near.the_sink().know(job.number, entry)

    def _send_chunk(self, number: int, chunk: Chunk) -> None:
        self._expected.add(number, chunk)

        def send(
            type_: int, id_: int, offset: int, payload: system.Payload, flags: int = 0
        ) -> None:
            is_last, rest = type_ == wire.DIGEST, b""
            if isinstance(payload, bytes):
                rest = payload[wire.COUNT.size :]
            if is_last and not flags & wire.FAILED:
                self._expected.digests[number] = rest.hex()
            if self._onward is None:
                self._ends.wait_for_turn(len(payload), self._ends.is_cut_off)
                self._far.send(type_, id_, offset, payload, flags)
            if is_last and flags & wire.FAILED:
                failure = failures.checked(wire.Frame(0, 0, 0, 0, memoryview(rest)).json())
                of_source = answers.from_source(failure)
                self._expected.remove(number, chunk)
                self._ends.settle(number, lambda: chunk.job.failed(chunk, of_source))

        if self._onward is not None:  # the data does not come by
            self._ends.wait_for_turn(chunk.length, self._ends.is_cut_off)
        self._near.the_source().send_chunk(chunk.job.number, chunk.offset, chunk.length, send)

    def _get_chunk(self, number: int, chunk: Chunk) -> None:
        self._expected.add(number, chunk)
        length = wire.COUNT.pack(chunk.length)
        self._far.send(wire.GET, chunk.job.number, chunk.offset, length)

    def _send_pack(self, number: int, pack: Pack) -> None:
        def send(rows: list[source.Row], bodies: list[bytes]) -> None:
            if not self._ends.take_rows(number, pack, rows):
                return
            listed = [[item.entry, row] for item, row in zip(pack.items, pack.rows, strict=True)]
            payload = wire.pack_payload(listed, bodies)
            self._ends.wait_for_turn(len(payload), self._ends.is_cut_off)
            self._far.send(wire.PACK, number, 0, payload)

        if self._onward is not None:
            self._ends.wait_for_turn(pack.size_bytes, self._ends.is_cut_off)
            listed = [item.entry for item in pack.items]
            take = partial(self._ends.take_rows, number, pack)
            self._onward.pass_pack(number, pack.files, listed, take)
        elif isinstance(self._near, RelayEnd):
            self._near.pack(pack.files, send)
        else:
            send(*self._near.file_source().pack(pack.files))

    def _ask(self, number: int, ask: Ask) -> None:
        request = ask.request_for(self._ends.share)
        if ask.of_source is not self._is_push:
            self._far.send(wire.ASK, number, 0, requests.to_json(request))
            return

        def reply(answer: object, is_failed: bool) -> None:
            self._ends.answered(number, ask, answer, is_failed)

        with self._near_lock:
            self._near.answer(request, reply)
