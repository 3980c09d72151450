"""The loop at the far end: frames in on descriptor 0, frames out on descriptor 1.

An agent serves one channel. A request says what it is (BeginSink, BeginSource, BeginStream):
the sink or the source of a copy, or a lane of a stream. It ends when its input ends, whatever the
reason.

Not here: how it got here (../connect/bootstrap.py), its answers (end.py), what it serves
(source.py, sink.py), system calls (system.py).
Read next: sink.py.
"""

import binascii
import io
import json
import os
import sys
import threading
import time
import zlib
from typing import Any, List, Optional

from . import end, entries, failures, hashes, metadata, requests, session, source, system, wire
from .paths import to_text

TICK_S = (
    10  # an agent that is alive says so this often; ../transfer/lane.py gives up after a minute
)


class Agent:
    """One channel's far end."""

    def __init__(self, read_fd: int, write_fd: int, gathering: Any = None) -> None:
        """With a gathering this is a lane that was handed over to it."""
        self._read_fd, self._write_fd = read_fd, write_fd
        self._write_lock = threading.Lock()  # the settler and the ticker write as well
        self._session = session.Session(session.AGENT)
        self._decoder = wire.Decoder()
        self._is_guest = gathering is not None
        self._is_over = threading.Event()
        self._is_lost = False
        serve = None if self._is_guest else _serve
        self._end = end.End(metadata.current_umask(), gathering, serve)

    # --- the loop

    def run(self) -> None:
        try:
            self._hello()
            self.serve(b"")
        finally:
            if self._end.gathering is not None:
                self.lose()
                _close_standard()  # or its connection would seem to be alive
                self._end.gathering.outlive()
            self._end.close()  # what has landed becomes files, so that no part is left

    def serve(self, pending: bytes) -> None:
        """Until the input ends; a guest, until its lane's work has ended."""
        threading.Thread(target=self._tick, name="tick", daemon=True).start()
        try:
            self._listen(pending)
        finally:
            self._is_over.set()

    def lose(self) -> None:
        """Send nothing more: the descriptors are about to be closed, their numbers used again."""
        with self._write_lock:
            self._is_lost = True
        self._end.drop_role()

    def _listen(self, pending: bytes) -> None:
        decoder = self._decoder
        for begin in range(0, len(pending), wire.MAX_PAYLOAD_BYTES):
            decoder.feed(pending[begin : begin + wire.MAX_PAYLOAD_BYTES])
            self._take_all()
        while not (self._is_guest and self._session.state == "done"):
            count = os.readv(self._read_fd, decoder.spaces())
            if count == 0:
                return
            decoder.filled(count)
            if not self._take_all() and decoder.is_trickling(count):
                time.sleep(wire.GATHER_S)

    def _take_all(self) -> bool:
        """What has arrived; False when it is no whole frame yet."""
        frame = first = self._decoder.next()
        while frame is not None:
            self._session.check(frame)
            self._take(frame)
            frame = self._decoder.next()
        return first is not None

    def _hello(self) -> None:
        self._send(wire.HELLO, 0, 0, wire.to_json({
            "hashes": hashes.speeds(),
            "python": sys.version.split()[0],
            "system": os.uname()[0],
            "aes": system.has_aes(),
            "cpus": os.cpu_count() or 1,
        }))  # fmt: skip

    def _tick(self) -> None:
        while not self._is_over.wait(TICK_S):
            try:
                self._send(wire.TICK, 0, 0, b"")
            except OSError:
                return

    def _send(self, type_: int, id_: int, offset: int, payload: Any, flags: int = 0) -> None:
        header = wire.header(type_, payload, id_, offset, flags)
        with self._write_lock:
            if self._is_lost:
                raise BrokenPipeError
            system.send(self._write_fd, header, payload)

    def _take(self, frame: wire.Frame) -> None:
        if frame.type == wire.ASK:
            self._answer(frame)
        elif frame.type == wire.FILE:
            self._know(frame)
        elif frame.type == wire.GET:
            length = wire.COUNT.unpack(frame.payload)[0]
            self._end.the_source().send_chunk(frame.id, frame.offset, length, self._send)
        elif frame.type == wire.DATA:
            self._end.the_sink().write(frame.id, frame.offset, frame.payload)
        elif frame.type == wire.DIGEST:
            self._complete(frame)
        else:
            self._take_pack(frame)

    def _answer(self, frame: wire.Frame) -> None:
        request, id_ = requests.from_json(frame.json()), frame.id
        _learn(getattr(request, "modules", ""))
        if isinstance(request, requests.BeginStream) and self._is_of_another(request):
            self._hand_over(frame, request.socket)
            return
        if isinstance(request, requests.Pack):  # the answer is a frame of its own kind
            known = [source.known(file) for file in request.files]
            payload = wire.pack_payload(*self._end.the_source().pack(known))
            self._send(wire.PACK, id_, 0, payload)
            return

        def reply(answer: Any, failed: bool) -> None:
            flags = wire.FAILED if failed else 0
            self._send(wire.REPLY, id_, 0, wire.to_json(answer), flags)

        self._end.answer(request, reply)
        if isinstance(request, requests.End) and self._is_guest:
            self._end.gathering.leave()
        if isinstance(request, (requests.End, *requests.BEGINNINGS)):
            in_role = "sink" if self._end.sink else "source" if self._end.source else "new"
            self._session.state = "done" if self._is_guest and in_role == "new" else in_role
            self._decoder.place = getattr(self._end.sink, "place", None)

    def _is_of_another(self, request: requests.BeginStream) -> bool:
        """Is this channel to be a lane of a stream that another agent gathers?"""
        if self._is_guest:
            return False
        gathering = self._end.gathering
        return gathering is None or to_text(os.fsencode(gathering.path)) != request.socket

    def _hand_over(self, frame: wire.Frame, path: str) -> None:
        """Give this channel away, with what came on it, until the stream is over."""
        from . import stream_server

        pending = wire.frame(wire.ASK, bytes(frame.payload), frame.id) + self._decoder.rest()
        with self._write_lock:  # no sign of life between two pieces of somebody's frame
            try:
                stream_server.hand_over(path, pending)
            except OSError:
                raise wire.WireError(stream_server.GONE)

    def _know(self, frame: wire.Frame) -> None:
        if self._end.source is not None:
            if frame.payload:
                self._end.source.know(frame.id, source.known(requests.known(frame.json())))
            else:
                self._end.source.forget(frame.id)
        elif frame.payload:
            self._end.the_sink().know(frame.id, entries.entry(frame.json()))
        else:
            self._end.the_sink().forget(frame.id)

    def _complete(self, frame: wire.Frame) -> None:
        length = wire.COUNT.unpack_from(frame.payload)[0]
        if frame.flags & wire.FAILED:
            self._end.the_sink().abandon()
            return
        digest = bytes(frame.payload[wire.COUNT.size :])
        matches, receipt, failure = self._end.the_sink().complete(
            frame.id, frame.offset, length, digest
        )
        payload = wire.LANDED.pack(length, receipt)
        flags = 0 if matches else wire.MISMATCH
        if failure is not None:
            payload, flags = payload + wire.to_json(failure), wire.FAILED
        self._send(wire.ACK, frame.id, frame.offset, payload, flags)

    def _take_pack(self, frame: wire.Frame) -> None:
        rows, bodies = wire.unpack_payload(frame.payload)
        listed = [entries.entry(value) for value, _ in rows]
        id_ = frame.id

        def done(outcome: List[Optional[failures.Data]]) -> None:
            self._send(wire.REPLY, id_, 0, wire.to_json(failures.places(outcome)))

        self._end.the_sink().pack(listed, [row for _, row in rows], bodies, done)


def _learn(text: str) -> None:
    """What only streams, or --clean, need comes with the first request about one."""
    if not text:
        return
    package = sys.modules[__package__]
    texts = json.loads(zlib.decompress(binascii.a2b_base64(text)).decode("ascii"))
    getattr(package, "texts", {}).update(texts)


def _serve(gathering: Any, read_fd: int, write_fd: int, pending: bytes) -> None:
    """A lane that another agent handed over to a gathering here."""
    lane = Agent(read_fd, write_fd, gathering)
    try:
        lane.serve(pending)
    finally:
        lane.lose()


def _close_standard() -> None:
    """Let go of what the connection's other end waits for the end of."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.close(nothing)


def main(marker_bytes: int) -> None:
    """Say the marker that comes first, which tells our output from a login's; then serve."""
    for fd in (0, 1):
        system.widen_pipe(fd)
    system.raise_descriptor_limit()
    try:
        system.write_all(1, [io.BufferedReader(io.FileIO(0, closefd=False), 1).read(marker_bytes)])
        Agent(0, 1).run()
    except (BrokenPipeError, ConnectionResetError):
        pass
    except wire.WireError as error:
        sys.stderr.write("pscp agent: %s\n" % error)
        sys.exit(99)
