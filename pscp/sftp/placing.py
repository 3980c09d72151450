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
from typing import Any

from pscp.endpoint import failures, placing
from pscp.endpoint.paths import is_pscps_own, to_bytes, to_text
from pscp.endpoint.source import Top
from pscp.sftp.client import Client
from pscp.sftp.packets import Attrs, SftpError
from pscp.sftp.paths import absolute, joined, looked_at
from pscp.sftp.tasks import Tasks, all_of, settled
from pscp.sftp.tree import listed


async def expand(client: Client, tasks: Tasks, path: str, pattern: bool) -> list[Top]:
    """A name that exists is taken literally; a pattern means no parts. Refusal for none."""
    full = await absolute(client, to_bytes(path) or b".")
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
    named = [each for each in found if not is_pscps_own(os.path.basename(each))]
    return sorted([each for each in named if await looked_at(client, each) is not None])


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
    client: Client, tasks: Tasks, destination: str, names: list[str], folders: list[bool], *,
    make: bool, before: tuple[str, list[str]] | None,
) -> list[Any]:  # fmt: skip
    """What DEST means for these sources: [root, names there, those that exist].

    `before` is what it meant to a run that was cut short.
    """
    path = await absolute(client, to_bytes(destination))
    if path.endswith((b"/", b"/.")):  # a server may resolve only the last of what is missing
        path = path.removesuffix(b".").rstrip(b"/") or b"/"
    real, status = await all_of(
        tasks.start(_real(client, path)), tasks.start(looked_at(client, path, follow=True))
    )
    is_folder = status is not None and status.is_folder
    if before is not None and placing.may_mean(real, is_folder, names, folders, before):
        still = await _again(client, tasks, *before)
        if still is not None:
            return still
    step = placing.decide(destination, folders, is_folder=is_folder, exists=status is not None)
    if step == placing.INTO:
        return await _existing(client, tasks, real, names)
    parent, name = os.path.split(real)
    above = tasks.start(looked_at(client, parent, follow=True))
    found = tasks.start(_existing(client, tasks, parent, [to_text(name)]))
    status = await above
    if status is None or not status.is_folder:
        message = f"no such folder: {to_text(parent)}"
        raise failures.Refusal(failures.DESTINATION, destination, message)
    if step == placing.AS:
        return await found
    if not make:
        return [to_text(parent), placing.below(to_text(name), names), []]
    await _make_folder(client, real)
    return await _existing(client, tasks, real, names)


async def _make_folder(client: Client, path: bytes) -> None:
    """With the mode that the server gives a new folder; another copy may be the first to do it."""
    try:
        await client.mkdir(path)
    except SftpError:
        status = await looked_at(client, path, follow=True)
        if status is None or not status.is_folder:
            raise


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


async def _again(client: Client, tasks: Tasks, root: str, names: list[str]) -> list[Any] | None:
    """The same of a run that was cut short, if its root is a folder still."""
    path = to_bytes(root)
    status, found = await settled(
        tasks.start(looked_at(client, path, follow=True)),
        tasks.start(_existing(client, tasks, path, names)),
    )
    is_folder = isinstance(status, Attrs) and status.is_folder
    return found if is_folder and isinstance(found, list) else None


async def _existing(client: Client, tasks: Tasks, root: bytes, names: list[str]) -> list[Any]:
    looks = [tasks.start(looked_at(client, joined(root, to_bytes(name)))) for name in names if name]
    there = iter(await all_of(*looks))
    existing = [name for name in names if not name or next(there) is not None]
    return [to_text(root), names, existing]
