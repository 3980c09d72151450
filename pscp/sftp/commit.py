"""A destination folder over SFTP: what is there, and the metadata of what lands.

What SFTP has no word for (attributes, ACLs, inodes, fractions of a second) is left out.

Not here: how files' bytes land (sink.py).
Read next: sink.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pscp.endpoint import failures, metadata, requests, tree
from pscp.endpoint.failures import Refusal
from pscp.endpoint.paths import is_unfinished, part_name
from pscp.endpoint.source import PACK_FILE_BYTES
from pscp.sftp import client as sftp
from pscp.sftp.client import Client
from pscp.sftp.digests import Hashing
from pscp.sftp.fence import Fence, owner_and_access
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.paths import Root, is_missing, joined, looked_at
from pscp.sftp.tasks import Promise, Tasks, all_of, settled

_UMASK = 0o022  # where the server does not let us see
GIGA = 1_000_000_000


class Destination:
    """Where one copy lands."""

    def __init__(
        self, client: Client, tasks: Tasks, hashing: Hashing, request: requests.BeginSink
    ) -> None:
        self.root = Root(client, tasks, request.root)
        self._client, self._tasks, self._hashing = client, tasks, hashing
        self._token, self._nonce, self._earlier = request.token, request.nonce, request.earlier
        # In the names of parts that no other lane knows, as endpoint/parts.py has one.
        self._private = f"{self._token}{self._nonce}{os.urandom(3).hex()}"
        server = request.server
        umask = server.get("umask")
        umask = umask if isinstance(umask, int) else _UMASK
        client.is_single = bool(server.get("is_single"))
        private = server.get("private")
        self._made_private = private if isinstance(private, list) else None
        self._policy = metadata.Policy(request.preserve, request.archive, umask)
        self._begun = tasks.start(self._begin())

    async def begun(self) -> None:
        """Raises SftpError, Refusal where there is no such root."""
        await self._begun

    async def _begin(self) -> None:
        if not (await self._client.stat(self.root.full(""))).is_folder:
            raise Refusal(failures.DESTINATION, "", "the destination is not a folder")

    # --- metadata

    def _describe(
        self, handle: bytes, value: tree.Entry, before: Attrs | None
    ) -> list[Promise[None]]:
        """Requests that give an open file its metadata. An owner may not be ours to give."""
        asked = []
        owner = owner_of(value.extra) if self._policy.archive else None
        if owner is not None:
            asked.append(
                _harmless(self._client.fsetstat(handle, Attrs(uid=owner[0], gid=owner[1])))
            )
        asked.append(self._client.fsetstat(handle, self._meta(value, before)))
        return asked

    async def _told(self, promise: Promise[None]) -> None:
        """Where a server knows no modes, a copy that does not ask for them is right without."""
        try:
            await promise
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
        """What the part of this file is called; of an earlier run, with that run's nonce."""
        return _beside(path, self._token + (nonce or self._nonce))

    def _private_part(self, path: bytes) -> bytes:
        return _beside(path, self._private)

    async def _failure(self, error: Exception, path: str) -> failures.Data:
        explained = await self._client.explained(error, self.root.full(""))
        return failures.from_exception(explained, path)

    # --- after all files: hard links, then folders' metadata

    async def hard_link(self, value: tree.Entry) -> None:
        if not self._client.has(sftp.HARDLINK):
            message = "is a hard link, and this server makes none over SFTP"
            raise Refusal(failures.UNSUPPORTED, value.path, message)
        first = await self.root.at(value.target)
        path = await self.root.at(value.path, make=True)
        replaced(await looked_at(self._client, path), value.path)
        part = self._private_part(path)
        await self._client.hardlink(first, part)
        try:
            await self._client.rename(part, path)
        finally:
            await settled(self._client.remove(part))  # rename does nothing when both are the same

    async def finish_folder(self, value: tree.Entry) -> None:
        await self.root.folder(value.path, value.path)
        path = self.root.full(value.path)
        owner = owner_of(value.extra) if self._policy.archive else None
        if owner is not None:
            await settled(self._client.setstat(path, Attrs(uid=owner[0], gid=owner[1])))
        if self._policy.preserve:
            meta = Attrs(mode=self._policy.mode(value.mode), **times(value))
            await self._client.setstat(path, meta)
        elif "new" in value.extra:
            meta = Attrs(mode=self._policy.mode(value.mode))
            await self._told(self._client.setstat(path, meta))

    async def each(self, entries: list[tree.Entry], act: Callable[[tree.Entry], Any]) -> list[Any]:
        """[place, failure] of those that failed."""
        found = await settled(*[self._tasks.start(act(value)) for value in entries])
        failed = []
        for place, error in enumerate(found):
            if isinstance(error, Exception):
                failed.append([place, await self._failure(error, entries[place].path)])
        return failed

    # --- what is there already

    async def look(self, paths: list[str]) -> list[Any]:
        """Per path [kind, size, mtime_ns, the runs that left a part]; kind "" for nothing."""
        return [await each for each in [self._tasks.start(self._seen(path)) for path in paths]]

    async def _seen(self, path: str) -> list[Any]:
        if not path:
            return [tree.FOLDER, 0, 0, []]
        try:
            full = await self.root.at(path)
        except (SftpError, Refusal):
            return ["", 0, 0, []]  # the attempt to write there will tell
        parts = [self._client.lstat(self._part(full, nonce)) for nonce in self._earlier]
        found, *left = await settled(self._client.lstat(full), *parts)
        named = zip(self._earlier, left, strict=True)
        return [*_kind_and_size(found), [n for n, part in named if isinstance(part, Attrs)]]

    async def digests(
        self, path: str, part: bool, extents: list[Any], algorithm: str
    ) -> list[str | None]:
        full = await self.root.at(path)
        if part:
            full = self._part(full)
        status = await looked_at(self._client, full)
        if status is None:
            return [None] * len(extents)
        if not status.is_file:
            raise Refusal(failures.UNSAFE, path, "is not a file there")
        found = [
            self._tasks.start(self._hashing.of_extent(
                full, offset, length, algorithm,
                whole=(offset, length) == (0, status.size) and length <= PACK_FILE_BYTES,
            ))
            for offset, length in extents
        ]  # fmt: skip
        return [None if each is None else each.hex() for each in await all_of(*found)]

    async def extents(self, path: str, offset: int) -> Any:
        """SFTP tells of no holes."""
        status = await self._client.lstat(await self.root.at(path))
        size = status.size or 0
        return ([[offset, size - offset]] if size > offset else []), True

    async def inherit(self, value: tree.Entry, nonce: str) -> bool:
        """Make an earlier run's part this run's own. False where that must not, or cannot, be."""
        path = await self.root.at(value.path)
        own, part = self._part(path), self._part(path, nonce)
        there, left = await settled(self._client.lstat(own), self._client.lstat(part))
        if isinstance(there, SftpError) and self._is_private(left, value.size):
            await settled(self._client.rename_once(part, own))
            [there] = await settled(self._client.lstat(own))
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
            await settled(*[self._client.remove(part) for part in parts])
            looks = [self._tasks.start(looked_at(self._client, part)) for part in parts]
            return not any(await all_of(*looks))
        except SftpError as error:
            return is_missing(error)
        except Refusal:
            return False

    async def release(self) -> None:
        """The copy is complete: no run owns it any more."""
        fence = Fence(self._client, self._tasks, self.root.full(""), self._token)
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
    return joined(folder or b"/", part_name(name, key))


