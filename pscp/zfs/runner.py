"""The two ends of a replication: where commands run, and the link that a stream goes over.

`Here` is this machine. The far end, and the way of the bytes, is a `Link`: replicate.py is given
a way to open one.

Not here: which commands (commands.py). Read next: inventory.py.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pscp.log import Log

_log = Log("zfs")
NOT_FOUND = 127  # what a shell says of a program that is not there; so do we


class Ran(NamedTuple):
    """A command that ended."""

    status: int
    out: bytes
    err: bytes


class Piped(NamedTuple):
    """A producer and a consumer that ended. A negative status is the signal that ended it."""

    producer_status: int
    consumer_status: int
    producer_err: bytes
    consumer_err: bytes
    bytes: int


class End(Protocol):
    """Runs commands; no shell reads them. Any thread may call."""

    def run(self, argv: Sequence[str]) -> Ran: ...


class Link(Protocol):
    """The far end, and streams from and to it. Any thread may call.

    A consumer whose producer failed, or to whom bytes are missing, is killed before its stdin
    is closed. Raises ConnectError where the connection is lost.
    """

    def run(self, argv: Sequence[str]) -> Ran: ...

    def pipe(
        self,
        producer: Sequence[str],
        consumer: Sequence[str],
        is_push: bool,
        progress: Callable[[int], object],
    ) -> Piped:
        """Runs the producer (push: here) and the consumer at the other end; `progress` gets the
        bytes that went over since it was called last."""

    def close(self) -> None:
        """Ends what runs over it."""


class Here:
    """This machine."""

    def run(self, argv: Sequence[str]) -> Ran:
        try:
            done = subprocess.run(
                list(argv), stdin=subprocess.DEVNULL, capture_output=True, check=False,
                env={**os.environ, "LC_ALL": "C"},
            )  # fmt: skip
        except OSError as error:
            return Ran(NOT_FOUND, b"", f"{argv[0]}: {error.strerror}".encode())
        _log.debug("here, status %d: %s", done.returncode, shlex.join(argv))
        return Ran(done.returncode, done.stdout, done.stderr)
