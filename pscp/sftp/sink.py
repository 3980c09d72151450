"""The sink end of a copy over SFTP: as endpoint/sink.py, by requests.

Parts, names and order are the same: `.NAME.TOKEN.pscp-part` is written at offsets by any lane,
verified, synced where the server can, given its metadata, then renamed.

Not here: metadata, and what is there already (landing.py), how what was written is hashed
(hashing.py), frames (standin.py).
Read next: source.py.
"""

from __future__ import annotations

import errno
from typing import Any

from pscp.endpoint import failures, hashes, tree, wire
from pscp.endpoint.failures import Refusal
from pscp.endpoint.names import to_bytes
from pscp.endpoint.session import Arriving
from pscp.sftp import client as sftp
from pscp.sftp import packets
from pscp.sftp.client import Client
from pscp.sftp.files import File, Files
from pscp.sftp.folders import is_missing, looked_at
from pscp.sftp.hashing import Hashing, new
from pscp.sftp.landing import GIGA, Destination, owner_of, replaced, times
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.tasks import Promise, Task, Tasks, all_of, settled

_BESIDE_BYTES = 1 << 20  # that other small files, just failing as well, have made free meanwhile
# None where the sending end's bytes arrived and were written and match; else what went wrong.
Outcome = tuple[bool, failures.Data | None]


class _Chunk:
    """What is arriving, and the writes that it became."""

    def __init__(self, file: File | None, hashers: dict[str, Any]) -> None:
        self.file, self.hashers = file, hashers
        self.writes: list[Promise[Any]] = []
        self.kept: list[tuple[int, bytes]] = []  # where the file is opened for each chunk


