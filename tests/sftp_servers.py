"""An SFTP server made with asyncssh that runs no commands: `python sftp_servers.py FOLDER`.

It may have a fault, as settings.json says: a WRITE that is damaged, or that waits until the file
has its name; a file that opens once at a time. It serves until stdin ends.

Not here: the tests (e2e/test_copy_sftp.py), a server made with paramiko (servers).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import asyncssh
from servers.embedded_server import serve_until_input_ends
from servers.private import EmbeddedServer

MIB = 1024 * 1024
POLL_S = 0.01
LEAST_DAMAGED = 1000  # bytes of a WRITE that is worth damaging


class MadeUpServer(EmbeddedServer):
    """`fault` is "", damages, damages once, late, single, or folds: names are in lower case."""

    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        super().__init__()

    def _start(self) -> None:
        self._start_child([sys.executable, __file__], fault=self._fault)


class Faulty(asyncssh.SFTPServer):
    """asyncssh's own, with the fault that was asked for."""

    fault: ClassVar[str] = ""
    damaged: ClassVar[int] = 0
    opened: ClassVar[set[bytes]] = set()

    def map_path(self, path: bytes) -> bytes:
        head, folder, below = super().map_path(path).partition(b"/destination/")
        return head + folder + (below.lower() if self.fault == "folds" else below)

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> Any:
        if self.fault == "single" and path in self.opened:
            raise asyncssh.SFTPFailure("it is in use")
        file: Any = super().open(path, pflags, attrs)
        self.opened.add(path)
        file.opened_as = path
        return file

    def close(self, file_obj: Any) -> Any:
        self.opened.discard(getattr(file_obj, "opened_as", b""))
        return super().close(file_obj)

    def write(self, file_obj: Any, offset: int, data: bytes) -> Any:
        wants = self.fault == "damages" or (self.fault == "damages once" and not self.damaged)
        if wants and len(data) >= LEAST_DAMAGED:
            type(self).damaged += 1
            data = data[:500] + bytes([data[500] ^ 1]) + data[501:]
        if self.fault == "late" and offset >= MIB and not self.damaged:
            type(self).damaged += 1
            return self._write_late(file_obj, offset, data)
        return super().write(file_obj, offset, data)

    async def _write_late(self, file_obj: Any, offset: int, data: bytes) -> Any:
        """Write only once a file that is no part has come to the folder of this one."""
        part = Path(os.fsdecode(file_obj.opened_as))
        while not any(each.is_file() for each in part.parent.glob("[!.]*")):
            await asyncio.sleep(POLL_S)
        return super().write(file_obj, offset, data)


async def serve(folder: Path) -> None:
    Faulty.fault = json.loads((folder / "settings.json").read_text())["fault"]
    listener = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "authorized_keys"), sftp_factory=Faulty,
    )  # fmt: skip
    await serve_until_input_ends(listener)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
