"""A destination folder over SFTP: what is there, and the metadata of what lands.

What SFTP has no word for (attributes, ACLs, inodes, fractions of a second) is left out.

Not here: how files' bytes land (sink.py).
Read next: sink.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine

from pscp.endpoint import failures, metadata, requests, tree
from pscp.endpoint.failures import Refusal
from pscp.endpoint.paths import is_unfinished, part_name
from pscp.endpoint.source import PACK_FILE_BYTES
from pscp.sftp import client as sftp
from pscp.sftp.client import Client
from pscp.sftp.digests import Hashing
from pscp.sftp.fence import Fence, owner_and_access
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.paths import Root, is_missing, join, lookup
from pscp.sftp.tasks import Future, Waitable, gather, outcomes, start

_UMASK = 0o022  # where the server does not let us see
GIGA = 1_000_000_000


class Destination:
    """The folder at the far end where one copy lands."""

    def __init__(self, client: Client, hashing: Hashing, request: requests.BeginSink) -> None:
        self.root = Root(client, request.root)
        self._client, self._hashing = client, hashing
        self._token, self._nonce, self._earlier = request.token, request.nonce, request.earlier
        # In the names of parts that no other lane knows, as endpoint/parts.py has one.
        self._private = f"{self._token}{self._nonce}{os.urandom(3).hex()}"
        server = request.server
        umask = server.get("umask")
        umask = umask if isinstance(umask, int) else _UMASK
        client.is_single = bool(server.get("is_single"))
        # The owner and access of a file that was made private here, if known.
        private = server.get("private")
        self._made_private = private if isinstance(private, list) else None
        self._policy = metadata.Policy(request.preserve, request.archive, umask)
        self.root_checked = start(self._check_root())  # raises SftpError, Refusal

    async def _check_root(self) -> None:
        if not (await self._client.stat(self.root.full(""))).is_folder:
            raise Refusal(failures.DESTINATION, "", "the destination is not a folder")

    # --- metadata

    async def _describe(self, handle: bytes, value: tree.Entry, before: Attrs | None) -> None:
        """Give an open file its metadata; `before` is that of the file that it will replace.

        The requests are sent in the first step, so start() keeps their order among others.
        """
        owner = owner_of(value.extra) if self._policy.archive else None
        given = []
        if owner is not None:  # it may not be ours to give
            given.append(self._client.fsetstat(handle, Attrs(uid=owner[0], gid=owner[1])))
        changed = self._client.fsetstat(handle, self._meta(value, before))
        await outcomes(*given)
        await self._unless_modes_are_unknown(changed)

    async def _unless_modes_are_unknown(self, changed: Future[None]) -> None:
        """Wait for a change of modes. Where a server knows none, a copy that does not ask for them
        is right without.
        """
        try:
            await changed
        except SftpError:
            if self._policy.preserve:
                raise

    def _meta(self, value: tree.Entry, before: Attrs | None) -> Attrs:
        mode = self._policy.mode(value.mode)
        if before is not None and before.mode is not None and not self._policy.preserve:
            mode = before.mode & 0o777
        if not self._policy.preserve:
            return Attrs(mode=mode)
        return Attrs(mode=mode, **times(value))

    def _part(self, path: bytes, nonce: str = "") -> bytes:
        """Return the name of this file's part; of an earlier run's with that run's nonce."""
        return _beside(path, self._token + (nonce or self._nonce))

    def _private_part(self, path: bytes) -> bytes:
        return _beside(path, self._private)

    async def _failure(self, error: Exception, path: str) -> failures.Data:
        explained = await self._client.with_reason(error, self.root.full(""))
        return failures.from_exception(explained, path)

    # --- after all files: hard links, then folders' metadata

    async def hard_link(self, value: tree.Entry) -> None:
        if not self._client.has(sftp.HARDLINK):
            message = "is a hard link, and this server makes none over SFTP"
            raise Refusal(failures.UNSUPPORTED, value.path, message)
        first = await self.root.at(value.target)
        path = await self.root.at(value.path, make=True)
        replaced(await lookup(self._client, path), value.path)
        part = self._private_part(path)
        await self._client.hardlink(first, part)
        try:
            await self._client.rename(part, path)
        finally:
            await outcomes(self._client.remove(part))  # rename does nothing when both are the same

    async def finish_folder(self, value: tree.Entry) -> None:
        await self.root.folder(value.path, value.path)
        path = self.root.full(value.path)
        owner = owner_of(value.extra) if self._policy.archive else None
        if owner is not None:
            await outcomes(self._client.setstat(path, Attrs(uid=owner[0], gid=owner[1])))
        if self._policy.preserve:
            meta = Attrs(mode=self._policy.mode(value.mode), **times(value))
            await self._client.setstat(path, meta)
        elif "new" in value.extra:
            meta = Attrs(mode=self._policy.mode(value.mode))
            await self._unless_modes_are_unknown(self._client.setstat(path, meta))

    async def each(
        self, entries: list[tree.Entry],
        act: Callable[[tree.Entry], Coroutine[Waitable, None, None]],
    ) -> list[object]:  # fmt: skip
        """Do this with many entries at once; return [place, failure] of those that failed."""
        found = await outcomes(*[act(value) for value in entries])
        failed: list[object] = []
        for place, error in enumerate(found):
            if isinstance(error, Exception):
                failed.append([place, await self._failure(error, entries[place].path)])
        return failed

    # --- what is there already

    async def look(self, paths: list[str]) -> list[list[object]]:
        """Return per path [kind, size, mtime_ns, runs that left a part]; kind "" for nothing."""
        return list(await gather(*[self._look_at(path) for path in paths]))

    async def _look_at(self, path: str) -> list[object]:
        if not path:
            return [tree.FOLDER, 0, 0, []]
        try:
            full = await self.root.at(path)
        except (SftpError, Refusal):
            return ["", 0, 0, []]  # the attempt to write there will tell
        parts = [self._client.lstat(self._part(full, nonce)) for nonce in self._earlier]
        found, *left = await outcomes(self._client.lstat(full), *parts)
        named = zip(self._earlier, left, strict=True)
        return [*_kind_and_size(found), [n for n, part in named if isinstance(part, Attrs)]]

    async def digests(
        self, path: str, part: bool, extents: requests.Pieces, algorithm: str
    ) -> list[str | None]:
        """Return the hex digest of each extent of a file or its part; None where it is shorter."""
        full = await self.root.at(path)
        if part:
            full = self._part(full)
        status = await lookup(self._client, full)
        if status is None:
            return [None] * len(extents)
        if not status.is_file:
            raise Refusal(failures.UNSAFE, path, "is not a file there")
        size = status.size or 0
        small = (0, size) if size <= PACK_FILE_BYTES else None
        return await self._hashing.hex_digests(full, extents, algorithm, small)

    async def extents(self, path: str, offset: int) -> tuple[list[list[int]], bool]:
        """Return the extent behind an offset, and that it was the last: SFTP tells of no holes."""
        status = await self._client.lstat(await self.root.at(path))
        return extents_behind(offset, status.size or 0)

    async def inherit(self, value: tree.Entry, nonce: str) -> bool:
        """Make an earlier run's part this run's own; return whether this run has one now."""
        path = await self.root.at(value.path)
        own, part = self._part(path), self._part(path, nonce)
        there, left = await outcomes(self._client.lstat(own), self._client.lstat(part))
        if isinstance(there, SftpError) and self._is_private(left, value.size):
            await outcomes(self._client.rename_if_free(part, own))
            [there] = await outcomes(self._client.lstat(own))
        return self._is_private(there, value.size)  # it may be another lane that made it so

    def _is_private(self, found: Attrs | Exception, size: int) -> bool:
        """Is it a part of this size as this user makes them, as far as attributes tell?"""
        if not isinstance(found, Attrs) or not found.is_file or found.size != size:
            return False
        owner, access = owner_and_access(found)
        made_owner, made_access = self._made_private or (owner, 0)
        return owner == made_owner and access in (0, made_access)

    async def discard(self, path: str, nonces: list[str]) -> bool:
        """Remove the parts of the file that these runs left, "" being this one.

        False where one of them is still there.
        """
        try:
            full = await self.root.at(path)
            parts = [self._part(full, nonce) for nonce in nonces]
            await outcomes(*[self._client.remove(part) for part in parts])
            return not any(await gather(*[lookup(self._client, part) for part in parts]))
        except SftpError as error:
            return is_missing(error)
        except Refusal:
            return False

    async def release(self) -> None:
        """Remove the fence of a copy that is complete."""
        fence = Fence(self._client, self.root.full(""), self._token)
        await fence.release(self._nonce)

    async def adopt(self, value: tree.Entry) -> None:
        if not self._policy.preserve:
            return
        path = await self.root.at(value.path)
        if (await self._client.lstat(path)).is_file:
            meta = Attrs(mode=self._policy.mode(value.mode), **times(value))
            await self._client.setstat(path, meta)


