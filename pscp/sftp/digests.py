"""Digests of far files without an agent: by check-file, a hash program, or reading back.

The first of these that there is is used. One that is wrong once (it may not see the same files as
SFTP does) is not used again.

Not here: the program (protocol/remote_hash.py), who compares the digests (sink.py, source.py).
Read next: protocol/remote_hash.py.
"""

from __future__ import annotations

import contextlib
import hashlib

from pscp.endpoint.asking.requests import Pieces
from pscp.endpoint.frames import hashes
from pscp.endpoint.frames.failures import FileChanged
from pscp.sftp.protocol import client, packets
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.files import Extent, read_all
from pscp.sftp.protocol.packets import Cursor, SftpError
from pscp.sftp.protocol.remote_hash import CHUNK_BYTES, NEAR_S, Program
from pscp.sftp.protocol.tasks import Budget, gather

# check-file's names (draft-ietf-secsh-filexfer-extensions-00), best first.
_CHECK_FILE = ("sha256", "sha512", "sha384", "sha224", "sha1", "md5")
_CHECK_LEAST_BYTES = 256  # the shortest extent that may be asked for
# paramiko's servers, known by what they offer, never answer about more than 64 KiB.
_PARAMIKO, _PARAMIKO_MOST_BYTES = b"md5,sha1", 64 * 1024

Digests = dict[str, bytes]  # of one content, by algorithm
FarDigest = tuple[bytes | None, bool]  # None: not verified; did the far end compute it?


class Hashing:
    """How one lane hashes far files."""

    def __init__(self, sftp: Client, program: Program | None, is_wanted: bool) -> None:
        """Unless `is_wanted` nothing is verified, and what a resume asks for is read back."""
        self._client, self._program, self.is_wanted = sftp, program, is_wanted
        self.is_trusted = False  # has a digest of the far end been right?
        self._first_check = Budget(1)
        offered = sftp.extensions.get(client.CHECK_FILE, b"")
        names = offered.decode("ascii", "replace").split(",") if is_wanted else []
        self._check_file = next((name for name in _CHECK_FILE if name in names), "")
        self._check_most_bytes = _PARAMIKO_MOST_BYTES if offered == _PARAMIKO else 1 << 62
        self._has_handle_form = True  # of check-file's two names

    @property
    def name(self) -> str:
        """The way in which far files are hashed, for people."""
        if not self.is_wanted:
            return "none"
        if self._check_file:
            return f"check-file ({self._check_file})"
        return next((name for _, name in self._tools().values()), "reading back")

    @property
    def algorithm(self) -> str:
        """The algorithm that the far end computes; "" where digests are computed here."""
        return self._check_file or next(iter(self._tools()), "")

    def is_there(self, algorithm: str) -> bool:
        """Return whether the far end computes digests by this algorithm."""
        return self.is_wanted and (algorithm == self._check_file or algorithm in self._tools())

    def chunk_bytes(self, rtt_s: float) -> int | None:
        """Return the size that chunks should have at this round trip; None for the usual one."""
        is_near = rtt_s < NEAR_S and not self._check_file
        return CHUNK_BYTES if is_near and self._tools() else None

    def _tools(self) -> dict[str, tuple[int, str]]:
        program = self._program
        return program.tools if program is not None and not program.is_over else {}

    def for_chunks(self) -> dict[str, float]:
        """Return the algorithms that chunks may be hashed with, and their MB/s, for the HELLO."""
        speeds = hashes.speeds()
        return {self.algorithm: speeds[self.algorithm]} if self.algorithm in speeds else speeds

    def beside(self, algorithm: str) -> str:
        """Return the far end's algorithm if it is another than this one; else ""."""
        ours = self.algorithm
        return ours if self.is_wanted and ours != algorithm else ""

    def new_hashers(self, algorithm: str) -> dict[str, hashes.Hasher]:
        """Return a hasher of this algorithm, and of the far end's if that is another."""
        names = (algorithm, self.beside(algorithm))
        return {name: _new_hasher(name) for name in names if name}

    def distrust(self) -> None:
        """Read back from now on, since a digest of the far end was wrong."""
        self._check_file = ""
        if self._program is not None:
            self._program.close()

    async def of_extent(self, extent: Extent, algorithm: str) -> bytes | None:
        """Return the digest of an extent; None where the file is shorter.

        The far end's first digest is compared with that of what is read back.
        """
        found = await self.by_far_end(extent, algorithm)
        if found is not None and not self.is_trusted:
            async with self._first_check.taken(1):  # so that not everything is read back
                if not self.is_trusted and self.algorithm:
                    digest = await self.read_back(extent, algorithm)
                    self.is_trusted = digest == found
                    if not self.is_trusted:
                        self.distrust()
        if found is not None and self.is_trusted:
            return found
        return await self.read_back(extent, algorithm)

    async def hex_digests(
        self, path: bytes, extents: Pieces, algorithm: str, small: tuple[int, int] | None = None
    ) -> list[str | None]:
        """Return each extent's digest, as of_extent(); `small` is the whole of a small file."""
        pieces = [Extent(path, *extent, tuple(extent) == small) for extent in extents]
        if _is_first_of_all(pieces) and not self.is_there(algorithm):
            parts = _Parts(pieces[1:], algorithm)
            first = await self._read_into(pieces[0], parts)
            return [None if each is None else each.hex() for each in (first, *parts.digests())]
        asked = [self.of_extent(piece, algorithm) for piece in pieces]
        return [None if digest is None else digest.hex() for digest in await gather(*asked)]

    async def by_far_end(self, extent: Extent, algorithm: str) -> bytes | None:
        """Return the far end's digest of an extent; None where it computes none."""
        path, offset, length, is_small_file = extent
        if not length or not self.is_wanted:
            return None
        if algorithm == self._check_file and _CHECK_LEAST_BYTES <= length <= self._check_most_bytes:
            return await self._by_check_file(extent)
        if algorithm not in self._tools() or self._program is None:
            return None
        if is_small_file:
            return await self._program.of_file(algorithm, path)
        return await self._program.of_extent(algorithm, path, offset, length)

    async def _by_check_file(self, extent: Extent) -> bytes | None:
        what = packets.text(self._check_file.encode("ascii"))
        what += packets.large(extent.offset) + packets.large(extent.length) + packets.number(0)
        names = (b"check-file-handle", b"check-file") if self._has_handle_form else (b"check-file",)
        with contextlib.suppress(SftpError):  # it opens no more, for instance
            async with self._client.opened(extent.path) as handle:
                for name in names:
                    payload = packets.text(handle) + what
                    try:
                        return await self._client.extended(name, payload, _check_file_digest)
                    except SftpError as error:
                        if error.code != packets.OP_UNSUPPORTED:
                            raise
                        self._has_handle_form = False
        return None

    async def read_back(self, extent: Extent, algorithm: str) -> bytes | None:
        """Read an extent; return its digest, None where the file is shorter."""
        return await self._read_into(extent, _new_hasher(algorithm))

    async def _read_into(self, extent: Extent, hasher: hashes.Hasher | _Parts) -> bytes | None:
        path, offset, length, _ = extent
        async with self._client.opened(path) as handle:
            count = await read_all(self._client, handle, offset, length, hasher.update)
        return bytes(hasher.digest()) if count == length else None

    async def matches(self, extent: Extent, expected: Digests) -> bool:
        """Tell whether an extent has the content of which these are digests."""
        ours, found = self.algorithm, None
        if ours in expected:
            found = await self.by_far_end(extent, ours)
            if found == expected[ours]:
                self.is_trusted = True
                return True
        algorithm, digest = next(iter(expected.items()))
        if await self.read_back(extent, algorithm) != digest:
            return False
        if found is not None:
            self.distrust()
        return True

    # --- of what is sent from the far end

    def hashers_of_sent(self, algorithm: str, *, has_content: bool) -> dict[str, hashes.Hasher]:
        """Return the hashers for what is sent, by algorithm.

        There is none where the far end's digest is used, which has been right before.
        """
        if self.is_wanted and self.is_trusted and has_content and not self.beside(algorithm):
            return {}
        return self.new_hashers(algorithm)

    async def of_sent(self, extent: Extent, algorithm: str) -> FarDigest:
        """Return the digest of what lies at the far end."""
        if not self.is_wanted or not extent.length:
            return None, False
        found = await self.by_far_end(extent, self.beside(algorithm) or algorithm)
        if found is not None:
            return found, True
        return await self.read_back(extent, algorithm), False

    async def settle(
        self, extent: Extent, algorithm: str, hashers: dict[str, hashes.Hasher], there: FarDigest
    ) -> bytes:
        """Return the digest that the sink compares with what arrived there. Raises FileChanged.

        `hashers` had what was sent; `there` is from of_sent().
        """
        digest, is_of_far_end = there
        own = {name: hasher.digest() for name, hasher in hashers.items()}
        if not self.is_wanted or not extent.length:
            return own[algorithm]
        if is_of_far_end and digest in own.values():
            self.is_trusted = True
            return own[algorithm]
        if is_of_far_end and own:  # the far end's first digest was wrong
            digest = await self.read_back(extent, algorithm)
            if digest == own[algorithm]:
                self.distrust()
        if digest is None:
            raise FileChanged()
        return digest


