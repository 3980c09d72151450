"""What a mirror does over SFTP (--delete), as endpoint/mirror.py does it with an agent.

SFTP has no inodes: what was seen of a file is its size and mtime, and a filesystem that takes two
names for one is known by the names. It has no locks either: whether this run owns the copy is
looked at before some files at a time are removed. A mount point is known where the server has
statvfs@openssh.com.

Not here: files of the source (moving.py), when any of this is asked (../transfer/ending/mirror.py).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from pscp.endpoint import failures, fence, mirror, tree
from pscp.endpoint.files import Changed
from pscp.endpoint.paths import is_pscps_own, to_bytes, to_text, without_own
from pscp.sftp import end
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.packets import Attrs, SftpError
from pscp.sftp.protocol.paths import Root, is_missing, join, lookup
from pscp.sftp.protocol.tasks import gather, outcomes, results
from pscp.sftp.sink import Sink
from pscp.sftp.source import Source
from pscp.sftp.tree import list_folder

AT_ONCE = 32  # files that are looked at, and then removed, at once

# --- of the sink


class Folder:
    """A folder of the destination that is looked through."""

    def __init__(self, client: Client, path: bytes, there: dict[bytes, Attrs]) -> None:
        self._client, self._path, self._there = client, path, there

    async def rows(self, piece: mirror.Piece, most_bytes: int) -> tuple[list[mirror.Row], bool]:
        """Return the first of a piece's rows, at least one, and whether these were all."""
        _, low, high, names = piece
        listed = {to_bytes(name) for name in names}
        found = mirror.in_piece(without_own(self._there.keys() - listed), low, high)
        if not found:
            return [], True
        same = {_folded(name) for name in await self._unlisted(listed)}
        rows: list[mirror.Row] = []
        for name in found:
            if most_bytes <= 0:
                return rows, False
            is_piece = bool(low or high)
            if _folded(name) in same or (is_piece and await self._unlisted(mirror.variants(name))):
                continue
            status = self._there[name]
            if status.mode is None:
                status = await self._client.lstat(join(self._path, name))
            kind = mirror.MOUNT if await self._is_mount(name, status) else status.kind
            rows.append([to_text(name), kind, _seen(status)])
            most_bytes -= mirror.weight_bytes(rows[-1][0])
        return rows, True

    async def _unlisted(self, names: Iterable[bytes]) -> list[bytes]:
        """Return those names that there are, though the folder's listing has none of them."""
        asked = [name for name in names if name not in self._there]
        found = await outcomes(*[self._client.lstat(join(self._path, name)) for name in asked])
        return [n for n, each in zip(asked, found, strict=True) if isinstance(each, Attrs)]

    async def _is_mount(self, name: bytes, status: Attrs) -> bool:
        """Tell whether a folder is in another filesystem than the one that it is in."""
        if not status.is_folder:
            return False
        path = join(self._path, name)
        here, there = await gather(
            self._client.filesystem(self._path), self._client.filesystem(path)
        )
        return here != there


async def _extras(of: end.End, request: mirror.Extras) -> list[object]:
    sink, left_bytes = of.the_sink(), mirror.ANSWER_BYTES
    answers: list[object] = []
    for piece in request.pieces:
        if left_bytes <= 0:
            answers.append([[], True])
            continue
        try:
            rows, is_all = await _rows(sink, piece, left_bytes)
        except failures.EXPECTED as error:
            answers.append(failures.from_exception(error, piece[0]))
            continue
        left_bytes -= sum(mirror.weight_bytes(row[0]) for row in rows)
        answers.append([rows, not is_all])
    return answers


async def _rows(sink: Sink, piece: mirror.Piece, most_bytes: int) -> tuple[list[mirror.Row], bool]:
    root = _new_root(sink)
    path = root.full(piece[0])
    try:
        await root.folder(piece[0], piece[0])
        listed = await list_folder(sink.client, path)
    except SftpError as error:
        if is_missing(error):
            return [], True
        raise
    there = {name: status for name, status in listed if b"/" not in name and b"\0" not in name}
    return await Folder(sink.client, path, there).rows(piece, most_bytes)


