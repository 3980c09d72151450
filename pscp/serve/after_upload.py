"""What happens to a file that has landed: it is told, handed to a command, listed for a job.

Not here: how it lands (landing.py), how a command is started (programs.py). Read next: events.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pscp.endpoint.reading.paths import status_of
from pscp.serve.account import is_same
from pscp.serve.events import Events, append
from pscp.serve.folder import Folder
from pscp.serve.landing import LandedFile
from pscp.serve.programs import run
from pscp.serve.rules import is_told
from pscp.serve.settings import Current, User

_UNTOLD_MOST = 1000
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

    def list(self, user: str, address: str, path: str, said: dict[str, Any]) -> None:
        """List a file that is about to get this whole path, so that none has it and is not listed.

        Raises OSError.
        """
        uploads = self._current.settings.uploads
        if not uploads:
            return
        line = json.dumps({"user": user, "path": path, **said}).encode("ascii") + b"\n"
        try:
            append(uploads, line, os.path.join(self._current.settings.state, "uploads.lock"))
        except OSError as error:
            counts, why = "uploads_failures", error.strerror
            self._events.tell("uploads failed", user, address, counts, path=path, why=why)
            raise

    def hand_on(self, user: str, address: str, path: str) -> None:
        """Have the command run for a file that has landed."""
        if self._current.settings.after_upload:
            self._pool.submit(self._run, user, address, path)

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

    def lands(self, path: bytes, size_bytes: int, sha256: str) -> None:
        """List a file that is about to land at this path of the user's folder. Raises OSError."""
        if is_told(os.path.basename(path)):
            self._list(path, size_bytes, sha256)

    def landed(self, path: bytes, landed: LandedFile) -> None:
        """Tell of a file that has landed at this path, if it has its own name by now."""
        if is_told(os.path.basename(path)):
            self._tell(path, landed)

    def kept(self, path: bytes, landed: LandedFile) -> None:
        """Tell of a file whose name has turned out not to be temporary. Raises OSError."""
        self._list(path, landed.status.st_size, landed.sha256)
        self._tell(path, landed)

    def _list(self, path: bytes, size_bytes: int, sha256: str) -> None:
        said = {"bytes": size_bytes, "sha256": sha256}
        self.after_upload.list(self.user.name, self.address, self._whole(path), said)

    def _tell(self, path: bytes, landed: LandedFile) -> None:
        said = {"bytes": landed.status.st_size, "sha256": landed.sha256}
        name, text = self.user.name, os.fsdecode(path)
        self.events.tell("upload", name, self.address, "files", path=text, **said)
        self.after_upload.hand_on(name, self.address, self._whole(path))

    def _whole(self, path: bytes) -> str:
        return os.path.join(self.user.folder, os.fsdecode(path))


class Untold:
    """Files that have landed in a session under names that seem temporary, as most clients rename
    such: they are told when they keep them.
    """

    def __init__(self, folder: Folder, told: Told) -> None:
        self._folder, self._told = folder, told
        self._files: dict[bytes, LandedFile] = {}  # by path

    def add(self, path: bytes, landed: LandedFile) -> None:
        """Note what has landed at a path, if it was not told; of too many tell the oldest now."""
        if not is_told(os.path.basename(path)):
            self._files[path] = landed
            if len(self._files) > _UNTOLD_MOST:
                self._tell(next(iter(self._files)))

    def renamed(self, old: bytes, new: bytes | None = None) -> None:
        """Note that a file, or a folder with what is in it, has another path now, or none."""
        for path in [*self._files]:
            if path == old:
                del self._files[path]
            elif path.startswith(old + b"/") and new is not None:
                self._files[new + path[len(old) :]] = self._files.pop(path)

    def tell_all(self) -> None:
        for path in [*self._files]:
            self._tell(path)

    def _tell(self, path: bytes) -> None:
        landed = self._files.pop(path)
        with contextlib.suppress(OSError), self._folder.parent(path) as parent:
            status = status_of(*parent)
            size_bytes = landed.status.st_size
            if (
                status is not None
                and is_same(status, landed.status)
                and status.st_size == size_bytes
            ):
                self._told.kept(path, landed)
