"""The source end of a copy over SFTP: as endpoint/source.py, by requests.

A chunk's READs are all in flight at once, and those of the next chunks behind them; its bytes are
handed on in order, then its digest. Nothing but size and mtime tells whether a file changed.

Not here: the walk (tree.py), how what lies there is hashed (digests.py).
Read next: agent.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from pscp.endpoint import failures, hashes, requests, tree, wire
from pscp.endpoint.files import Changed
from pscp.endpoint.paths import to_bytes
from pscp.endpoint.source import Known, known
from pscp.sftp import packets
from pscp.sftp.client import Client
from pscp.sftp.commit import extents_behind
from pscp.sftp.digests import Hashing, new
from pscp.sftp.handles import File, Files
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.paths import join
from pscp.sftp.read_ahead import Reading, read_all
from pscp.sftp.tasks import Future, outcomes, start
from pscp.sftp.tree import Walk

_WALK_BATCH_BYTES = 512 * 1024
_NANO = 1_000_000_000


class _Turn:
    """A chunk's place among those that the coordinator asked for."""

    def __init__(self) -> None:
        self.asked: Future[None] = Future()  # done when all READs are sent: then the next begins
        self.over: Future[None] = Future()  # done when it is sent: then the next is

    def all_asked(self) -> None:
        if not self.asked.done():
            self.asked.set_result(None)

    def end(self) -> None:
        self.all_asked()
        self.over.set_result(None)


