"""The large files of one copy over SFTP: their entries, by number, and their handles.

A handle stays open while chunks of its file are at work; of the others some stay open as well.

Not here: what is written and read by handles (sink.py, source.py).
Read next: sink.py.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from pscp.endpoint import tree
from pscp.sftp.client import Client
from pscp.sftp.tasks import Task, Waitable, outcomes, start

_KEPT = 16  # open files, before those without chunks at work are closed


class File:
    """A file that is open, or being opened."""

    def __init__(self, value: tree.Entry, opening: Task[bytes]) -> None:
        self.value, self.opening = value, opening
        self.chunks = 0  # at work


class Files:
    """The large files, by the coordinator's numbers for them."""

    def __init__(
        self, client: Client, open_file: Callable[[tree.Entry], Coroutine[Waitable, None, bytes]]
    ) -> None:
        self._client, self._open_file = client, open_file
        self.known: dict[int, tree.Entry] = {}
        self._open: dict[int, File] = {}

    def know(self, id_: int, value: tree.Entry) -> None:
        self.known[id_] = value

    def forget(self, id_: int) -> None:
        self.known.pop(id_, None)
        start(self.close_handle(id_))

    def get(self, id_: int) -> File:
        """Return a file, and open it where it is not open."""
        file = self._open.get(id_)
        if file is None:
            idle = [known for known, each in self._open.items() if not each.chunks]
            for known in idle[: max(0, len(self._open) - _KEPT)]:
                start(self.close_handle(known))
            value = self.known[id_]
            file = self._open[id_] = File(value, start(self._open_file(value)))
        return file

    async def close_handle(self, id_: int) -> None:
        """Close the file's handle, if it is open."""
        file = self._open.pop(id_, None)
        if file is not None:
            [handle] = await outcomes(file.opening)
            if isinstance(handle, bytes):
                await outcomes(self._client.close(handle))

    def close(self) -> None:
        for id_ in list(self._open):
            start(self.close_handle(id_))
