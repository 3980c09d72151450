"""A destination folder over SFTP: what is there already, metadata, links, and parts that go.

SFTP has no attributes, ACLs, inodes or fractions of a second, so none of these is kept.

Not here: how files are written and get their final names (sink.py).
Read next: sink.py.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.frames.failures import Refusal
from pscp.endpoint.reading import metadata, tree
from pscp.endpoint.reading.files import PACK_FILE_BYTES
from pscp.endpoint.reading.paths import (
    alike_names,
    is_unfinished,
    marker_name,
    part_name,
    private_parts,
    to_text,
)
from pscp.endpoint.there import hardlinks
from pscp.endpoint.there import lookup as asked
from pscp.sftp.digests import Hashing
from pscp.sftp.fence import Fence, owner_and_access
from pscp.sftp.protocol import client as sftp
from pscp.sftp.protocol import packets
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.files import extents_behind
from pscp.sftp.protocol.packets import NANO, Attrs, SftpError
from pscp.sftp.protocol.paths import Root, is_missing, join, lookup, was_file
from pscp.sftp.protocol.tasks import Future, Steps, gather, outcomes, results, start
from pscp.sftp.tree import list_folder

_UMASK = 0o022  # where the server does not show its own
_ID_END = (1 << 32) - 1  # and this number is nobody's


class Destination:
    """The folder at the far end to which one copy goes."""

    def __init__(self, client: Client, hashing: Hashing, request: requests.BeginSink) -> None:
        self.root = Root(client, request.root)
        if request.made:
            self.root.mark(request.made, marker_name(request.token))
        self.root.replaces = tuple(path and f"{path}/" for path in request.replaces)
        self.client, self.copy, self._hashing = client, request, hashing
        self.fence = Fence(client, self.root.full(""), request.token)
        # The key in the names of parts that no other lane knows, as in endpoint/writing/parts.py.
        self._private = f"{request.token}{request.nonce}{os.urandom(3).hex()}"
        umask, private = (request.server.get(name) for name in ("umask", "private"))
        umask = umask if isinstance(umask, int) else _UMASK
        client.is_single = bool(request.server.get("is_single"))
        # The owner and access of a file that was made private here, if known.
        self._made_private = private if isinstance(private, list) else None
        self._roots_owner: int | None = None  # known once the root is checked
        self._policy = metadata.Policy(request.preserve, request.archive, umask)
        self.root_checked = start(self._check_root())  # raises SftpError, Refusal

    async def _check_root(self) -> None:
        found = await self.client.stat(self.root.full(""))
        if not found.is_folder:
            raise Refusal(failures.DESTINATION, "", "the destination is not a folder")
        self._roots_owner = found.uid

    # --- metadata

    async def _describe(self, handle: bytes, value: tree.Entry, before: Attrs | None) -> None:
        """Give an open file its metadata; `before` is that of the file that it will replace.

        The requests are sent in the first step, so start() keeps their order among others.
        """
        owner = self._owner(value)
        owned = [] if owner is None else [self.client.fsetstat(handle, owner)]
        changed = self.client.fsetstat(handle, self._attrs(value, before))
        await outcomes(*owned)
        await self._set_mode(changed)

    async def _set_mode(self, changed: Future[None]) -> None:
        """Wait for a change of a mode. Raises SftpError, but not where only -p needs it."""
        try:
            await changed
        except SftpError:  # this server may know no modes
            if self._policy.preserve:
                raise

    def _attrs(self, value: tree.Entry, before: Attrs | None = None) -> Attrs:
        """Return the mode, and with -p the times, that a file or folder is to have.

        Without -p a file keeps the permissions of the one that it replaces, `before`.
        """
        mode = self._policy.mode(value.mode)
        if self._policy.preserve:
            return times(value)._replace(mode=mode)
        if before is not None and before.mode is not None:
            mode = before.mode & 0o777
        return Attrs(mode=mode)

    def _owner(self, value: tree.Entry) -> Attrs | None:
        """Return the owner to set with -a, by number, since SFTP knows no names.

        That this fails is no error: it may not be the user's to give.
        """
        owner = _wanted_owner(value.extra) if self._policy.archive else None
        return Attrs(uid=owner[0], gid=owner[1]) if owner else None

    def _part(self, path: bytes, nonce: str = "") -> bytes:
        """Return the name of this run's part of a file, or of the run with this nonce."""
        return _beside(path, self.copy.token + (nonce or self.copy.nonce))

    def _private_part(self, path: bytes) -> bytes:
        return _beside(path, self._private)

    async def _explain(self, error: Exception, wanted_bytes: int = 1) -> Exception:
        return await self.client.explain(error, self.root.full(""), wanted_bytes)

    async def _failure(self, error: Exception, path: str) -> failures.Data:
        return failures.from_exception(await self._explain(error), path)

    # --- after all files: hard links, then folders' metadata

    async def hard_links(self, request: hardlinks.HardLinks) -> list[object]:
        same: list[int] = []
        others: list[int] = []

        async def link(value: tree.Entry) -> None:
            was_it = await self._hard_link(value)
            if was_it is not None:
                (same if was_it else others).append(request.entries.index(value))

        return [await self._each(request.entries, link), same, others]

    async def _hard_link(self, value: tree.Entry) -> bool | None:
        """Make the entry a name of its target. Return whether it was that already; None: no name.

        Where a server removes a file that is replaced (no posix-rename), it was not.
        """
        if sftp.HARDLINK not in self.client.extensions:
            message = "is a hard link, and this server makes none over SFTP"
            raise Refusal(failures.UNSUPPORTED, value.path, message)
        first = await self.root.at(value.target)
        path = await self.root.at(value.path, make=True)
        before = replaced(await lookup(self.client, path), value.path)
        part = self._private_part(path)
        await self.client.hardlink(first, part)
        try:
            await self.client.rename(part, path)
        finally:
            [left] = await outcomes(self.client.remove(part))
        if left is None:  # it was there still: rename(2) does nothing when both are one file
            return True
        return None if before is None else False

    async def folders(self, request: requests.Folders) -> list[tuple[int, failures.Data]]:
        gone = set()
        for value in request.entries:  # the deepest first, so that one may empty the next
            if "filled" not in value.extra:
                continue
            with contextlib.suppress(SftpError):  # it is not there, or something is in it
                found = await self.client.lstat(self.root.full(value.path))
                if found.mode is not None and is_unfinished(found.mode):
                    await self.root.rmdir(value.path)
                    gone.add(value.path)

        async def finish(value: tree.Entry) -> None:
            if value.path in gone:
                return
            await self.root.folder(value.path, value.path)
            path, owner = self.root.full(value.path), self._owner(value)
            if owner is not None:
                await outcomes(self.client.setstat(path, owner))
            if self._policy.preserve:
                await self._give_folder(path, value)
            elif "new" in value.extra:
                made = (await self.client.lstat(path)).mode
                attrs = Attrs(mode=self._policy.mode(value.mode, made or 0))
                await self._set_mode(self.client.setstat(path, attrs))

        return await self._each(request.entries, finish)

    async def _give_folder(self, path: bytes, value: tree.Entry) -> None:
        """Give a folder its mode and times. Raises SftpError, or Refusal as the agent does."""
        try:
            await self.client.setstat(path, self._attrs(value))
        except SftpError as error:
            owner = (await self.client.lstat(path)).uid
            is_ours = owner == (self._made_private or [owner])[0]
            if is_ours or "new" in value.extra or error.code != packets.PERMISSION_DENIED:
                raise
            raise Refusal(failures.OWNER, value.path, "belongs to another user") from None

    async def _each(
        self, entries: list[tree.Entry], act: Callable[[tree.Entry], Steps[None]]
    ) -> list[tuple[int, failures.Data]]:
        """Call `act` with all entries at once; return place and failure of those that failed."""
        found = await outcomes(*[act(value) for value in entries])
        failed = [
            await self._failure(error, value.path) if isinstance(error, Exception) else None
            for value, error in zip(entries, found, strict=True)
        ]
        return failures.places(failed)

    # --- what is there already

    async def look(self, request: asked.Lookup) -> list[object]:
        return list(await gather(*[self._look_at(*each) for each in asked.with_wanted(request)]))

    async def _look_at(self, path: str, wanted: dict[str, object] | None) -> object:
        try:
            full = await self.root.at(path) if path else self.root.full("")
        except Refusal:  # nothing can be there: no folder is on the way
            return asked.nothing()
        except SftpError as error:
            return _not_seen(path, error, [])
        runs = self.copy.earlier if path else []
        parts = [self.client.lstat(self._part(full, nonce)) for nonce in runs]
        look = self.client.lstat if path else self.client.stat
        found, *left = await outcomes(look(full), *parts)
        named = zip(runs, left, strict=True)
        runs = [nonce for nonce, part in named if isinstance(part, Attrs)]
        if isinstance(found, Exception):
            return _not_seen(path, found, runs)
        target = b""
        if found.is_link:
            with contextlib.suppress(SftpError):
                target = await self.client.readlink(full)
        row = [found.kind, found.size or 0, found.mtime_ns]
        if found.kind == packets.OTHER:
            row = [packets.OTHER, 0, 0]
        differs = self.what_differs(found, wanted)
        return [*row, runs, stat.S_IMODE(found.mode or 0), differs, to_text(target), 0]

    def what_differs(self, found: Attrs, wanted: dict[str, object] | None) -> str:
        """Return what Lookup says of it. Owners count where it is known that root serves. Where it
        is not known who does, as nothing is made (-n), that is taken to be DEST's owner.
        """
        if self.are_modes_its_own:
            return asked.OWN
        if wanted is None or found.uid is None:
            return ""
        user = self._made_private[0] if self._made_private else None
        if found.is_folder and user != 0 and found.uid != (user or self._roots_owner):
            return "none"
        owner = _wanted_owner(wanted) if user == 0 else None
        return "owner" if owner and owner != (found.uid, found.gid) else ""

    @property
    def are_modes_its_own(self) -> bool:
        """Return whether the server gives modes and owners of its own."""
        return sftp.OWN_MODES in self.client.extensions

    def is_alike(self, found: Attrs, mode: int, wanted: dict[str, object] | None) -> bool:
        """Return whether this mode and owner are what it has, as far as they are for clients."""
        differs = self.what_differs(found, wanted)
        return differs == asked.OWN or (not differs and stat.S_IMODE(found.mode or 0) == mode)

    async def landed(self, request: asked.Landed) -> list[object]:
        root = self.root.anew()

        async def look(path: str) -> list[object]:
            found = await lookup(self.client, await root.at(path))
            if found is None:
                return asked.nothing()
            mode = stat.S_IMODE(found.mode or 0)
            return [found.kind, found.size or 0, found.mtime_ns, [], mode, "", "", 0]

        return await results((path, look(path)) for path in request.paths)

    async def digests(self, request: asked.DigestsThere) -> list[object]:
        return await results(
            (path, self._digests(path, is_part, extents, request.hash))
            for is_part, path, extents in request.files
        )

    async def _digests(
        self, path: str, is_part: bool, extents: requests.Pieces, algorithm: str
    ) -> list[str | None]:
        full = await self.root.at(path)
        if is_part:
            full = self._part(full)
        status = await lookup(self.client, full)
        if status is None:
            return [None] * len(extents)
        if not status.is_file:
            raise Refusal(failures.UNSAFE, path, "is not a file there")
        size = status.size or 0
        small = (0, size) if size <= PACK_FILE_BYTES else None
        return await self._hashing.hex_digests(full, extents, algorithm, small)

    async def extents(self, request: asked.ExtentsThere) -> tuple[list[list[int]], bool]:
        status = await self.client.lstat(await self.root.at(request.path))
        return extents_behind(request.offset, status.size or 0)

    async def inherit(self, request: asked.Inherit) -> bool:
        """Make an earlier run's part this run's own; return whether this run has one now."""
        value = request.entry
        path = await self.root.at(value.path)
        own, part = self._part(path), self._part(path, request.nonce)
        there, left = await outcomes(self.client.lstat(own), self.client.lstat(part))
        if isinstance(there, SftpError) and self._is_private(left, value.size):
            await outcomes(self.client.rename_if_free(part, own))
            [there] = await outcomes(self.client.lstat(own))
        return self._is_private(there, value.size)  # another lane may have renamed it

    def _is_private(self, found: Attrs | Exception, size_bytes: int) -> bool:
        """Is it a part of this size, or not so long yet, as this user makes them, as far as
        attributes tell?
        """
        if not isinstance(found, Attrs) or not found.is_file or (found.size or 0) > size_bytes:
            return False
        if was_file(found):
            return False
        owner, access = owner_and_access(found)
        made_owner, made_access = self._made_private or (owner, 0)
        return owner == made_owner and access in (0, made_access)

    async def discard(self, request: requests.Discard) -> bool | None:
        """Remove the parts of the file that these runs left, "" being this one.

        Returns False where one of them is still there; None as Parts.remove() does.
        """
        try:
            full = await self.root.at(request.path)
            parts = [self._part(full, nonce) for nonce in request.nonces]
            final, *there = await gather(*[lookup(self.client, each) for each in (full, *parts)])
            if final is None or not final.is_file:
                found = zip(parts, there, strict=True)
                parts = [part for part, status in found if not was_file(status)]
            await outcomes(*[self.client.remove(part) for part in parts])
            left = await gather(*[lookup(self.client, part) for part in parts])
            return None if len(parts) < len(there) else not any(left)
        except SftpError as error:
            return is_missing(error)
        except Refusal:
            return False

    async def sweep(self, request: requests.Sweep) -> None:
        await outcomes(*[self._sweep(folder) for folder in request.folders])

    async def _sweep(self, folder: str) -> None:
        """Remove the parts of small files that lanes which died left in a folder."""
        await self.root.folder(folder, folder)
        path = self.root.full(folder)
        async with self.client.handles.taken(1):
            names = [name for name, _ in await list_folder(self.client, path)]
        parts = private_parts(names, self.copy.token, [*self.copy.earlier, self.copy.nonce])
        await outcomes(*[self.client.remove(join(path, part)) for part in parts])

    async def revoke(self, request: requests.Revoke) -> None:
        """Do nothing: SFTP has no lock that holds back what a lost lane still has on its way."""

    async def release(self, request: requests.Release) -> None:
        await self.fence.release(self.copy.nonce)

    async def folds(self, request: requests.Folds) -> bool:
        folder, names = request.folder, alike_names(self.copy.token, self.copy.nonce)
        await self.root.folder(folder, folder, make=request.make)
        first, *others = [join(self.root.full(folder), name) for name in names]
        create = packets.FOR_WRITE | packets.CREATE
        await self.client.close(await self.client.open(first, create, 0o600))
        found = await outcomes(*[self.client.lstat(other) for other in others])
        await outcomes(self.client.remove(first))
        return any(isinstance(each, Attrs) for each in found)

    async def unmark(self, request: requests.Unmark) -> None:
        await self.root.unmark()

    async def adopt(self, request: asked.Adopt) -> list[tuple[int, failures.Data]]:
        return await self._each(request.entries, self._adopt)

    async def _adopt(self, value: tree.Entry) -> None:
        """Give a folder, or a file that is verified, which is there already, its source's metadata,
        with -p.
        """
        if not self._policy.preserve:
            return
        if value.kind == tree.FOLDER:
            await self._adopt_folder(value)
            return
        path = await self.root.at(value.path)
        found = await self.client.lstat(path)
        if self.are_modes_its_own and found.mtime == times(value).mtime:
            return  # who may only add may not even set what it has
        if found.is_file:
            if (owner := self._owner(value)) is not None:
                await outcomes(self.client.setstat(path, owner))
            await self.client.setstat(path, self._attrs(value))

    async def _adopt_folder(self, value: tree.Entry) -> None:
        await self.root.folder(value.path, value.path)
        path, owner = self.root.full(value.path), self._owner(value)
        found = await self.client.stat(path)
        is_given = False  # an owner: no server has to keep the mode then
        if owner is not None and (found.uid, found.gid) != (owner.uid, owner.gid):
            [refused] = await outcomes(self.client.setstat(path, owner))
            is_given = not isinstance(refused, Exception)
        is_same = self.is_alike(found, self._policy.mode(value.mode), None)
        if is_given or not is_same or found.mtime != times(value).mtime:
            await self._give_folder(path, value)


