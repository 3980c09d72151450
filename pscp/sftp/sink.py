"""The sink end of a copy over SFTP: as endpoint/sink.py, by requests.

Parts, names and order are the same: `.NAME.TOKEN.pscp-part` is written at offsets by any lane,
verified, synced where the server can, given its metadata, then renamed. What SFTP has no word for
(attributes, ACLs, inodes, nanoseconds) is left out.

Not here: how what was written is hashed (hashing.py), frames (standin.py).
Read next: source.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pscp.endpoint import failures, hashes, metadata, tree, wire
from pscp.endpoint.failures import Refusal
from pscp.endpoint.names import part_name, to_bytes
from pscp.endpoint.session import Arriving
from pscp.endpoint.source import PACK_FILE_BYTES
from pscp.sftp import client as sftp
from pscp.sftp import packets
from pscp.sftp.client import Client
from pscp.sftp.folders import Root, is_missing, joined, looked_at
from pscp.sftp.hashing import Hashing, new
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.tasks import Promise, Task, Tasks, all_of, settled

_FILES_KEPT = 16  # handles of large files that are kept while nothing is written
_UMASK = 0o022  # where the server does not let us see
_GIGA = 1_000_000_000
# None where the sending end's bytes arrived and were written and match; else what went wrong.
Outcome = tuple[bool, failures.Data | None]


class _File:
    """A large file that is written here, by its handle."""

    def __init__(self, opened: Task[bytes]) -> None:
        self.opened = opened
        self.chunks = 0  # not yet complete


class _Chunk:
    """What is arriving, and the writes that it became."""

    def __init__(self, file: _File | None, hashers: dict[str, Any]) -> None:
        self.file, self.hashers = file, hashers
        self.writes: list[Promise[Any]] = []
        self.kept: list[tuple[int, bytes]] = []  # where the file is opened for each chunk


class Sink:
    """Takes the files of one copy at the far end."""

    def __init__(
        self, client: Client, tasks: Tasks, hashing: Hashing, asked: dict[str, Any]
    ) -> None:
        self.root = Root(client, tasks, asked["root"])
        self._client, self._tasks, self._hashing = client, tasks, hashing
        self._token, self._algorithm, self._strong = asked["token"], asked["hash"], asked["strong"]
        self._own_token = self._token + os.urandom(3).hex()  # as endpoint/sink.py has one
        self._policy = metadata.Policy(asked["preserve"], asked["archive"], _UMASK)
        self._known: dict[int, tree.Entry] = {}
        self._files: dict[int, _File] = {}
        self._turns: dict[int, Promise[Any]] = {}  # the last chunk of a file that opens once
        self._arriving = Arriving()
        self._chunk: _Chunk | None = None
        self._begun = tasks.start(self._begin())

    async def begun(self) -> None:
        """Raises SftpError, Refusal where there is no such root."""
        await self._begun

    async def _begin(self) -> None:
        """A file that is made and removed tells the umask, and whether two handles may be."""
        status = await self._client.stat(self.root.full(""))
        if not status.is_folder:
            raise Refusal(failures.DESTINATION, "", "the destination is not a folder")
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
        await settled(*(self._client.close(each) for each in handles), self._client.remove(path))
        if isinstance(found, Attrs) and found.mode is not None:
            self._policy = self._policy._replace(umask=_umask(found.mode))

    # --- large files, by chunks

    def know(self, id_: int, value: tree.Entry) -> None:
        self._known[id_] = value

    def forget(self, id_: int) -> None:
        self._known.pop(id_, None)
        self._close(id_)

    def _close(self, id_: int) -> None:
        file = self._files.pop(id_, None)
        if file is not None:
            self._tasks.start(self._close_file(file))

    async def _close_file(self, file: _File) -> None:
        [handle] = await settled(file.opened)
        if isinstance(handle, bytes):
            await settled(self._client.close(handle))

    def _file(self, id_: int) -> _File:
        file = self._files.get(id_)
        if file is None:
            idle = [known for known, each in self._files.items() if not each.chunks]
            for known in idle[: max(0, len(self._files) - _FILES_KEPT)]:
                self._close(known)
            opened = self._tasks.start(self._open_part(self._known[id_]))
            file = self._files[id_] = _File(opened)
        return file

    def _part(self, path: bytes, token: str) -> bytes:
        folder, _, name = path.rpartition(b"/")
        return joined(folder or b"/", part_name(name, token))

    async def _open_part(self, value: tree.Entry) -> bytes:
        """The part's handle; the part is a file, and has its final size."""
        await self.begun()
        part = self._part(await self.root.at(value.path, make=True), self._token)
        flags = packets.FOR_READ | packets.FOR_WRITE | packets.CREATE
        opening = self._tasks.start(self._client.open_in_turn(part, flags, 0o600))
        status, handle = await settled(self._client.lstat(part), opening)
        if isinstance(handle, Exception):
            raise await self._client.explained(handle, self.root.full(""))
        try:
            if isinstance(status, Attrs) and not status.is_file:
                raise Refusal(failures.UNSAFE, value.path, "its part is not a file there")
            is_new = isinstance(status, Exception)
            if is_new or status.size != value.size:
                await self._make_room(handle, value, is_new)
            return bytes(handle)
        except BaseException:
            self._client.close(handle)
            raise

    async def _make_room(self, handle: bytes, value: tree.Entry, is_new: bool) -> None:
        if is_new and "sparse" not in value.extra:
            free = await self._client.free_bytes(self.root.full(""))
            if free is not None and free < value.size:
                raise SftpError(packets.FAILURE, number=28)  # ENOSPC
        try:
            await self._client.fsetstat(handle, Attrs(size=value.size))
        except SftpError as error:
            if error.code != packets.OP_UNSUPPORTED:
                raise await self._client.explained(error, self.root.full("")) from None

    def write(self, id_: int, offset: int, view: memoryview) -> None:
        """A block came. The view is lent until it is written; what goes wrong is told later."""
        value = self._known.get(id_)
        if value is None:
            raise wire.WireError("bytes for a file that was not announced")
        if self._arriving.block(id_, offset, len(view), value.size):
            self._begin_chunk(id_)
        chunk = self._chunk
        assert chunk is not None
        for hasher in chunk.hashers.values():
            hasher.update(view)
        if chunk.file is None:
            chunk.kept.append((offset, bytes(view)))
        elif chunk.file.opened.is_settled:
            try:
                handle = chunk.file.opened.value()
            except (SftpError, Refusal):
                return
            chunk.writes += self._client.write(handle, offset, view)
        else:
            later = self._write_later(chunk.file, offset, bytes(view))
            chunk.writes.append(self._tasks.start(later))

    def _begin_chunk(self, id_: int) -> None:
        hashing, wanted = self._hashing, []
        beside = hashing.beside(self._algorithm)
        if beside or not hashing.is_wanted:  # else what was sent is compared with what lies there
            wanted = [self._algorithm, beside] if beside else [self._algorithm]
        file = None if self._client.is_single else self._file(id_)
        self._chunk = _Chunk(file, {name: new(name) for name in wanted})
        if file is not None:
            file.chunks += 1

    async def _write_later(self, file: _File, offset: int, data: bytes) -> None:
        handle = await file.opened
        await all_of(*self._client.write(handle, offset, memoryview(data)))

    def complete(self, id_: int, offset: int, length: int, digest: bytes) -> Task[Outcome]:
        """The chunk's digest came: does it match what lies there; what went wrong."""
        self._arriving.complete(id_, offset, length)
        chunk, self._chunk = self._chunk, None
        assert chunk is not None
        if chunk.file is not None:
            return self._tasks.start(self._complete(id_, chunk, (offset, length), digest))
        turn = self._tasks.start(
            self._complete_in_turn(id_, chunk, (offset, length), digest, self._turns.get(id_))
        )
        self._turns[id_] = turn
        return turn

    async def _complete(
        self, id_: int, chunk: _Chunk, extent: tuple[int, int], digest: bytes
    ) -> Outcome:
        value, file = self._known[id_], chunk.file
        assert file is not None
        try:
            await file.opened
            await all_of(*chunk.writes)
            return await self._compared(value, chunk, extent, digest), None
        except failures.EXPECTED as error:
            return False, await self._failure(error, value.path)
        finally:
            file.chunks -= 1

    async def _complete_in_turn(
        self, id_: int, chunk: _Chunk, extent: tuple[int, int], digest: bytes,
        before: Promise[Any] | None,
    ) -> Outcome:  # fmt: skip
        """Where a file opens once at a time: open, write, close; then open it to verify."""
        value = self._known[id_]
        if before is not None:
            await settled(before)
        try:
            handle = await self._open_part(value)
            writes = [
                write for offset, data in chunk.kept
                for write in self._client.write(handle, offset, memoryview(data))
            ]  # fmt: skip
            found = await settled(*writes)
            await self._client.close(handle)
            for each in found:
                if isinstance(each, Exception):
                    raise each
            return await self._compared(value, chunk, extent, digest), None
        except failures.EXPECTED as error:
            return False, await self._failure(error, value.path)

    async def _compared(
        self, value: tree.Entry, chunk: _Chunk, extent: tuple[int, int], digest: bytes
    ) -> bool:
        hashers = {name: hasher.digest() for name, hasher in chunk.hashers.items()}
        expected = {self._algorithm: digest, **hashers}
        if expected[self._algorithm] != digest:
            return False
        if not self._hashing.is_wanted:
            return True
        part = self._part(self.root.full(value.path), self._token)
        return await self._hashing.matches(part, extent, expected, False)

    async def _failure(self, error: Exception, path: str) -> failures.Data:
        explained = await self._client.explained(error, self.root.full(""))
        return failures.from_exception(explained, path)

    def abandon(self) -> None:
        self._arriving.abandon()
        if self._chunk is not None and self._chunk.file is not None:
            self._chunk.file.chunks -= 1
        self._chunk = None

    # --- made final

    async def finish(self, value: tree.Entry, strong: str) -> None:
        """All chunks landed in the part: make it the file."""
        path = await self.root.at(value.path, make=True)
        part = self._part(path, self._token)
        try:
            if await self._is_finished(value, path, part):
                return
            handle = await self._client.open_in_turn(part, packets.FOR_READ | packets.FOR_WRITE)
            try:
                await self._make_final(value, path, handle, part, strong)
            finally:
                await settled(self._client.close(handle))
            await self._client.rename(part, path)
        except BaseException:
            await settled(self._client.remove(part))
            raise

    async def _is_finished(self, value: tree.Entry, path: bytes, part: bytes) -> bool:
        """Was it renamed already, by a lane that died before it could say so?

        Only this copy's lanes rename or remove its parts, and all of this one's chunks landed.
        """
        status, final = await settled(self._client.lstat(part), self._client.lstat(path))
        if isinstance(status, SftpError) and is_missing(status):
            is_there = isinstance(final, Attrs) and final.is_file and final.size == value.size
            if is_there and self._policy.preserve:
                return bool(final.mtime == value.mtime_ns // _GIGA)
            return is_there
        if isinstance(status, Attrs) and (not status.is_file or status.size != value.size):
            raise Refusal(failures.VERIFY, value.path, "its part was replaced")
        return False

    async def _make_final(
        self, value: tree.Entry, path: bytes, handle: bytes, part: bytes, strong: str
    ) -> None:
        before = _replaced(await looked_at(self._client, path), value.path)
        await self._client.fsync(handle)
        if strong:
            digest = await self._hashing.of_extent(part, 0, value.size, hashes.STRONG)
            if digest is None or digest.hex() != strong:
                message = "what lies at the destination is not what was read at the source"
                raise Refusal(failures.VERIFY, value.path, message)
        for each in self._describe(handle, value, before):
            await self._told(each)

    def _describe(
        self, handle: bytes, value: tree.Entry, before: Attrs | None
    ) -> list[Promise[None]]:
        """Requests that give an open file its metadata. An owner may not be ours to give."""
        asked = []
        owner = _owner(value.extra) if self._policy.archive else None
        if owner is not None:
            asked.append(_harmless(self._client.fsetstat(handle, Attrs(uid=owner[0], gid=owner[1]))))
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
        return Attrs(mode=mode, **_times(value))

    # --- small files, folders and links, by packs

    async def pack(
        self, entries: list[tree.Entry], rows: list[Any], bodies: memoryview
    ) -> list[failures.Data | None]:
        """Take a pack: per entry None or its failure. The bodies are copied before it waits."""
        offset, work = 0, []
        for value, row in zip(entries, rows, strict=True):
            body = b""
            if not isinstance(row, dict):
                body = bytes(bodies[offset : offset + value.size])
                offset += len(body)
            work.append(self._tasks.start(self._outcome(value, row, body)))
        return [await each for each in work]

    async def _outcome(self, value: tree.Entry, row: Any, body: bytes) -> failures.Data | None:
        if isinstance(row, dict):
            return failures.checked(row)
        try:
            await self.begun()
            if value.kind == tree.FOLDER:
                await self._make_folder(value)
            elif value.kind == tree.LINK:
                await self._make_link(value)
            else:
                await self._small(value, str(row[1]), body)
            return None
        except failures.EXPECTED as error:
            return await self._failure(error, value.path)

    async def _small(self, value: tree.Entry, digest: str, body: bytes) -> None:
        algorithm = hashes.STRONG if self._strong else self._algorithm
        expected = {}
        for name in {algorithm, self._hashing.beside(algorithm) or algorithm}:
            hasher = new(name)
            hasher.update(body)
            expected[name] = hasher.digest()
        if expected[algorithm].hex() != digest:
            raise Refusal(failures.DAMAGED, value.path, "arrived damaged")
        path = await self.root.at(value.path, make=True)
        part = self._part(path, self._own_token)
        try:
            await self._write_small(value, path, part, body)
            if self._hashing.is_wanted or self._strong:
                if not await self._hashing.matches(part, (0, len(body)), expected, True):
                    raise Refusal(failures.DAMAGED, value.path, "arrived damaged")
            await self._client.rename(part, path)
        except BaseException:
            await settled(self._client.remove(part))
            raise

    async def _write_small(
        self, value: tree.Entry, path: bytes, part: bytes, body: bytes
    ) -> None:
        """In two round trips: what is there, and a handle; then everything else at once."""
        handles = self._client.handles
        await handles.take(1)
        try:
            create = packets.FOR_WRITE | packets.CREATE | packets.EXCLUSIVE
            looked, opened = self._client.lstat(path), self._client.open(part, create, 0o600)
            status, handle = await settled(looked, opened)
            if isinstance(handle, Exception):
                raise handle
            asked: list[Promise[Any]] = []
            try:
                before = _replaced(status if isinstance(status, Attrs) else None, value.path)
                asked += self._client.write(handle, 0, memoryview(body))
                described = self._describe(handle, value, before)
                asked += [self._tasks.start(self._told(each)) for each in described]
                asked.append(self._tasks.start(self._client.fsync(handle)))
            finally:
                asked.append(self._client.close(handle))
            await all_of(*asked)
        finally:
            handles.give(1)

    async def _make_folder(self, value: tree.Entry) -> None:
        if not value.path:
            return
        await self.root.folder(value.path, value.path, make=True)
        if "new" in value.extra:
            mode = self._policy.mode(value.mode) & 0o777 | 0o700
            await self._told(self._client.setstat(self.root.full(value.path), Attrs(mode=mode)))

    async def _make_link(self, value: tree.Entry) -> None:
        path = await self.root.at(value.path, make=True)
        _replaced(await looked_at(self._client, path), value.path)
        part = self._part(path, self._own_token)
        await self._client.symlink(to_bytes(value.extra["to"]), part)
        try:
            if not (await self._client.lstat(part)).is_link:
                raise Refusal(failures.UNSUPPORTED, value.path, "the server made no link of it")
            if self._policy.preserve and self._client.has(sftp.LSETSTAT):
                await settled(self._client.set_of_link(part, Attrs(**_times(value))))
            await self._client.rename(part, path)
        except BaseException:
            await settled(self._client.remove(part))
            raise

    # --- after all files: hard links, then folders' metadata

    async def hard_link(self, value: tree.Entry) -> None:
        if not self._client.has(sftp.HARDLINK):
            message = "is a hard link, and this server makes none over SFTP"
            raise Refusal(failures.UNSUPPORTED, value.path, message)
        first = await self.root.at(value.extra["to"])
        path = await self.root.at(value.path, make=True)
        _replaced(await looked_at(self._client, path), value.path)
        part = self._part(path, self._own_token)
        await self._client.hardlink(first, part)
        await self._client.rename(part, path)
        await settled(self._client.remove(part))  # rename does nothing when both are the same

    async def finish_folder(self, value: tree.Entry) -> None:
        await self.root.folder(value.path, value.path)
        path = self.root.full(value.path)
        owner = _owner(value.extra) if self._policy.archive else None
        if owner is not None:
            await settled(self._client.setstat(path, Attrs(uid=owner[0], gid=owner[1])))
        if self._policy.preserve:
            meta = Attrs(mode=self._policy.mode(value.mode), **_times(value))
            await self._client.setstat(path, meta)
        elif "new" in value.extra:
            meta = Attrs(mode=self._policy.mode(value.mode))
            await self._told(self._client.setstat(path, meta))

    async def each(
        self, entries: list[tree.Entry], act: Callable[[tree.Entry], Any]
    ) -> list[Any]:
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
            meta = Attrs(mode=self._policy.mode(value.mode), **_times(value))
            await self._client.setstat(path, meta)

    def close(self) -> None:
        for id_ in list(self._files):
            self._close(id_)


def _umask(mode: int) -> int:
    """What was taken from 0777. Where a server takes no modes from us, it says nothing of x."""
    missing = 0o777 & ~mode
    return missing & 0o666 | (missing & 0o444) >> 2 if missing & 0o111 == 0o111 else missing


def _times(value: tree.Entry) -> dict[str, int]:
    atime_ns = value.extra.get("a")
    atime_ns = atime_ns if isinstance(atime_ns, int) else value.mtime_ns
    return {"atime": atime_ns // _GIGA, "mtime": value.mtime_ns // _GIGA}


def _owner(extra: dict[str, Any]) -> tuple[int, int] | None:
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


def _replaced(status: Attrs | None, path: str) -> Attrs | None:
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
            return [kind, found.size or 0, (found.mtime or 0) * _GIGA]
    return ["other", 0, 0]
