"""The far end of a stream: its command, and the lanes that are handed over to it.

Each connection has an agent, and one of them is the gatherer: it runs the command. The others hand
it their descriptors over a Unix socket (SCM_RIGHTS) and wait until it has done with them, so that
one process has all lanes and puts the chunks in order.

Not here: the chunks (stream.py), the command (stream_process.py), the states (stream_states.py),
the frames of a lane (../serving/agent.py).
Read next: stream_process.py.
"""

import array
import contextlib
import math
import os
import socket
import struct
import tempfile
import threading
import time
from typing import Callable, Dict, Optional, Tuple

from ..asking import requests
from ..asking.answers import Reply
from ..frames import failures, wire
from ..reading.paths import to_bytes, to_text
from . import stream, stream_process
from .machine import Machine
from .stream_states import FAR, Far, FarEvent

GRACE_S = 60.0  # the gatherer waits so long without a lane before it ends the command
PATIENCE_S = 1.0  # after this a request is answered without news
_HANDED = struct.Struct(">I")  # how many bytes were read of the lane already
_LET_GO = b"."
_WHY_MAX = 1024
_FOLDER_MAX = 90  # characters: unix(7) takes 107 for a socket, other systems 103

Serve = Callable[["Gathering", int, int, bytes], None]  # (.., read_fd, write_fd, read already)


