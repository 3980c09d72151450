"""Messages to systemd on a run: that it is ready, that it goes on, and how it ended.

sd_notify(3) for a service of Type=notify, and the journal's native protocol
(systemd.io/JOURNAL_NATIVE_PROTOCOL). Where systemd did not start the program nothing is told.

Not here: the timers that start it (timers.py), the texts (report.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping

JOURNAL = "/run/systemd/journal/socket"
ERROR, INFO = 3, 6  # priorities of syslog(3)
_FIELD_MAX_BYTES = 48 * 1024  # several fit into a datagram; the rest is in the report
_SEND_S = 1.0


def notify(text: str) -> None:
    """Tell the service manager, for example: READY=1."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        _send("\0" + address[1:] if address[0] == "@" else address, text.encode())


class Watchdog:
    """Tells the service manager that a run goes on: at most twice in $WATCHDOG_USEC.

    see() is called often, from any thread, with what is watched and with a mark that changes while
    that goes on, such as a copy's numbers. As long as no mark changes nothing is told, and a run
    that hangs is found.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        given, for_pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        is_ours = for_pid in ("", str(os.getpid())) and given.isascii() and given.isdigit()
        self._period_s = int(given) / 2e6 if is_ours else 0.0
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows
        self._marks: dict[str, object] = {}
        self._told_s = clock()
        self._has_moved = False  # since the service manager was told

    def see(self, what: str, mark: object) -> None:
        with self._lock:
            self._has_moved |= self._marks.get(what) != mark
            self._marks[what] = mark
            now_s = self._clock()
            if self._period_s and self._has_moved and now_s - self._told_s >= self._period_s:
                self._told_s, self._has_moved = now_s, False
                notify("WATCHDOG=1")


def to_journal(message: str, priority: int, fields: Mapping[str, str]) -> None:
    """Write a record with fields into the journal, where systemd started the program."""
    if "JOURNAL_STREAM" not in os.environ:
        return
    its = {"MESSAGE": message, "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": "pscp-run", **fields}
    record = b""
    for name, value in its.items():  # each with its length: a newline begins no other field
        data = value.encode("utf-8", "backslashreplace")[:_FIELD_MAX_BYTES]
        record += name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    _send(JOURNAL, record)


def _send(address: str, data: bytes) -> None:
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.settimeout(_SEND_S)
        sender.sendto(data, address)
