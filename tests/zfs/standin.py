"""A plain link to a "far" end on this machine, which can be cut: one pipe, no lanes, no ssh.

It keeps a Link's promise: a consumer whose producer failed is killed before its stdin is closed.

Not here: pscp's own link over several connections (pscp/zfs/link.py).
Read next: conftest.py.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence

from pscp.ground.errors import ConnectionLost
from pscp.stream.stream import Ran
from pscp.zfs.link import Link, PipeStatuses, run_here

BLOCK = 4096  # small, so that a stream may be cut early


class Standin(Link):
    """`cut_at` and `kill_sender_at` are bytes of the next stream after which that happens, once."""

    def __init__(self) -> None:
        self.cut_at: int | None = None
        self.kill_sender_at: int | None = None
        self.before_stream: Callable[[], object] | None = None
        self.commands: list[tuple[str, ...]] = []
        self.closed = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def run(self, argv: Sequence[str]) -> Ran:
        self.commands.append(tuple(argv))
        return run_here(argv)

    def pipe(
        self, producer: Sequence[str], consumer: Sequence[str], is_push: bool,
        progress: Callable[[int], object],
    ) -> PipeStatuses:  # fmt: skip
        self.commands += [tuple(producer), tuple(consumer)]
        if self.before_stream is not None:
            act, self.before_stream = self.before_stream, None
            act()
        with (
            self._started(producer, stdin=subprocess.DEVNULL) as sender,
            self._started(consumer, stdin=subprocess.PIPE) as receiver,
        ):
            said = [Said(sender.stderr), Said(receiver.stderr)]
            try:
                count = self._pump(sender, receiver, progress)
            except BaseException:
                sender.kill()
                receiver.kill()
                for each in said:  # before what it reads is closed
                    each.join()
                raise
            ran = [
                Ran(process.wait(), b"", each.whole())
                for process, each in zip((sender, receiver), said, strict=True)
            ]
            return PipeStatuses(ran[0], ran[1], count)

    def _started(self, argv: Sequence[str], stdin: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            list(argv), bufsize=0, stdin=stdin, stderr=subprocess.PIPE,
            stdout=subprocess.PIPE if stdin == subprocess.DEVNULL else subprocess.DEVNULL,
        )  # fmt: skip
        with self._lock:
            self._processes.append(process)
            if self.closed:
                process.kill()
        return process

    def _pump(
        self, sender: subprocess.Popen[bytes], receiver: subprocess.Popen[bytes],
        progress: Callable[[int], object],
    ) -> int:  # fmt: skip
        assert sender.stdout is not None and receiver.stdin is not None
        count = 0
        while data := os.read(sender.stdout.fileno(), BLOCK):
            if self.cut_at is not None and count + len(data) > self.cut_at:
                self.cut_at = None
                raise ConnectionLost("the connection was cut")
            if self.kill_sender_at is not None and count + len(data) > self.kill_sender_at:
                self.kill_sender_at = None
                sender.kill()
                break
            try:
                rest = data
                while rest:
                    rest = rest[receiver.stdin.write(rest) :]
            except BrokenPipeError:
                break
            count += len(data)
            progress(len(data))
        sender.stdout.close()
        if sender.wait() != 0:
            receiver.kill()
        receiver.stdin.close()
        if self.closed:
            raise ConnectionLost("the link was closed")
        return count

    def close(self) -> None:
        with self._lock:
            self.closed = True
            for process in self._processes:
                if process.poll() is None:
                    process.kill()


class Said(threading.Thread):
    """What a process says on stderr, read beside the stream."""

    def __init__(self, stream: object) -> None:
        super().__init__(daemon=True)
        self._stream, self._text = stream, b""
        self.start()

    def run(self) -> None:
        self._text = self._stream.read()  # type: ignore[attr-defined]

    def whole(self) -> bytes:
        self.join()
        return self._text