class Gathering:
    """The far end of one stream. It answers the requests of its lanes when there is news."""

    def __init__(self, request: requests.Gather, umask: int, serve: Serve) -> None:
        """Raises OSError and Refusal where the command or the file cannot be opened."""
        self._serve, self._window = serve, request.window
        self._reorder: Optional[stream.Reorder] = None  # of a sink; a source has `_cutter`
        self._cutter: Optional[stream.Cutter] = None
        self.changed = threading.Condition()  # whoever holds its lock owns what follows
        self._life = Machine(FAR, Far.RUNNING)
        self._status: Optional[int] = None  # the command's, once it has ended
        self._failure: Optional[failures.Data] = None  # why the stream could not be written
        self._wake_at = math.inf  # the number of written chunks that a request waits for
        self._lanes = 1  # lanes that are served; the first is the gatherer's own
        self._listening = _Listening()
        self.path = self._listening.path
        try:
            self._program = self._open_program(request, umask)
        except BaseException:
            self._listening.abandon()
            raise
        if request.is_sink:
            self._reorder = stream.Reorder(self._program.fd, self._window)
        else:
            self._cutter = stream.Cutter(self._program.fd)
        for run in (self._move, self._watch, self._accept):
            threading.Thread(target=run, name=run.__name__.strip("_"), daemon=True).start()

    def _open_program(self, request: requests.Gather, umask: int) -> "stream_process.Program":
        is_sink, tidy = request.is_sink, self._listening.remove
        if request.path is None:
            return stream_process.Command(request.command, is_sink, self._notify, tidy)
        if is_sink:
            return stream_process.ToFile(request.path, umask, tidy)
        return stream_process.FromFile(request.path)

    def lane(self, request: requests.BeginStream) -> stream.LaneEnds:
        """Return the source and the sink of a lane."""
        if self._reorder is not None:
            return self._reorder.lane(request)
        assert self._cutter is not None
        source = stream.AskedSource(self._cutter, request.hash, request.block_bytes, self._window)
        return source, None

    # --- requests; each is answered once there is news, or after PATIENCE_S

    def answer(self, request: requests.OfGathering, reply: Reply) -> None:
        """Answer a request of one of the lanes."""
        if isinstance(request, requests.AwaitOutput):
            self._heard(request, reply)
        elif isinstance(request, requests.AwaitChunks):
            self._drained(request, reply)
        elif isinstance(request, requests.CloseInput):
            self._close_input(request, reply)
        else:
            self._abort(reply)

    def _drained(self, request: requests.AwaitChunks, reply: Reply) -> None:
        """Reply the number of written chunks, once it is above `past` or the program has ended."""
        reorder, past = self._the_reorder(), request.past
        self._wake_at = past + 1

        def news(is_late: bool) -> Optional[int]:
            is_news = reorder.written > past or self._status is not None
            return reorder.written if is_news or is_late else None

        self._when(news, reply)

    def _heard(self, request: requests.AwaitOutput, reply: Reply) -> None:
        """Reply the command's further output, its exit status, and whether it reads no more."""
        after, was_deaf = request.after, request.deaf

        def news(is_late: bool) -> Optional[Dict[str, object]]:
            texts = [output.after(count) for output, count in zip(self._program.outputs, after)]
            is_deaf = self._reorder is not None and self._reorder.is_deaf
            is_news = any(texts) or self._status is not None or is_deaf != was_deaf
            if not (is_news or is_late):
                return None
            status = None if any(texts) else self._status
            said = [[to_text(text), len(text)] for text in texts]
            return {"said": said, "status": status, "deaf": is_deaf, "failure": self._failure}

        self._when(news, reply)

    def _close_input(self, request: requests.CloseInput, reply: Reply) -> None:
        """Note how many chunks there are in all; after them the command sees its input's end."""
        reorder = self._the_reorder()
        reorder.put(request.total, reorder.room.take(), 0)
        reply(None, False)

    def _abort(self, reply: Reply) -> None:
        """End the command, as the stream is cut short."""
        self._end_program()
        self.leave()
        reply(None, False)

    def _when(self, news: Callable[[bool], object], reply: Reply) -> None:
        """Reply in a thread, once `news` returns an answer; it gets True when PATIENCE_S is over.

        So a coordinator that gets no reply for longer knows that the lane stalls, and asks over
        another. There is a thread for each reply, as sending one on a lane that stalls takes long.
        """
        args = (news, reply)
        threading.Thread(target=self._wait_for, args=args, name="answer", daemon=True).start()

    def _wait_for(self, news: Callable[[bool], object], reply: Reply) -> None:
        until_s = time.monotonic() + PATIENCE_S
        with self.changed:
            answer = news(False)
            while answer is None:
                if self._life.state is Far.CLOSED:
                    return
                left_s = until_s - time.monotonic()
                self.changed.wait(max(left_s, 0))
                answer = news(left_s <= 0)
        with contextlib.suppress(OSError):  # the lane is lost
            reply(answer, False)

    def _the_reorder(self) -> stream.Reorder:
        if self._reorder is None:
            raise failures.Refusal(failures.DESTINATION, "", "this end sends the stream")
        return self._reorder

    # --- the command

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _report(self, event: FarEvent) -> None:
        with self.changed:
            self._life.on(event)
            self.changed.notify_all()

    def _wrote(self) -> None:
        reorder = self._the_reorder()
        if reorder.written >= self._wake_at or reorder.is_deaf:
            self._notify()

    def _move(self) -> None:
        """Move the stream until it ends. The command sees that only where all was written."""
        try:
            if self._cutter is not None:
                self._cutter.run()
            else:
                self._write(self._the_reorder())
        finally:
            self._program.close()

    def _write(self, reorder: stream.Reorder) -> None:
        reorder.run(self._wrote)
        try:
            if reorder.error is not None:
                raise reorder.error
            if reorder.is_complete:
                self._program.close_input()
                return
        except OSError as error:
            self._failure = failures.from_exception(error, "")
        self._program.kill()

    def _watch(self) -> None:
        status = self._program.wait()
        with self.changed:
            self._status = status
            self._report(FarEvent.EXIT)

    def _end_program(self) -> None:
        if self._life.state in (Far.RUNNING, Far.LEAVING):
            self._program.kill()

    # --- lanes

    def _accept(self) -> None:
        while True:
            handed = self._listening.accept()
            if handed is None:
                return
            threading.Thread(target=self._take, args=(handed,), name="lane", daemon=True).start()

    def _take(self, handed: socket.socket) -> None:
        """Serve a lane until it ends; give it back if its agent may go on with it."""
        with self.changed:
            self._lanes += 1
        fds = array.array("i")
        with handed:
            try:
                pending = _received(handed, fds)
                self._serve(self, fds[0], fds[1], pending)
                handed.sendall(_LET_GO)
            except (OSError, wire.WireError) as error:
                _tell_why(handed, error)
            finally:
                for fd in fds:
                    os.close(fd)
                self._lane_gone()

    def _lane_gone(self) -> None:
        with self.changed:
            self._lanes -= 1
            self.changed.notify_all()

    def leave(self) -> None:
        """Expect no more lanes: outlive() returns once the last one is gone."""
        self._report(FarEvent.LEAVE)

    def outlive(self) -> None:
        """Wait while there are other lanes, or may be: the gatherer's own lane is lost."""
        self._lane_gone()
        with self.changed:
            alone_s = time.monotonic()
            while self._lanes or self._may_come(alone_s):
                if self._lanes:
                    alone_s = time.monotonic()
                self.changed.wait(1.0)

    def _may_come(self, alone_s: float) -> bool:
        is_left = self._life.state in (Far.LEAVING, Far.LEFT)
        return not is_left and time.monotonic() < alone_s + GRACE_S

    def close(self) -> None:
        """End the command if it still runs, answer nothing more, and remove the socket."""
        self._end_program()
        for part in (self._reorder, self._cutter):
            if part is not None:
                part.stop()
        for output in self._program.outputs:
            output.close()
        self._report(FarEvent.CLOSE)
        self._listening.close()


