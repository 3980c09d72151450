"""The sink end of a copy over SFTP: does as endpoint/writing/sink.py does, by requests to the
server.

Parts, names and order are the same. Blocks are written as they arrive. What arrives of a chunk so
late that another lane may have it by then is held until the chunk is complete, and written only
where the part is still there.

Not here: metadata, and what is there already (destination.py), digests of what was written
(digests.py), frames (agent.py).
Read next: source.py.
"""

from __future__ import annotations

import contextlib
import errno
import time

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, hashes, wire
from pscp.endpoint.frames.failures import Refusal
from pscp.endpoint.frames.session import Arriving
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import to_bytes
from pscp.sftp.destination import Destination, replaced, times
from pscp.sftp.digests import Digests, Hashing
from pscp.sftp.protocol import client as sftp
from pscp.sftp.protocol import packets
from pscp.sftp.protocol.client import Client, Filesystem
from pscp.sftp.protocol.files import Extent, File, Files
from pscp.sftp.protocol.packets import Attrs, SftpError
from pscp.sftp.protocol.paths import is_missing, lookup
from pscp.sftp.protocol.tasks import Future, Steps, Task, gather, outcomes, start

# Another lane takes over what one has held for a second, and may finish the file soon after.
_LATE_S = 1.0
_BESIDE_BYTES = 1 << 20  # that other small files, just failing as well, have made free meanwhile


# Of a chunk: does what was written have its digest; and what failed, if anything.
Outcome = tuple[bool, failures.Data | None]


class _Chunk:
    """A chunk that is arriving: its blocks are being written, or held."""

    def __init__(self, file: File | None, hashers: dict[str, hashes.Hasher]) -> None:
        """`file` is None where it is opened for each chunk."""
        self.file, self.hashers = file, hashers
        self.writes: list[Future[None]] = []
        self.held: list[tuple[int, bytes]] = []  # offset, block
        self._began_s = time.monotonic()

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self._began_s > _LATE_S


