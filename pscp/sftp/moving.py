"""What a copy that moves does at its source over SFTP, as endpoint/moving.py with an agent.

Whether a file is still the one that was copied is known by its size and mtime, as for all copies
over SFTP.

Not here: what has landed (../transfer/ending/moving.py).
"""

from __future__ import annotations

from pscp.endpoint import failures, moving, tree
from pscp.endpoint.files import Changed
from pscp.endpoint.paths import check, to_bytes, to_text
from pscp.sftp import end
from pscp.sftp.mirror import AT_ONCE, let_go
from pscp.sftp.protocol import packets
from pscp.sftp.protocol.paths import Root, join, lookup
from pscp.sftp.protocol.tasks import gather, results
from pscp.sftp.sink import Sink
from pscp.sftp.source import Source


async def _same_place(of: end.End, request: moving.SamePlace) -> list[bool]:
    source = of.the_source()
    looking = []
    for top, path, name in request.sources:
        folder = moving.folder_beside(*source.where(top, path), path)
        looking.append(lookup(source.client, join(folder or b"/", to_bytes(name))))
    return [found is not None for found in await gather(*looking)]


async def _mark(of: end.End, request: moving.Mark) -> None:
    source = of.the_source()
    top, path, name = request.beside
    folder = (await _at(source, top, path)).rpartition(b"/")[0]
    full = join(folder or b"/", check(name))
    if request.is_made:
        handle = await source.client.open(full, packets.FOR_WRITE | packets.CREATE, 0o600)
        await source.client.close(handle)
    elif await lookup(source.client, full) is not None:
        await source.client.remove(full)


async def _make_durable(of: end.End, request: moving.MakeDurable) -> list[object]:
    sink = of.the_sink()
    failed = enumerate(await results((path, _sync(sink, path)) for path in request.paths))
    return [(place, failure) for place, failure in failed if failure is not None]


async def _sync(sink: Sink, path: str) -> None:
    """Bring a file to the disk, where the server can; SFTP cannot bring a folder's names there."""
    full = await sink.root.at(path)
    if not (await sink.client.lstat(full)).is_file:
        return
    await sink.client.handles.take(1)
    try:
        handle = await sink.client.open(full, packets.FOR_READ)
        try:
            await sink.client.fsync(handle)
        finally:
            await sink.client.close(handle)
    finally:
        sink.client.handles.give(1)


async def _destination(of: end.End, request: moving.Destination) -> tuple[str, list[str]]:
    return "", []  # SFTP cannot tell


async def _remove_sources(of: end.End, request: moving.RemoveSources) -> list[object]:
    source = of.the_source()
    if request.folder:
        raise failures.Refusal(failures.UNSUPPORTED, request.folder, "no folder of this machine's")
    found: list[object] = []
    while len(found) < len(request.moved):
        some = request.moved[len(found) : len(found) + AT_ONCE]
        found += await results((known.path, _remove(source, (kind, known))) for kind, known in some)
    return [(place, failure) for place, failure in enumerate(found) if failure is not None]


async def _remove(source: Source, moved: moving.Moved) -> None:
    """Remove a file of the source. Raises Changed where it is another, Refusal, SftpError."""
    kind, known = moved
    path = await _at(source, known.top, known.path)
    status = await lookup(source.client, path)
    if status is None:  # removed already, maybe by a lane that was lost then
        return
    if kind != tree.LINK and status.is_link:
        raise moving.through_a_link(known.path)
    is_same = status.mtime_ns == known.mtime_ns and (
        status.is_link if kind == tree.LINK else status.is_file and status.size == known.size
    )
    if not is_same:
        raise Changed()
    await let_go(source.client, path)


async def _at(source: Source, top: int, path: str) -> bytes:
    """Return where a file of the source is. Raises Refusal where that is reached through a link."""
    root, rest = source.where(top, path)
    try:
        return await Root(source.client, to_text(root)).at(rest) if rest else root
    except failures.Refusal:
        raise moving.through_a_link(path) from None


_ANSWERS: dict[type, end.Answer] = {
    moving.SamePlace: _same_place,
    moving.Mark: _mark,
    moving.MakeDurable: _make_durable,
    moving.Destination: _destination,
    moving.RemoveSources: _remove_sources,
}
end.ANSWERS.update(_ANSWERS)