class _Listening:
    """The socket where lanes are handed over, in a folder of its own."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="pscp-")
        if len(self._folder) > _FOLDER_MAX:
            os.rmdir(self._folder)
            self._folder = tempfile.mkdtemp(prefix="pscp-", dir="/tmp")
        self.path = os.path.join(self._folder, "lanes")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.path)
        self._socket.listen(64)
        self._is_closed = False

    def accept(self) -> Optional[socket.socket]:
        """Wait for the next agent that hands a lane over; None after close().

        The socket is closed here, and not by who calls close(): its number could be another's
        before accept(2) begins.
        """
        with contextlib.suppress(OSError):
            handed, _ = self._socket.accept()
            if not self._is_closed:
                return handed
            handed.close()
        self._socket.close()
        return None

    def close(self) -> None:
        """Have the thread in accept() close the socket."""
        self._is_closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept(), on Linux
        except OSError:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as last:
                last.connect(self.path)  # does so elsewhere, if a program has not removed the path
        self.remove()

    def abandon(self) -> None:
        """Close the socket where no thread is in accept()."""
        self._socket.close()
        self.remove()

    def remove(self) -> None:
        for remove, path in ((os.unlink, self.path), (os.rmdir, self._folder)):
            with contextlib.suppress(OSError):
                remove(path)


def hand_over(path: str, fds: Tuple[int, int], pending: bytes) -> None:
    """Give the gatherer a lane's descriptors and what was read already; wait until it has done.

    Raises OSError where the gatherer is gone, and WireError with its reason against the lane.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
        to.connect(to_bytes(path))
        rights = array.array("i", fds).tobytes()
        to.sendmsg([_HANDED.pack(len(pending))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        to.sendall(pending)
        reason = to.recv(_WHY_MAX)
        if reason != _LET_GO:
            raise wire.WireError(reason.decode("ascii", "replace") or wire.STREAM_GONE)


def _tell_why(handed: socket.socket, error: BaseException) -> None:
    with contextlib.suppress(OSError):
        handed.sendall(str(error).encode("ascii", "replace")[:_WHY_MAX])


def _received(handed: socket.socket, fds: "array.array[int]") -> bytes:
    """Receive a lane: put its descriptors into `fds`, and return what was read of it already."""
    header, ancillary, _, _ = handed.recvmsg(_HANDED.size, socket.CMSG_SPACE(2 * fds.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: 2 * fds.itemsize])
    pending, left = b"", _HANDED.unpack(header)[0]
    while left:
        data = handed.recv(left)
        if not data:
            raise OSError("the lane was lost while it was handed over")
        pending, left = pending + data, left - len(data)
    return pending
