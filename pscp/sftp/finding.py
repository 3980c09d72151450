"""What a path as typed stands for at the far end: sources with *, ? and [...], and a destination.

As endpoint/source.py's expand() and endpoint/sink.py's resolve(), by requests.

Not here: the walk below a source (walk.py).
Read next: walk.py.
"""

from __future__ import annotations

import fnmatch
import glob
import os

from pscp.endpoint import failures
from pscp.endpoint.names import part_name, to_bytes, to_text
from pscp.endpoint.source import Top
from pscp.sftp.client import Client
from pscp.sftp.folders import absolute, joined, looked_at
from pscp.sftp.packets import SftpError
from pscp.sftp.tasks import Tasks, all_of
from pscp.sftp.walk import listed


async def expand(client: Client, tasks: Tasks, path: str, pattern: bool) -> list[Top]:
    """A name that exists is taken literally. Refusal when there is none."""
    full = await absolute(client, to_bytes(path))
    top = tasks.start(_top(client, full))
    if await looked_at(client, full) is not None:
        return [await top]
    found = await _matching(client, full, to_bytes(path)) if pattern else []
    if not found:
        raise failures.Refusal(failures.DESTINATION, path, "no such file or folder")
    tops = [tasks.start(_top(client, each)) for each in found]
    return [await each for each in tops]


async def _matching(client: Client, full: bytes, typed: bytes) -> list[bytes]:
    """Component by component, as glob.glob() does; of what was typed, not of the home before it."""
    names = typed.removeprefix(b"~/")
    found = [full.removesuffix(names) or b"/"]
    for name in names.split(b"/"):
        if not name:
            continue
        if not glob.has_magic(name):
            found = [joined(folder, name) for folder in found]
            continue
        found = [
            joined(folder, each)
            for folder in found
            for each in await _names(client, folder)
            if fnmatch.fnmatchcase(each, name) and (each[:1] != b"." or name[:1] == b".")
        ]
    there = [each for each in found if await looked_at(client, each) is not None]
    return sorted(there)


async def _names(client: Client, folder: bytes) -> list[bytes]:
    try:
        return [name for name, _ in await listed(client, folder) if b"/" not in name]
    except SftpError:
        return []


async def _top(client: Client, full: bytes) -> Top:
    name = os.path.basename(full.rstrip(b"/"))
    try:
        is_folder = (await client.stat(full)).is_folder
    except SftpError:
        is_folder = False
    return Top(to_text(b"" if name in (b".", b"..") else name), to_text(full), is_folder)


async def resolve(
    client: Client, tasks: Tasks, destination: str, names: list[str], folders: list[bool],
    token: str,
) -> list[object]:  # fmt: skip
    """What DEST means for these sources: [root, names there, those that exist]."""
    typed = to_bytes(destination)
    slash = typed.endswith((b"/", b"/."))
    path = await absolute(client, typed)
    real = tasks.start(_real(client, path.rstrip(b"/") or b"/"))
    status, itself = await all_of(
        tasks.start(looked_at(client, path, follow=True)), tasks.start(looked_at(client, path))
    )
    if status is not None and status.is_folder:
        return await _existing(client, tasks, await real, names, token)
    if len(names) != 1:
        raise _refused(destination, "is not a folder, and there are several sources for it")
    if itself is not None:
        if slash or folders[0]:
            raise _refused(destination, "is a file, not a folder")
    elif slash and not folders[0]:
        raise _refused(destination, "no such folder")
    parent, name = os.path.split(await real)
    above = tasks.start(looked_at(client, parent, follow=True))
    found = tasks.start(_existing(client, tasks, parent, [to_text(name)], token))
    status = await above
    if status is None or not status.is_folder:
        raise _refused(destination, f"no such folder: {to_text(parent)}")
    return await found


async def _real(client: Client, path: bytes) -> bytes:
    """Without links, as far as the server follows them for a name that is not there yet."""
    try:
        return await client.realpath(path)
    except SftpError:
        parent, name = os.path.split(path)
    try:
        return joined(await client.realpath(parent), name)
    except SftpError:
        return path


async def _existing(
    client: Client, tasks: Tasks, root: bytes, names: list[str], token: str
) -> list[object]:
    async def is_there(name: bytes) -> bool:
        if not name:
            return True
        each = [joined(root, name), joined(root, part_name(name, token))]
        looks = [tasks.start(looked_at(client, path)) for path in each]
        return any(status is not None for status in await all_of(*looks))

    found = await all_of(*[tasks.start(is_there(to_bytes(name))) for name in names])
    return [to_text(root), names, [name for name, there in zip(names, found, strict=True) if there]]


def _refused(path: str, message: str) -> failures.Refusal:
    return failures.Refusal(failures.DESTINATION, path, message)
