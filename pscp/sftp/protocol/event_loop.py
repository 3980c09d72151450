"""The event loop of a lane's program: what is read, what is written, and when.

Frames of the coordinator are read only once all that earlier ones led to is written, so payloads
are lent, not copied, and memory is bounded; likewise answers of the server. No deadlock follows:
the coordinator reads while it writes.

It is not asyncio's, whose import takes each lane's program 45 ms of processor time, as much as all
that it loads now; a copy of 2,000 small files on loopback took 15 to 18% more in all with it.

Not here: what frames and answers mean (../agent.py, client.py).
Read next: client.py.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pscp.sftp.protocol.tasks import Future

Buffer = bytes | memoryview
_BUFFERS_MOST = 64  # in one writev
_REST_MOST_S = 0.008
_LINE_MOST_BYTES = 1024 * 1024


class Decoder(Protocol):
    """Has the room that a ReadBuffer reads into."""

    def space(self) -> memoryview: ...
    def filled(self, count: int) -> None: ...


class Lines:
    """A decoder that divides what is read into lines."""

    def __init__(self) -> None:
        self._room = memoryview(bytearray(64 * 1024))
        self._rest = b""
        self.lines: deque[bytes] = deque()

    def space(self) -> memoryview:
        return self._room

    def filled(self, count: int) -> None:
        *lines, self._rest = (self._rest + bytes(self._room[:count])).split(b"\n")
        self._rest = self._rest[-_LINE_MOST_BYTES:]
        self.lines.extend(lines)


class _Backoff:
    """Tells when to read or write next: once a quarter of the pipe will have moved.

    ssh fills and empties its pipes by 32 KiB, and to follow each of its steps costs more than to
    move the bytes: for 1 GiB on loopback a lane makes 2,200 writes and 1,000 reads so, else 12,500
    and 4,500.
    """

    def __init__(self, fd: int) -> None:
        try:
            self._worth_bytes = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) // 4
        except (AttributeError, OSError):  # a socket, or not Linux
            self._worth_bytes = 0
        self.due_s = self._last_s = 0.0

    def moved(self, moved_bytes: int, *, may_rest: bool) -> None:
        """Set the time of the next call, after one that has read or written so many bytes."""
        self.due_s = now_s = time.monotonic()
        took_s, self._last_s = now_s - self._last_s, now_s
        if may_rest and moved_bytes:
            self.due_s += min(self._worth_bytes * took_s / moved_bytes, _REST_MOST_S)


class WriteBuffer:
    """A descriptor, and the buffers that wait to be written to it, in order."""

    def __init__(self, fd: int, *, may_break: bool = False) -> None:
        """Drop what waits where a pipe has no reader, with `may_break`; else that is an error."""
        self.fd, self._may_break = fd, may_break
        os.set_blocking(fd, False)
        self.pace = _Backoff(fd)
        self._buffers: deque[Buffer] = deque()
        self.waiting_bytes = 0

    def put(self, *buffers: Buffer) -> None:
        """Write buffers, which are lent until then, when the descriptor takes them."""
        for buffer in buffers:
            if len(buffer):
                self._buffers.append(buffer)
                self.waiting_bytes += len(buffer)

    def flush(self) -> None:
        """Write as much as the descriptor takes now. Raises BrokenPipeError."""
        while self._buffers:
            buffers = list(itertools.islice(self._buffers, _BUFFERS_MOST))
            try:
                count = os.writev(self.fd, buffers)
            except BlockingIOError:
                return
            except BrokenPipeError:
                if not self._may_break:
                    raise
                self._buffers.clear()
                self.waiting_bytes = 0
                return
            is_full = count < sum(map(len, buffers))
            self.pace.moved(count, may_rest=is_full)
            self.waiting_bytes -= count
            while self._buffers and count >= len(self._buffers[0]):
                count -= len(self._buffers.popleft())
            if count:
                self._buffers[0] = memoryview(self._buffers[0])[count:]
            if is_full:
                return


class ReadBuffer:
    """A descriptor that is read into a decoder's space."""

    def __init__(
        self,
        fd: int,
        decoder: Decoder,
        take: Callable[[], object],
        may_rest: Callable[[int], bool] = lambda count: False,
    ) -> None:
        """Read from `fd`, without blocking.

        Args:
            take: called after each read, once the decoder has the bytes.
            may_rest: tells whether, after so many bytes, more may gather before the next read.
        """
        self.fd, self._decoder, self._take, self._may_rest = fd, decoder, take, may_rest
        os.set_blocking(fd, False)
        self.pace = _Backoff(fd)
        self.is_at_end = False
        self.may_read: Callable[[], bool] = lambda: True

    def read(self) -> None:
        try:
            count = os.readv(self.fd, [self._decoder.space()])
        except BlockingIOError:
            return
        except ConnectionResetError:
            count = 0
        if count == 0:
            self.is_at_end = True
            return
        self._decoder.filled(count)
        self._take()
        self.pace.moved(count, may_rest=self._may_rest(count))


class Loop:
    """Reads, writes and calls timers' callbacks, in one thread."""

    def __init__(self) -> None:
        self.ins: list[ReadBuffer] = []
        self.outs: list[WriteBuffer] = []
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.before_wait: Callable[[], None] = lambda: None

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + delay_s, callback))

    def sleep(self, delay_s: float) -> Future[None]:
        over: Future[None] = Future()
        self.call_later(delay_s, lambda: over.set_result(None))
        return over

    def run_until(self, is_done: Callable[[], bool]) -> None:
        while True:
            self.before_wait()
            if is_done():
                return
            now_s = time.monotonic()
            for out in self.outs:
                if out.pace.due_s <= now_s:
                    out.flush()
            self._wait()
            now_s = time.monotonic()
            due = [callback for at_s, callback in self._timers if at_s <= now_s]
            self._timers = [timer for timer in self._timers if timer[0] > now_s]
            for callback in due:
                callback()

    def _wait(self) -> None:
        ins = {each.fd: each for each in self.ins if not each.is_at_end and each.may_read()}
        waiting: list[tuple[ReadBuffer | WriteBuffer, int]] = [
            (each, select.POLLIN) for each in ins.values()
        ]
        waiting += [(out, select.POLLOUT) for out in self.outs if out.waiting_bytes]
        now_s, poll = time.monotonic(), select.poll()
        for each, event in waiting:
            if each.pace.due_s <= now_s:
                poll.register(each.fd, event)
        ends_s = [each.pace.due_s for each, _ in waiting if each.pace.due_s > now_s]
        ends_s += [at_s for at_s, _ in self._timers]
        timeout_ms = max(0.0, min(ends_s) - now_s) * 1000 if ends_s else None
        for fd, _ in poll.poll(timeout_ms):
            if fd in ins and not ins[fd].is_at_end:  # an earlier one's read may have removed it
                ins[fd].read()

    def remove(self, fd: int) -> None:
        """Forget a descriptor that is about to be closed."""
        for each in self.ins:
            each.is_at_end = each.is_at_end or each.fd == fd
        self.ins = [each for each in self.ins if each.fd != fd]
        self.outs = [each for each in self.outs if each.fd != fd]
