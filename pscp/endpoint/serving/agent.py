"""The loop at the far end: frames in on descriptor 0, frames out on descriptor 1.

An agent serves one channel. A request makes it the sink or the source of a copy, or a lane of a
stream (BeginSink, BeginSource, BeginStream). It ends when its input ends, whatever the reason.

Not here: how it is sent (../../connect/bootstrap.py), which frame means what (frame_server.py), the
answers (end.py), files (../reading/source.py, ../writing/sink.py), system calls
(../frames/system.py).
Read next: frame_server.py.
"""

import binascii
import contextlib
import functools
import io
import json
import os
import sys
import threading
import time
import zlib
from typing import TYPE_CHECKING, Iterator, List, Optional, Tuple, Union

from ..asking import requests
from ..frames import failures, hashes, session, system, wire
from ..reading import metadata, source
from ..reading.paths import to_text
from . import end, frame_server

if TYPE_CHECKING:
    from ..plane.link import Link
    from ..reading import tree
    from ..streams import stream_server

TICK_S = 10  # an agent sends a TICK this often; the coordinator gives up after a minute without


class Pipes:
    """The descriptors of a channel; ../plane/link.py has the same for a socket of the direct
    plane."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._fds = read_fd, write_fd

    def read(self, spaces: List[memoryview]) -> int:
        return os.readv(self._fds[0], spaces)

    def send(self, header: bytes, payload: system.Payload) -> None:
        system.send(self._fds[1], header, payload)

    @contextlib.contextmanager
    def lend_fds(self) -> Iterator[Tuple[int, int]]:
        yield self._fds

    def hang_up(self) -> None:
        """Close descriptors 0 to 2, so that the other end of the connection sees their end."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.close(nothing)