def _not_seen(path: str, error: Exception, runs: list[str]) -> object:
    """Return what Lookup's answer has for a path of which the server tells nothing."""
    if not isinstance(error, SftpError):
        raise error
    if is_missing(error) or error.errno in failures.ABSENT:
        return asked.nothing(runs)
    return asked.not_seen(path, error)


def _wanted_owner(extra: dict[str, object]) -> tuple[int, int] | None:
    """Return the owner that an entry with this is to have; None for none."""
    owner = extra.get("o")
    if not isinstance(owner, list) or len(owner) < 2:
        return None
    uid, gid = owner[:2]
    are_right = all(isinstance(each, int) and 0 <= each < _ID_END for each in (uid, gid))
    return (uid, gid) if are_right else None


def _beside(path: bytes, key: str) -> bytes:
    folder, _, name = path.rpartition(b"/")
    return join(folder or b"/", part_name(name, key))


def times(value: tree.Entry) -> Attrs:
    """Return the entry's times, in whole seconds."""
    atime_ns = value.extra.get("a")
    atime_ns = atime_ns if isinstance(atime_ns, int) else value.mtime_ns
    return Attrs(atime=atime_ns // NANO, mtime=value.mtime_ns // NANO)


def replaced(status: Attrs | None, path: str) -> Attrs | None:
    """Return the file that will be replaced, if there is one. Raises Refusal for a folder."""
    if status is None or status.is_link:
        return None
    if status.is_file:
        return status
    what = "a folder" if status.is_folder else "a special file"
    raise Refusal(failures.DESTINATION, path, f"is {what} at the destination")
