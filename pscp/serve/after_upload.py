"""What happens to a file that has landed: it is told, handed to a command, listed for a job.

Not here: how it lands (landing.py), how a command is started (programs.py). Read next: events.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pscp.serve.events import Events
from pscp.serve.landing import Landed
from pscp.serve.programs import run
from pscp.serve.rules import is_told
from pscp.serve.settings import Current, User

_TOLD_MAX = 4200  # characters of what was refused: a path, which a request may make much longer


class AfterUpload:
    """Runs the command of after-upload, and writes the file of uploads."""

    def __init__(self, current: Current, events: Events) -> None:
        self._current, self._events = current, events
        self._jobs = max(current.settings.after_upload_jobs, 1)
        self._pool = ThreadPoolExecutor(self._jobs, "after-upload")

    def close(self) -> None:
        """Wait for the commands that run, and for those that are to."""
        self._pool.shutdown()

    def landed(self, user: str, address: str, path: str, said: dict[str, Any]) -> None:
        """Hand on a file that has landed under this whole path. Raises OSError."""
        if self._current.settings.uploads:
            self._list(json.dumps({"user": user, "path": path, **said}).encode("ascii") + b"\n")
        if self._current.settings.after_upload:
            self._pool.submit(self._run, user, address, path)

    def _list(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._current.settings.uploads, flags, 0o640)
        try:
            os.write(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _run(self, user: str, address: str, path: str) -> None:
        """Run the command, as one of so many over all processes of the server."""
        number = zlib.crc32(os.fsencode(path)) % self._jobs
        slot = Path(self._current.settings.state) / f"after-upload.{number}"
        argv = [*self._current.settings.after_upload, path]
        with slot.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            try:
                done = run(self._current.settings.state, argv, stderr=subprocess.PIPE)
                why = f"exit status {done.returncode}" if done.returncode else ""
            except OSError as error:
                why = str(error)
        if why:
            counts = "after_upload_failures"
            self._events.tell("after-upload failed", user, address, counts, path=path, why=why)


@dataclass
class Told:
    """Whose session it is, and who is told of what happens in it."""

    user: User
    address: str
    events: Events
    after_upload: AfterUpload

    def refused(self, what: str, error: OSError) -> None:
        told = {"what": what[:_TOLD_MAX], "why": error.strerror or str(error)}
        self.events.tell("refused", self.user.name, self.address, "refused", **told)

    def landed(self, path: bytes, landed: Landed) -> None:
        """Tell of a file at this path of the user's folder, if it has its own name by now.

        Raises OSError.
        """
        if not is_told(os.path.basename(path)):
            return
        name, text = self.user.name, os.fsdecode(path)
        said = {"bytes": landed.status.st_size, "sha256": landed.sha256}
        self.events.tell("upload", name, self.address, "files", path=text, **said)
        whole = os.path.join(self.user.folder, text)
        self.after_upload.landed(name, self.address, whole, said)