def times(value: tree.Entry) -> dict[str, int]:
    atime_ns = value.extra.get("a")
    atime_ns = atime_ns if isinstance(atime_ns, int) else value.mtime_ns
    return {"atime": atime_ns // GIGA, "mtime": value.mtime_ns // GIGA}


def owner_of(extra: dict[str, Any]) -> tuple[int, int] | None:
    """By number: SFTP knows no names."""
    owner = extra.get("o")
    if not isinstance(owner, list) or len(owner) < 2:
        return None
    uid, gid = owner[:2]
    are_right = all(isinstance(each, int) and 0 <= each < (1 << 32) - 1 for each in (uid, gid))
    return (uid, gid) if are_right else None


def _harmless(promise: Promise[None]) -> Promise[None]:
    """The same, kept whether the server did it or not."""
    done: Promise[None] = Promise()
    promise.then(lambda: done.keep(None))
    return done


def replaced(status: Attrs | None, path: str) -> Attrs | None:
    """The file that will be replaced, if there is one. Refusal when it must not be."""
    if status is None or status.is_link:
        return None
    if status.is_file:
        return status
    what = "a folder" if status.is_folder else "a special file"
    raise Refusal(failures.DESTINATION, path, f"is {what} at the destination")


def _kind_and_size(found: Attrs | Exception) -> list[Any]:
    """What is there; as in endpoint/sink.py, an unfinished folder counts as not there."""
    if isinstance(found, Exception) or (found.mode is not None and is_unfinished(found.mode)):
        return ["", 0, 0]
    for kind, is_so in (
        (tree.FILE, found.is_file), (tree.FOLDER, found.is_folder), (tree.LINK, found.is_link),
    ):  # fmt: skip
        if is_so:
            return [kind, found.size or 0, (found.mtime or 0) * GIGA]
    return ["other", 0, 0]
