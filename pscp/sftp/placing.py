"""Paths as typed, at the far end: sources with *, ? and [...], and a destination.

expand() is that of endpoint/reading/source.py, and resolve() that of endpoint/writing/placing.py,
which also has the rules for DEST; here by requests.

Not here: the walk below a source (tree.py).
Read next: tree.py.
"""

from __future__ import annotations

import fnmatch
import glob
import os

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading.paths import is_pscps_own, marker_name, to_bytes, to_text
from pscp.endpoint.reading.source import NO_MATCH, NOT_THERE, Top, as_glob, folder_of
from pscp.endpoint.writing import placing
from pscp.endpoint.writing.fence import fence_name
from pscp.endpoint.writing.placing import Target
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.packets import Attrs, SftpError
from pscp.sftp.protocol.paths import absolute, is_folder, join, lookup
from pscp.sftp.protocol.tasks import gather, outcomes, start
from pscp.sftp.tree import list_folder


async def expand(client: Client, path: str, pattern: bool) -> list[Top]:
    """Return the sources that a path as typed means. Raises Refusal where there is none.

    A name that exists is taken literally; else a backslash escapes. A pattern never means parts.
    """
    full = await absolute(client, to_bytes(path) or b".")
    top = start(_top(client, full))
    if await lookup(client, full) is not None:
        return [await top]
    found = await _matching(client, full, to_bytes(path)) if pattern else []
    if not found:
        is_listed = pattern and await _can_list_for(client, full)
        raise failures.Refusal(failures.DESTINATION, path, NO_MATCH if is_listed else NOT_THERE)
    return list(await gather(*[_top(client, each) for each in found]))


async def _matching(client: Client, full: bytes, typed: bytes) -> list[bytes]:
    """Return the paths that a pattern matches, component by component as with glob.glob().

    `full` is the pattern with the home before it, which is taken literally.
    """
    names = typed.removeprefix(b"~/")
    found = [full.removesuffix(names) or b"/"]
    for name in as_glob(names).split(b"/"):
        if not name:
            continue
        if not glob.has_magic(name):
            found = [join(folder, name) for folder in found]
            continue
        found = [
            join(folder, each)
            for folder in found
            for each in await _names(client, folder)
            if fnmatch.fnmatchcase(each, name) and (each[:1] != b"." or name[:1] == b".")
        ]
    named = [each for each in found if not is_pscps_own(os.path.basename(each))]
    return sorted([each for each in named if await lookup(client, each) is not None])


async def _can_list_for(client: Client, pattern: bytes) -> bool:
    """Return whether this is a pattern, and the folder that it looks into can be listed."""
    if (folder := folder_of(pattern)) == pattern:
        return False
    try:
        await list_folder(client, folder or b"/")
        return True
    except SftpError:
        return False


async def _names(client: Client, folder: bytes) -> list[bytes]:
    try:
        return [name for name, _ in await list_folder(client, folder) if b"/" not in name]
    except SftpError:
        return []


async def _top(client: Client, full: bytes) -> Top:
    name = os.path.basename(full.rstrip(b"/"))
    [status] = await outcomes(client.stat(full))
    is_there = isinstance(status, Attrs) and status.is_folder
    return Top(to_text(b"" if name in (b".", b"..") else name), to_text(full), is_there)


async def resolve(client: Client, request: requests.Target) -> Target:
    """Return what DEST means for these sources. Raises Refusal, SftpError.

    A missing folder to copy into is made, and with `mkpath` those above it, but not by a dry run.
    """
    destination, names, folders = request.path, request.names, request.folders
    path = await absolute(client, to_bytes(destination))
    if path.endswith((b"/", b"/.")):  # a server may resolve only the last of what is missing
        path = path.removesuffix(b".").rstrip(b"/") or b"/"
    real, status = await gather(_real(client, path), lookup(client, path, follow=True))
    is_there, exists = status is not None and status.is_folder, status is not None
    is_own = is_there and placing.may_be_own(destination, folders)
    is_own = is_own and await _is_own(client, real, request.token)
    step = placing.decide(destination, folders, is_folder=is_there, exists=exists, is_own=is_own)
    if step == placing.INTO:
        return await _existing(client, real, names)
    parent, name = os.path.split(real)
    if request.mkpath:
        parent, name = await _above(client, parent, name, make=bool(request.nonce))
    above = start(is_folder(client, parent))
    found = start(_existing(client, parent, [to_text(name)]))
    if not await above:
        message = placing.NO_FOLDER + to_text(parent)
        raise failures.Refusal(failures.DESTINATION, destination, message)
    if step == placing.AS:
        return placing.as_new(await found, folders)
    if not request.nonce:
        return Target(to_text(parent), placing.below(to_text(name), names), [])
    await _make_folder(client, real)
    return await _existing(client, real, names)


async def _above(client: Client, parent: bytes, name: bytes, *, make: bool) -> tuple[bytes, bytes]:
    """Return a folder that is there, and the name below it; with `make` those between are made."""
    missing: list[bytes] = []
    while (status := await lookup(client, parent, follow=True)) is None:
        parent, above = os.path.split(parent)
        missing.insert(0, above)
    if not make or not status.is_folder:
        return parent, b"/".join([*missing, name])
    for folder in missing:
        parent = join(parent, folder)
        await _make_folder(client, parent)
    return parent, name


async def _make_folder(client: Client, path: bytes) -> None:
    """Make a folder with the server's usual mode, unless another copy has just made it."""
    try:
        await client.mkdir(path)
    except SftpError:
        if not await is_folder(client, path):
            raise


async def _real(client: Client, path: bytes) -> bytes:
    """Return the path without links, as far as the server resolves one that does not exist."""
    try:
        return await client.realpath(path)
    except SftpError:
        parent, name = os.path.split(path)
    try:
        return join(await client.realpath(parent), name)
    except SftpError:
        return path


async def _is_own(client: Client, folder: bytes, token: str) -> bool:
    """Did a run of this copy, which is not complete, make this folder for its source?"""
    inside = join(folder, marker_name(token))
    beside = join(os.path.dirname(folder), fence_name(token))
    found = await outcomes(client.stat(folder), client.lstat(inside), client.lstat(beside))
    itself, marker, fence = [
        placing.FileStatus(each.is_file, each.uid) if isinstance(each, Attrs) else None
        for each in found
    ]
    is_empty = False
    if marker is None and fence is not None:
        is_empty = await outcomes(list_folder(client, folder)) == ([],)
    return itself is not None and placing.is_own(itself.owner, marker, fence, is_empty=is_empty)


async def _existing(client: Client, root: bytes, names: list[str]) -> Target:
    named = [name for name in names if name]
    found = await gather(*[lookup(client, join(root, to_bytes(name))) for name in named])
    there = {name for name, status in zip(named, found, strict=True) if status is not None}
    return Target(to_text(root), names, [name for name in names if not name or name in there])