class Agent:
    """The far end of one channel."""

    def __init__(
        self, link: "Union[Pipes, Link]", gathering: "Optional[stream_server.Gathering]" = None
    ) -> None:
        """Serve a channel; with a `gathering` it is a lane that was handed over to it."""
        self._link = link
        self._write_lock = threading.Lock()  # the threads "settler" and "tick" write as well
        self._is_guest = gathering is not None
        self._is_over = threading.Event()
        self._is_lost = False
        serve = None if self._is_guest else _serve
        self.end = end.End(metadata.current_umask(), gathering, serve)
        self.end.gathering = gathering
        table = session.GUEST if self._is_guest else session.AGENT
        self._frames = frame_server.FrameServer(table, self, self._send)

    # --- the loop

    def run(self, is_known: bool = False) -> None:
        """Serve until the input ends; say hello first, unless the coordinator knows the machine."""
        try:
            if is_known:
                self._frames.session.advance(session.HELLO)
            else:
                self._hello()
            self.serve(b"")
        except Exception as error:
            if not isinstance(error, OSError):  # else it is the channel that is lost
                self._refuse(error)
            raise
        finally:
            if self.end.gathering is not None:
                self.lose()
                self._link.hang_up()  # else its connection would seem to be alive
                self.end.gathering.outlive()
            self.end.close()  # what has landed becomes files, so that no part is left over

    def serve(self, pending: bytes) -> None:
        """Serve until the input ends; a guest, until its lane's work has ended. `pending` was read
        of the input already.
        """
        threading.Thread(target=self._tick, name="tick", daemon=True).start()
        try:
            self._listen(pending)
        finally:
            self._is_over.set()

    def lose(self) -> None:
        """Send nothing more: the descriptors are about to be closed, and may become others."""
        with self._write_lock:
            self._is_lost = True
        self.end.drop_role()

    def _listen(self, pending: bytes) -> None:
        decoder, take_all = self._frames.decoder, self._frames.take_all
        for begin in range(0, len(pending), wire.MAX_PAYLOAD_BYTES):
            decoder.feed(pending[begin : begin + wire.MAX_PAYLOAD_BYTES])
            take_all()
        while self._frames.session.state != "over":
            count = self._link.read(decoder.spaces())
            if count == 0:
                return
            decoder.filled(count)
            if not take_all() and decoder.is_trickling(count):
                time.sleep(wire.GATHER_S)

    def _refuse(self, error: Exception) -> None:
        """Say why the agent ends, and read on until the coordinator has heard that and hangs up.

        If the channel ended with frames unread, the coordinator could see that before the reason.
        """
        self._frames.refuse(error)
        unread = [memoryview(bytearray(wire.TRICKLE_BYTES))]
        with contextlib.suppress(OSError):
            while self._link.read(unread):
                pass

    def _hello(self) -> None:
        self._frames.hello(
            {
                "hashes": hashes.speeds(),
                "python": sys.version.split()[0],
                "system": os.uname()[0],
                "aes": system.has_aes(),
                "cpus": os.cpu_count() or 1,
                "devices": system.makes_devices(),
            }
        )

    def _tick(self) -> None:
        while not self._is_over.wait(TICK_S):
            try:
                self._send(wire.TICK, 0, 0, b"")
            except OSError:
                return

    def _send(
        self, type_: int, id_: int, offset: int, payload: system.Payload, flags: int = 0
    ) -> None:
        header = wire.header(type_, payload, id_, offset, flags)
        with self._write_lock:
            if self._is_lost:
                raise BrokenPipeError
            self._link.send(header, payload)

    # --- called by the FrameServer for a frame

    def answer(self, id_: int, request: "requests.Request") -> None:
        if isinstance(request, requests.WITH_MODULES):
            names = _learn(request.modules)
            if isinstance(request, requests.OF_COPY):
                for name in names:  # each adds requests of its own
                    __import__("%s.%s" % (__package__, name))
        if isinstance(request, requests.BeginStream) and self._is_of_another(request):
            self._hand_over(id_, request)
            return
        if isinstance(request, requests.Pack):
            known = [source.entry_of(file) for file in request.files]
            self._frames.reply_with_pack(id_, *self.end.file_source().pack(known))
            return
        reply = functools.partial(self._frames.reply, id_)
        if isinstance(request, requests.OpenPlane):
            from ..plane import direct

            reply(*direct.open_plane(request, lambda link: Agent(link).run(is_known=True)))
            return
        self.end.answer(request, reply)
        if isinstance(request, requests.End) and self._is_guest and self.end.gathering:
            self.end.gathering.leave()
        if isinstance(request, (requests.End, *requests.BEGINNINGS)):
            self._frames.follow_role()

    def _is_of_another(self, request: requests.BeginStream) -> bool:
        """Does another agent gather the stream that this channel is to be a lane of?"""
        if self._is_guest:
            return False
        gathering = self.end.gathering
        return gathering is None or to_text(os.fsencode(gathering.path)) != request.socket

    def _hand_over(self, id_: int, request: requests.BeginStream) -> None:
        """Give this channel, and what was read of it, to another agent until the stream is over."""
        from ..streams import stream_server

        frames = self._frames
        frames.session.advance(session.HAND_OVER)
        pending = wire.frame(wire.ASK, requests.to_json(request), id_) + frames.decoder.rest()
        with self._write_lock:  # no TICK between two pieces of the other agent's frame
            try:
                with self._link.lend_fds() as fds:
                    stream_server.hand_over(request.socket, fds, pending)
            except OSError:
                raise wire.WireError(wire.STREAM_GONE)
        frames.session.advance(session.TAKE_BACK)

    def send_chunk(self, id_: int, offset: int, length: int) -> None:
        self.end.the_source().send_chunk(id_, offset, length, self._send)

    def complete(self, id_: int, offset: int, length: int, digest: bytes) -> None:
        matches, receipt, failure = self.end.the_sink().complete(id_, offset, length, digest)
        self._frames.acknowledge(
            id_, offset, length, receipt=receipt, matches=matches, failure=failure
        )

    def land_pack(
        self, id_: int, listed: "List[tree.Entry]", rows: List[object], bodies: memoryview
    ) -> None:
        def done(outcome: failures.Outcome) -> None:
            self._frames.reply(id_, failures.places(outcome))

        self.end.file_sink().pack(listed, rows, bodies, done)


def _learn(text: str) -> List[str]:
    """Add modules that few channels need; they come with a request. Return their names: none where
    all are there, in an agent that was not sent.
    """
    known = getattr(sys.modules[__package__ or ""], "texts", None)
    if not text or known is None:
        return []
    texts = json.loads(zlib.decompress(binascii.a2b_base64(text)).decode("ascii"))
    known.update(texts)
    return list(texts)


def _serve(
    gathering: "stream_server.Gathering", read_fd: int, write_fd: int, pending: bytes
) -> None:
    """Serve a lane that another agent handed over to a gathering here."""
    lane = Agent(Pipes(read_fd, write_fd), gathering)
    try:
        lane.serve(pending)
    finally:
        lane.lose()


def main() -> None:
    """Echo the marker that tells our output from a login's; then serve the channel."""
    for fd in (0, 1):
        system.widen_pipe(fd)
    system.raise_descriptor_limit()
    try:
        first = io.BufferedReader(io.FileIO(0, closefd=False), 1)
        marker = first.read(wire.MARKER_BYTES)
        system.write_all(1, [marker])
        Agent(Pipes(0, 1)).run(marker.endswith(wire.WITHOUT_HELLO))
    except (BrokenPipeError, ConnectionResetError):
        pass
    except wire.WireError as error:
        sys.stderr.write("pscp agent: %s\n" % error)
        sys.exit(wire.PROTOCOL_STATUS)
