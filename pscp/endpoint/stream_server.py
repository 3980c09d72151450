"""The far end of a stream: its command, and the lanes that are handed over to it.

Each connection brings an agent, and one of them is the gatherer: it runs the command. The others
hand it their descriptors over a Unix socket (SCM_RIGHTS) and wait until they get them back, so
that one process has all lanes and puts the chunks in order.

Not here: the chunks (stream.py), the command (stream_process.py), the states (stream_states.py),
the frames of a lane (agent.py).
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
from typing import Callable, Dict, Optional, Tuple

from . import failures, requests, stream, stream_process, wire
from .machine import Machine
from .paths import to_bytes, to_text
from .stream_states import FAR, Far, FarEvent

GRACE_S = 60.0  # without a lane; then nobody comes any more, and the command is ended
PATIENCE_S = 1.0  # then a question is answered without news
_HANDED = struct.Struct(">I")  # bytes that were read already
_LET_GO = b"."
_WHY_MAX = 1024
_FOLDER_MAX = 90  # characters: unix(7) takes 107 for a socket, other systems 103
GONE = "the far end of the stream is gone"

Reply = Callable[[object, bool], None]  # (answer, or failure data; whether it failed)
Serve = Callable[["Gathering", int, int, bytes], None]  # read_fd, write_fd, what was read already


class Gathering:
    """One stream's far end. Its lanes ask it questions; it answers when there is something new."""

    def __init__(self, request: requests.Gather, umask: int, serve: Serve) -> None:
        """Raises OSError and Refusal where the command or the file cannot be opened."""
        self._serve, self._window = serve, request.window
        self._reorder: Optional[stream.Reorder] = None  # a sink has this, a source `_cutter`
        self._cutter: Optional[stream.Cutter] = None
        self.changed = threading.Condition()  # whoever holds its lock owns what follows
        self._life = Machine(FAR, Far.RUNNING)
        self._status: Optional[int] = None  # the command's, once it has ended
        self._failure: Optional[failures.Data] = None  # why the stream could not be written
        self._wake_at = math.inf  # chunks written: somebody asks for that
        self._lanes = 1  # that are served; the first is the gatherer's own
        self._listening = _Listening()
        self.path = self._listening.path
        try:
            self._program = self._opened(request, umask)
        except BaseException:
            self._listening.close()
            raise
        if request.is_sink:
            self._reorder = stream.Reorder(self._program.fd, self._window)
        else:
            self._cutter = stream.Cutter(self._program.fd)
        for run in (self._move, self._watch, self._accept):
            threading.Thread(target=run, name=run.__name__.strip("_"), daemon=True).start()

    def _opened(self, request: requests.Gather, umask: int) -> "stream_process.Program":
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
        made = stream.AskedSource(self._cutter, request.hash, request.block_bytes, self._window)
        return made, None

    # --- requests; each is answered once there is news, or after a while without

    def drained(self, request: requests.Drained, reply: Reply) -> None:
        """Reply how many chunks were written, once that is more than `past`, or never will be."""
        reorder, past = self._the_reorder(), request.past
        self._wake_at = past + 1

        def news(is_late: bool) -> Optional[int]:
            is_news = reorder.written > past or self._status is not None
            return reorder.written if is_news or is_late else None

        self._when(news, reply)

    def heard(self, request: requests.Heard, reply: Reply) -> None:
        """Reply what the command has said since, its exit status, and whether it reads no more."""
        after, was_deaf = request.after, request.deaf

        def news(is_late: bool) -> Optional[Dict[str, object]]:
            texts = [said.after(count) for said, count in zip(self._program.said, after)]
            is_deaf = self._reorder is not None and self._reorder.is_deaf
            is_news = any(texts) or self._status is not None or is_deaf != was_deaf
            if not (is_news or is_late):
                return None
            status = None if any(texts) else self._status
            listed = [[to_text(text), len(text)] for text in texts]
            return {"said": listed, "status": status, "deaf": is_deaf, "failure": self._failure}

        self._when(news, reply)

    def close_input(self, request: requests.CloseInput, reply: Reply) -> None:
        """Note how many chunks there are in all; the command sees its end once it has them."""
        reorder = self._the_reorder()
        reorder.put(request.total, reorder.room.take(), 0)
        reply(None, False)

    def abort(self, reply: Reply) -> None:
        """End the command: the stream is cut short."""
        self._end_program()
        self.leave()
        reply(None, False)

    def _when(self, news: Callable[[bool], object], reply: Reply) -> None:
        """Reply with what `news` returns, once that is not None; later it gets True: it is late.

        So who hears nothing for longer knows that the lane stands still, and asks over another. A
        thread of its own waits, as nobody reads what is said on a lane that stands still.
        """
        args = (news, reply)
        threading.Thread(target=self._wait_for, args=args, name="answer", daemon=True).start()

    def _wait_for(self, news: Callable[[bool], object], reply: Reply) -> None:
        until_s = time.monotonic() + PATIENCE_S
        with self.changed:
            found = news(False)
            while found is None:
                if self._life.state is Far.CLOSED:
                    return
                left_s = until_s - time.monotonic()
                self.changed.wait(max(left_s, 0))
                found = news(left_s <= 0)
        try:
            reply(found, False)
        except OSError:  # the lane is lost
            pass

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
        """Move the stream until it ends; its end is the input's only where all was written."""
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
        """Expect no lane any more: who has none left may end."""
        self._report(FarEvent.LEAVE)

    def outlive(self) -> None:
        """Wait while other lanes are here, or may come: the gatherer's own lane is lost."""
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
        for said in self._program.said:
            said.close()
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
        """Wait for the next agent that hands a lane over; None after close()."""
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


def hand_over(path: str, fds: Tuple[int, int], pending: bytes) -> None:
    """Give a lane's descriptors to the gatherer, with what was read already; wait until it lets go.

    Raises OSError where it is gone, and WireError for what it says against the lane.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
        to.connect(to_bytes(path))
        rights = array.array("i", fds).tobytes()
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
    """Return what was read of the lane already, and put its descriptors into `fds`."""
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
