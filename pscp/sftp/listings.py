"""The quick check of whole folders over SFTP: what a folder has, one READDIR after the other tells.

The requests, and what a listing is, are those of endpoint/there/listings.py. Links take a READLINK
each; a file that a listing does not tell enough of is looked at by itself.

Not here: the walk (tree.py), what is there under one name (destination.py).
"""

from __future__ import annotations

import stat
from collections.abc import Sequence

from pscp.endpoint.frames import failures, wire
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import is_pscps_own, is_unfinished, to_bytes, to_text
from pscp.endpoint.reading.rows import NAMES_MOST, Rows, as_listing, unpack
from pscp.endpoint.there.listings import Compare, Describe, apart_of, has_more, listing
from pscp.endpoint.there.sameness import alike, is_same_time
from pscp.sftp.protocol.packets import Attrs, SftpError
from pscp.sftp.protocol.paths import join
from pscp.sftp.protocol.tasks import gather, outcomes
from pscp.sftp.sink import Sink
from pscp.sftp.source import Source
from pscp.sftp.tree import FolderEntry, Walk, below, list_folder

_DESCRIBED = 256  # names at once

Wanted = dict[str, object] | None  # the owner that an entry is to have; None: it does not count

# --- at the source


class ListingWalk(Walk):
    """A walk that lists what is plain in a folder's own entry."""

    def _listed(
        self, entry: tree.Entry, children: list[FolderEntry]
    ) -> tuple[tree.Entry, list[FolderEntry]]:
        rows, rest = Rows([], [], [], [], {}), list[FolderEntry]()
        chosen, owner = children[:NAMES_MOST], None
        apart = apart_of([found.name for found in children])
        for found in chosen:
            status = found.status
            if b"/" in found.name or b"\0" in found.name or not found.name:
                rest.append(found)
            elif isinstance(status, dict) or status.is_folder:
                is_folder = isinstance(status, Attrs)
                if not tree.is_excluded(self._filters, below(entry.path, found.name), is_folder):
                    rest.append(found)
                    rows.add(found.name, stat.S_IFDIR if is_folder else 0, 0, 0)
            elif not tree.is_excluded(self._filters, below(entry.path, found.name), False):
                is_plain = self._is_plain(status) and owner in (None, _owner(status))
                if is_plain and found.name not in apart:
                    owner = _owner(status)
                    if status.is_link:
                        rows.targets[len(rows.names)] = found.link
                    rows.add(found.name, status.mode or 0, status.size or 0, status.mtime_ns)
                else:
                    rest.append(found)
                    rows.add(found.name, 0, 0, 0)
        up_to = to_text(chosen[-1].name) if len(children) > len(chosen) else ""
        is_whole = not up_to and len(rest) == rows.modes.count(stat.S_IFDIR)
        who = [*owner, "", ""] if owner is not None and self._rules.archive else None
        listed = as_listing(rows, who, is_whole, up_to)
        if listed is None:
            return entry, children
        extra = dict(entry.extra, list=listed)
        return entry._replace(extra=extra), rest + children[len(chosen) :]

    def _is_plain(self, status: Attrs) -> bool:
        is_known = None not in (status.mode, status.size, status.mtime)
        is_wanted = status.is_file or (status.is_link and self._rules.archive)
        return is_known and is_wanted and (not self._rules.archive or status.uid is not None)

    async def describe(self, top: int, path: str, full: bytes) -> list[tree.Entry]:
        """Return the entry of a file or link in a folder; an empty list where it is left out."""
        found = await self._look(full, full.rpartition(b"/")[2], None)
        if isinstance(found.status, Attrs) and found.status.is_folder:
            why = failures.from_exception(failures.FileChanged(), path)
            return [tree.error_entry(top, path, why)]
        return self._entry(top, path, found, [b"", b""])


def _owner(status: Attrs) -> tuple[int, int]:
    return status.uid or 0, status.gid or 0


async def describe(source: Source, request: Describe) -> tuple[list[tree.Entry], int]:
    """Return the entries of some names, and of how many names they are."""
    walk = ListingWalk(source.client, source.copy.tops, source.copy.rules)
    named = [(top, below(folder, to_bytes(name))) for top, folder, all in request.names
             for name in all][:_DESCRIBED]  # fmt: skip
    found = [walk.describe(top, path, source.full(top, path)) for top, path in named]
    return [entry for entries in await gather(*found) for entry in entries], len(named)


# --- at the sink


async def compare(sink: Sink, request: Compare) -> Sequence[object]:
    """Return what Compare asks of each folder."""
    return await gather(*[_compare(sink, each, request) for each in request.folders])


async def _compare(sink: Sink, entry: tree.Entry, request: Compare) -> object:
    try:
        of_folder = listing(entry.extra.get("list"))
        rows = unpack(of_folder.text)
    except wire.WireError:
        return None  # the coordinator, which reads it then, says so
    if of_folder.after:
        return None  # for each stretch all of the folder would come
    path = sink.root.full(entry.path)
    try:
        await sink.root.folder(entry.path, entry.path)
        async with sink.client.handles.taken(1):
            there = dict(await list_folder(sink.client, path))
        status = await sink.client.stat(path)
    except (SftpError, failures.Refusal):
        return None
    if request.parts and any(map(is_pscps_own, there)):
        return None  # what became of them, a look at each file tells
    differing = await _differing(sink, path, rows, there, of_folder.owner)
    is_same = not differing and _is_same_folder(sink, status, entry)
    is_more = request.extras and has_more(there, rows, of_folder)
    return is_same, list(filter(rows.is_file, differing)), [], is_more


async def _differing(
    sink: Sink, folder: bytes, rows: Rows, there: dict[bytes, Attrs], owner: object
) -> list[int]:
    """Return the places of the names with which there is not in the folder what their rows say."""
    wanted: Wanted = {"o": owner} if sink.copy.archive else None
    found = set(alike(rows.names))
    for place, (name, mode, size, mtime_ns) in enumerate(zip(*rows[:4], strict=True)):
        status = there.get(name)
        if mode == 0:
            continue
        if status is None:
            found.add(place)
        elif mode == stat.S_IFDIR:
            if not status.is_folder or is_unfinished(status.mode or 0):
                found.add(place)
        elif (
            stat.S_IFMT(status.mode or 0) != stat.S_IFMT(mode)
            or status.size != size
            or not is_same_time(mtime_ns, status.mtime_ns)
            or not sink.is_alike(status, stat.S_IMODE(mode), wanted)
        ):
            found.add(place)
    links = [place for place in rows.targets if place not in found]
    targets = [sink.client.readlink(join(folder, rows.names[place])) for place in links]
    for place, target in zip(links, await outcomes(*targets), strict=True):
        if target != rows.targets[place]:
            found.add(place)
    return sorted(found)


def _is_same_folder(sink: Sink, status: Attrs, entry: tree.Entry) -> bool:
    """Has a folder the metadata that it is to have, as far as SFTP tells?"""
    mode = status.mode or 0
    wanted: Wanted = {"o": entry.extra.get("o")} if sink.copy.archive else None
    return (
        not is_unfinished(mode)
        and is_same_time(entry.mtime_ns, status.mtime_ns)
        and sink.is_alike(status, entry.mode, wanted)
    )
