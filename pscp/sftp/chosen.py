"""The entries of listed paths over SFTP: does as endpoint/chosen.py does, by requests.

Not here: the walk of whole folders (tree.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from pscp.endpoint import failures, tree
from pscp.endpoint.chosen import ABOVE, ALL, Row
from pscp.endpoint.paths import to_bytes, to_text
from pscp.endpoint.source import Top
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.packets import SftpError
from pscp.sftp.protocol.paths import Root, join
from pscp.sftp.protocol.tasks import gather, outcomes
from pscp.sftp.tree import Found, Walk

_AT_ONCE = 64  # paths that are looked at ahead


class ChosenWalk(Walk):
    """The entries of listed paths of the first top."""

    def __init__(self, client: Client, tops: Sequence[Top], rules: tree.Rules) -> None:
        super().__init__(client, tops, rules)
        self._root = Root(client, tops[0].path)

    async def listed(
        self, rows: Sequence[Row], after: tuple[int, str] | None
    ) -> AsyncIterator[tree.Entry]:
        """Yield the entries of these paths; with `after` only those behind it."""
        last = tree.place(*after) if after else None
        for begin in range(0, len(rows), _AT_ONCE):
            group = [row for row in rows[begin : begin + _AT_ONCE] if not self._is_left_out(row[0])]
            looks = await outcomes(*[self._look_at(path) for path, _ in group])
            for (path, how), found in zip(group, looks, strict=True):
                async for entry in self._of_path(path, how, found):
                    if last is None or tree.place(0, entry.path) > last:
                        yield entry

    async def described(self) -> list[tree.Entry]:
        """Return the entry of each top itself."""
        paths = [to_bytes(top.path) for top in self._tops]
        looks = await gather(*[self._look(path, path, None) for path in paths])
        return [entry for found in looks for entry in self._entry(0, "", found, [b""])]

    async def _look_at(self, path: str) -> Found:
        """Find out what a path names. Raises Refusal, SftpError where the way there is none."""
        if path and not self._rules.follow:
            await self._root.folder(path.rpartition("/")[0], path)
        full = self._full(path)
        return await self._look(full, full, None)

    def _full(self, path: str) -> bytes:
        root = to_bytes(self._tops[0].path)
        return join(root, to_bytes(path)) if path else root

    async def _of_path(
        self, path: str, how: int, found: Found | Exception
    ) -> AsyncIterator[tree.Entry]:
        if isinstance(found, Exception):
            failure = failures.from_exception(found, path)
            if isinstance(found, failures.Refusal):
                message = "is below a link or a file (-L follows links)"
                failure = failures.data(failures.UNSUPPORTED, path, message)
            elif not isinstance(found, SftpError):
                raise found
            entries = [tree.Entry(tree.ERROR, 0, path, 0, 0, 0, 0, dict(failure))]
        elif how == ALL:
            async for entry in self._below(0, Top(path, to_text(self._full(path)), True)):
                yield entry
            return
        else:
            entries = self._entry(0, path, found, [b""])
        for entry in entries:
            if how != ABOVE or entry.kind == tree.FOLDER:
                yield entry

    def _is_left_out(self, path: str) -> bool:
        """Return whether a folder above the path is excluded."""
        while "/" in path and self._rules.filters:
            path = path.rpartition("/")[0]
            if tree.is_excluded(self._filters, path, True):
                return True
        return False
