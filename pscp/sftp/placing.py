"""What a path as typed stands for at the far end: sources with *, ? and [...], and a destination.

As endpoint/source.py's expand() and endpoint/sink.py's resolve(), by requests. What DEST means is
decided in endpoint/placing.py.

Not here: the walk below a source (tree.py).
Read next: tree.py.
"""

from __future__ import annotations

import fnmatch
import glob
import os

from pscp.endpoint import failures, placing, requests
from pscp.endpoint.paths import is_pscps_own, to_bytes, to_text
from pscp.endpoint.placing import Target
from pscp.endpoint.source import Top
from pscp.sftp.client import Client
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.paths import absolute, join, lookup
from pscp.sftp.tasks import gather, outcomes, start
from pscp.sftp.tree import list_folder


async def expand(client: Client, path: str, pattern: bool) -> list[Top]:
    """Return what a source as typed stands for. Raises Refusal where that is nothing.

    A name that exists is taken literally; a pattern never means parts.
    """
    full = await absolute(client, to_bytes(path) or b".")
    top = start(_top(client, full))
    if await lookup(client, full) is not None:
        return [await top]
    found = await _matching(client, full, to_bytes(path)) if pattern else []
    if not found:
        raise failures.Refusal(failures.DESTINATION, path, "no such file or folder")
    return list(await gather(*[_top(client, each) for each in found]))


async def _matching(client: Client, full: bytes, typed: bytes) -> list[bytes]:
    """Match component by component, as glob.glob() does, what was typed, not the home before it."""
    names = typed.removeprefix(b"~/")
    found = [full.removesuffix(names) or b"/"]
    for name in names.split(b"/"):
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


async def _names(client: Client, folder: bytes) -> list[bytes]:
    try:
        return [name for name, _ in await list_folder(client, folder) if b"/" not in name]
    except SftpError:
        return []


async def _top(client: Client, full: bytes) -> Top:
    name = os.path.basename(full.rstrip(b"/"))
    try:
        is_folder = (await client.stat(full)).is_folder
    except SftpError:
        is_folder = False
    return Top(to_text(b"" if name in (b".", b"..") else name), to_text(full), is_folder)


async def resolve(client: Client, request: requests.Target) -> Target:
    """Return what DEST means for these sources. Raises Refusal, SftpError.

    A folder to copy into is made where it is missing, but not for a dry run.
    """
    destination, names, folders = request.path, request.names, request.folders
    path = await absolute(client, to_bytes(destination))
    if path.endswith((b"/", b"/.")):  # a server may resolve only the last of what is missing
        path = path.removesuffix(b".").rstrip(b"/") or b"/"
    real, status = await gather(_real(client, path), lookup(client, path, follow=True))
    is_folder = status is not None and status.is_folder
    if request.again is not None and placing.may_mean(
        real, is_folder, names, folders, request.again
    ):
        still = await _again(client, *request.again)
        if still is not None:
            return still
    step = placing.decide(destination, folders, is_folder=is_folder, exists=status is not None)
    if step == placing.INTO:
        return await _existing(client, real, names)
    parent, name = os.path.split(real)
    above = start(lookup(client, parent, follow=True))
    found = start(_existing(client, parent, [to_text(name)]))
    status = await above
    if status is None or not status.is_folder:
        message = f"no such folder: {to_text(parent)}"
        raise failures.Refusal(failures.DESTINATION, destination, message)
    if step == placing.AS:
        return await found
    if not request.nonce:
        return Target(to_text(parent), placing.below(to_text(name), names), [])
    await _make_folder(client, real)
    return await _existing(client, real, names)


async def _make_folder(client: Client, path: bytes) -> None:
    """Make a folder with the server's usual mode; another copy may be the first to do it."""
    try:
        await client.mkdir(path)
    except SftpError:
        status = await lookup(client, path, follow=True)
        if status is None or not status.is_folder:
            raise


async def _real(client: Client, path: bytes) -> bytes:
    """Resolve links, as far as the server does for a name that is not there yet."""
    try:
        return await client.realpath(path)
    except SftpError:
        parent, name = os.path.split(path)
    try:
        return join(await client.realpath(parent), name)
    except SftpError:
        return path


async def _again(client: Client, root: str, names: list[str]) -> Target | None:
    """Return the target of a run that was cut short, if its root is a folder still."""
    path = to_bytes(root)
    status, found = await outcomes(
        lookup(client, path, follow=True), _existing(client, path, names)
    )
    is_folder = isinstance(status, Attrs) and status.is_folder
    return found if is_folder and isinstance(found, Target) else None


async def _existing(client: Client, root: bytes, names: list[str]) -> Target:
    """Return the target that these names in this folder are."""
    named = [name for name in names if name]
    found = await gather(*[lookup(client, join(root, to_bytes(name))) for name in named])
    there = {name for name, status in zip(named, found, strict=True) if status is not None}
    return Target(to_text(root), names, [name for name in names if not name or name in there])