class _Parts:
    """Hashes an extent, and the parts of it from its beginning on, in one reading."""

    def __init__(self, parts: list[Extent], algorithm: str) -> None:
        self._hasher = _new_hasher(algorithm)
        self._parts = [(part.length, _new_hasher(algorithm)) for part in parts]
        self._at = self._at_bytes = 0  # the part that is read, and how much of it was

    def update(self, view: memoryview) -> None:
        self._hasher.update(view)
        while view and self._at < len(self._parts):
            length, hasher = self._parts[self._at]
            piece = view[: length - self._at_bytes]
            hasher.update(piece)
            view, self._at_bytes = view[len(piece) :], self._at_bytes + len(piece)
            if self._at_bytes == length:
                self._at, self._at_bytes = self._at + 1, 0

    def digest(self) -> bytes:
        return bytes(self._hasher.digest())

    def digests(self) -> list[bytes | None]:
        """Return the digests of the parts; None for one that was not read to its end."""
        found = [bytes(hasher.digest()) for _, hasher in self._parts[: self._at]]
        return [*found, *[None] * (len(self._parts) - self._at)]


def _is_first_of_all(extents: list[Extent]) -> bool:
    """Return whether the others follow each other from the first one's beginning, within it."""
    if len(extents) < 2:
        return False
    first, *parts = extents
    at = first.offset
    for part in parts:
        if part.offset != at or not part.length:
            return False
        at += part.length
    return at <= first.offset + first.length


def _new_hasher(algorithm: str) -> hashes.Hasher:
    """Return a hasher; check-file knows more algorithms than chunks are hashed with."""
    if algorithm in hashes.ALGORITHMS:
        return hashes.new(algorithm)
    return hashlib.new(algorithm)


def _check_file_digest(view: memoryview) -> bytes:
    cursor = Cursor(view)
    if cursor.text() == client.CHECK_FILE:  # some servers repeat the extension's name
        cursor.text()
    return cursor.rest()
