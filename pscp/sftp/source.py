"""The source end of a copy over SFTP: as endpoint/source.py, by requests.

A chunk's READs are all in flight at once, and those of the next chunks behind them; its bytes are
handed on in order, then its digest. Nothing but size and mtime tells whether a file changed.

Not here: the walk (tree.py), how what lies there is hashed (digests.py).
Read next: agent.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from pscp.endpoint import failures, hashes, requests, tree, wire
from pscp.endpoint.files import Changed
from pscp.endpoint.paths import to_bytes
from pscp.endpoint.source import Known, known
from pscp.sftp import packets
from pscp.sftp.client import Client
from pscp.sftp.digests import Hashing, new
from pscp.sftp.handles import File, Files
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.paths import joined
from pscp.sftp.read_ahead import Reading, read_all
from pscp.sftp.tasks import Promise, Tasks, settled
from pscp.sftp.tree import Walk

_WALK_BATCH_BYTES = 512 * 1024
_NANO = 1_000_000_000
Send = Callable[..., None]  # (type, id, offset, payload, flags)


class _Turn:
    """A chunk's place among those that were asked for: each begins, and ends, after the other."""

    def __init__(self) -> None:
        self.asked: Promise[None] = Promise()  # the server, for all of it
        self.over: Promise[None] = Promise()

    def all_asked(self) -> None:
        if not self.asked.is_settled:
            self.asked.keep(None)

    def end(self) -> None:
        self.all_asked()
        self.over.keep(None)


