"""The far end of a stream: its command, and the lanes that are handed over to it.

Each connection brings an agent, and one of them is the gatherer: it runs the command. The others
hand it their descriptors over a Unix socket (SCM_RIGHTS) and wait until they get them back, so
that one process has all lanes and puts the chunks in order.

Not here: the chunks (stream.py), the command (stream_process.py), the frames of a lane (agent.py).
Read next: stream_process.py.
"""

import array
import math
import os
import socket
import struct
import tempfile
import threading
import time
from typing import Any, Callable, Optional, Tuple

from . import failures, requests, stream, stream_process, wire
from .paths import to_bytes, to_text

GRACE_S = 60.0  # without a lane; then nobody comes any more, and the command is ended
PATIENCE_S = 1.0  # then a question is answered without news
_HANDED = struct.Struct(">I")  # bytes that were read already
_LET_GO = b"."
_WHY_MAX = 1024
_FOLDER_MAX = 90  # characters: unix(7) takes 107 for a socket, other systems 103
GONE = "the far end of the stream is gone"

Reply = Callable[[Any, bool], None]
Serve = Callable[["Gathering", int, int, bytes], None]  # read_fd, write_fd, what was read already


class Gathering:
    """One stream's far end. Its lanes ask it questions; it answers when there is something new."""

    def __init__(self, request: requests.Gather, umask: int, serve: Serve) -> None:
        """Raises OSError and Refusal where the command or the file cannot be opened."""
        self._serve = serve
        self.changed = threading.Condition()
        self._window = request.window
        self._listening = _Listening()
        self.path = self._listening.path
        try:
            self._command = self._opened(request, umask)
        except BaseException:
            self._listening.close()
            raise
        self._reorder: Optional[stream.Reorder] = None
        self._cutter: Optional[stream.Cutter] = None
        if request.is_sink:
            self._reorder = stream.Reorder(self._command.fd, self._window, self._wrote)
        else:
            self._cutter = stream.Cutter(self._command.fd)
        self._status: Optional[int] = None
        self._failure: Optional[failures.Data] = None
        self._is_left = False  # no lane comes any more
        self._is_closed = False
        self._wake_at = math.inf  # chunks written: somebody asks for that
        self._lanes = 1  # the gatherer's own
        for run in (self._move, self._watch, self._accept):
            threading.Thread(target=run, name=run.__name__.strip("_"), daemon=True).start()

    def _opened(self, request: requests.Gather, umask: int) -> Any:
        is_sink, tidy = request.is_sink, self._listening.remove
        if request.path is None:
            return stream_process.Command(request.command, is_sink, self._notify, tidy)
        if is_sink:
            return stream_process.ToFile(request.path, umask, tidy)
        return stream_process.FromFile(request.path)

    def lane(self, request: requests.BeginStream) -> Tuple[Any, Any]:
        """A lane's source and sink; one of them is None."""
        if self._reorder is not None:
            return None, stream.PipeSink(self._reorder, request.hash)
        assert self._cutter is not None
        made = stream.AskedSource(self._cutter, request.hash, request.block_bytes, self._window)
        return made, None

    # --- requests; each is answered once there is news, or after a while without

    def _when(self, answer: Callable[[bool], Any], reply: Reply) -> None:
        """Reply with what `answer` returns once it is not None; later it is told that it is late.

        So who hears nothing for longer knows that the lane stands still, and asks over another. A
        thread of its own waits, as nobody reads what is said on a lane that stands still.
        """
        args = (answer, reply)
        threading.Thread(target=self._answer, args=args, name="answer", daemon=True).start()

    def _answer(self, answer: Callable[[bool], Any], reply: Reply) -> None:
        until_s = time.monotonic() + PATIENCE_S
        with self.changed:
            found = answer(False)
            while found is None:
                if self._is_closed:
                    return
                left_s = until_s - time.monotonic()
                self.changed.wait(max(left_s, 0))
                found = answer(left_s <= 0)
        try:
            reply(found, False)
        except OSError:  # the lane is lost
            pass

    def drained(self, request: requests.Drained, reply: Reply) -> None:
        """How many chunks were written, once that is more than `past`, or no more will be."""
        reorder, past = self._the_reorder(), request.past
        self._wake_at = past + 1

        def answer(is_late: bool) -> Any:
            is_news = reorder.written > past or self._status is not None
            return reorder.written if is_news or is_late else None

        self._when(answer, reply)

    def heard(self, request: requests.Heard, reply: Reply) -> None:
        """What the command said after so many bytes, its exit status, and whether it listens."""
        after, was_deaf = request.after, request.deaf

        def answer(is_late: bool) -> Any:
            texts = [said.after(count) for said, count in zip(self._command.said, after)]
            is_deaf = self._reorder is not None and self._reorder.is_deaf
            is_news = any(texts) or self._status is not None or is_deaf != was_deaf
            if not (is_news or is_late):
                return None
            status = None if any(texts) else self._status
            listed = [[to_text(text), len(text)] for text in texts]
            return {"said": listed, "status": status, "deaf": is_deaf, "failure": self._failure}

        self._when(answer, reply)

    def close_input(self, request: requests.CloseInput, reply: Reply) -> None:
        """That was all: `total` chunks."""
        reorder, total = self._the_reorder(), request.total
        reorder.put(total, reorder.room.take(), 0)
        reply(None, False)

    def abort(self, reply: Reply) -> None:
        """The stream is cut short: end the command."""
        if self._status is None:
            self._command.kill()
        self.leave()
        reply(None, False)

    def _the_reorder(self) -> stream.Reorder:
        if self._reorder is None:
            raise failures.Refusal(failures.DESTINATION, "", "this end sends the stream")
        return self._reorder

    # --- the command

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _wrote(self) -> None:
        reorder = self._the_reorder()
        if reorder.written >= self._wake_at or reorder.is_deaf:
            self._notify()

    def _move(self) -> None:
        """The stream, until it ends; a clean end of the input only where all was written."""
        try:
            if self._cutter is not None:
                self._cutter.run()
            else:
                self._write(self._the_reorder())
        finally:
            self._command.close()

    def _write(self, reorder: stream.Reorder) -> None:
        reorder.run()
        try:
            if reorder.error is not None:
                raise reorder.error
            if reorder.is_complete:
                self._command.close_input()
                return
        except OSError as error:
            self._failure = failures.from_exception(error, "")
        self._command.kill()

    def _watch(self) -> None:
        status = self._command.wait()
        with self.changed:
            self._status = status
            self.changed.notify_all()

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
        """All is said: no lane comes any more, and who has none left may end."""
        with self.changed:
            self._is_left = True
            self.changed.notify_all()

    def outlive(self) -> None:
        """The gatherer's own lane is lost: stay while others come, or may come again."""
        self._lane_gone()
        with self.changed:
            alone_s = time.monotonic()
            while time.monotonic() < alone_s + GRACE_S and (self._lanes or not self._is_left):
                if self._lanes:
                    alone_s = time.monotonic()
                self.changed.wait(1.0)

    def close(self) -> None:
        """The stream is over, well or not: no command is left, nor a socket."""
        if self._status is None:
            self._command.kill()
        for part in (self._reorder, self._cutter):
            if part is not None:
                part.stop()
        for said in self._command.said:
            said.close()
        self._is_closed = True
        self._notify()
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
        """The next one that comes; None after close()."""
        try:
            handed, _ = self._socket.accept()
        except OSError:
            return None
        if not self._is_closed:
            return handed
        handed.close()
        return None

    def close(self) -> None:
        self._is_closed = True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
                last.connect(self.path)  # closing it wakes nobody who waits in accept()
        except OSError:
            pass
        self._socket.close()
        self.remove()

    def remove(self) -> None:
        for remove, path in ((os.unlink, self.path), (os.rmdir, self._folder)):
            try:
                remove(path)
            except OSError:
                pass


def hand_over(path: str, pending: bytes) -> None:
    """Give descriptors 0 and 1 to the gatherer; wait until it lets go. WireError if it does not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
        to.connect(to_bytes(path))
        rights = array.array("i", [0, 1]).tobytes()
        to.sendmsg([_HANDED.pack(len(pending))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        to.sendall(pending)
        said = to.recv(_WHY_MAX)
        if said != _LET_GO:
            raise wire.WireError(said.decode("ascii", "replace") or GONE)


def _tell_why(handed: socket.socket, error: BaseException) -> None:
    try:
        handed.sendall(str(error).encode("ascii", "replace")[:_WHY_MAX])
    except OSError:
        pass


def _received(handed: socket.socket, fds: "array.array[int]") -> bytes:
    """What was read of the lane already; its descriptors go to `fds`."""
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
