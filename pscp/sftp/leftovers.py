"""Finds what cut copies left below a folder at the far end, by its age, and removes it.

As endpoint/leftovers.py, by requests. SFTP tells neither who has a file open nor whose it is to
lock, so whatever is younger than a day by the server's times counts as held.

Not here: what a user sees of it (../cleaning.py).
Read next: agent.py.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from pscp.endpoint import failures
from pscp.endpoint.leftovers import (
    DAY_S,
    FAILED,
    FOUND,
    HELD,
    Item,
    Page,
    fence_token,
    part_token,
)
from pscp.endpoint.paths import to_bytes, to_text
from pscp.sftp.client import Client
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.paths import absolute, is_missing, join, lookup
from pscp.sftp.tree import list_folder


class Search:
    """A search below one folder, which goes on from page to page."""

    def __init__(self, client: Client, path: str, remove: bool) -> None:
        self._client, self._path, self._remove = client, path, remove
        self._items = self._search()

    async def page(self) -> dict[str, object]:
        """Return what two seconds find, and whether that was the last of it. Raises Refusal."""
        page = Page()
        async for item in self._items:
            if not page.add(item):
                break
        return page.answer

    async def _search(self) -> AsyncIterator[Item | None]:
        """Yield each item, and None now and then. A folder comes before what is in it."""
        root = await absolute(self._client, to_bytes(self._path))
        status = await lookup(self._client, root, follow=True)
        if status is None or not status.is_folder:
            raise failures.Refusal(failures.DESTINATION, self._path, "no such folder")
        pending: list[tuple[bytes, frozenset[bytes]]] = [(b"", frozenset())]
        while pending:
            path, fenced = pending.pop()
            try:
                found = await list_folder(self._client, join(root, path) if path else root)
            except SftpError as error:
                if not is_missing(error):
                    yield FAILED, [to_text(path), failures.from_exception(error, "")["message"]]
                continue
            found = [(name, status) for name, status in found if name and b"/" not in name]
            fenced |= {fence_token(name) for name, status in found if _age_s(status) < DAY_S} - {
                b""
            }
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
        name = path.rpartition(b"/")[2]
        if not (status.is_file or status.is_link):
            return None
        row = [to_text(path), status.size or 0, max(int(_age_s(status)), 0)]
        if _age_s(status) < DAY_S or part_token(name) in fenced:
            return HELD, row
        try:
            now = await self._client.lstat(full)
            if now.mtime != status.mtime or now.size != status.size:
                return HELD, row
            if self._remove:
                await self._client.remove(full)
        except SftpError as error:
            if is_missing(error):
                return None
            return FAILED, [to_text(path), failures.from_exception(error, "")["message"]]
        return FOUND, row


def _age_s(status: Attrs) -> float:
    """Return an item's age; one whose time the server does not tell counts as new."""
    return 0 if status.mtime is None else time.time() - status.mtime
