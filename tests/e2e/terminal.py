"""A command on a terminal of its own, and somebody who types there.

Not here: what is typed (test_login.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence

import forked

from e2e.ways import COMMAND_S

_OWN = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if sys.argv[1:3] != [sys.executable, "-c"]:
    os.execvp(sys.argv[1], sys.argv[1:])
program = sys.argv[3]
sys.argv[:] = ["-c", *sys.argv[4:]]
exec(program)
"""
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A running command; what it shows is kept in `shown`."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._ours, self._its = os.openpty()
        self.shown = ""
        self.child = forked.start(
            [sys.executable, "-c", _OWN, *argv], stdin=self._its, stdout=self._its,
            stderr=self._its, start_new_session=True, env={**os.environ, **(environment or {})},
        )  # fmt: skip

    def wait_for(self, pattern: str) -> None:
        """Read until it shows this after what it had shown when this was called last."""
        begin = getattr(self, "_seen", 0)
        deadline_s = time.monotonic() + COMMAND_S
        while not (found := re.search(pattern, self.shown[begin:])):
            assert self._read(deadline_s), f"no {pattern!r} in {self.shown[begin:]!r}"
        self._seen = begin + found.end()

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def answer(self, prompt: str, text: str) -> None:
        self.wait_for(prompt)
        self.type(f"{text}\n")

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._its)[3] & termios.ECHO)

    def end(self) -> int:
        """Its exit status, once it has ended."""
        deadline_s = time.monotonic() + COMMAND_S
        while self.child.poll() is None:
            self._read(min(deadline_s, time.monotonic() + 0.05))
            assert time.monotonic() < deadline_s, f"it does not end: {self.shown!r}"
        while self._read(0.0):
            pass
        return self.child.returncode

    def hang_up(self) -> int:
        """Go away, as a window that is closed does; its exit status, once it has ended."""
        os.close(self._ours)
        self._ours = -1
        return self.child.wait(COMMAND_S)

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        if self._ours >= 0:
            os.close(self._ours)
        os.close(self._its)

    def _read(self, deadline_s: float) -> bool:
        left_s = max(deadline_s - time.monotonic(), 0.0)
        if not select.select([self._ours], [], [], left_s)[0]:
            return False
        self.shown += _CODES.sub("", os.read(self._ours, 65536).decode(errors="replace"))
        return True


@contextlib.contextmanager
def terminal(*argv: str, environment: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    made = Terminal(argv, environment)
    try:
        yield made
    finally:
        made.close()