class Source:
    """Serves the files of one copy from the far end."""

    def __init__(
        self, client: Client, tasks: Tasks, hashing: Hashing, request: requests.BeginSource,
        send: Send,
    ) -> None:  # fmt: skip
        self._client, self._tasks, self._hashing, self._send = client, tasks, hashing, send
        self._tops, self._rules = request.tops, request.rules
        self._algorithm, self._strong = request.hash, request.strong
        self._files = Files(client, tasks, self._opened_for_chunks)
        self._is_tried = False  # whether a file opens once at a time
        self._has_waited = False  # in vain, for one that would not open
        self._last: _Turn | None = None  # of the chunk that is handed on after all others
        self._walk: AsyncIterator[tree.Entry] | None = None

    # --- the manifest

    async def walk(
        self, after: tuple[int, str] | None, restart: bool, most: int
    ) -> tuple[list[tree.Entry], bool]:
        """The next entries, at most so many, and whether these were the last."""
        if restart or self._walk is None:
            self._walk = Walk(self._client, self._tasks, self._tops, self._rules).entries(after)
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
        return joined(root, to_bytes(rest)) if rest else root

    def _status(self, path: bytes) -> Promise[Attrs]:
        """Of what has this name now."""
        return self._client.stat(path) if self._rules.follow else self._client.lstat(path)

    # --- large files, by chunks

    def know(self, id_: int, value: tree.Entry) -> None:
        self._files.know(id_, value)

    def forget(self, id_: int) -> None:
        self._files.forget(id_)

    async def _opened(self, value: tree.Entry) -> bytes:
        """A handle of the file that is known. Raises Changed, SftpError."""
        path = self._full(value)
        opening = self._tasks.start(self._client.open_in_turn(path, packets.FOR_READ))
        status, handle = await settled(self._status(path), opening)
        if isinstance(handle, Exception):
            raise handle
        if isinstance(status, Exception) or not _is_same(status, value):
            await settled(self._client.close(handle))
            raise status if isinstance(status, Exception) else Changed()
        return bytes(handle)

    async def _opened_for_chunks(self, value: tree.Entry) -> bytes:
        """The same. The first is opened twice, which tells whether a file opens once at a time."""
        first = self._tasks.start(self._opened(value))
        others = [] if self._is_tried else [self._client.open(self._full(value), packets.FOR_READ)]
        self._is_tried = True
        found, *second = await settled(first, *others)
        for handle in second:
            if isinstance(handle, bytes):
                self._client.close(handle)
        if any(_is_taken(each) for each in (found, *second)) and not self._has_waited:
            self._client.is_single = True
        if _is_taken(found) and not self._has_waited:  # by another lane, or for another reason
            try:
                return await self._opened(value)
            except SftpError:
                self._client.is_single, self._has_waited = False, True
                raise
        if isinstance(found, Exception):
            raise found
        return bytes(found)

    async def _handle(self, id_: int, file: File, after: _Turn | None) -> bytes:
        handle = await file.opened
        if after is None:
            return handle
        await after.asked
        if not self._client.is_single:
            return handle
        await after.over  # which may have closed it
        await self._client.give_way()
        file = self._files.get(id_)
        file.chunks += 1  # until it is closed
        return await file.opened

    def send_chunk(self, id_: int, offset: int, length: int) -> None:
        """Soon: the chunk's blocks and its digest, after those of earlier chunks; or why not."""
        file, after = self._files.get(id_), self._last
        file.chunks += 1
        turn = self._last = _Turn()
        self._tasks.start(self._chunk(id_, file, (offset, length), after, turn))

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
        reading.sent.then(turn.all_asked)
        digest = self._tasks.start(self._digest(path, extent, self._algorithm))
        check = self._tasks.start(self._check(handle, file, reading))
        count = await reading.run()
        if gate is not None:
            await gate
        await check
        if self._client.is_single:
            await self._files.closed(id_)
        if count != extent[1]:
            raise Changed()
        return await self._decided(path, extent, self._algorithm, hashers, await digest)

    def _hashers(self, algorithm: str) -> dict[str, Any]:
        """What the bytes are hashed with on their way: nothing, where the far end tells it, and
        has proved right.
        """
        beside = self._hashing.beside(algorithm)
        if self._hashing.is_wanted and self._hashing.is_trusted and not beside:
            return {}
        return {name: new(name) for name in {algorithm, beside or algorithm}}

    async def _digest(
        self, path: bytes, extent: tuple[int, int], algorithm: str, whole: bool = False
    ) -> tuple[bytes | None, bool]:
        """What lies there, None where that is not to be verified; and whether the far end told."""
        if not self._hashing.is_wanted or not extent[1]:
            return None, False
        ours = self._hashing.beside(algorithm) or algorithm
        found = await self._hashing.by_far_end(path, *extent, ours, whole)
        if found is not None:
            return found, True
        return await self._hashing.read_back(path, *extent, algorithm), False

    async def _decided(
        self, path: bytes, extent: tuple[int, int], algorithm: str, hashers: dict[str, Any],
        digest: tuple[bytes | None, bool],
    ) -> bytes:  # fmt: skip
        """The digest that what was sent is compared with."""
        there, is_told = digest
        own = {name: hasher.digest() for name, hasher in hashers.items()}
        if not self._hashing.is_wanted or not extent[1]:
            return bytes(own[algorithm])
        if is_told and there in own.values():
            self._hashing.is_trusted = True
            return bytes(own[algorithm])
        if is_told and own:  # what the far end told for the first time was wrong
            there = await self._hashing.read_back(path, *extent, algorithm)
            if there == own[algorithm]:
                self._hashing.distrust()
        if there is None:
            raise Changed()
        return there

    async def _check(self, handle: bytes, file: File, reading: Reading) -> None:
        """Behind the last READ: the file, and what has its name, are still the known one."""
        path = self._full(file.value)
        await reading.sent
        for status in await settled(self._client.fstat(handle), self._status(path)):
            if isinstance(status, Exception):
                raise status
            if not _is_same(status, file.value):
                raise Changed()

    def extents(self, value: tree.Entry, offset: int) -> Any:
        """SFTP tells of no holes."""
        size = value.size
        return ([[offset, size - offset]] if size > offset else []), True

    # --- small files, by packs

    async def pack(self, asked: list[Known]) -> tuple[list[Any], list[bytes]]:
        """For each file [size, hex digest] or a failure; and the contents."""
        rows: list[Any] = []
        bodies: list[bytes] = []
        values = [known(each) for each in asked]
        work = [self._tasks.start(self._whole(value)) for value in values]
        for value, found in zip(values, await settled(*work), strict=True):
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
            handle = await self._opened(value)
            await read_all(
                self._client, handle, 0, value.size, lambda view: parts.append(bytes(view))
            )
            status, _ = await settled(self._client.fstat(handle), self._client.close(handle))
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
        return await self._decided(path, extent, algorithm, hashers, digest)

    # --- digests, to resume and to check strongly

    async def digests(
        self, value: tree.Entry, extents: list[Any], algorithm: str
    ) -> list[str | None]:
        path = self._full(value)
        if not _is_same(await self._status(path), value):
            raise Changed()
        found = [
            self._tasks.start(self._hashing.of_extent(path, offset, length, algorithm))
            for offset, length in extents
        ]
        digests = await settled(*found)
        for each in digests:
            if isinstance(each, Exception):
                raise each
        if not _is_same(await self._status(path), value):
            raise Changed()
        return [None if each is None else each.hex() for each in digests]

    def close(self) -> None:
        self._files.close()


def _is_taken(found: Any) -> bool:
    return isinstance(found, SftpError) and found.code == packets.FAILURE


def _is_same(status: Attrs, value: tree.Entry) -> bool:
    """As far as SFTP tells: whole seconds, and no inode."""
    return status.is_file and (status.size, (status.mtime or 0) * _NANO) == (
        value.size, value.mtime_ns,
    )  # fmt: skip
