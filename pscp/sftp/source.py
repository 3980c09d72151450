"""The source end of a copy over SFTP: does as endpoint/reading/source.py does, by requests to the
server.

A chunk's READs are all in flight at once, and those of the next chunks behind them; its bytes are
sent on in order, then its digest. Nothing but size and mtime tells whether a file changed.

Not here: the walk (tree.py), digests of far files (digests.py).
Read next: agent.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, hashes, wire
from pscp.endpoint.frames.failures import FileChanged, UnknownSize
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import to_bytes
from pscp.endpoint.reading.source import WALK_BATCH_BYTES, SourceFile, Top, entry_of
from pscp.endpoint.there.listed_paths import Above, WalkPaths, above_path
from pscp.endpoint.there.listings import WalkFolders
from pscp.sftp.digests import Hashing
from pscp.sftp.protocol import packets
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.files import Extent, File, Files, Reading, extents_behind, read_all
from pscp.sftp.protocol.packets import Attrs, SftpError
from pscp.sftp.protocol.paths import join
from pscp.sftp.protocol.tasks import Future, outcomes, results, start
from pscp.sftp.tree import Walk


class _Chunk:
    """A chunk that the coordinator asked for."""

    def __init__(self, id_: int, file: File, extent: Extent, before: _Chunk | None) -> None:
        """`before` is the chunk that was asked for before, which is sent before this one."""
        self.id, self.file, self.extent, self.before = id_, file, extent, before
        self.requested: Future[None] = Future()  # done when its READs are sent: the next may begin
        self.sent: Future[None] = Future()  # done when it is sent, or failed

    def set_requested(self) -> None:
        if not self.requested.done():
            self.requested.set_result(None)


class Source:
    """Serves the files of one copy from the far end."""

    def __init__(
        self, client: Client, hashing: Hashing, request: requests.BeginSource, send: wire.Send
    ) -> None:
        self.client, self.copy, self._hashing, self._send = client, request, hashing, send
        self._files = Files(client, self._open_for_chunks)
        self._is_tried = False  # was it tried whether a file opens only once at a time?
        self._has_waited = False  # in vain, for a file that would not open
        self._last: _Chunk | None = None  # of those that were asked for
        self._walk: AsyncIterator[tree.Entry] | None = None

    # --- the manifest

    async def walk(
        self, request: requests.Walk | WalkFolders | WalkPaths, kind: type[Walk] = Walk
    ) -> tuple[list[tree.Entry], bool]:
        """Return the next entries, and whether these were the last."""
        if request.restart or self._walk is None:
            walk = kind(self.client, self.copy.tops, self.copy.rules)
            if isinstance(request, WalkPaths):
                self._walk = walk.listed(request.paths, request.after)
            else:
                self._walk = walk.entries(request.after)
        batch: list[tree.Entry] = []
        total_bytes = 0
        async for entry in self._walk:
            batch.append(entry)
            total_bytes += len(wire.to_json(entry))
            if total_bytes >= WALK_BATCH_BYTES or len(batch) >= request.most:
                return batch, False
        return batch, True

    async def above(self, request: Above) -> list[tree.Entry]:
        """Return the entries of folders above sources."""
        rules = self.copy.rules._replace(recursive=True, follow=True, filters=())
        tops = [
            Top("", above_path(self.copy.tops[number].path, levels), True)
            for number, levels in request.folders
        ]
        return await Walk(self.client, tops, rules).described()

    def where(self, top: int, path: str) -> tuple[bytes, str]:
        """Return the path of a source, and what comes after it in that of a file; "": itself."""
        found = self.copy.tops[top]
        return to_bytes(found.path), path.partition("/")[2] if found.name else path

    def full(self, top: int, path: str) -> bytes:
        """Return the path of a file at its server."""
        root, rest = self.where(top, path)
        return join(root, to_bytes(rest)) if rest else root

    def status(self, path: bytes) -> Future[Attrs]:
        """Request the attributes that the file has now."""
        return self.client.stat(path) if self.copy.rules.follow else self.client.lstat(path)

    # --- large files, by chunks

    def know(self, id_: int, value: tree.Entry) -> None:
        self._files.know(id_, value)

    def forget(self, id_: int) -> None:
        self._files.forget(id_)

    async def _open(self, value: tree.Entry) -> bytes:
        """Open a file of the manifest; return its handle. Raises FileChanged, SftpError."""
        path = self.full(value.top, value.path)
        opening = start(self.client.open_in_turn(path, packets.FOR_READ))
        status, handle = await outcomes(self.status(path), opening)
        if isinstance(handle, Exception):
            raise handle
        try:
            _check_same(status, value)
        except Exception:
            await outcomes(self.client.close(handle))
            raise
        return handle

    async def _open_for_chunks(self, value: tree.Entry) -> bytes:
        """Do as _open(); and open the first file twice, to learn whether that is possible here."""
        first, path = start(self._open(value)), self.full(value.top, value.path)
        others = [] if self._is_tried else [self.client.open(path, packets.FOR_READ)]
        self._is_tried = True
        found, *second = await outcomes(first, *others)
        for handle in second:
            if isinstance(handle, bytes):
                self.client.close(handle)
        if any(_is_taken(each) for each in (found, *second)) and not self._has_waited:
            self.client.is_single = True
        if _is_taken(found) and not self._has_waited:  # by another lane, or for another reason
            try:
                return await self._open(value)
            except SftpError:
                self.client.is_single, self._has_waited = False, True
                raise
        if isinstance(found, Exception):
            raise found
        return found

    async def _handle(self, chunk: _Chunk) -> bytes:
        """Return the handle to read a chunk by, when the one before it allows that."""
        handle, before = await chunk.file.opening, chunk.before
        if before is None:
            return handle
        await before.requested
        if not self.client.is_single:
            return handle
        await before.sent  # which may have closed the handle
        await self.client.give_way()
        file = self._files.get(chunk.id)
        file.chunks += 1  # until it is closed
        return await file.opening

    def send_chunk(self, id_: int, offset: int, length: int) -> None:
        """Send the chunk's blocks and its digest, or its failure, after those of earlier chunks."""
        file = self._files.get(id_)
        file.chunks += 1
        extent = Extent(self.full(file.value.top, file.value.path), offset, length)
        self._last = _Chunk(id_, file, extent, self._last)
        start(self._send_chunk(self._last))

    async def _send_chunk(self, chunk: _Chunk) -> None:
        offset, payload = chunk.extent.offset, wire.COUNT.pack(chunk.extent.length)
        try:
            digest = await self._send_blocks(chunk)
        except failures.EXPECTED as error:
            if chunk.before is not None:
                await chunk.before.sent
            failure = wire.to_json(failures.from_exception(error, chunk.file.value.path))
            self._send(wire.DIGEST, chunk.id, offset, payload + failure, wire.FAILED)
        else:
            self._send(wire.DIGEST, chunk.id, offset, payload + digest)
        finally:
            chunk.file.chunks -= 1
            chunk.before = None  # or each would keep all before it in memory
            chunk.set_requested()
            chunk.sent.set_result(None)

    async def _send_blocks(self, chunk: _Chunk) -> bytes:
        """Send the chunk's blocks; return its digest. Raises FileChanged, SftpError."""
        path, offset, length, _ = chunk.extent
        handle = await self._handle(chunk)
        hashers = self._hashing.hashers_of_sent(self.copy.hash, has_content=True)

        def take(view: memoryview) -> None:
            nonlocal offset
            for hasher in hashers.values():
                hasher.update(view)
            self._send(wire.DATA, chunk.id, offset, view)
            offset += len(view)

        gate, budget = chunk.before.sent if chunk.before else None, self.client.reading
        reading = Reading(self.client, handle, offset, length, take, budget=budget, gate=gate)
        reading.sent.add_done_callback(chunk.set_requested)
        there = start(self._hashing.of_sent(chunk.extent, self.copy.hash))
        check = start(self._check(handle, path, chunk.file.value, reading))
        count = await reading.run()
        if gate is not None:
            await gate
        await check
        if self.client.is_single:
            await self._files.close_handle(chunk.id)
        if count != length:
            raise FileChanged()
        return await self._hashing.settle(chunk.extent, self.copy.hash, hashers, await there)

    async def _check(self, handle: bytes, path: bytes, value: tree.Entry, reading: Reading) -> None:
        """Check, behind the last READ, that the open file and its name's are the manifest's.

        Raises FileChanged, SftpError.
        """
        await reading.sent
        for status in await outcomes(self.client.fstat(handle), self.status(path)):
            _check_same(status, value)

    async def extents(self, request: requests.Extents) -> tuple[list[list[int]], bool]:
        return extents_behind(request.offset, request.file.size)

    # --- small files, by packs

    async def pack(self, files: list[SourceFile]) -> tuple[list[object], list[bytes]]:
        rows: list[object] = []
        bodies: list[bytes] = []
        reading = [self._read_whole(entry_of(file)) for file in files]
        for file, found in zip(files, await outcomes(*reading), strict=True):
            if isinstance(found, Exception):
                rows.append(failures.from_exception(found, file.path))
                continue
            body, digest = found
            rows.append([len(body), digest.hex()])
            bodies.append(body)
        return rows, bodies

    async def _read_whole(self, value: tree.Entry) -> tuple[bytes, bytes]:
        """Return a small file's content and digest. Raises FileChanged, SftpError."""
        path, parts = self.full(value.top, value.path), [b""]
        async with self.client.handles.taken(1):
            handle = await self._open(value)
            length = value.size or 1  # of an empty file too, as it may not be empty
            await read_all(self.client, handle, 0, length, lambda view: parts.append(bytes(view)))
            status, _ = await outcomes(self.client.fstat(handle), self.client.close(handle))
        body = b"".join(parts)
        if body and isinstance(status, Attrs) and not status.size:
            raise UnknownSize()
        _check_same(status, value)
        if len(body) != value.size:
            raise FileChanged()
        algorithm = hashes.STRONG if self.copy.strong else self.copy.hash
        hashers = self._hashing.hashers_of_sent(algorithm, has_content=bool(body))
        for hasher in hashers.values():
            hasher.update(body)
        extent = Extent(path, 0, len(body), True)
        there = await self._hashing.of_sent(extent, algorithm)
        return body, await self._hashing.settle(extent, algorithm, hashers, there)

    # --- digests, to resume and to check strongly

    async def digests(self, request: requests.Digests) -> list[object]:
        return await results(
            (file.path, self._digests(entry_of(file), extents, request.hash))
            for file, extents in request.files
        )

    async def _digests(
        self, value: tree.Entry, extents: requests.Pieces, algorithm: str
    ) -> list[str | None]:
        path = self.full(value.top, value.path)
        if not value.size:
            await self._read_whole(value)
        _check_same(await self.status(path), value)
        digests = await self._hashing.hex_digests(path, extents, algorithm)
        _check_same(await self.status(path), value)
        return digests

    def close(self) -> None:
        self._files.close()


def _is_taken(found: object) -> bool:
    """Is it the error of a file that another lane has open, where files open only once?"""
    return isinstance(found, SftpError) and found.code == packets.FAILURE


def _check_same(status: Attrs | Exception, value: tree.Entry) -> None:
    """Raise FileChanged where it is another, as far as size and mtime tell; or the exception."""
    if isinstance(status, Exception):
        raise status
    same = value.size, value.mtime_ns
    if not status.is_file or (status.size, status.mtime_ns) != same:
        raise FileChanged()
