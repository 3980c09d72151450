"""The one loop of a lane's program: what is read, what is written, and when.

It never blocks on one descriptor while another could go on. The coordinator's frames are read
only once all that they led to is written, so payloads are lent, not copied, and memory is bounded;
likewise the server's answers. Nobody waits in a circle: the coordinator reads while it writes.

Not here: what frames and answers mean (agent.py, client.py).
Read next: client.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from pscp.sftp.tasks import Promise

_PARTS_MOST = 64  # buffers in one writev
_REST_MOST_S = 0.008


class _Pace:
    """When a system call is worth it again: once a quarter of the pipe will have moved.

    ssh fills and empties its pipes by 32 KiB, and to follow each of its steps costs more than to
    move the bytes: of 1 GiB on loopback a lane makes 2,200 writes and 1,000 reads so, else 12,500
    and 4,500.
    """

    def __init__(self, fd: int) -> None:
        try:
            self._worth_bytes = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) // 4
        except (AttributeError, OSError):  # a socket, or not Linux
            self._worth_bytes = 0
        self.due_s = self._last_s = 0.0

    def moved(self, count: int, rests: bool) -> None:
        """So many bytes just did."""
        now_s = time.monotonic()
        took_s, self._last_s = now_s - self._last_s, now_s
        rest_s = min(self._worth_bytes * took_s / count, _REST_MOST_S) if rests and count else 0.0
        self.due_s = now_s + rest_s


class Out:
    """What waits to be written to a descriptor, in order."""

    def __init__(self, fd: int, may_break: bool = False) -> None:
        """With `may_break` what nobody reads any more is dropped."""
        self.fd, self._may_break = fd, may_break
        os.set_blocking(fd, False)
        self.pace = _Pace(fd)
        self._parts: deque[Any] = deque()
        self.bytes = 0

    def put(self, *parts: Any) -> None:
        for part in parts:
            if len(part):
                self._parts.append(part)
                self.bytes += len(part)

    def flush(self) -> None:
        """Write what the pipe takes now. Raises BrokenPipeError."""
        while self._parts:
            parts = [self._parts[place] for place in range(min(len(self._parts), _PARTS_MOST))]
            try:
                count = os.writev(self.fd, parts)
            except BlockingIOError:
                return
            except BrokenPipeError:
                if not self._may_break:
                    raise
                self._parts.clear()
                self.bytes = 0
                return
            is_full = count < sum(map(len, parts))
            self.pace.moved(count, is_full)
            self.bytes -= count
            while self._parts and count >= len(self._parts[0]):
                count -= len(self._parts.popleft())
            if count:
                self._parts[0] = memoryview(self._parts[0])[count:]
            if is_full:
                return


class In:
    """A descriptor that is read into a decoder's space; `take` is called for what came."""

    def __init__(
        self, fd: int, decoder: Any, take: Callable[[], object],
        may_rest: Callable[[int], bool] = lambda count: False,
    ) -> None:  # fmt: skip
        """`may_rest` tells whether, after so many bytes, more may gather before they are read."""
        self.fd, self._decoder, self._take, self._may_rest = fd, decoder, take, may_rest
        os.set_blocking(fd, False)
        self.pace = _Pace(fd)
        self.is_over = False

    def read(self) -> None:
        try:
            count = os.readv(self.fd, [self._decoder.space()])
        except BlockingIOError:
            return
        except ConnectionResetError:
            count = 0
        if count == 0:
            self.is_over = True
            return
        self._decoder.filled(count)
        self._take()
        self.pace.moved(count, self._may_rest(count))


class Loop:
    """Reads and writes until told to stop."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._known: dict[int, int] = {}
        self.ins: list[tuple[In, Callable[[], bool]]] = []  # and: may it be read now?
        self.outs: list[Out] = []
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.before_wait: Callable[[], None] = lambda: None

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + delay_s, act))

    def pause(self, delay_s: float) -> Promise[None]:
        """A promise that is kept after so long."""
        over: Promise[None] = Promise()
        self.later(delay_s, lambda: over.keep(None))
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

    def _wait(self) -> None:
        ins = {each.fd: each for each, may in self.ins if not each.is_over and may()}
        at_work: list[tuple[In | Out, int]] = [(each, select.POLLIN) for each in ins.values()]
        at_work += [(out, select.POLLOUT) for out in self.outs if out.bytes]
        now_s = time.monotonic()
        self._register({each.fd: what for each, what in at_work if each.pace.due_s <= now_s})
        rests = [each.pace.due_s for each, _ in at_work if each.pace.due_s > now_s]
        for fd, _ in self._poll.poll(self._timeout_ms(rests, now_s)):
            if fd in ins and not ins[fd].is_over:  # what was read before may have removed it
                ins[fd].read()
        self._ring()

    def _register(self, wanted: dict[int, int]) -> None:
        if wanted == self._known:
            return
        for fd in self._known.keys() - wanted.keys():
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)
        for fd, events in wanted.items():
            self._poll.register(fd, events)
        self._known = wanted

    def _timeout_ms(self, rests: list[float], now_s: float) -> float | None:
        ends = rests + [at for at, _ in self._timers]
        return max(0.0, min(ends) - now_s) * 1000 if ends else None

    def _ring(self) -> None:
        now_s = time.monotonic()
        due = [each for each in self._timers if each[0] <= now_s]
        self._timers = [each for each in self._timers if each[0] > now_s]
        for _, act in due:
            act()

    def remove(self, fd: int) -> None:
        """This descriptor is about to be closed."""
        for each, _ in self.ins:
            each.is_over = each.is_over or each.fd == fd
        self.ins = [each for each in self.ins if each[0].fd != fd]
        self.outs = [each for each in self.outs if each.fd != fd]
        self._register({known: e for known, e in self._known.items() if known != fd})


class Wake:
    """A decoder for the pipe of set_wakeup_fd(): whatever comes says SIGTERM."""

    def __init__(self) -> None:
        self._room = memoryview(bytearray(64))

    def space(self) -> memoryview:
        return self._room

    def filled(self, count: int) -> None:
        pass


def read_marker(count: int) -> bytes:
    """What the coordinator sent first: it waits for it before anything else."""
    os.set_blocking(0, True)
    marker = b""
    while len(marker) < count:
        more = os.read(0, count - len(marker))
        if not more:
            raise BrokenPipeError
        marker += more
    os.set_blocking(0, False)
    return marker