class Source:
    """Serves the files of one copy from the far end."""

    def __init__(
        self, client: Client, hashing: Hashing, request: requests.BeginSource,
        send: wire.Send,
    ) -> None:  # fmt: skip
        self._client, self._hashing, self._send = client, hashing, send
        self._tops, self._rules = request.tops, request.rules
        self._algorithm, self._strong = request.hash, request.strong
        self._files = Files(client, self._open_for_chunks)
        self._is_tried = False  # is it known whether a file opens only once at a time?
        self._has_waited = False  # in vain, for one that would not open
        self._last: _Turn | None = None  # of the chunk that is handed on after all others
        self._walk: AsyncIterator[tree.Entry] | None = None

    # --- the manifest

    async def walk(
        self, after: tuple[int, str] | None, restart: bool, most: int
    ) -> tuple[list[tree.Entry], bool]:
        """Return the next entries, at most so many, and whether these were the last."""
        if restart or self._walk is None:
            self._walk = Walk(self._client, self._tops, self._rules).entries(after)
        batch: list[tree.Entry] = []
        total = 0
        async for entry in self._walk:
            batch.append(entry)
            total += len(wire.to_json(entry))
            if total >= _WALK_BATCH_BYTES or len(batch) >= most:
                return batch, False
        return batch, True

    def _full(self, value: tree.Entry) -> bytes:
        top = self._tops[value.top]
        rest = value.path.partition("/")[2] if top.name else value.path
        root = to_bytes(top.path)
        return join(root, to_bytes(rest)) if rest else root

    def _status(self, path: bytes) -> Future[Attrs]:
        """Ask what has this name now."""
        return self._client.stat(path) if self._rules.follow else self._client.lstat(path)

    # --- large files, by chunks

    def know(self, id_: int, value: tree.Entry) -> None:
        self._files.know(id_, value)

    def forget(self, id_: int) -> None:
        self._files.forget(id_)

    async def _open(self, value: tree.Entry) -> bytes:
        """Open the file that is known; return its handle. Raises Changed, SftpError."""
        path = self._full(value)
        opening = start(self._client.open_in_turn(path, packets.FOR_READ))
        status, handle = await outcomes(self._status(path), opening)
        if isinstance(handle, Exception):
            raise handle
        if isinstance(status, Exception) or not _is_same(status, value):
            await outcomes(self._client.close(handle))
            raise status if isinstance(status, Exception) else Changed()
        return handle

    async def _open_for_chunks(self, value: tree.Entry) -> bytes:
        """As _open(); the first is opened twice, to learn whether a file opens once at a time."""
        first = start(self._open(value))
        others = [] if self._is_tried else [self._client.open(self._full(value), packets.FOR_READ)]
        self._is_tried = True
        found, *second = await outcomes(first, *others)
        for handle in second:
            if isinstance(handle, bytes):
                self._client.close(handle)
        if any(_is_taken(each) for each in (found, *second)) and not self._has_waited:
            self._client.is_single = True
        if _is_taken(found) and not self._has_waited:  # by another lane, or for another reason
            try:
                return await self._open(value)
            except SftpError:
                self._client.is_single, self._has_waited = False, True
                raise
        if isinstance(found, Exception):
            raise found
        return found

    async def _handle(self, id_: int, file: File, after: _Turn | None) -> bytes:
        handle = await file.opening
        if after is None:
            return handle
        await after.asked
        if not self._client.is_single:
            return handle
        await after.over  # which may have closed it
        await self._client.give_way()
        file = self._files.get(id_)
        file.chunks += 1  # until it is closed
        return await file.opening

    def send_chunk(self, id_: int, offset: int, length: int) -> None:
        """Send the chunk's blocks and its digest, or its failure, after those of earlier chunks."""
        file, after = self._files.get(id_), self._last
        file.chunks += 1
        turn = self._last = _Turn()
        start(self._chunk(id_, file, (offset, length), after, turn))

    async def _chunk(
        self, id_: int, file: File, extent: tuple[int, int], after: _Turn | None, turn: _Turn
    ) -> None:
        offset, length = extent
        payload = wire.COUNT.pack(length)
        try:
            digest = await self._blocks(id_, file, extent, after, turn)
        except failures.EXPECTED as error:
            if after is not None:
                await after.over
            failure = wire.to_json(failures.from_exception(error, file.value.path))
            self._send(wire.DIGEST, id_, offset, payload + failure, wire.FAILED)
        else:
            self._send(wire.DIGEST, id_, offset, payload + digest)
        finally:
            file.chunks -= 1
            turn.end()

    async def _blocks(
        self, id_: int, file: File, extent: tuple[int, int], after: _Turn | None, turn: _Turn
    ) -> bytes:
        path, at = self._full(file.value), extent[0]
        handle = await self._handle(id_, file, after)
        hashers = self._hashers(self._algorithm)

        def take(view: memoryview) -> None:
            nonlocal at
            for hasher in hashers.values():
                hasher.update(view)
            self._send(wire.DATA, id_, at, view)
            at += len(view)

        gate = after.over if after is not None else None
        reading = Reading(
            self._client, handle, *extent, take, budget=self._client.reading, gate=gate
        )
        reading.sent.add_done_callback(turn.all_asked)
        digest = start(self._digest(path, extent, self._algorithm))
        check = start(self._check(handle, file, reading))
        count = await reading.run()
        if gate is not None:
            await gate
        await check
        if self._client.is_single:
            await self._files.close_handle(id_)
        if count != extent[1]:
            raise Changed()
        return await self._decide(path, extent, self._algorithm, hashers, await digest)

    def _hashers(self, algorithm: str) -> dict[str, hashes.Hasher]:
        """Return what the bytes are hashed with on their way, by algorithm.

        That is nothing where the far end's digest is used, which has proved right.
        """
        beside = self._hashing.beside(algorithm)
        if self._hashing.is_wanted and self._hashing.is_trusted and not beside:
            return {}
        return {name: new(name) for name in {algorithm, beside or algorithm}}

    async def _digest(
        self, path: bytes, extent: tuple[int, int], algorithm: str, whole: bool = False
    ) -> tuple[bytes | None, bool]:
        """Return the digest of what lies there, None where that is not to be verified, and whether
        the far end computed it.
        """
        if not self._hashing.is_wanted or not extent[1]:
            return None, False
        ours = self._hashing.beside(algorithm) or algorithm
        found = await self._hashing.by_far_end(path, *extent, ours, whole)
        if found is not None:
            return found, True
        return await self._hashing.read_back(path, *extent, algorithm), False

    async def _decide(
        self, path: bytes, extent: tuple[int, int], algorithm: str,
        hashers: dict[str, hashes.Hasher], digest: tuple[bytes | None, bool],
    ) -> bytes:  # fmt: skip
        """Return the digest that what was sent is compared with. Raises Changed."""
        there, is_told = digest
        own: dict[str, bytes] = {name: hasher.digest() for name, hasher in hashers.items()}
        if not self._hashing.is_wanted or not extent[1]:
            return own[algorithm]
        if is_told and there in own.values():
            self._hashing.is_trusted = True
            return own[algorithm]
        if is_told and own:  # what the far end told for the first time was wrong
            there = await self._hashing.read_back(path, *extent, algorithm)
            if there == own[algorithm]:
                self._hashing.distrust()
        if there is None:
            raise Changed()
        return there

    async def _check(self, handle: bytes, file: File, reading: Reading) -> None:
        """Check, behind the last READ, that the file and what has its name are the known one."""
        path = self._full(file.value)
        await reading.sent
        for status in await outcomes(self._client.fstat(handle), self._status(path)):
            if isinstance(status, Exception):
                raise status
            if not _is_same(status, file.value):
                raise Changed()

    def extents(self, value: tree.Entry, offset: int) -> tuple[list[list[int]], bool]:
        """Return the extent behind an offset, and that it was the last: SFTP tells of no holes."""
        return extents_behind(offset, value.size)

    # --- small files, by packs

    async def pack(self, asked: list[Known]) -> tuple[list[object], list[bytes]]:
        """Return for each file [size, hex digest] or a failure; and the contents."""
        rows: list[object] = []
        bodies: list[bytes] = []
        values = [known(each) for each in asked]
        work = [self._whole(value) for value in values]
        for value, found in zip(values, await outcomes(*work), strict=True):
            if isinstance(found, Exception):
                rows.append(failures.from_exception(found, value.path))
                continue
            body, digest = found
            rows.append([len(body), digest.hex()])
            bodies.append(body)
        return rows, bodies

    async def _whole(self, value: tree.Entry) -> tuple[bytes, bytes]:
        path, parts = self._full(value), [b""]
        handles = self._client.handles
        await handles.take(1)
        try:
            handle = await self._open(value)
            await read_all(
                self._client, handle, 0, value.size, lambda view: parts.append(bytes(view))
            )
            status, _ = await outcomes(self._client.fstat(handle), self._client.close(handle))
        finally:
            handles.give(1)
        body = b"".join(parts)
        if isinstance(status, Exception):
            raise status
        if len(body) != value.size or not _is_same(status, value):
            raise Changed()
        return body, await self._digest_of_body(path, body)

    async def _digest_of_body(self, path: bytes, body: bytes) -> bytes:
        algorithm = hashes.STRONG if self._strong else self._algorithm
        hashers = self._hashers(algorithm) if body else {algorithm: new(algorithm)}
        for hasher in hashers.values():
            hasher.update(body)
        extent = (0, len(body))
        digest = await self._digest(path, extent, algorithm, whole=True)
        return await self._decide(path, extent, algorithm, hashers, digest)

    # --- digests, to resume and to check strongly

    async def digests(
        self, value: tree.Entry, extents: requests.Pieces, algorithm: str
    ) -> list[str | None]:
        """Return the hex digest of each extent; None where the file is shorter. Raises Changed."""
        path = self._full(value)
        if not _is_same(await self._status(path), value):
            raise Changed()
        digests = await self._hashing.hex_digests(path, extents, algorithm)
        if not _is_same(await self._status(path), value):
            raise Changed()
        return digests

    def close(self) -> None:
        self._files.close()


def _is_taken(found: object) -> bool:
    """May it be that another lane has the file open, which opens only once at a time?"""
    return isinstance(found, SftpError) and found.code == packets.FAILURE


def _is_same(status: Attrs, value: tree.Entry) -> bool:
    """Is it the same file, as far as SFTP tells: whole seconds, and no inode?"""
    return status.is_file and (status.size, (status.mtime or 0) * _NANO) == (
        value.size, value.mtime_ns,
    )  # fmt: skip
