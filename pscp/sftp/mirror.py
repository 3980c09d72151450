"""A mirror's work at both ends over SFTP (--delete), as in endpoint/there/mirror.py.

SFTP has no inodes: what was seen of a file is its size and mtime, and a filesystem that takes two
names for one is known by the names. It has no locks either: whether this run owns the copy is
looked at before some files at a time are removed. A mount point is known where the server has
statvfs@openssh.com.

Not here: when any of this is asked (../transfer/ending/mirror.py), sources that were moved
(moving.py).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from itertools import zip_longest

from pscp.endpoint.asking.answers import Failed
from pscp.endpoint.frames import failures
from pscp.endpoint.frames.failures import FileChanged
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import is_pscps_own, to_bytes, to_text, without_own
from pscp.endpoint.there import mirror
from pscp.endpoint.writing import fence
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.packets import Attrs, SftpError
from pscp.sftp.protocol.paths import Root, is_missing, join, lookup
from pscp.sftp.protocol.tasks import gather, outcomes, results
from pscp.sftp.sink import Sink
from pscp.sftp.source import Source
from pscp.sftp.tree import list_folder

AT_ONCE = 32  # files that are looked at, and then removed, at once

# --- what the destination has, and the source has not


async def extras(sink: Sink, request: mirror.Extras) -> list[object]:
    left_bytes = mirror.ANSWER_BYTES
    answers: list[object] = []
    for piece, top in zip_longest(request.pieces, request.tops[: len(request.pieces)]):
        if left_bytes <= 0:
            answers.append([[], True])
            continue
        try:
            if top is not None and await _is_apart(sink, top, piece[0]):
                answers.append([[], None])
                continue
            rows, is_all = await _rows(sink, piece, left_bytes)
        except failures.EXPECTED as error:
            if not mirror.is_no_folder(error):
                answers.append(failures.from_exception(error, piece[0]))
                continue
            rows, is_all = [], True
        left_bytes -= sum(mirror.weight_bytes(row[0]) for row in rows)
        answers.append([rows, not is_all])
    return answers


async def _is_apart(sink: Sink, top: str, folder: str) -> bool:
    """Tell whether the folder is in another filesystem than its top. Raises Refusal where the
    server does not tell, SftpError.
    """
    of_top, of_folder = map(sink.root.anew().full, (top, folder))
    if await lookup(sink.client, of_folder) is None:
        return False
    is_apart = await sink.client.are_apart(of_top, of_folder)
    if is_apart is None:
        message = (
            "over SFTP without statvfs@openssh.com no mount point is known: it goes without -x"
        )
        raise failures.Refusal(failures.UNSUPPORTED, "", f"nothing was deleted: {message}")
    return is_apart


async def _rows(sink: Sink, piece: mirror.Piece, most_bytes: int) -> tuple[list[mirror.Row], bool]:
    """Return the first of a piece's rows, at least one, and whether these were all."""
    folder, low, high, names = piece
    client, root = sink.client, sink.root.anew()
    path, listed = root.full(folder), {to_bytes(name) for name in names}
    try:
        await root.folder(folder, folder)
        there = dict(await list_folder(client, path))
    except SftpError as error:
        if is_missing(error):
            return [], True
        raise
    there = {name: there[name] for name in there if b"/" not in name and b"\0" not in name}
    found = mirror.in_piece(without_own(there.keys() - listed), low, high)
    # Where the filesystem takes two names for one, the copy's own file may have another.
    same = await _unlisted(client, path, listed - there.keys()) if found else []
    folded = {_folded(name) for name in same}
    rows: list[mirror.Row] = []
    for name in found:
        if most_bytes <= 0:
            return rows, False
        others = mirror.variants(name) - there.keys() if low or high else set()
        if _folded(name) in folded or await _unlisted(client, path, others):
            continue
        status = there[name]
        if status.mode is None:
            status = await client.lstat(join(path, name))
        rows.append([to_text(name), await _kind(client, path, name, status), _seen(status)])
        most_bytes -= mirror.weight_bytes(rows[-1][0])
    return rows, True


