"""A stream over several lanes: cut into numbered chunks at one end, put in order at the other.

A stream has no offsets, so each chunk gets a slot of SLOT_BYTES: chunk K lies at K * SLOT_BYTES and
fills its slot or less. A chunk without bytes is the end. A stream has one Cutter, which reads a
descriptor, and one Reorder, which writes one; a lane has a PipeSource or a PipeSink. Each runs at
either end.

Not here: the states (stream_states.py), the command at the far end (stream_server.py), which chunks
travel when (../../stream/pipe.py).
Read next: stream_states.py.
"""

import errno
import math
import os
import queue
import select
import threading
import time
from typing import Callable, Dict, List, Optional, Tuple

from ..asking import requests
from ..frames import failures, hashes, system, wire
from ..frames.session import Arriving
from ..reading import tree
from .machine import Machine
from .stream_states import INPUT, OUTPUT, Input, InputEvent, Output, OutputEvent

SLOT_BYTES = 1 << 20
_GATHER_MS = 20  # a chunk that is not full is cut when no byte came for so long,
_GATHER_S = 0.1  # and at the latest so long after its first byte
_STOP_MS = 100  # a thread that reads or writes notices stop() within this time

_AskedChunk = Tuple[int, int, int, "wire.Send"]  # as the arguments of send_chunk()
LaneEnds = Tuple[Optional["PipeSource"], Optional["PipeSink"]]  # one of them is None


class Room:
    """Buffers of a slot each, kept for reuse: a new one costs a page fault each 4 KiB."""

    def __init__(self) -> None:
        self._free: List[bytearray] = []

    def take(self) -> bytearray:
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(SLOT_BYTES)

    def give(self, buffer: bytearray) -> None:
        self._free.append(buffer)


class Cutter:
    """Cuts what it reads from a descriptor into chunks, and holds them until they have landed."""

    def __init__(self, fd: int) -> None:
        self.fd, self._room = fd, Room()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._lowest = 0  # all chunks below have landed; used with the lock held
        self.changed = threading.Condition()  # whoever holds its lock owns what follows
        self._life = Machine(INPUT, Input.READING)
        self.error: Optional[OSError] = None  # why the descriptor cannot be read any more
        self.end: Optional[int] = None  # the number of the empty chunk
        self.count = 0  # chunks that were cut
        self._wanted = 0  # chunks that run() is to cut
        self._held: Dict[int, Tuple[bytearray, int]] = {}

    @property
    def state(self) -> Input:
        return self._life.state

    def lane(self, request: requests.BeginStream) -> LaneEnds:
        """Return the source of a lane at the coordinator's end."""
        return PipeSource(self, request.hash, request.block_bytes), None

    def cut(self) -> int:
        """Wait for the next chunk; return its bytes, 0 at the end. Raises OSError."""
        buffer = self._room.take()
        try:
            length = self._fill(memoryview(buffer))
        except OSError as error:
            with self.changed:
                self._life.on(InputEvent.FAIL)
                self.error = error
                self.changed.notify_all()
            raise
        with self.changed:
            if self.state is Input.STOPPED:
                raise system.os_error(errno.ECANCELED)
            if length:
                self._held[self.count] = buffer, length
                self.count += 1
            else:
                self._life.on(InputEvent.END)
                self.end = self.count
            self.changed.notify_all()
        return length

    def _fill(self, view: memoryview) -> int:
        """Read until the buffer is full, or a moment passes without a byte; return the bytes."""
        filled, until_s = 0, math.inf
        while filled < len(view) and time.monotonic() < until_s:
            if not self._poll.poll(_GATHER_MS if filled else _STOP_MS):
                if filled or self.state is Input.STOPPED:
                    break
                continue
            count = os.readv(self.fd, [view[filled:]])
            if count == 0:
                break
            if not filled:
                until_s = time.monotonic() + _GATHER_S
            filled += count
        return filled

    def run(self) -> None:
        """Cut the chunks that want() names, until the end, an error or stop()."""
        while True:
            with self.changed:
                while self.count >= self._wanted and self.state is Input.READING:
                    self.changed.wait()
                if self.state is not Input.READING:
                    return
            try:
                self.cut()
            except OSError:  # get() raises it as well
                return

    def want(self, number: int) -> None:
        """Have run() cut the chunks up to this one."""
        with self.changed:
            self._wanted = max(self._wanted, number + 1)
            self.changed.notify_all()

    def get(self, number: int) -> memoryview:
        """Wait until a chunk was cut, and return its bytes; b"" from the end on.

        Raises OSError where it could not be read, or has landed already over another lane.
        """
        with self.changed:
            while number >= self.count and self.end is None:
                if self.state is not Input.READING:
                    raise self.error or system.os_error(errno.ECANCELED)
                self.changed.wait()
            if number >= self.count:
                return memoryview(b"")
            if number not in self._held:
                raise OSError(errno.ENOENT, "has landed already")
            buffer, length = self._held[number]
            return memoryview(buffer)[:length]

    def stop(self) -> None:
        """Read no more; who waits for a chunk gets an OSError."""
        with self.changed:
            self._life.on(InputEvent.STOP)
            self.changed.notify_all()

    def drop(self, number: int) -> None:
        """Forget a chunk that has landed."""
        with self.changed:
            held = self._held.pop(number, None)
            if held is not None:
                self._room.give(held[0])

    def drop_below(self, number: int) -> None:
        """Forget all chunks before this one: they have landed."""
        with self.changed:
            while self._lowest < min(number, self.count):
                self.drop(self._lowest)
                self._lowest += 1