def _new_root(sink: Sink) -> Root:
    """Return the destination's root, below which each folder is checked anew."""
    return Root(sink.client, to_text(sink.root.full("")))


def _folded(name: bytes) -> str:
    return unicodedata.normalize("NFC", to_text(name).casefold())


def _seen(status: Attrs) -> str:
    return "" if status.is_folder else f"{status.size} {status.mtime}"


async def _remove(of: end.End, request: mirror.Remove) -> list[object]:
    sink = of.the_sink()
    found: list[object] = []
    extras = request.extras
    while len(found) < len(extras):
        # What is in a folder is removed before the folder is.
        count = 1 if extras[len(found)][1] == tree.FOLDER else AT_ONCE
        some = extras[len(found) : len(found) + count]
        await _check_owned(sink)
        root = _new_root(sink)
        found += await results((extra[0], _remove_one(sink, root, extra)) for extra in some)
    failed = enumerate(found)
    return [(place, failure) for place, failure in failed if failure is not None]


async def _check_owned(sink: Sink) -> None:
    """Raise Refusal where another run owns the copy, or none does."""
    owner = await sink.owner()
    if not owner:
        message = "it has no fence of this copy, so nothing can be deleted there"
        raise failures.Refusal(failures.DESTINATION, to_text(sink.root.full("")), message)
    if owner != sink.nonce:
        raise fence.superseded()


async def _remove_one(sink: Sink, root: Root, extra: mirror.Extra) -> None:
    """Remove a name. Raises Refusal where it is another thing by now, SftpError."""
    path, kind, seen = extra
    try:
        full = await root.at(path)
    except SftpError as error:
        if is_missing(error):
            return
        raise
    status = await lookup(sink.client, full)
    if status is None:  # removed already, maybe by a lane that was lost then
        return
    if (status.kind, _seen(status)) != (kind, seen) or is_pscps_own(full.rpartition(b"/")[2]):
        raise mirror.not_as_listed(path)
    try:
        await let_go(sink.client, full, is_folder=kind == tree.FOLDER)
    except SftpError:
        if kind != tree.FOLDER or not await _has_removed_parts(sink, path, full):
            raise
        await let_go(sink.client, full, is_folder=True)


async def let_go(client: Client, path: bytes, *, is_folder: bool = False) -> None:
    """Remove a name that a person gave, as endpoint/letting_go.py does. Raises SftpError."""
    await (client.rmdir(path) if is_folder else client.remove(path))


async def _has_removed_parts(sink: Sink, folder: str, path: bytes) -> bool:
    """Remove the parts of earlier runs of this copy from a folder that goes. Return whether there
    were only such; raises Refusal where other copies' are left.
    """
    names = {name for name, _ in await list_folder(sink.client, path)}
    if without_own(names):
        return False
    own = {name for name in names if mirror.is_part_of(name, sink.token)}
    await outcomes(*[sink.client.remove(join(path, name)) for name in own])
    if names - own:
        raise mirror.parts_of_others(folder)
    return True


# --- of the source


async def _absent(of: end.End, request: mirror.Absent) -> list[object]:
    source = of.the_source()
    return await results(
        (folder, _there_after_all(source, request.crosses, (top, folder, inode, names)))
        for top, folder, inode, names in request.folders
    )


async def _there_after_all(source: Source, crosses: bool, listed: mirror.Listed) -> list[str]:
    """Return those names that the folder has. Raises Changed where it is no folder by now."""
    top, folder, _, names = listed
    root, rest = source.where(top, folder)
    path = join(root, to_bytes(rest)) if rest else root
    client = source.client
    if not (await (client.stat if source.follows else client.lstat)(path)).is_folder:
        raise Changed()
    if not crosses:
        here, there = await gather(client.filesystem(root), client.filesystem(path))
        if here is None or here != there:
            return names
    found = await gather(*[lookup(client, join(path, to_bytes(name))) for name in names])
    return [name for name, status in zip(names, found, strict=True) if status is not None]


_ANSWERS: dict[type, end.Answer] = {
    mirror.Extras: _extras,
    mirror.Absent: _absent,
    mirror.Remove: _remove,
}
end.ANSWERS.update(_ANSWERS)
