"""Names below a root at the far end, reached without links as far as SFTP can tell.

SFTP opens by name alone, so each folder on the way is looked at once (LSTAT) before anything in
it is named; a link in its place is refused. What is put there a moment later goes unseen.

Not here: what is done with a name (sink.py).
Read next: commit.py.
"""

from __future__ import annotations

import errno

from pscp.endpoint import failures
from pscp.endpoint.paths import UNFINISHED, check, is_unfinished, to_bytes, to_text
from pscp.sftp import packets
from pscp.sftp.client import Client
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.tasks import Promise, Task, Tasks, settled

_KNOWN_MOST = 4096  # folders that are remembered as looked at


def joined(folder: bytes, name: bytes) -> bytes:
    return folder + name if folder.endswith(b"/") else folder + b"/" + name


async def absolute(client: Client, path: bytes) -> bytes:
    """A path as typed, below the far user's home where it is not absolute."""
    if path == b"~" or path.startswith(b"~/"):
        path = path[2:]
    elif path.startswith(b"~"):
        message = "over SFTP only one's own home folder is known by ~"
        raise failures.Refusal(failures.DESTINATION, to_text(path), message)
    if path.startswith(b"/"):
        return path
    home = await client.realpath(b".")
    return joined(home, path) if path else home


async def looked_at(client: Client, path: bytes, follow: bool = False) -> Attrs | None:
    """What is there; None where there is nothing."""
    try:
        return await (client.stat(path) if follow else client.lstat(path))
    except SftpError as error:
        if is_missing(error) or error.errno == errno.ENAMETOOLONG:
            return None
        raise


def is_missing(error: SftpError) -> bool:
    return error.code == packets.NO_SUCH_FILE or error.errno == errno.ENOENT


class Root:
    """A destination folder at the far end."""

    def __init__(self, client: Client, tasks: Tasks, path: str) -> None:
        self._client, self._tasks = client, tasks
        self._path = to_bytes(path)
        self._known: dict[tuple[str, bool], Task[None]] = {}

    async def at(self, path: str, make: bool = False) -> bytes:
        """The full path. Its folder is looked at, and with `make` made. Refusal, SftpError."""
        check(path)
        await self.folder(path.rpartition("/")[0], path, make)
        return self.full(path)

    def full(self, path: str) -> bytes:
        return joined(self._path, to_bytes(path)) if path else self._path

    async def folder(self, folder: str, path: str, make: bool = False) -> None:
        """See to this folder, on the way to `path`; "" is the root. With `make` it is made, to be
        entered by its owner alone, where it is missing.
        """
        if not folder:
            return
        check(folder)
        known = self._known.get((folder, make))
        if known is None or (known.is_settled and not _is_good(known)):
            if len(self._known) >= _KNOWN_MOST:
                self._known.clear()
            known = self._tasks.start(self._see_to(folder, path, make))
            self._known[folder, make] = known
        try:
            await known
        except failures.Refusal as error:  # it may have been another's way
            raise failures.Refusal(error.kind, path, str(error)) from None

    async def _see_to(self, folder: str, path: str, make: bool) -> None:
        above = folder.rpartition("/")[0]
        await self.folder(above, path, make)
        full = self.full(folder)
        if make:  # a folder that is there stays as it is
            made, found = self._client.mkdir(full, UNFINISHED), self._client.lstat(full)
            problem, status = await settled(made, found)
            if not isinstance(problem, Exception):
                await self._see_to_mode(full, status)
        else:
            problem, [status] = None, await settled(self._client.lstat(full))
        if isinstance(status, Exception):
            raise problem if isinstance(problem, Exception) else status
        if not status.is_folder:
            what = ascii(folder.rpartition("/")[2])
            message = f"{what} is a link or a file there, not a folder"
            raise failures.Refusal(failures.UNSAFE, path, message)

    async def _see_to_mode(self, folder: bytes, status: Attrs | Exception) -> None:
        """A server may leave out the mode that a folder is made with, or the sticky bit of it."""
        if isinstance(status, Attrs) and status.mode is not None and not is_unfinished(status.mode):
            await settled(self._client.setstat(folder, Attrs(mode=UNFINISHED)))


def _is_good(known: Promise[None]) -> bool:
    try:
        known.value()
    except (failures.Refusal, SftpError):
        return False
    return True