class Sink(Destination):
    """Writes the files of one copy at the far end."""

    place: wire.Place | None = None  # every block is read into the decoder's own buffer

    def __init__(self, client: Client, hashing: Hashing, request: requests.BeginSink) -> None:
        super().__init__(client, hashing, request)
        self._files = Files(client, self._open_part)
        self._turns: dict[int, Task[Outcome]] = {}  # the last chunk of each file that opens once
        self._arriving = Arriving()
        self._chunk: _Chunk | None = None
        self._is_closed = False

    # --- large files, by chunks

    def know(self, id_: int, value: tree.Entry) -> None:
        self._files.know(id_, value)

    def forget(self, id_: int) -> None:
        self._files.forget(id_)
        self._turns.pop(id_, None)

    async def _open_part(self, value: tree.Entry) -> bytes:
        """Open or make the part, and return its handle.

        Its size is not set: a server of paramiko empties the file for that, which may hold what
        another lane has written by now. The chunks make it as long as it has to be.
        """
        await self.root_checked
        part = self._part(await self.root.at(value.path, make=True))
        flags = packets.FOR_READ | packets.FOR_WRITE | packets.CREATE
        status, handle, space = await outcomes(
            self.client.lstat(part),
            self.client.open_in_turn(part, flags, 0o600),
            self.client.filesystem(self.root.full("")),
        )
        if isinstance(handle, Exception):
            raise await self._explain(handle)
        try:
            if isinstance(status, Attrs) and not status.is_file:
                raise Refusal(failures.UNSAFE, value.path, "its part is not a file there")
            if self._is_closed and isinstance(status, Exception):  # the copy ended meanwhile
                await outcomes(self.client.remove(part))
                raise status
            size = None if isinstance(status, Exception) else status.size
            is_full = isinstance(space, Filesystem) and space.free_bytes < value.size
            if is_full and not size and "sparse" not in value.extra:
                raise SftpError(packets.FAILURE, number=errno.ENOSPC)
            return handle
        except BaseException:
            self.client.close(handle)
            raise

    def write(self, id_: int, offset: int, view: memoryview, check: bytes = b"") -> None:
        """Write a block, which is lent until that is done. complete() tells what went wrong.

        Its check is not used: the chunk is hashed once it lies at the far end.
        """
        value = self._files.known.get(id_)
        if value is None:
            raise wire.WireError("bytes for a file that was not announced")
        if self._arriving.block(id_, offset, len(view), value.size):
            self._chunk = self._new_chunk(id_)
        chunk = self._chunk
        assert chunk is not None
        for hasher in chunk.hashers.values():
            hasher.update(view)
        if chunk.file is None or chunk.held or chunk.is_late or not chunk.file.opening.done():
            chunk.held.append((offset, bytes(view)))
            return
        with contextlib.suppress(SftpError, Refusal):  # complete() tells
            chunk.writes += self.client.write(chunk.file.opening.result(), offset, view)

    def _new_chunk(self, id_: int) -> _Chunk:
        hashers = {}  # none where the source's digest is compared with the far end's
        if self._hashing.beside(self.copy.hash) or not self._hashing.is_wanted:
            hashers = self._hashing.new_hashers(self.copy.hash)
        file = None if self.client.is_single else self._files.get(id_)
        if file is not None:
            file.chunks += 1
        return _Chunk(file, hashers)

    def complete(self, id_: int, offset: int, length: int, digest: bytes) -> Task[Outcome]:
        """Compare what lies at the far end with the chunk's digest from the source."""
        self._arriving.complete(id_, offset, length)
        chunk, self._chunk = self._chunk, None
        assert chunk is not None
        hashed = {name: hasher.digest() for name, hasher in chunk.hashers.items()}
        expected = {self.copy.hash: digest, **hashed}
        value = self._files.known[id_]
        extent = Extent(self._part(self.root.full(value.path)), offset, length)
        if chunk.file is not None:
            writing = self._write_chunk(chunk.file, chunk)
        else:
            writing = self._write_in_turn(value, chunk, self._turns.get(id_))
        is_right = expected[self.copy.hash] == digest
        if not is_right:
            chunk.held = []
        task = start(self._outcome_of(value, extent, writing, expected if is_right else None))
        if chunk.file is None:
            self._turns[id_] = task
        return task

    async def _outcome_of(
        self, value: tree.Entry, extent: Extent, writing: Steps[None], expected: Digests | None
    ) -> Outcome:
        """Return the outcome of a chunk; `expected` is None where it arrived damaged."""
        try:
            await writing
            if expected is None or not self._hashing.is_wanted:
                return expected is not None, None
            return await self._hashing.matches(extent, expected), None
        except failures.EXPECTED as error:
            return False, await self._failure(error, value.path)

    async def _write_chunk(self, file: File, chunk: _Chunk) -> None:
        """Write what is held of the chunk, and wait until all of it is written.

        Raises SftpError where the part is gone, since another lane has finished the file.
        """
        try:
            handle = await file.opening
            if chunk.held and chunk.is_late:
                await self.client.lstat(self._part(self.root.full(file.value.path)))
            await self._write_held(handle, chunk)
        finally:
            file.chunks -= 1

    async def _write_in_turn(
        self, value: tree.Entry, chunk: _Chunk, before: Task[Outcome] | None
    ) -> None:
        """Open, write and close a file that opens only once at a time; then it can be verified.

        `before` is the chunk of this file that comes first.
        """
        if before is not None:
            await outcomes(before)
        handle = await self._open_part(value)
        try:
            await self._write_held(handle, chunk)
        finally:
            await self.client.close(handle)

    async def _write_held(self, handle: bytes, chunk: _Chunk) -> None:
        held, chunk.held = chunk.held, []
        for offset, data in held:
            chunk.writes += self.client.write(handle, offset, memoryview(data))
        await gather(*chunk.writes)

    def abandon(self) -> None:
        """Forget the chunk that is arriving, whose rest the source could not read."""
        self._arriving.abandon()
        if self._chunk is not None and self._chunk.file is not None:
            self._chunk.file.chunks -= 1
        self._chunk = None

    # --- parts become files

    async def make(self, request: requests.Make) -> int:
        """Make the part of a file that has no chunk, being one hole; return its receipt."""
        await self.client.close(await self._open_part(request.entry))
        return wire.SOME_PART

    async def finish(self, request: requests.Finish) -> None:
        """Give the part, in which all chunks have landed, its metadata and the file's name.

        Where the request has the file's strong digest, only what has it gets the name: another lane
        may have made the part anew, after it got its final name.
        """
        value = request.entry
        path = await self.root.at(value.path, make=True)
        try:
            looking = start(lookup(self.client, path))
            if not await self._is_finished(value, path, request.strong, looking):
                await self._rename(value, path, await looking)
        except Exception:
            await outcomes(self.client.remove(self._part(path)))
            raise

    async def _rename(self, value: tree.Entry, path: bytes, there: Attrs | None) -> None:
        before, part = replaced(there, value.path), self._part(path)
        handle = await self.client.open_in_turn(part, packets.FOR_READ | packets.FOR_WRITE)
        described = start(self._describe(handle, value, before))  # before the CLOSE, as the FSYNC
        synced = start(self.client.fsync(handle))
        await outcomes(self.client.close(handle))
        await described
        await synced
        await self.client.rename(part, path)

    async def _is_finished(
        self, value: tree.Entry, path: bytes, strong: str, looking: Future[Attrs | None]
    ) -> bool:
        """Was the part renamed already, by a lane that died before it could say so?

        Only this copy's lanes rename or remove its parts, and all of this one's chunks landed.
        Raises Refusal where neither the part nor the file is right.
        """
        part = self._part(path)
        status, final = await outcomes(self.client.lstat(part), looking)
        if "sparse" in value.extra and isinstance(status, Attrs):
            status = await self._with_last_hole(part, status, value.size)
        is_gone = isinstance(status, SftpError) and is_missing(status)
        if isinstance(status, Exception) and not is_gone:
            raise status
        if await self._is_whole(part, status, value, strong):
            return False
        if strong and await self._is_whole(path, final, value, strong):
            await outcomes(self.client.remove(part))  # made late, if it is there at all
            await self._adopt(value)
            return True
        if is_gone and not strong and await self._is_whole(path, final, value, ""):
            has_its_time = isinstance(final, Attrs) and final.mtime == times(value).mtime
            if has_its_time or not self._policy.preserve:
                return True
        if not strong:
            raise Refusal(failures.SYSTEM, value.path, "its part was replaced")
        what = "what lies at the destination is not what was read at the source"
        raise Refusal(failures.VERIFY, value.path, what)

    async def _with_last_hole(self, part: bytes, status: Attrs, size: int) -> Attrs:
        """Make a part as long as its file, which ends with a hole, by writing the last zero."""
        if not status.is_file or status.size is None or status.size >= size:
            return status
        handle = await self.client.open_in_turn(part, packets.FOR_WRITE, 0o600)
        try:
            await gather(*self.client.write(handle, size - 1, memoryview(b"\0")))
        finally:
            await self.client.close(handle)
        return await self.client.lstat(part)

    async def _is_whole(
        self, path: bytes, found: Attrs | Exception | None, value: tree.Entry, strong: str
    ) -> bool:
        """Is this a file of the right size, and with the strong digest, unless that is ""?"""
        if not isinstance(found, Attrs) or not found.is_file or found.size != value.size:
            return False
        if not strong:
            return True
        digest = await self._hashing.of_extent(Extent(path, 0, value.size), hashes.STRONG)
        return digest is not None and digest.hex() == strong

    # --- small files, folders and links, by packs

    async def pack(
        self, entries: list[tree.Entry], rows: list[object], bodies: memoryview
    ) -> list[failures.Data | None]:
        """Make the entries of a pack; return per entry None or its failure.

        What is used of `bodies` is copied before the first wait.
        """
        offset, work = 0, []
        for value, row in zip(entries, rows, strict=True):
            body = b""
            if not isinstance(row, dict):
                body = bytes(bodies[offset : offset + value.size])
                offset += len(body)
            work.append(start(self._put(value, row, body)))
        return list(await gather(*work))

    async def _put(self, value: tree.Entry, row: object, body: bytes) -> failures.Data | None:
        if not isinstance(row, list):
            return failures.parse_failure(row)
        try:
            await self.root_checked
            if value.kind == tree.FOLDER:
                await self.root.folder(value.path, value.path, make=True)
            elif value.kind == tree.LINK:
                await self._make_link(value)
            else:
                await self._make_file(value, str(row[1]), body)
            return None
        except failures.EXPECTED as error:
            return await self._failure(error, value.path)

    async def _make_file(self, value: tree.Entry, digest: str, body: bytes) -> None:
        algorithm = hashes.STRONG if self.copy.strong else self.copy.hash
        expected = {}
        for name, hasher in self._hashing.new_hashers(algorithm).items():
            hasher.update(body)
            expected[name] = hasher.digest()
        if expected[algorithm].hex() != digest:
            raise Refusal(failures.DAMAGED, value.path, "arrived damaged")
        path = await self.root.at(value.path, make=True)
        part = self._private_part(path)
        try:
            await self._write_file(value, path, part, body)
            is_wanted = self._hashing.is_wanted or self.copy.strong
            extent = Extent(part, 0, len(body), True)
            if is_wanted and not await self._hashing.matches(extent, expected):
                raise Refusal(failures.DAMAGED, value.path, "arrived damaged")
            await self._name(value, part, path, expected)
        except Exception as error:
            explained = await self._explain(error, len(body) + _BESIDE_BYTES)
            await outcomes(self.client.remove(part))  # only now, as it makes room
            raise explained from None

    async def _name(self, value: tree.Entry, part: bytes, path: bytes, expected: Digests) -> None:
        """Give a small file its name. Where pscp-serve lets nothing be replaced, what is there may
        be its own, of a lane that was lost before the answer came.
        """
        [error] = await outcomes(self.client.rename(part, path))
        if isinstance(error, Exception):
            [found] = await outcomes(self._is_there(value, path, expected))
            if found is not True:
                raise error
            await outcomes(self.client.remove(part))

    async def _is_there(self, value: tree.Entry, path: bytes, expected: Digests) -> bool:
        found = await lookup(self.client, path)
        if not self.are_modes_its_own or found is None or not found.is_file:
            return False
        is_same = found.size == value.size
        if self._policy.preserve:
            is_same = is_same and found.mtime == times(value).mtime
        return is_same and await self._hashing.matches(Extent(path, 0, value.size), expected)

    async def _write_file(self, value: tree.Entry, path: bytes, part: bytes, body: bytes) -> None:
        """Write the part of a small file: look and open in one round trip, the rest in another.

        With -p there is a third: some servers do what is requested next before they write.
        """
        async with self.client.handles.taken(1):
            create = packets.FOR_WRITE | packets.CREATE | packets.EXCLUSIVE
            looked, opened = self.client.lstat(path), self.client.open(part, create, 0o600)
            status, handle = await outcomes(looked, opened)
            if isinstance(handle, Exception):
                raise handle
            asked: list[Future[None]] = []
            try:
                before = replaced(status if isinstance(status, Attrs) else None, value.path)
                asked += self.client.write(handle, 0, memoryview(body))
                if self._policy.preserve:
                    await outcomes(*asked)
                asked.append(start(self._describe(handle, value, before)))
                asked.append(start(self.client.fsync(handle)))
            finally:
                asked.append(self.client.close(handle))
            await gather(*asked)

    async def _make_link(self, value: tree.Entry) -> None:
        path = await self.root.at(value.path, make=True)
        replaced(await lookup(self.client, path), value.path)
        part = self._private_part(path)
        await self.client.symlink(to_bytes(value.target), part)
        try:
            if not (await self.client.lstat(part)).is_link:
                raise Refusal(failures.UNSUPPORTED, value.path, "the server made no link of it")
            if self._policy.preserve and sftp.LSETSTAT in self.client.extensions:
                owner = self._owner(value)
                if owner is not None:
                    await outcomes(self.client.lsetstat(part, owner))
                await outcomes(self.client.lsetstat(part, times(value)))
            await self.client.rename(part, path)
        except Exception:
            await outcomes(self.client.remove(part))
            raise

    def close(self) -> None:
        self._is_closed = True
        self._files.close()
