"""The fence of a copy over SFTP: the file that endpoint/fence.py keeps as well, without a lock.

It says which run owns the copy, and which runs before it may have left parts. SFTP has no locks, so
it holds nothing back that a server still does for an earlier run.

Making it also tells what the server is like: the mode that it got tells the umask there, and a
second OPEN of it whether a file opens only once at a time. So no lane has to try that out.

Not here: what a run may do that owns a copy (sink.py).
Read next: placing.py.
"""

from __future__ import annotations

import json
from typing import Any

from pscp.endpoint import fence
from pscp.sftp import packets
from pscp.sftp.client import Client
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.paths import joined, looked_at
from pscp.sftp.read_ahead import read_all
from pscp.sftp.tasks import Tasks, settled

_CONTENT_BYTES = 32 * 1024  # more than the most runs and lanes take that a fence names
_UNKNOWN: dict[str, Any] = {"umask": None, "is_single": False, "private": None}
_CREATE = packets.FOR_WRITE | packets.CREATE | packets.EXCLUSIVE


class Fence:
    """The fence of one copy, in the root of its destination."""

    def __init__(self, client: Client, tasks: Tasks, root: bytes, token: str) -> None:
        self._client, self._tasks, self._root = client, tasks, root
        self._path = joined(root, fence.fence_name(token))

    async def claim(self, nonce: str, known: list[str]) -> fence.Claim:
        """Make `nonce` the run that owns the copy, as endpoint/fence.py's claim() does.

        With the answer comes "server": the umask there (None where it does not show), whether a
        file opens only once at a time, and the owner and access of a file that was made private
        (None where unknown). Where the root takes no file the copy goes on without one.
        """
        before, handle = await settled(self._client.stat(self._root), self._make())
        is_new = isinstance(handle, bytes)
        state = fence.state_of(b"") if is_new else await self._read()
        answer, state_then = fence.decide([state], nonce, known)
        if state_then is None:
            return answer
        if not is_new:
            await settled(self._client.remove(self._path))
            [handle] = await settled(self._make())
        server = _UNKNOWN
        if isinstance(handle, bytes):
            server = await self._fill(handle, json.dumps(state_then).encode("ascii"))
            await self._keep_times(before)
        return {**answer, "server": server}

    async def release(self, nonce: str) -> None:
        """The copy is complete: remove the fence, if it is still this run's."""
        before, state = await settled(
            self._client.stat(self._root), self._tasks.start(self._read())
        )
        if isinstance(state, dict) and state["run"] == nonce:
            await settled(self._client.remove(self._path))
            await self._keep_times(before)

    def _make(self) -> Any:
        return self._client.open(self._path, _CREATE, 0o777)

    async def _fill(self, handle: bytes, content: bytes) -> dict[str, Any]:
        """Write the new fence and close it; returns what it has told of the server."""
        client = self._client
        found, second, *written = await settled(
            client.fstat(handle), client.open(self._path, packets.FOR_WRITE),
            *client.write(handle, 0, memoryview(content)),
        )  # fmt: skip
        handles = [each for each in (handle, second) if isinstance(each, bytes)]
        _, private, *_ = await settled(
            client.fsetstat(handle, Attrs(mode=0o600)), client.fstat(handle),
            *[client.close(each) for each in handles],
        )  # fmt: skip
        if any(isinstance(each, Exception) for each in written):  # the disk is full, for instance
            await settled(client.remove(self._path))
        mode = found.mode if isinstance(found, Attrs) else None
        return {
            "umask": None if mode is None else _umask(mode),
            "is_single": isinstance(second, SftpError),
            "private": list(owner_and_access(private)) if isinstance(private, Attrs) else None,
        }

    async def _read(self) -> fence.State:
        """What the fence says; that nobody owns the copy, where it says nothing sensible."""
        content = bytearray()
        try:
            status = await looked_at(self._client, self._path)
            if status is not None and status.is_file:  # opening anything else might wait for ever
                handle = await self._client.open(self._path, packets.FOR_READ)
                count = min(status.size or 0, _CONTENT_BYTES)
                reading = read_all(self._client, handle, 0, count, content.extend)
                await settled(self._tasks.start(reading))
                await settled(self._client.close(handle))
        except SftpError:
            pass
        return fence.state_of(bytes(content))

    async def _keep_times(self, before: Any) -> None:
        """The root keeps its times, in whole seconds: a copy that finds all there already should
        leave no trace, and one that sets a folder's times removes its fence after that.
        """
        if isinstance(before, Attrs) and before.mtime is not None:
            times = Attrs(atime=before.atime, mtime=before.mtime)
            await settled(self._client.setstat(self._root, times))


def owner_and_access(found: Attrs) -> tuple[int | None, int]:
    """Whose a file is, and the permissions that others have."""
    return found.uid, (found.mode or 0) & 0o077


def _umask(mode: int) -> int:
    """What was taken from 0777. Where a server takes no modes from us, it says nothing of x."""
    missing = 0o777 & ~mode
    return missing & 0o666 | (missing & 0o444) >> 2 if missing & 0o111 == 0o111 else missing