class PipeSource:
    """A lane's source of a stream: sends the chunks that are asked of it."""

    def __init__(self, cutter: Cutter, algorithm: str, block_bytes: int) -> None:
        self._cutter, self._algorithm, self._block_bytes = cutter, algorithm, block_bytes

    def know(self, id_: int, value: object) -> None:
        """Do nothing: a stream is no file that would be opened."""

    def forget(self, id_: int) -> None:
        pass

    def send_chunk(self, id_: int, offset: int, length: int, send: "wire.Send") -> None:
        """Send a chunk's blocks and its digest, or the failure to read it."""
        try:
            view = self._cutter.get(offset // SLOT_BYTES)
        except OSError as error:
            failure = wire.to_json(failures.from_exception(error, ""))
            send(wire.DIGEST, id_, offset, wire.COUNT.pack(length) + failure, wire.FAILED)
            return
        hasher = hashes.new(self._algorithm)
        for begin in range(0, len(view), self._block_bytes):
            block = view[begin : begin + self._block_bytes]
            hasher.update(block)
            send(wire.DATA, id_, offset + begin, system.Lent(block))
        send(wire.DIGEST, id_, offset, wire.COUNT.pack(len(view)) + hasher.digest())

    def close(self) -> None:
        pass


class AskedSource(PipeSource):
    """A PipeSource at the far end, where a chunk may be asked for before it was cut.

    A thread waits for the chunk, so that the lane answers other requests meanwhile. The chunks that
    are `window` or more behind the one asked for last have landed.
    """

    def __init__(self, cutter: Cutter, algorithm: str, block_bytes: int, window: int) -> None:
        PipeSource.__init__(self, cutter, algorithm, block_bytes)
        self._window = window
        self._asked: queue.Queue[Optional[_AskedChunk]] = queue.Queue()  # None: the end
        self._is_closed = False
        self._thread: Optional[threading.Thread] = None

    def send_chunk(self, id_: int, offset: int, length: int, send: "wire.Send") -> None:
        """Have the thread send a chunk once it was cut."""
        number = offset // SLOT_BYTES
        self._cutter.drop_below(number + 1 - self._window)
        self._cutter.want(number)
        self._asked.put((id_, offset, length, send))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        for chunk in iter(self._asked.get, None):
            if self._is_closed:
                return
            try:
                PipeSource.send_chunk(self, *chunk)
            except OSError:  # the lane is lost
                return

    def close(self) -> None:
        """Send nothing more."""
        self._is_closed = True
        self._asked.put(None)


_TAKING = (Output.WRITING, Output.DEAF)


class Reorder:
    """Writes chunks to a descriptor in their order, whatever order they arrive in.

    It holds at most `window` chunks; a sender must not be further ahead of `written` than that.
    """

    def __init__(self, fd: int, window: int) -> None:
        self.fd, self.room, self._window = fd, Room(), window
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self.changed = threading.Condition()  # whoever holds its lock owns what follows
        self._life = Machine(OUTPUT, Output.WRITING)
        self.error: Optional[OSError] = None  # why the descriptor cannot be written
        self.written = 0  # chunks that were written in order, or dropped as nobody reads them
        self.arrived_bytes = 0
        self.end: Optional[int] = None  # the number of the empty chunk
        self._waiting: Dict[int, Tuple[bytearray, int]] = {}

    @property
    def state(self) -> Output:
        return self._life.state

    @property
    def is_complete(self) -> bool:
        return self.state in (Output.COMPLETE, Output.DROPPED)

    @property
    def is_deaf(self) -> bool:
        """Are chunks not written any more?"""
        return self.state in (Output.DEAF, Output.DROPPED, Output.FAILED)

    def lane(self, request: requests.BeginStream) -> LaneEnds:
        """Return the sink of a lane."""
        return None, PipeSink(self, request.hash)

    def has(self, number: int) -> bool:
        """Has this chunk arrived?"""
        with self.changed:
            return number < self.written or number in self._waiting

    def put(self, number: int, buffer: bytearray, length: int) -> None:
        """Take a verified chunk, or drop one that is there already; without bytes it is the end.

        Raises WireError for one beyond the window.
        """
        with self.changed:
            if number >= self.written + self._window:
                raise wire.WireError("a chunk beyond the window")
            if not length:
                self.end = number if self.end is None else min(self.end, number)
                self._note_end()
            elif number >= self.written and number not in self._waiting:
                self._waiting[number] = buffer, length
                self.arrived_bytes += length
                self.changed.notify_all()
                return
            self.room.give(buffer)
            self.changed.notify_all()

    def _note_end(self) -> None:
        """Change the state if all was written. The caller holds the lock."""
        if self.state in _TAKING and self.end is not None and self.written >= self.end:
            self._life.on(OutputEvent.FINISH)

    def run(self, notify: Callable[[], None] = lambda: None) -> None:
        """Write chunks until the end, an error or stop(). Calls `notify` after each chunk."""
        while True:
            with self.changed:
                while self.written not in self._waiting and self.state in _TAKING:
                    self.changed.wait()
                if self.state not in _TAKING:
                    return
                buffer, length = self._waiting.pop(self.written)
            self._write(memoryview(buffer)[:length])
            with self.changed:
                if self.state in _TAKING:  # else stop() may have come in the middle of the chunk
                    self.written += 1
                    self.room.give(buffer)
                    self._note_end()
            notify()

    def _write(self, view: memoryview) -> None:
        try:
            while len(view) and self.state is Output.WRITING:
                try:
                    view = view[os.write(self.fd, view) :]
                except BlockingIOError:  # a process that shares the descriptor made it so
                    self._poll.poll(_STOP_MS)
        except OSError as error:
            has_left = isinstance(error, BrokenPipeError)
            with self.changed:
                self._life.on(OutputEvent.LEAVE if has_left else OutputEvent.FAIL)
                self.error = None if has_left else error

    def stop(self) -> None:
        """Write nothing more."""
        with self.changed:
            self._life.on(OutputEvent.STOP)
            self.changed.notify_all()


class PipeSink:
    """A lane's sink of a stream: verifies chunks before the Reorder takes them."""

    def __init__(self, reorder: Reorder, algorithm: str) -> None:
        self._reorder, self._algorithm = reorder, algorithm
        self._arriving = Arriving()
        self._buffer: Optional[bytearray] = None
        self._hasher = hashes.new(algorithm)
        self._begin = 0  # of the chunk that is arriving

    def know(self, id_: int, value: tree.Entry) -> None:
        """Do nothing: a stream is no file that would be opened."""

    def forget(self, id_: int) -> None:
        pass

    def place(self, id_: int, offset: int, length: int) -> Optional[memoryview]:
        """Return where a block is to be read to before write(); None where it does not fit."""
        begin = offset % SLOT_BYTES
        if begin + length > SLOT_BYTES:
            return None
        return memoryview(self._slot())[begin : begin + length]

    def _slot(self) -> bytearray:
        """Return the buffer of the chunk that is arriving."""
        if self._buffer is None:
            self._buffer = self._reorder.room.take()
        return self._buffer

    def write(self, id_: int, offset: int, block: memoryview, check: bytes = b"") -> None:
        """Take the next block of a chunk. Raises WireError for one that does not follow."""
        if self._arriving.block(id_, offset, len(block), wire.MAX_OFFSET):
            self._hasher, self._begin = hashes.new(self._algorithm), offset
            if offset % SLOT_BYTES:
                raise wire.WireError("a chunk that does not begin with its slot")
        place = offset - self._begin
        if place + len(block) > SLOT_BYTES:
            raise wire.WireError("a block outside of its slot")
        buffer = self._slot()
        self._hasher.update(block)
        if block.obj is not buffer:
            buffer[place : place + len(block)] = block

    def complete(
        self, id_: int, offset: int, length: int, digest: bytes
    ) -> Tuple[bool, int, Optional[failures.Data]]:
        """End a chunk. Returns whether its digest matches, and how many were written in order."""
        if length:
            self._arriving.complete(id_, offset, length)
        elif not self._arriving.is_over:
            raise wire.WireError("a digest of nothing, and bytes that came")
        else:
            self._hasher = hashes.new(self._algorithm)
        buffer, self._buffer = self._slot(), None
        if self._hasher.digest() != digest:
            self._reorder.room.give(buffer)
            return False, self._reorder.written, None
        self._reorder.put(offset // SLOT_BYTES, buffer, length)
        return True, self._reorder.written, None

    def abandon(self) -> None:
        """Forget the chunk that is arriving: its source gave it up."""
        self._arriving.abandon()

    def close(self) -> None:
        pass
