"""What systemd is told of a run: that it is ready, where it stands, that it goes on, how it ended.

sd_notify(3) for a service of Type=notify, and the journal's native protocol
(systemd.io/JOURNAL_NATIVE_PROTOCOL). Where systemd did not start the program nothing is told.

Not here: the timers that start it (timers.py), the texts (report.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping

from pscp.terminal_text import printable

JOURNAL = "/run/systemd/journal/socket"
ERROR, INFO = 3, 6  # priorities of syslog(3)
_STATUS_MAX = 200  # characters
_FIELD_MAX_BYTES = 48 * 1024  # several fit into a datagram; the rest is in the report
_SEND_S = 1.0


def notify(*lines: str) -> None:
    """Tell the service manager, for example: READY=1."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        _send("\0" + address[1:] if address[0] == "@" else address, "\n".join(lines).encode())


def show_status(text: str) -> None:
    """Have `systemctl status` show one line."""
    notify(f"STATUS={printable(text)[:_STATUS_MAX]}")


class Watchdog:
    """Tells the service manager that a run goes on: at most twice in $WATCHDOG_USEC.

    see() is called often, with what is watched and with a mark that changes while that goes on,
    such as a copy's numbers. As long as no mark changes nothing is told, and a run that hangs is
    found. One thread calls at a time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        given, for_pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        is_ours = for_pid in ("", str(os.getpid())) and given.isascii() and given.isdigit()
        self._period_s = int(given) / 2e6 if is_ours else 0.0
        self._clock, self._told_s = clock, clock()
        self._marks: dict[str, object] = {}
        self._has_moved = False  # since the service manager was told

    def see(self, what: str, mark: object) -> None:
        self._has_moved |= self._marks.get(what) != mark
        self._marks[what] = mark
        now_s = self._clock()
        if self._period_s and self._has_moved and now_s - self._told_s >= self._period_s:
            self._told_s, self._has_moved = now_s, False
            notify("WATCHDOG=1")


def is_journal() -> bool:
    """Return whether what is written on stderr goes to the journal (systemd.exec(5))."""
    with contextlib.suppress(OSError):
        status = os.fstat(2)
        return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
    return False


def to_journal(message: str, priority: int, fields: Mapping[str, str]) -> bool:
    """Write a record with fields into the journal; return whether it took it."""
    its = {"MESSAGE": message, "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": "pscp-run", **fields}
    data = b"".join(_field(name, value) for name, value in its.items())
    return _send(JOURNAL, data)


def _field(name: str, value: str) -> bytes:
    """Return a field with its length, so that a newline in it begins no other field."""
    data = value.encode("utf-8", "backslashreplace")[:_FIELD_MAX_BYTES]
    return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"


def _send(address: str, data: bytes) -> bool:
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.settimeout(_SEND_S)
        sender.sendto(data, address)
        return True
    return False
