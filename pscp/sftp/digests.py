"""How what lies at the far end is hashed without an agent: check-file, a program, or reading back.

The first of these that the server offers is used. One that proves wrong once (it may not see the
same files as SFTP does) is not used again.

Not here: the program (remote_hash.py), who compares (sink.py, source.py).
Read next: remote_hash.py.
"""

from __future__ import annotations

import hashlib

from pscp.endpoint import hashes, requests
from pscp.sftp import client, packets
from pscp.sftp.client import Client
from pscp.sftp.packets import Cursor, SftpError
from pscp.sftp.read_ahead import read_all
from pscp.sftp.remote_hash import CHUNK_BYTES, NEAR_S, Program
from pscp.sftp.tasks import Budget, gather

# check-file's names (draft-ietf-secsh-filexfer-extensions-00), best first.
_CHECK_FILE = ("sha256", "sha512", "sha384", "sha224", "sha1", "md5")
_CHECK_LEAST = 256  # bytes: the least that may be asked for
# paramiko's servers, known by what they offer, lose count behind the first 64 KiB, for ever.
_PARAMIKO, _PARAMIKO_MOST = b"md5,sha1", 64 * 1024
READING_BACK = "reading back"


class Hashing:
    """The way one lane hashes what lies at the far end."""

    def __init__(self, sftp: Client, program: Program | None, is_wanted: bool) -> None:
        """Unless `is_wanted` nothing is verified, and what a resume asks for is read back."""
        self._client, self._program, self.is_wanted = sftp, program, is_wanted
        self.is_trusted = False  # it has proved right once
        self._proving = Budget(1)
        self._check_file = "" if not is_wanted else _offered(sftp)
        is_paramiko = sftp.extensions.get(client.CHECK_FILE) == _PARAMIKO
        self._check_most = _PARAMIKO_MOST if is_paramiko else 1 << 62
        self._handle_form = True

    @property
    def name(self) -> str:
        """The way, in words for people."""
        if not self.is_wanted:
            return "none"
        if self._check_file:
            return f"check-file ({self._check_file})"
        return next((name for _, name in self._tools().values()), READING_BACK)

    @property
    def algorithm(self) -> str:
        """The algorithm of the far end; "" for any, since it is computed here."""
        return self._check_file or next(iter(self._tools()), "")

    def chunk_bytes(self, rtt_s: float) -> int | None:
        """Return the size of chunks that pays here; None for the usual one."""
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
        """Return what else to hash with, to compare with the far end's digest; "" for nothing."""
        ours = self.algorithm
        return ours if self.is_wanted and ours not in ("", algorithm) else ""

    def distrust(self) -> None:
        """Read back from now on: the far end told something wrong."""
        self._check_file = ""
        if self._program is not None:
            self._program.close()

    async def of_extent(
        self, path: bytes, offset: int, length: int, algorithm: str, whole: bool = False
    ) -> bytes | None:
        """Return the digest of what lies there, by whichever way; None where it is shorter.

        What the far end tells for the first time is compared with what is read back.
        """
        found = await self.by_far_end(path, offset, length, algorithm, whole)
        if found is not None and not self.is_trusted:
            await self._proving.take(1)  # one at a time, so that not everything is read back
            try:
                if not self.is_trusted and self.algorithm:
                    digest = await self.read_back(path, offset, length, algorithm)
                    self.is_trusted = digest == found
                    if not self.is_trusted:
                        self.distrust()
            finally:
                self._proving.give(1)
        if found is not None and self.is_trusted:
            return found
        return await self.read_back(path, offset, length, algorithm)

    async def hex_digests(
        self, path: bytes, extents: requests.Pieces, algorithm: str,
        small: tuple[int, int] | None = None,
    ) -> list[str | None]:  # fmt: skip
        """Return each extent's digest, as of_extent(); `small` is the whole of a small file."""
        found = await gather(*[
            self.of_extent(path, *extent, algorithm, whole=tuple(extent) == small)
            for extent in extents
        ])  # fmt: skip
        return [None if digest is None else digest.hex() for digest in found]

    async def by_far_end(
        self, path: bytes, offset: int, length: int, algorithm: str, whole: bool = False
    ) -> bytes | None:
        """Return the far end's digest; None where it cannot tell, and read_back() has to."""
        if not length or not self.is_wanted:
            return None
        if algorithm == self._check_file and _CHECK_LEAST <= length <= self._check_most:
            return await self._by_check_file(path, offset, length)
        if algorithm not in self._tools() or self._program is None:
            return None
        if whole:
            return await self._program.of_file(algorithm, path)
        return await self._program.of_extent(algorithm, path, offset, length)

    async def _by_check_file(self, path: bytes, offset: int, length: int) -> bytes | None:
        try:
            handle = await self._client.open_in_turn(path, packets.FOR_READ)
        except SftpError:
            return None
        try:
            return await self._ask_check_file(handle, offset, length)
        finally:
            await self._client.close(handle)

    async def _ask_check_file(self, handle: bytes, offset: int, length: int) -> bytes | None:
        payload = packets.text(handle) + packets.text(self._check_file.encode("ascii"))
        payload += packets.large(offset) + packets.large(length) + packets.number(0)
        names = (b"check-file-handle", b"check-file") if self._handle_form else (b"check-file",)
        for name in names:
            try:
                return await self._client.extended(name, payload, _check_file_digest)
            except SftpError as error:
                if error.code != packets.OP_UNSUPPORTED:
                    return None
                self._handle_form = False
        return None

    async def read_back(
        self, path: bytes, offset: int, length: int, algorithm: str
    ) -> bytes | None:
        """Return the digest of what is read from there; None where it is shorter."""
        handle = await self._client.open_in_turn(path, packets.FOR_READ)
        try:
            hasher = new(algorithm)
            count = await read_all(self._client, handle, offset, length, hasher.update)
        finally:
            await self._client.close(handle)
        return bytes(hasher.digest()) if count == length else None

    async def matches(
        self, path: bytes, extent: tuple[int, int], expected: dict[str, bytes], whole: bool
    ) -> bool:
        """Tell whether this lies there; `expected` has a digest for each algorithm computed."""
        ours, found = self.algorithm, None
        if ours in expected:
            found = await self.by_far_end(path, *extent, ours, whole)
            if found == expected[ours]:
                self.is_trusted = True
                return True
        algorithm, digest = next(iter(expected.items()))
        if await self.read_back(path, *extent, algorithm) != digest:
            return False
        if found is not None:
            self.distrust()
        return True


def new(algorithm: str) -> hashes.Hasher:
    """Return a hasher; check-file knows more algorithms than chunks are hashed with."""
    if algorithm in hashes.ALGORITHMS:
        return hashes.new(algorithm)
    return hashlib.new(algorithm)


def _check_file_digest(view: memoryview) -> bytes:
    cursor = Cursor(view)
    if cursor.text() == client.CHECK_FILE:  # some repeat what was asked
        cursor.text()
    return cursor.rest()


def _offered(sftp: Client) -> str:
    listed = sftp.extensions.get(client.CHECK_FILE, b"").decode("ascii", "replace").split(",")
    return next((name for name in _CHECK_FILE if name in listed), "")
