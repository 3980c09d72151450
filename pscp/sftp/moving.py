"""A move's work at both ends over SFTP (--remove-source-files), as in endpoint/there/moving.py.

Not here: when any of this is asked (../transfer/ending/moving.py), how a name goes (mirror.py).
"""

from __future__ import annotations

from pscp.endpoint.asking.answers import Failed
from pscp.endpoint.frames import failures
from pscp.endpoint.frames.failures import FileChanged
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import check, to_bytes, to_text
from pscp.endpoint.there import moving
from pscp.sftp.mirror import AT_ONCE, let_go
from pscp.sftp.protocol import packets
from pscp.sftp.protocol.paths import Root, join, lookup
from pscp.sftp.protocol.tasks import gather, results
from pscp.sftp.sink import Sink
from pscp.sftp.source import Source


async def remove_sources(source: Source, request: moving.RemoveSources) -> Failed:
    if request.folder:
        raise failures.Refusal(failures.UNSUPPORTED, request.folder, "no folder of this machine's")
    found: failures.Outcome = []
    while len(found) < len(request.moved):
        some = request.moved[len(found) : len(found) + AT_ONCE]
        found += await results((moved[1].path, _remove_source(source, moved)) for moved in some)
    return failures.places(found)


async def _remove_source(source: Source, moved: moving.Moved) -> None:
    """Remove a file of the source. Raises FileChanged where it is another, Refusal, SftpError."""
    kind, known = moved
    path = await _at(source, known.top, known.path)
    status = await lookup(source.client, path)
    if status is None:  # removed already, maybe by a lane that was lost then
        return
    if kind != tree.LINK and status.is_link:
        raise moving.through_a_link(known.path)
    is_same = (status.kind, status.mtime_ns) == (kind, known.mtime_ns)
    if not is_same or (status.is_file and status.size != known.size):
        raise FileChanged()
    await let_go(source.client, path)


async def _at(source: Source, top: int, path: str) -> bytes:
    """Return where a file of the source is. Raises Refusal where that is reached through a link."""
    root, rest = source.where(top, path)
    try:
        return await Root(source.client, to_text(root)).at(rest) if rest else root
    except failures.Refusal:
        raise moving.through_a_link(path) from None


# --- what is asked before a source is removed


async def same_place(source: Source, request: moving.SamePlace) -> list[bool]:
    looking = []
    for top, path, name in request.sources:
        folder = moving.folder_beside(*source.where(top, path), path)
        looking.append(lookup(source.client, join(folder or b"/", to_bytes(name))))
    return [found is not None for found in await gather(*looking)]


async def mark(source: Source, request: moving.Mark) -> None:
    top, path, name = request.beside
    folder = (await _at(source, top, path)).rpartition(b"/")[0]
    full = join(folder or b"/", check(name))
    if request.is_made:
        handle = await source.client.open(full, packets.FOR_WRITE | packets.CREATE, 0o600)
        await source.client.close(handle)
    elif await lookup(source.client, full) is not None:
        await source.client.remove(full)


async def make_durable(sink: Sink, request: moving.MakeDurable) -> Failed:

    async def sync(path: str) -> None:  # where the server can, and not the folder's names
        full = await sink.root.at(path)
        if (await sink.client.lstat(full)).is_file:
            async with sink.client.opened(full) as handle:
                await sink.client.fsync(handle)

    return failures.places(await results((path, sync(path)) for path in request.paths))


async def destination(sink: Sink, request: moving.Destination) -> tuple[str, list[str]]:
    return "", []  # SFTP cannot tell
