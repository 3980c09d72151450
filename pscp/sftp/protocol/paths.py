"""Names below a root at the far end, reached without links as far as SFTP can tell.

SFTP opens by name alone, so each folder on the way is checked once (LSTAT) before anything in it
is named; a link in its place is refused. A link that is put there a moment later goes unnoticed.

Not here: what is done with a name (../sink.py).
Read next: ../destination.py.
"""

from __future__ import annotations

import errno
import stat

from pscp.endpoint.frames import failures
from pscp.endpoint.reading.paths import UNFINISHED, check, is_unfinished, to_bytes, to_text
from pscp.endpoint.writing.parts import WAS_FILE
from pscp.sftp.protocol import packets
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.packets import Attrs, SftpError
from pscp.sftp.protocol.tasks import Task, outcomes, start

_CHECKS_MOST = 4096  # folders whose checks are remembered


def join(folder: bytes, name: bytes) -> bytes:
    return folder + name if folder.endswith(b"/") else folder + b"/" + name


async def absolute(client: Client, path: bytes) -> bytes:
    """Return the absolute path of one as typed, which may begin with the far user's home.

    Raises Refusal for another user's home, SftpError.
    """
    if path == b"~" or path.startswith(b"~/"):
        path = path[2:]
    elif path.startswith(b"~"):
        message = "over SFTP only one's own home folder is known by ~"
        raise failures.Refusal(failures.DESTINATION, to_text(path), message)
    if path.startswith(b"/"):
        return path
    home = await client.realpath(b".")
    return join(home, path) if path else home


async def lookup(client: Client, path: bytes, follow: bool = False) -> Attrs | None:
    """Return the attributes of a path, or with `follow` of a link's target; None for nothing."""
    try:
        return await (client.stat(path) if follow else client.lstat(path))
    except SftpError as error:
        if is_missing(error) or error.errno == errno.ENAMETOOLONG:
            return None
        raise


async def is_folder(client: Client, path: bytes) -> bool:
    """Tell whether there is a folder at this path, or a link to one. Raises SftpError."""
    status = await lookup(client, path, follow=True)
    return status is not None and status.is_folder


def was_file(found: Attrs | None) -> bool:
    """Is it a part that was the file itself (endpoint/writing/parts.py)?"""
    return found is not None and found.is_file and bool((found.mode or 0) & WAS_FILE)


def is_missing(error: SftpError) -> bool:
    return error.code == packets.NO_SUCH_FILE or error.errno == errno.ENOENT


class Root:
    """A destination folder at the far end."""

    def __init__(self, client: Client, path: str) -> None:
        self._client, self._path = client, to_bytes(path)
        self._checks: dict[tuple[str, bool], Task[None]] = {}  # by folder, and whether it is made
        self._marked, self._marker = "", b""
        self.replaces: tuple[str, ...] = ()  # what a folder's path begins with that replaces a file

    def anew(self) -> Root:
        """Return the same folder, below which each is checked once more."""
        return Root(self._client, to_text(self._path))

    def mark(self, folder: str, marker: bytes) -> None:
        """From now on, put this marker into the folder when it is made, as
        endpoint/reading/paths.py's."""
        self._marked, self._marker = folder, self.full(folder) + b"/" + marker

    async def unmark(self) -> None:
        """Remove the marker. Raises SftpError."""
        if not self._marked or await lookup(self._client, self._marker) is None:
            return
        client, folder = self._client, self.full(self._marked)
        before = await client.stat(folder)
        [problem] = await outcomes(client.remove(self._marker))
        if problem is not None:  # the folder has its final mode already
            await client.setstat(folder, Attrs(mode=0o700))
            await outcomes(client.remove(self._marker))
            await client.setstat(folder, Attrs(mode=before.mode))
        await outcomes(client.setstat(folder, Attrs(atime=before.atime, mtime=before.mtime)))
        if problem is not None and await lookup(client, self._marker) is not None:
            raise problem

    async def rmdir(self, folder: str) -> None:
        """Remove a folder, in which nothing but its marker may be. Raises SftpError."""
        if folder == self._marked:
            await self.unmark()
        try:
            await self._client.rmdir(self.full(folder))
        except SftpError:
            if folder == self._marked:
                await self._put_marker()
            raise

    async def _put_marker(self) -> None:
        flags = packets.FOR_WRITE | packets.CREATE | packets.EXCLUSIVE
        [handle] = await outcomes(self._client.open(self._marker, flags, 0o600))
        if isinstance(handle, bytes):
            await outcomes(self._client.close(handle))

    async def at(self, path: str, make: bool = False) -> bytes:
        """Return the full path of `path`, once its folder is checked, or with `make` made.

        Raises Refusal, SftpError.
        """
        check(path)
        await self.folder(path.rpartition("/")[0], path, make)
        return self.full(path)

    def full(self, path: str) -> bytes:
        return join(self._path, to_bytes(path)) if path else self._path

    async def folder(self, folder: str, path: str, make: bool = False) -> None:
        """Check that a folder on the way to `path` is no link and no file; "" is the root.

        With `make` a missing one is made, which its owner alone may enter. Raises Refusal,
        SftpError.
        """
        if not folder:
            return
        check(folder)
        checked, unchecked, above = None, list[str](), folder
        while above and (checked := self._checked(above, make)) is None:
            unchecked.append(above)
            above = above.rpartition("/")[0]
        if len(self._checks) + len(unchecked) > _CHECKS_MOST:
            self._checks.clear()
        for each in reversed(unchecked):  # a loop: a path may have a thousand folders
            checked = self._checks[each, make] = start(self._check(each, path, make, checked))
        assert checked is not None
        try:
            await checked
        except failures.Refusal as error:  # it may name another path below the folder
            raise failures.Refusal(error.kind, path, str(error)) from None

    def _checked(self, folder: str, make: bool) -> Task[None] | None:
        """Return the check of a folder, unless it has failed."""
        checked = self._checks.get((folder, make))
        has_failed = checked is not None and checked.done() and checked.exception() is not None
        return None if has_failed else checked

    async def _make_way(self, full: bytes) -> None:
        """Remove a file or link in whose place a folder comes. Raises SftpError."""
        if await self._is_free(full):
            return
        [problem] = await outcomes(self._client.remove(full))
        if problem is not None and not await self._is_free(full):  # else another lane was first
            raise problem

    async def _is_free(self, full: bytes) -> bool:
        """Return whether nothing but a folder is at this path. Raises SftpError."""
        found = await lookup(self._client, full)
        return found is None or found.is_folder

    async def _check(self, folder: str, path: str, make: bool, above: Task[None] | None) -> None:
        if above is not None:
            await above
        full, problem = self.full(folder), None
        if make and folder.startswith(self.replaces):
            await self._make_way(full)
        if make:  # a folder that is there stays as it is
            problem, status = await outcomes(
                self._client.mkdir(full, UNFINISHED), self._client.lstat(full)
            )
            mode = status.mode if isinstance(status, Attrs) else None
            is_new, is_private = problem is None, is_unfinished(mode or 0)
            if is_new and mode is not None and not is_private:  # the server ignored what was asked
                lent = stat.S_ISGID & mode
                await outcomes(self._client.setstat(full, Attrs(mode=UNFINISHED | lent)))
            if folder == self._marked and (is_new or is_private):
                await self._put_marker()
        else:
            [status] = await outcomes(self._client.lstat(full))
        if isinstance(status, Exception):
            raise problem or status
        if not status.is_folder:
            what = ascii(folder.rpartition("/")[2])
            message = f"{what} is a link or a file there, not a folder"
            raise failures.Refusal(failures.UNSAFE, path, message)
