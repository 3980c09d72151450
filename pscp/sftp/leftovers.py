"""Finds the parts and fences that cut copies left below a far folder, and removes the old ones.

It does as endpoint/there/leftovers.py does, by requests. SFTP tells neither who has a file open nor
has it locks, so whatever is younger than a day by the server's times counts as held.

Not here: how they are shown to a user (../cli/earlier_runs.py).
Read next: agent.py.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from pscp.endpoint.frames import failures
from pscp.endpoint.reading.paths import to_bytes, to_text
from pscp.endpoint.there import leftovers as known
from pscp.endpoint.there.leftovers import DAY_S, Item, fence_token, part_token
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.packets import Attrs, SftpError
from pscp.sftp.protocol.paths import absolute, is_folder, is_missing, join, was_file
from pscp.sftp.tree import list_folder


class Search:
    """A search below one folder, whose results come page by page."""

    def __init__(self, client: Client, path: str, remove: bool, *, force: bool = False) -> None:
        self._client, self._path, self._remove = client, path, remove
        self._young_s = 0 if force else DAY_S
        self._items = self._search()

    async def page(self) -> dict[str, object]:
        """Return what was found within two seconds, and whether it was the last. Raises Refusal."""
        page = known.Page()
        async for item in self._items:
            if not page.add(item):
                break
        return page.answer

    async def _search(self) -> AsyncIterator[Item | None]:
        """Yield each item, and None after each folder. A folder comes before its folders."""
        root = await absolute(self._client, to_bytes(self._path))
        if not await is_folder(self._client, root):
            raise failures.Refusal(failures.DESTINATION, self._path, "no such folder")
        pending: list[tuple[bytes, frozenset[bytes]]] = [(b"", frozenset())]
        while pending:
            path, fenced = pending.pop()
            try:
                listed = await list_folder(self._client, join(root, path) if path else root)
            except SftpError as error:
                if not is_missing(error):
                    yield _failed(path, error)
                continue
            found = [(name, status) for name, status in listed if name and b"/" not in name]
            young = {fence_token(name) for name, status in found if _age_s(status) < self._young_s}
            fenced |= young - {b""}
            folders = []
            for name, status in found:
                below = join(path, name) if path else name
                if status.is_folder:
                    folders.append((below, fenced))
                elif part_token(name) or fence_token(name):
                    yield await self._judge(join(root, below), below, status, fenced)
            pending += reversed(folders)
            yield None

    async def _judge(
        self, full: bytes, path: bytes, status: Attrs, fenced: frozenset[bytes]
    ) -> Item | None:
        """Return what to report of a part or fence; with `remove`, remove it if it is old."""
        name = path.rpartition(b"/")[2]
        if not (status.is_file or status.is_link):
            return None
        row = [to_text(path), status.size or 0, max(int(_age_s(status)), 0), was_file(status)]
        if _age_s(status) < self._young_s or part_token(name) in fenced:
            return known.HELD, row
        try:
            now = await self._client.lstat(full)
            if now.mtime != status.mtime or now.size != status.size:
                return known.HELD, row
            if self._remove:
                await self._client.remove(full)
        except SftpError as error:
            if is_missing(error):
                return None
            return _failed(path, error)
        return known.FOUND, row


def _failed(path: bytes, error: SftpError) -> Item:
    return known.FAILED, [to_text(path), failures.from_exception(error, "")["message"]]


def _age_s(status: Attrs) -> float:
    """Return a file's age; one whose time the server does not tell counts as new."""
    return 0 if status.mtime is None else time.time() - status.mtime
