"""The two ends of a replication: where commands run, and the link that a stream goes over.

`Here` is this machine. A `Link` is the far end and carries the bytes; replicate.py opens one.

Not here: which commands (commands.py). Read next: inventory.py.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pscp.ground.log import Log
from pscp.stream.stream import Ran as Ran

_log = Log("zfs")
NOT_FOUND = 127  # the exit status where there is no such program, as a shell's


class Piped(NamedTuple):
    """A producer and a consumer that ended. A negative status is the signal that ended it."""

    producer: Ran
    consumer: Ran
    bytes: int  # that went from one to the other


class End(Protocol):
    """Runs commands without a shell. Any thread may call."""

    def run(self, argv: Sequence[str]) -> Ran:
        """Run a command and wait for it."""
        ...


class Link(Protocol):
    """The far end, and streams from and to it. Any thread may call.

    A consumer whose producer failed, or to whom bytes are missing, is killed before its stdin
    is closed. Raises ConnectError where the connection is lost.
    """

    def run(self, argv: Sequence[str]) -> Ran:
        """Run a command at the far end and wait for it."""
        ...

    def pipe(
        self,
        producer: Sequence[str],
        consumer: Sequence[str],
        is_push: bool,
        progress: Callable[[int], object],
    ) -> Piped:
        """Run the producer (push: here), and the consumer at the other end.

        `progress` gets the bytes that went over since it was called last.
        """
        ...

    def close(self) -> None:
        """End what runs over this link."""


class Here:
    """Runs commands on this machine."""

    def run(self, argv: Sequence[str]) -> Ran:
        try:
            env = {**os.environ, "LC_ALL": "C"}
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=env
            )
        except OSError as error:
            return Ran(NOT_FOUND, b"", f"{argv[0]}: {error.strerror}".encode())
        _log.debug("here, status %d: %s", done.returncode, shlex.join(argv))
        return Ran(done.returncode, done.stdout, done.stderr)
