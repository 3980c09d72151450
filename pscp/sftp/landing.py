"""A destination folder over SFTP: what is there, and the metadata of what lands.

What SFTP has no word for (attributes, ACLs, inodes, fractions of a second) is left out.

Not here: how files' bytes land (sink.py).
Read next: sink.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pscp.endpoint import failures, metadata, tree
from pscp.endpoint.failures import Refusal
from pscp.endpoint.names import part_name
from pscp.endpoint.source import PACK_FILE_BYTES
from pscp.sftp import client as sftp
from pscp.sftp import packets
from pscp.sftp.client import Client
from pscp.sftp.folders import Root, joined, looked_at
from pscp.sftp.hashing import Hashing
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.tasks import Promise, Tasks, all_of, settled

_UMASK = 0o022  # where the server does not let us see
GIGA = 1_000_000_000


class Destination:
    """Where one copy lands."""

    def __init__(
        self, client: Client, tasks: Tasks, hashing: Hashing, asked: dict[str, Any]
    ) -> None:
        self.root = Root(client, tasks, asked["root"])
        self._client, self._tasks, self._hashing = client, tasks, hashing
        self._token = asked["token"]
        self._own_token = self._token + os.urandom(3).hex()  # as endpoint/sink.py has one
        self._policy = metadata.Policy(asked["preserve"], asked["archive"], _UMASK)
        self._writes = not asked["dry"]
        self._begun = tasks.start(self._begin())

    async def begun(self) -> None:
        """Raises SftpError, Refusal where there is no such root."""
        await self._begun

    async def _begin(self) -> None:
        looking = self._client.stat(self.root.full(""))
        tries = self._client.umask is None and self._writes
        trying = [self._tasks.start(self._try_out())] if tries else []
        status = (await settled(looking, *trying))[0]
        if isinstance(status, Exception):
            raise status
        if not status.is_folder:
            raise Refusal(failures.DESTINATION, "", "the destination is not a folder")
        if self._client.umask is not None:
            self._policy = self._policy._replace(umask=self._client.umask)

    async def _try_out(self) -> None:
        """A file that is made and removed tells the umask, and whether two handles may be."""
        path = joined(self.root.full(""), part_name(b"pscp", self._own_token))
        create = packets.FOR_WRITE | packets.CREATE | packets.EXCLUSIVE
        try:
            handle = await self._client.open(path, create, 0o777)
        except SftpError:
            return  # nothing can be made in the root itself; below it perhaps
        found, second = await settled(
            self._client.fstat(handle), self._client.open(path, packets.FOR_WRITE)
        )
        self._client.is_single = isinstance(second, SftpError)
        handles = [handle] if isinstance(second, SftpError) else [handle, second]
        ended = [self._client.close(each) for each in handles]
        self._tasks.start(settled(*ended, self._client.remove(path)))
        if isinstance(found, Attrs) and found.mode is not None:
            self._client.umask = _umask(found.mode)

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

    def _part(self, path: bytes, token: str) -> bytes:
        folder, _, name = path.rpartition(b"/")
        return joined(folder or b"/", part_name(name, token))

    async def _failure(self, error: Exception, path: str) -> failures.Data:
        explained = await self._client.explained(error, self.root.full(""))
        return failures.from_exception(explained, path)

    # --- after all files: hard links, then folders' metadata

    async def hard_link(self, value: tree.Entry) -> None:
        if not self._client.has(sftp.HARDLINK):
            message = "is a hard link, and this server makes none over SFTP"
            raise Refusal(failures.UNSUPPORTED, value.path, message)
        first = await self.root.at(value.extra["to"])
        path = await self.root.at(value.path, make=True)
        replaced(await looked_at(self._client, path), value.path)
        part = self._part(path, self._own_token)
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
        return [await each for each in [self._tasks.start(self._seen(path)) for path in paths]]

    async def _seen(self, path: str) -> list[Any]:
        if not path:
            return [tree.FOLDER, 0, 0, False]
        try:
            full = await self.root.at(path)
        except (SftpError, Refusal):
            return ["", 0, 0, False]  # the attempt to write there will tell
        found, part = await settled(
            self._client.lstat(full), self._client.lstat(self._part(full, self._token))
        )
        return [*_kind_and_size(found), isinstance(part, Attrs)]

    async def digests(
        self, path: str, part: bool, extents: list[Any], algorithm: str
    ) -> list[str | None]:
        full = await self.root.at(path)
        if part:
            full = self._part(full, self._token)
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

    async def discard(self, path: str) -> None:
        part = self._part(await self.root.at(path), self._token)
        if await looked_at(self._client, part) is not None:
            await self._client.remove(part)

    async def adopt(self, value: tree.Entry) -> None:
        if not self._policy.preserve:
            return
        path = await self.root.at(value.path)
        if (await self._client.lstat(path)).is_file:
            meta = Attrs(mode=self._policy.mode(value.mode), **times(value))
            await self._client.setstat(path, meta)


def _umask(mode: int) -> int:
    """What was taken from 0777. Where a server takes no modes from us, it says nothing of x."""
    missing = 0o777 & ~mode
    return missing & 0o666 | (missing & 0o444) >> 2 if missing & 0o111 == 0o111 else missing


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
    if isinstance(found, Exception):
        return ["", 0, 0]
    for kind, is_so in (
        (tree.FILE, found.is_file), (tree.FOLDER, found.is_folder), (tree.LINK, found.is_link),
    ):  # fmt: skip
        if is_so:
            return [kind, found.size or 0, (found.mtime or 0) * GIGA]
    return ["other", 0, 0]