def _beside(path: bytes, key: str) -> bytes:
    folder, _, name = path.rpartition(b"/")
    return join(folder or b"/", part_name(name, key))


def extents_behind(offset: int, size: int) -> tuple[list[list[int]], bool]:
    """Return all behind this offset as one extent, if there is any, and that it is the last."""
    return ([[offset, size - offset]] if size > offset else []), True


def times(value: tree.Entry) -> dict[str, int]:
    """Return what Attrs takes to set a file's times, in whole seconds."""
    atime_ns = value.extra.get("a")
    atime_ns = atime_ns if isinstance(atime_ns, int) else value.mtime_ns
    return {"atime": atime_ns // GIGA, "mtime": value.mtime_ns // GIGA}


def owner_of(extra: dict[str, object]) -> tuple[int, int] | None:
    """Return the owner and group by number, if they are told: SFTP knows no names."""
    owner = extra.get("o")
    if not isinstance(owner, list) or len(owner) < 2:
        return None
    uid, gid = owner[:2]
    are_right = all(isinstance(each, int) and 0 <= each < (1 << 32) - 1 for each in (uid, gid))
    return (uid, gid) if are_right else None


def replaced(status: Attrs | None, path: str) -> Attrs | None:
    """Return the file that will be replaced, if there is one. Raises Refusal for a folder."""
    if status is None or status.is_link:
        return None
    if status.is_file:
        return status
    what = "a folder" if status.is_folder else "a special file"
    raise Refusal(failures.DESTINATION, path, f"is {what} at the destination")


def _kind_and_size(found: Attrs | Exception) -> list[object]:
    """Return kind, size, mtime_ns; an unfinished folder is nothing, as in endpoint/sink.py."""
    if isinstance(found, Exception) or (found.mode is not None and is_unfinished(found.mode)):
        return ["", 0, 0]
    for kind, is_so in (
        (tree.FILE, found.is_file), (tree.FOLDER, found.is_folder), (tree.LINK, found.is_link),
    ):  # fmt: skip
        if is_so:
            return [kind, found.size or 0, (found.mtime or 0) * GIGA]
    return ["other", 0, 0]
