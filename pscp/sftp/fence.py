"""The fence of a copy over SFTP: the same file as in endpoint/writing/fence.py, but without a lock.

So it does not hold back what a server still does for an earlier run. Making it also shows
properties of the server, which no lane has to find out then.

Not here: what the run that owns a copy may do (sink.py).
Read next: placing.py.
"""

from __future__ import annotations

import json

from pscp.endpoint.writing import fence
from pscp.sftp.protocol import packets
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.files import read_all
from pscp.sftp.protocol.packets import Attrs, SftpError
from pscp.sftp.protocol.paths import join, lookup
from pscp.sftp.protocol.tasks import Future, outcomes

_CONTENT_BYTES = 32 * 1024  # more than any fence has
_CREATE = packets.FOR_WRITE | packets.CREATE | packets.EXCLUSIVE


class Fence:
    """The fence of one copy, in the root of its destination."""

    def __init__(self, client: Client, root: bytes, token: str) -> None:
        self._client, self._root = client, root
        self._path = join(root, fence.fence_name(token))
        self._is_hidden = False  # this user may not read it

    async def claim(self, nonce: str, known: list[str]) -> fence.Claim:
        """Make `nonce` the run that owns the copy, as endpoint/writing/fence.py's claim() does.

        The answer has besides, as "server", what _fill() has found out. Where no file can be made
        in the root, the copy goes on without a fence.
        """
        before, handle = await outcomes(self._client.stat(self._root), self._make())
        is_new = isinstance(handle, bytes)
        state = fence.state_of(b"") if is_new else await self._read()
        answer, state_then = fence.decide([state], nonce, known)
        if state_then is None:
            return answer
        if not is_new:
            await outcomes(self._client.remove(self._path))
            [handle] = await outcomes(self._make())
        server: dict[str, object] = {}
        if isinstance(handle, bytes):
            server = await self._fill(handle, json.dumps(state_then).encode("ascii"))
            await self._keep_times(before)
        return {**answer, "server": server}

    async def release(self, nonce: str) -> None:
        """Remove the fence of a copy that is complete, if it is still this run's, or holds back
        nobody, as it cannot be read.
        """
        before, owner = await outcomes(self._client.stat(self._root), self.owner())
        if owner == nonce or self._is_hidden:
            await outcomes(self._client.remove(self._path))
            await self._keep_times(before)

    async def owner(self) -> str:
        """Return the run that owns the copy; "" where none does, or there is no fence."""
        return (await self._read())["run"]

    def _make(self) -> Future[bytes]:
        return self._client.open(self._path, _CREATE, 0o777)

    async def _fill(self, handle: bytes, content: bytes) -> dict[str, object]:
        """Write the new fence and close it; return what that has shown of the server: its umask,
        whether a file opens only once at a time, and owner_and_access() of one with mode 0600.
        """
        client = self._client
        looking, opening = client.fstat(handle), client.open(self._path, packets.FOR_WRITE)
        writing = client.write(handle, 0, memoryview(content))
        found, second, *written = await outcomes(looking, opening, *writing)
        handles = [each for each in (handle, second) if isinstance(each, bytes)]
        changing, looking = client.fsetstat(handle, Attrs(mode=0o600)), client.fstat(handle)
        closing = [client.close(each) for each in handles]
        _, private, *_ = await outcomes(changing, looking, *closing)
        if any(isinstance(each, Exception) for each in written):  # the disk is full, for instance
            await outcomes(client.remove(self._path))
        mode = found.mode if isinstance(found, Attrs) else None
        missing = None if mode is None else 0o777 & ~mode
        if missing is not None and missing & 0o111 == 0o111:  # a server that ignores modes tells
            missing = missing & 0o666 | (missing & 0o444) >> 2  # nothing of x: then it is as for r
        return {
            "umask": missing,
            "is_single": isinstance(second, SftpError),
            "private": list(owner_and_access(private)) if isinstance(private, Attrs) else None,
        }

    async def _read(self) -> fence.State:
        """Return the fence's content; where that makes no sense, that nobody owns the copy."""
        content, self._is_hidden = bytearray(), False
        try:
            status = await lookup(self._client, self._path)
            if status is not None and status.is_file:  # opening anything else might wait for ever
                handle = await self._client.open(self._path, packets.FOR_READ)
                count = min(status.size or 0, _CONTENT_BYTES)
                reading = read_all(self._client, handle, 0, count, content.extend)
                await outcomes(reading)
                await outcomes(self._client.close(handle))
        except SftpError as error:
            self._is_hidden = error.code == packets.PERMISSION_DENIED
        return fence.state_of(bytes(content))

    async def _keep_times(self, before: Attrs | Exception) -> None:
        """Give the root the times that it had before, in whole seconds.

        A copy that finds everything there should leave no trace, and one that sets the times of
        folders removes its fence only then.
        """
        if isinstance(before, Attrs) and before.mtime is not None:
            times = Attrs(atime=before.atime, mtime=before.mtime)
            await outcomes(self._client.setstat(self._root, times))


def owner_and_access(found: Attrs) -> tuple[int | None, int]:
    """Return a file's owner, and the permission bits of group and others."""
    return found.uid, (found.mode or 0) & 0o077
