"""Decides whether a session's channels end at an agent or at SFTP (--remote).

Not here: what comes of a far end that has neither (first_login.py), what is remembered of a host
(host_cache.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pscp.connect import host_cache
from pscp.options import Location, Options

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent


class RemoteKind:
    """Whether SFTP is used to one host. Any thread may use it."""

    def __init__(self, host: Location) -> None:
        self.host = host
        self._lock = threading.Lock()  # guards what follows
        self._is_sftp: bool | None = None  # with --remote auto; None: as it was the last time

    def uses_sftp(self, options: Options) -> bool:
        """Return whether a channel is to end at SFTP, by the options or by what was found out."""
        if options.remote != "auto":
            return options.remote == "sftp"
        with self._lock:
            if self._is_sftp is None:
                self._is_sftp = host_cache.uses_sftp(self.host, options)
            return self._is_sftp

    def suits(self, far: RemoteAgent, options: Options) -> bool:
        """Return whether a connection ends at what these options ask for."""
        is_sftp = self.uses_sftp(options)
        return far.is_sftp == is_sftp and (not is_sftp or far.verify == options.verify)

    def switch(self, options: Options) -> None:
        """Use the other of the two from now on, with --remote auto."""
        is_sftp = not self.uses_sftp(options)
        with self._lock:
            self._is_sftp = is_sftp

    def forget(self) -> None:
        """Ask what is remembered of the host again: neither of the two is there."""
        with self._lock:
            self._is_sftp = None
