"""The large files of one copy over SFTP: what is known of them, and their handles.

A handle stays open while its file is at work, and a few beyond that.

Not here: what is written and read by it (sink.py, source.py).
Read next: sink.py.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from pscp.endpoint import tree
from pscp.sftp.client import Client
from pscp.sftp.tasks import Task, Tasks, settled

_KEPT = 16  # handles, of files that nothing is done with now


class File:
    """One that has a handle, or will have."""

    def __init__(self, value: tree.Entry, opened: Task[bytes]) -> None:
        self.value, self.opened = value, opened
        self.chunks = 0  # not yet complete


class Files:
    """By the numbers that the coordinator gave them."""

    def __init__(
        self, client: Client, tasks: Tasks,
        opening: Callable[[tree.Entry], Coroutine[Any, Any, bytes]],
    ) -> None:  # fmt: skip
        """`opening` gets a file's handle."""
        self._client, self._tasks, self._opening = client, tasks, opening
        self.known: dict[int, tree.Entry] = {}
        self._open: dict[int, File] = {}

    def know(self, id_: int, value: tree.Entry) -> None:
        self.known[id_] = value

    def forget(self, id_: int) -> None:
        self.known.pop(id_, None)
        self._close(id_)

    async def closed(self, id_: int) -> None:
        """Its handle is, where it has one."""
        file = self._open.pop(id_, None)
        if file is not None:
            await self._close_handle(file)

    def get(self, id_: int) -> File:
        file = self._open.get(id_)
        if file is None:
            idle = [known for known, each in self._open.items() if not each.chunks]
            for known in idle[: max(0, len(self._open) - _KEPT)]:
                self._close(known)
            value = self.known[id_]
            file = self._open[id_] = File(value, self._tasks.start(self._opening(value)))
        return file

    def close(self) -> None:
        for id_ in list(self._open):
            self._close(id_)

    def _close(self, id_: int) -> None:
        file = self._open.pop(id_, None)
        if file is not None:
            self._tasks.start(self._close_handle(file))

    async def _close_handle(self, file: File) -> None:
        [handle] = await settled(file.opened)
        if isinstance(handle, bytes):
            await settled(self._client.close(handle))
