"""The walk of a source over SFTP, in the order of endpoint/reading/tree.py, folders read ahead.

A folder's listing has its entries' metadata; only links take requests of their own. The folders
that come next are listed ahead, so that a tree of many folders does not wait for each. The entries
of listed paths are those of endpoint/there/listed_paths.py.

Not here: contents (source.py), whole folders that are compared (listings.py), what a path as typed
means (placing.py).
Read next: source.py.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.files import PACK_FILE_BYTES
from pscp.endpoint.reading.paths import is_pscps_own, to_bytes, to_text
from pscp.endpoint.reading.source import Top
from pscp.endpoint.reading.tree import Entry, Rules
from pscp.endpoint.there.listed_paths import ABOVE, ALL, Row, is_below_excluded
from pscp.sftp.protocol import packets
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.packets import NANO, Attrs, SftpError
from pscp.sftp.protocol.paths import Root, join
from pscp.sftp.protocol.tasks import Task, gather, outcomes, start

_AT_ONCE = 4  # READDIRs in flight for one folder
_AHEAD = 32  # folders that are listed before it is their turn
_PATHS_AHEAD = 64  # of a list, that are looked at before it is their turn
# Memory for one listing: a million names of 255 bytes fit. One that is read ahead may have a share
# of it; where it takes more, it is read again when it is its turn.
_LISTING_BYTES = 640 * 1024 * 1024
_NAME_BYTES = 362  # of memory for a name with its attributes, beside the name itself


class FolderEntry(NamedTuple):
    """One name of a folder, and what it names."""

    name: bytes
    status: Attrs | failures.Data  # a failure where the attributes cannot be had
    link: bytes  # a link's target, with -a
    real: bytes  # the real path of a top, and of a folder that a link leads to


class TooLong(failures.Refusal):
    """The error of a listing that takes too much memory; it may have no end."""


async def list_folder(
    client: Client, path: bytes, most_bytes: int = _LISTING_BYTES
) -> list[tuple[bytes, Attrs]]:
    """Return the names in a folder with their attributes, sorted by name.

    sftp-server leaves out names that it may not look at. Of a folder that may not be searched
    these are all names, "." as well; then SftpError is raised. Raises TooLong, SftpError.
    """
    handle = await client.opendir(path)
    found: list[tuple[bytes, Attrs]] = []
    size_bytes = 0
    try:
        while True:
            answers = await outcomes(*[client.readdir(handle) for _ in range(_AT_ONCE)])
            for each in answers:
                if isinstance(each, list):
                    found += each
                    size_bytes += sum(len(name) + _NAME_BYTES for name, _ in each)
            if size_bytes > most_bytes:
                message = "is a folder with more names than can be kept here"
                raise TooLong(failures.UNSUPPORTED, to_text(path), message)
            errors = [each for each in answers if isinstance(each, Exception)]
            for error in errors:
                if not (isinstance(error, SftpError) and error.code == packets.EOF):
                    raise error
            if errors:
                break
    finally:
        client.close(handle)
    if not found:
        await client.lstat(join(path, b"."))
    return sorted(each for each in found if each[0] not in (b".", b".."))


class Walk:
    """The walk of several tops."""

    def __init__(self, client: Client, tops: Sequence[Top], rules: Rules) -> None:
        self._client = client
        self._tops, self._rules, self._filters = tops, rules, tree.compiled(rules.filters)
        self._ahead: dict[bytes, Task[list[FolderEntry]]] = {}

    async def entries(self, after: tuple[int, str] | None) -> AsyncIterator[Entry]:
        """Yield all entries; with `after` (top, path) only those behind it in the order."""
        last = tree.place(*after) if after else None
        for number, top in enumerate(self._tops):
            if last is not None and number < last[0]:
                continue
            async for entry in self._below(number, top):
                if last is None or tree.place(number, entry.path) > last:
                    yield entry

    async def listed(
        self, rows: Sequence[Row], after: tuple[int, str] | None
    ) -> AsyncIterator[Entry]:
        """Yield the entries of these paths of the first top; with `after` only those behind it."""
        last = tree.place(*after) if after else None
        root = Root(self._client, self._tops[0].path)
        for begin in range(0, len(rows), _PATHS_AHEAD):
            group = rows[begin : begin + _PATHS_AHEAD]
            group = [row for row in group if not is_below_excluded(self._filters, row[0])]
            looks = await outcomes(*[self._look_at(root, path) for path, _ in group])
            for (path, how), found in zip(group, looks, strict=True):
                async for entry in self._of_path(path, root.full(path), how, found):
                    if last is None or tree.place(0, entry.path) > last:
                        yield entry

    async def described(self) -> list[Entry]:
        """Return the entry of each top itself."""
        paths = [to_bytes(top.path) for top in self._tops]
        looks = await gather(*[self._look(path, path, None) for path in paths])
        return [entry for found in looks for entry in self._entry(0, "", found, [b""])]

    # --- of listed paths

    async def _look_at(self, root: Root, path: str) -> FolderEntry:
        """Find out what a path names. Raises Refusal, SftpError where the way there is none."""
        if path and not self._rules.follow:
            await root.folder(path.rpartition("/")[0], path)
        return await self._look(root.full(path), root.full(path), None)

    async def _of_path(
        self, path: str, full: bytes, how: int, found: FolderEntry | Exception
    ) -> AsyncIterator[Entry]:
        if isinstance(found, Exception):
            failure = failures.from_exception(found, path)
            if isinstance(found, failures.Refusal):
                message = "is below a link or a file (-L follows links)"
                failure = failures.data(failures.UNSUPPORTED, path, message)
            elif not isinstance(found, SftpError):
                raise found
            entries = [tree.error_entry(0, path, failure)]
        elif how == ALL:
            async for entry in self._below(0, Top(path, to_text(full), True)):
                yield entry
            return
        else:
            entries = self._entry(0, path, found, [b""])
        for entry in entries:
            if how != ABOVE or entry.kind == tree.FOLDER:
                yield entry

    # --- of whole folders
    async def _below(self, number: int, top: Top) -> AsyncIterator[Entry]:
        """Yield a top and all that is below it, depth first, without recursion."""
        full = to_bytes(top.path)
        first = await self._look(full, full, None)
        pending = [(iter([first]), top.name, full)]
        ancestors = [b""]
        while pending:
            found = next(pending[-1][0], None)
            if found is None:
                pending.pop()
                ancestors.pop()
                continue
            is_top = len(pending) == 1
            path = top.name if is_top else below(pending[-1][1], found.name)
            here = full if is_top else join(pending[-1][2], found.name)
            for entry in self._entry(number, path, found, ancestors):
                if entry.kind != tree.FOLDER or not self._rules.recursive:
                    yield entry
                    continue
                try:
                    children = await self._children(here)
                except (SftpError, failures.Refusal) as error:
                    failure = failures.from_exception(error, path)
                    failure["path"] = path
                    yield entry
                    yield tree.error_entry(number, path + "/", failure)
                    continue
                self._read_ahead(here, path, children)
                entry, children = self._listed(entry, children)
                yield entry
                pending.append((iter(children), path, here))
                ancestors.append(found.real or join(ancestors[-1], found.name))

    # --- listings

    def _listed(
        self, entry: tree.Entry, children: list[FolderEntry]
    ) -> tuple[tree.Entry, list[FolderEntry]]:
        """Return a folder's entry, and of what is in it what gets entries."""
        return entry, children

    def _read_ahead(self, folder: bytes, path: str, children: list[FolderEntry]) -> None:
        for found in children:
            if len(self._ahead) >= _AHEAD:
                return
            full = join(folder, found.name)
            is_folder = isinstance(found.status, Attrs) and found.status.is_folder
            if not is_folder or full in self._ahead:
                continue
            if not tree.is_excluded(self._filters, below(path, found.name), True):
                self._ahead[full] = start(self._list(full, _LISTING_BYTES // _AHEAD))

    async def _children(self, folder: bytes) -> list[FolderEntry]:
        ahead = self._ahead.pop(folder, None)
        if ahead is not None:
            with contextlib.suppress(TooLong):
                return await ahead
        return await self._list(folder, _LISTING_BYTES)

    async def _list(self, folder: bytes, most_bytes: int) -> list[FolderEntry]:
        looking = [
            self._look(join(folder, name), name, status)
            for name, status in await list_folder(self._client, folder, most_bytes)
            if not is_pscps_own(name)
        ]
        return list(await gather(*looking))

    async def _look(self, full: bytes, name: bytes, status: Attrs | None) -> FolderEntry:
        """Find out what a listing does not tell of a name; `status` is None for a top."""
        try:
            if status is None or status.mode is None:
                found = await self._client.lstat(full)
            else:
                found = status
            real = b""
            if status is None and found.is_folder:  # that of a dangling link need not be there
                real = await self._client.realpath(full)
            if found.is_link and self._rules.follow:
                return await self._follow(full, name)
            link = await self._client.readlink(full) if found.is_link else b""
            if found.size is None or found.mtime is None:
                found = await self._client.lstat(full)
            return FolderEntry(name, found, link, real)
        except SftpError as error:
            return FolderEntry(name, failures.from_exception(error, ""), b"", b"")

    async def _follow(self, full: bytes, name: bytes) -> FolderEntry:
        status, real, target = await outcomes(
            self._client.stat(full), self._client.realpath(full), self._client.readlink(full)
        )
        if isinstance(status, Attrs):
            return FolderEntry(name, status, b"", real if isinstance(real, bytes) else full)
        why = failures.from_exception(status, "")["message"]
        problem = f"is a link that cannot be followed: {why}"
        if isinstance(target, bytes):
            problem = f"is a dangling link (to {to_text(target)})"
        return FolderEntry(name, failures.data(failures.UNSUPPORTED, "", problem), b"", b"")

    # --- entries

    def _entry(
        self, number: int, path: str, found: FolderEntry, ancestors: list[bytes]
    ) -> list[Entry]:
        """Return the entry in a list, or an empty list where it is excluded."""
        status = found.status
        kinds = (status.is_folder,) if isinstance(status, Attrs) else (False, True)
        if any(tree.is_excluded(self._filters, path, is_folder) for is_folder in kinds):
            return []
        if isinstance(status, dict):
            return [tree.error_entry(number, path, {**status, "path": path})]
        problem, is_below_top = "", len(ancestors) > 1
        if is_below_top and (b"/" in found.name or b"\0" in found.name or not found.name):
            problem = "is a name that no file can have"
        elif status.is_folder and not self._rules.recursive:
            problem = tree.NEEDS_R
        elif status.is_folder and found.real and found.real in ancestors:
            problem = "a loop of links"
        elif status.kind == packets.OTHER:
            problem = "is of a kind that the server does not tell"
        if problem:
            failure = failures.data(failures.UNSUPPORTED, path, problem)
            return [tree.error_entry(number, path, failure)]
        return [self._describe(number, path, status, found)]

    def _describe(self, number: int, path: str, status: Attrs, found: FolderEntry) -> Entry:
        extra: dict[str, object] = {}
        if self._rules.preserve:
            extra["a"] = status.mtime_ns if status.atime is None else status.atime * NANO
        if self._rules.archive and status.uid is not None and status.gid is not None:
            extra["o"] = [status.uid, status.gid, "", ""]
        if status.is_link:
            extra["to"] = to_text(found.link)
        size = (status.size or 0) if status.is_file else 0
        if size > PACK_FILE_BYTES:
            extra["dig"] = 1  # its holes are not known
        mode = stat.S_IMODE(status.mode or 0)
        return Entry(status.kind, number, path, size, mode, status.mtime_ns, 0, extra)


def below(path: str, name: bytes) -> str:
    """Return the path in the manifest of a name in a folder."""
    return f"{path}/{to_text(name)}" if path else to_text(name)
