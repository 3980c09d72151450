"""A hash program at the far end, kept running: a small loop of sh over an exec channel.

Requests go to its standard input, never on its command line, and nothing in them is evaluated: the
odd bytes of a name travel as octal numbers, for printf. The loop answers a request with a line for
each digest and then a "."; requests are answered in order, so many may be in flight.

Not here: what the digests are compared with (../digests.py).
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections import deque
from collections.abc import Sequence

from pscp.endpoint.frames import hashes
from pscp.sftp.protocol.event_loop import Lines, Loop, ReadBuffer, WriteBuffer
from pscp.sftp.protocol.tasks import Future

# In the order in which they are tried, up to the first for SHA-256. The script has their numbers,
# from 1 on.
TOOLS = (
    ("xxhsum", "xxh3-128"),
    ("b2sum", "blake2b"),
    ("openssl", "sha256"),
    ("sha256sum", "sha256"),
    ("sha256", "sha256"),
    ("shasum", "sha256"),
)
_FAST_SHA256 = "openssl"  # uses the processor's instructions; coreutils' takes four times as long
# Starting the programs costs as much as hashing 3 MiB: near, chunks are larger than with an agent.
# Far, too few of them would fit in a lane's window while some are verified. docs/decisions.md, 14.
CHUNK_BYTES, NEAR_S = 8 * 1024 * 1024, 0.01
_TRIAL = b"pscp"  # each is tried with it: one with another digest is another tool of that name
_PATIENCE_S = 10.0  # for the trials: a forced command may wait for other input
_END_S = 2.0
_SILENT_S, _LEAST_BYTES_S = 60.0, 1e6  # a program that takes longer, or is slower, stands still
_FILES_MOST = 64  # of one run of the program
_ODD = re.compile(rb"[\x00-\x1f\x7f\\]")  # would end a word, or have the output escaped
_UNSAFE = re.compile(rb"[^A-Za-z0-9_./,:+-]")

# For any login shell: within single quotes, without any, and with neither "!" nor "\". Words of a
# request end with tabs, so names may have spaces in them.
_SCRIPT = (
    'set -f;IFS="\t";LC_ALL=C;export LC_ALL;'
    'h(){ case $t in 1)$x xxhsum -H2 "$@";;2)$x b2sum -l 256 "$@";;'
    '3)$x openssl dgst -sha256 -r "$@";;4)$x sha256sum "$@";;'
    '5)$x sha256 -q "$@";;6)$x shasum -a 256 "$@";;esac 2>/dev/null;};'
    'n(){ case $1 in %*)f=$(printf %b. "${1#%}");f=${f%.};;*)f=${1#=};;esac;};'
    'x=;for t in 1 2 3 4 5 6;do r=$(printf pscp|h)||r=;echo "$t $r";'
    "case $t$r in [3456]?*)break;;esac;done;echo .;"
    "while read -r o t a b c d e;do case $o in "
    'c)n "$a";dd if="$f" bs=$b skip=$c count=$d 2>/dev/null|(x=exec;h);;'
    'd)n "$a";dd if="$f" bs=$b skip=$c count=$d 2>/dev/null|head -c $e|(x=exec;h);;'
    't)n "$a";tail -c +$b "$f" 2>/dev/null|head -c $c|(x=exec;h);;'
    's)n "$a";h <"$f"||echo -;;'
    'f)set -- $a $b $c $d $e;if r=$(h "$@");then echo "$r";else '
    'for f;do h <"$f"||echo -;done;fi;;'
    "*)continue;;esac;echo .;done"
)
COMMAND = f"exec sh -c '{_SCRIPT}'"


class _Request:
    """A request for the digest of an extent, or for those of a group of small files."""

    def __init__(
        self, digests: Sequence[Future[bytes | None]], length: int, *, is_group: bool
    ) -> None:
        """`length` is that of the extent, in bytes."""
        self.digests, self.is_group = digests, is_group
        self._patience_s = _SILENT_S + length / _LEAST_BYTES_S
        self.late_s = 0.0  # when its answer is late, once it is the first
        self.found: list[bytes | None] = []

    def begin(self) -> None:
        """Count the time from now on, if it has not begun."""
        self.late_s = self.late_s or time.monotonic() + self._patience_s

    def finish(self, *, failed: bool = False) -> None:
        is_whole = len(self.found) == len(self.digests) and not failed
        for place, digest in enumerate(self.digests):
            digest.set_result(self.found[place] if is_whole else None)


class Program:
    """The hash programs of the far end. A digest is None where its program failed, or ended."""

    def __init__(self, argv: Sequence[str], loop: Loop) -> None:
        """`argv` runs COMMAND at the far end."""
        self.tools: dict[str, tuple[int, str]] = {}  # by algorithm: its number, and its name
        self.ready: Future[None] = Future()
        self._loop, self._lines = loop, Lines()
        self._requests: deque[_Request] = deque()
        self._small: dict[int, list[tuple[bytes, Future[bytes | None]]]] = {}
        self._trials: dict[bytes, bytes] = {}  # a tool's number, and what it answered
        self.is_over = False
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._child = subprocess.Popen(
            argv, 0, stdin=pipe, stdout=pipe, stderr=nothing, start_new_session=True
        )
        assert self._child.stdin is not None and self._child.stdout is not None
        self._out = WriteBuffer(self._child.stdin.fileno(), may_break=True)
        self._in = ReadBuffer(self._child.stdout.fileno(), self._lines, self._take)
        loop.outs.append(self._out)
        loop.ins.append(self._in)
        loop.call_later(_PATIENCE_S, lambda: None if self.ready.done() else self.close())
        # An internal-sftp in its place reads this as the length of a packet, and ends.
        self._out.put(b"hello hello\n")

    # --- asking

    def of_extent(
        self, algorithm: str, path: bytes, offset: int, length: int
    ) -> Future[bytes | None]:
        """Request the digest of an extent, or of its part before the end of a shorter file."""
        step = min(offset & -offset or 1 << 20, 1 << 20)
        number, name = self.tools[algorithm][0], _word(path)
        if step >= 512:
            count = -(-length // step)
            what = "c" if count * step == length else "d"
            words = (what, number, name, step, offset // step, count, length)
            return self._send(*words, length=length)
        return self._send("t", number, name, offset + 1, length, length=length)

    def of_file(self, algorithm: str, path: bytes) -> Future[bytes | None]:
        """Request the digest of a small file, which flush() sends along with others."""
        number = self.tools[algorithm][0]
        if _ODD.search(path) or not path.startswith(b"/"):
            return self._send("s", number, _word(path))
        digest: Future[bytes | None] = Future()
        self._small.setdefault(number, []).append((path, digest))
        return digest

    def flush(self) -> None:
        """Send the requests for small files, in groups.

        Starting the program costs more than hashing them, so those that do not fill one run wait
        until the run before is over.
        """
        for number, files in list(self._small.items()):
            while files:
                is_running = any(request.is_group for request in self._requests)
                if is_running and len(files) < _FILES_MOST:
                    break
                group = files[:_FILES_MOST]
                del files[:_FILES_MOST]
                line = b"f\t%d\t%s\n" % (number, b"\t".join(path for path, _ in group))
                self._queue(line, _Request([digest for _, digest in group], 0, is_group=True))

    def _send(self, *words: str | int, length: int = 0) -> Future[bytes | None]:
        digest: Future[bytes | None] = Future()
        line = "\t".join(map(str, words)).encode("ascii") + b"\n"
        self._queue(line, _Request([digest], length, is_group=False))
        return digest

    def _queue(self, line: bytes, request: _Request) -> None:
        if self.is_over:
            request.finish(failed=True)
            return
        self._requests.append(request)
        self._requests[0].begin()
        self._out.put(line)

    # --- answers

    def _take(self) -> None:
        while self._lines.lines:
            line = self._lines.lines.popleft()
            if not self.ready.done():
                if line == b".":  # behind the trials
                    self._choose_tools()
                    self.ready.set_result(None)
                number, _, answer = line.partition(b" ")
                self._trials[number] = answer
            elif line != b"." and self._requests:
                self._requests[0].found.append(_digest(line))
            elif self._requests:
                request = self._requests.popleft()
                if self._requests:
                    self._requests[0].begin()
                request.finish()

    def _choose_tools(self) -> None:
        for number, (name, algorithm) in enumerate(TOOLS, 1):
            if algorithm in self.tools or algorithm not in hashes.ALGORITHMS:
                continue
            hasher = hashes.new(algorithm)
            hasher.update(_TRIAL)
            if _digest(self._trials.get(b"%d" % number, b"")) == hasher.digest():
                self.tools[algorithm] = number, name
        if "blake2b" in self.tools and self.tools.get("sha256", (0, ""))[1] == _FAST_SHA256:
            speeds = hashes.speeds()
            if speeds["sha256"] > speeds["blake2b"]:
                self.tools["blake2b"] = self.tools.pop("blake2b")  # now the last choice

    def check(self) -> None:
        """Close the program if it has ended, or stands still."""
        is_late = self._requests and time.monotonic() > self._requests[0].late_s
        if self._in.is_at_end or is_late:
            self.close()

    def close(self) -> None:
        """End the programs. The digests that were requested become None."""
        if self.is_over:
            return
        self.is_over = True
        for fd in (self._in.fd, self._out.fd):
            self._loop.remove(fd)
        for file in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                assert file is not None
                file.close()
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        requests, self._requests = list(self._requests), deque()
        for files in self._small.values():
            requests.append(_Request([digest for _, digest in files], 0, is_group=True))
        self._small = {}
        if not self.ready.done():
            self.tools = {}
            self.ready.set_result(None)
        for request in requests:
            request.finish(failed=True)


def _word(path: bytes) -> str:
    """Return a path as one ASCII word: "=" and the path, or "%" and it with octal numbers."""
    if not _UNSAFE.search(path):
        return "=" + path.decode("ascii")
    return "%" + _UNSAFE.sub(lambda match: b"\\0%03o" % match[0][0], path).decode("ascii")


def _digest(line: bytes) -> bytes | None:
    """Return the digest at the beginning of a line, if any; a "\\" may be before it."""
    words = line.removeprefix(b"\\").split(b" ", 1)
    try:
        return bytes.fromhex(words[0].decode("ascii")) or None
    except ValueError:
        return None