async def _kind(client: Client, folder: bytes, name: bytes, status: Attrs) -> str:
    is_mount = status.is_folder and await client.are_apart(folder, join(folder, name))
    return mirror.MOUNT if is_mount else status.kind


async def all_in_the_way(sink: Sink, request: mirror.InTheWay) -> list[object]:
    root = sink.root.anew()

    async def in_the_way(path: str) -> list[str]:
        folder, _, name = (await root.at(path)).rpartition(b"/")
        status = await lookup(sink.client, join(folder or b"/", name))
        if status is None:
            return ["", ""]
        return [await _kind(sink.client, folder or b"/", name, status), _seen(status)]

    return await results((path, in_the_way(path)) for path in request.paths)


async def _unlisted(client: Client, folder: bytes, names: Iterable[bytes]) -> list[bytes]:
    """Return those names that there are, though the folder's listing has none of them."""
    asked = list(names)
    found = await outcomes(*[client.lstat(join(folder, name)) for name in asked])
    return [n for n, each in zip(asked, found, strict=True) if isinstance(each, Attrs)]


def _folded(name: bytes) -> str:
    return unicodedata.normalize("NFKC", to_text(name).casefold())


def _seen(status: Attrs) -> str:
    return "" if status.is_folder else f"{status.size} {status.mtime}"


async def absent(source: Source, request: mirror.Absent) -> list[object]:
    return await results(
        (listed[1], _there_after_all(source, request.crosses, listed)) for listed in request.folders
    )


async def _there_after_all(source: Source, crosses: bool, listed: mirror.Listed) -> list[str]:
    """Return those names that the folder has. Raises FileChanged where it is no folder by now."""
    top, folder, _, names = listed
    (root, _), path = source.where(top, folder), source.full(top, folder)
    client = source.client
    if not (await source.status(path)).is_folder:
        raise FileChanged()
    if not crosses and await client.are_apart(root, path) is not False:
        return names
    found = await gather(*[lookup(client, join(path, to_bytes(name))) for name in names])
    return [name for name, status in zip(names, found, strict=True) if status is not None]


# --- what is removed


async def remove(sink: Sink, request: mirror.Remove) -> Failed:
    found: failures.Outcome = []
    extras = request.extras
    while len(found) < len(extras):
        # What is in a folder is removed before the folder is.
        count = 1 if extras[len(found)][1] == tree.FOLDER else AT_ONCE
        some = extras[len(found) : len(found) + count]
        owner, root = await sink.fence.owner(), sink.root.anew()
        if not owner:
            message = "it has no fence of this copy, so nothing can be deleted there"
            raise failures.Refusal(failures.DESTINATION, to_text(root.full("")), message)
        if owner != sink.copy.nonce:
            raise fence.superseded()
        found += await results((extra[0], _remove_extra(sink, root, extra)) for extra in some)
    return failures.places(found)


async def _remove_extra(sink: Sink, root: Root, extra: mirror.Extra) -> None:
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
    """Remove a name that a person gave, as endpoint/writing/removal.py does. Raises
    SftpError."""
    await (client.rmdir(path) if is_folder else client.remove(path))


async def _has_removed_parts(sink: Sink, folder: str, path: bytes) -> bool:
    """Remove the parts of earlier runs of this copy from a folder that goes. Return whether there
    were only such; raises Refusal where other copies' are left.
    """
    names = {name for name, _ in await list_folder(sink.client, path)}
    if without_own(names):
        return False
    own = {name for name in names if mirror.is_part_of(name, sink.copy.token)}
    await outcomes(*[sink.client.remove(join(path, name)) for name in own])
    if names - own:
        raise mirror.parts_of_others(folder)
    return True