class Sink(Destination):
    """Takes the files of one copy at the far end."""

    def __init__(
        self, client: Client, tasks: Tasks, hashing: Hashing, asked: dict[str, Any]
    ) -> None:
        super().__init__(client, tasks, hashing, asked)
        self._algorithm, self._strong = asked["hash"], asked["strong"]
        self._files = Files(client, tasks, self._open_part)
        self._turns: dict[int, Promise[Any]] = {}  # the last chunk of a file that opens once
        self._arriving = Arriving()
        self._chunk: _Chunk | None = None

    # --- large files, by chunks

    def know(self, id_: int, value: tree.Entry) -> None:
        self._files.know(id_, value)

    def forget(self, id_: int) -> None:
        self._files.forget(id_)
        self._turns.pop(id_, None)

    async def _open_part(self, value: tree.Entry) -> bytes:
        """The part's handle; the part is a file, and has its final size."""
        await self.begun()
        part = self._part(await self.root.at(value.path, make=True), self._token)
        flags = packets.FOR_READ | packets.FOR_WRITE | packets.CREATE
        status, handle, free = await settled(
            self._client.lstat(part),
            self._tasks.start(self._client.open_in_turn(part, flags, 0o600)),
            self._tasks.start(self._client.free_bytes(self.root.full(""))),
        )
        if isinstance(handle, Exception):
            raise await self._client.explained(handle, self.root.full(""))
        try:
            if isinstance(status, Attrs) and not status.is_file:
                raise Refusal(failures.UNSAFE, value.path, "its part is not a file there")
            is_new = isinstance(status, Exception) or not status.size
            if is_new or status.size != value.size:
                await self._make_room(handle, value, free if is_new else None)
            return bytes(handle)
        except BaseException:
            self._client.close(handle)
            raise

    async def _make_room(self, handle: bytes, value: tree.Entry, free: int | None) -> None:
        if free is not None and "sparse" not in value.extra and free < value.size:
            raise SftpError(packets.FAILURE, number=errno.ENOSPC)
        try:
            await self._client.fsetstat(handle, Attrs(size=value.size))
        except SftpError as error:
            if error.code != packets.OP_UNSUPPORTED:
                raise await self._client.explained(error, self.root.full("")) from None

    def write(self, id_: int, offset: int, view: memoryview) -> None:
        """A block came. The view is lent until it is written; what goes wrong is told later."""
        value = self._files.known.get(id_)
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
        is_open = self._client.umask is None and not self._begun.is_settled
        file = None if is_open or self._client.is_single else self._files.get(id_)
        self._chunk = _Chunk(file, {name: new(name) for name in wanted})
        if file is not None:
            file.chunks += 1

    async def _write_later(self, file: File, offset: int, data: bytes) -> None:
        handle = await file.opened
        await all_of(*self._client.write(handle, offset, memoryview(data)))

    def complete(self, id_: int, offset: int, length: int, digest: bytes) -> Task[Outcome]:
        """The chunk's digest came: does it match what lies there; what went wrong."""
        self._arriving.complete(id_, offset, length)
        chunk, self._chunk = self._chunk, None
        assert chunk is not None
        if chunk.file is not None:
            value = self._files.known[id_]
            return self._tasks.start(self._complete(value, chunk, (offset, length), digest))
        turn = self._tasks.start(
            self._complete_in_turn(id_, chunk, (offset, length), digest, self._turns.get(id_))
        )
        self._turns[id_] = turn
        return turn

    async def _complete(
        self, value: tree.Entry, chunk: _Chunk, extent: tuple[int, int], digest: bytes
    ) -> Outcome:
        file = chunk.file
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
        value = self._files.known[id_]
        await settled(self._begun)
        if not self._client.is_single:  # which was not known when the chunk began
            chunk.file = self._files.get(id_)
            chunk.file.chunks += 1
            later = (self._write_later(chunk.file, offset, data) for offset, data in chunk.kept)
            chunk.writes += [self._tasks.start(each) for each in later]
            return await self._complete(value, chunk, extent, digest)
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

    def abandon(self) -> None:
        self._arriving.abandon()
        if self._chunk is not None and self._chunk.file is not None:
            self._chunk.file.chunks -= 1
        self._chunk = None

    # --- made final

    async def finish(self, value: tree.Entry, strong: str, inode: int) -> None:
        """All chunks landed in the part: make it the file. An inode says that there were any."""
        path = await self.root.at(value.path, make=True)
        part = self._part(path, self._token)
        try:
            looked = self._tasks.start(looked_at(self._client, path))
            if not inode:  # nothing but a hole
                await self._client.close(await self._open_part(value))
            elif await self._is_finished(value, part, looked):
                return
            before = replaced(await looked, value.path)
            if strong:
                await self._check_strong(value, part, strong)
            handle = await self._client.open_in_turn(part, packets.FOR_READ | packets.FOR_WRITE)
            asked = self._describe(handle, value, before)  # requests about one file keep order
            synced = self._tasks.start(self._client.fsync(handle))
            await settled(self._client.close(handle))
            for each in asked:
                await self._told(each)
            await synced
            await self._client.rename(part, path)
        except Exception:
            await settled(self._client.remove(part))
            raise

    async def _is_finished(
        self, value: tree.Entry, part: bytes, looked: Promise[Attrs | None]
    ) -> bool:
        """Was it renamed already, by a lane that died before it could say so?

        Only this copy's lanes rename or remove its parts, and all of this one's chunks landed.
        """
        status, final = await settled(self._client.lstat(part), looked)
        if isinstance(status, SftpError) and is_missing(status):
            is_there = isinstance(final, Attrs) and final.is_file and final.size == value.size
            if not is_there or (self._policy.preserve and final.mtime != value.mtime_ns // GIGA):
                raise Refusal(failures.VERIFY, value.path, "its part was replaced")
            return True
        if isinstance(status, Attrs) and (not status.is_file or status.size != value.size):
            raise Refusal(failures.VERIFY, value.path, "its part was replaced")
        return False

    async def _check_strong(self, value: tree.Entry, part: bytes, strong: str) -> None:
        digest = await self._hashing.of_extent(part, 0, value.size, hashes.STRONG)
        if digest is None or digest.hex() != strong:
            message = "what lies at the destination is not what was read at the source"
            raise Refusal(failures.VERIFY, value.path, message)

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
            is_wanted = self._hashing.is_wanted or self._strong
            extent = (0, len(body))
            if is_wanted and not await self._hashing.matches(part, extent, expected, True):
                raise Refusal(failures.DAMAGED, value.path, "arrived damaged")
            await self._client.rename(part, path)
        except Exception as error:
            count = len(body) + _BESIDE_BYTES  # before the part is gone, and its room free again
            explained = await self._client.explained(error, self.root.full(""), count)
            await settled(self._client.remove(part))
            raise explained from None

    async def _write_small(self, value: tree.Entry, path: bytes, part: bytes, body: bytes) -> None:
        """In two round trips: what is there, and a handle; then everything else at once.

        Where times are kept, in three: not every server writes before it does what was asked next.
        """
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
                before = replaced(status if isinstance(status, Attrs) else None, value.path)
                asked += self._client.write(handle, 0, memoryview(body))
                if self._policy.preserve:
                    await settled(*asked)
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
        replaced(await looked_at(self._client, path), value.path)
        part = self._part(path, self._own_token)
        await self._client.symlink(to_bytes(value.extra["to"]), part)
        try:
            if not (await self._client.lstat(part)).is_link:
                raise Refusal(failures.UNSUPPORTED, value.path, "the server made no link of it")
            if self._policy.preserve and self._client.has(sftp.LSETSTAT):
                owner = owner_of(value.extra) if self._policy.archive else None
                if owner is not None:
                    given = Attrs(uid=owner[0], gid=owner[1])
                    await settled(self._client.set_of_link(part, given))
                await settled(self._client.set_of_link(part, Attrs(**times(value))))
            await self._client.rename(part, path)
        except Exception:
            await settled(self._client.remove(part))
            raise

    def close(self) -> None:
        self._files.close()
