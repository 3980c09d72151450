"""SFTP servers that are not OpenSSH's, a process each: `python sftp_servers.py FOLDER`.

Made with asyncssh or paramiko, as settings.json says, some with a fault: a WRITE that is damaged,
a file that opens once at a time, no exec. They serve until stdin ends.

Not here: the tests (e2e/test_copy_sftp.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import asyncssh
import paramiko

from pscp.selftest.embedded_server import serve_until_input_ends
from pscp.selftest.servers import EmbeddedServer, PrivateServer

LEAST_DAMAGED = 1000  # bytes of a WRITE that is worth damaging


class MadeUpServer(EmbeddedServer):
    """`kind` is asyncssh or paramiko; `fault` is "", damages, damages once, or single."""

    def __init__(self, library: str, fault: str, **fields: Any) -> None:
        self._library, self._fault = library, fault
        super().__init__(**fields)

    def _spawn(self, argv: Any, cwd: Path | None, *, pipes: bool) -> Any:
        settings = json.loads((self.folder / "settings.json").read_text())
        settings |= {"library": self._library, "fault": self._fault}
        (self.folder / "settings.json").write_text(json.dumps(settings))
        return super()._spawn([sys.executable, __file__, str(self.folder)], cwd, pipes=pipes)


class Faulty(asyncssh.SFTPServer):
    """asyncssh's own, with the fault that was asked for."""

    fault: ClassVar[str] = ""
    damaged: ClassVar[int] = 0
    opened: ClassVar[set[bytes]] = set()

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
        return super().write(file_obj, offset, data)


async def serve_asyncssh(folder: Path, fault: str) -> None:
    Faulty.fault = fault
    listener = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "authorized_keys"), sftp_factory=Faulty,
    )  # fmt: skip
    await serve_until_input_ends(listener)


# --- paramiko


class Login(paramiko.ServerInterface):
    def __init__(self, key: str) -> None:
        self._key = key

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        is_right = key.get_base64() == self._key
        return paramiko.AUTH_SUCCESSFUL if is_right else paramiko.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


class Handle(paramiko.SFTPHandle):
    def stat(self) -> Any:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))

    def chattr(self, attr: paramiko.SFTPAttributes) -> int:
        return Files.change(self.filename, attr)


class Files(paramiko.SFTPServerInterface):
    @staticmethod
    def change(path: str, attr: Any) -> int:
        try:
            if attr._flags & attr.FLAG_SIZE:
                os.truncate(path, attr.st_size)
            attr._flags &= ~(attr.FLAG_SIZE | attr.FLAG_UIDGID)
            paramiko.SFTPServer.set_file_attr(path, attr)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)
        return paramiko.SFTP_OK

    def _tried(self, act: Any, *arguments: Any) -> Any:
        try:
            found = act(*arguments)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)
        return paramiko.SFTP_OK if found is None else found

    def list_folder(self, path: str) -> Any:
        def listed() -> list[Any]:
            found = []
            for name in os.listdir(path):
                status = os.lstat(os.path.join(path, name))
                attr = paramiko.SFTPAttributes.from_stat(status, name)
                found.append(attr)
            return found

        return self._tried(listed)

    def stat(self, path: str) -> Any:
        return self._tried(lambda: paramiko.SFTPAttributes.from_stat(os.stat(path)))

    def lstat(self, path: str) -> Any:
        return self._tried(lambda: paramiko.SFTPAttributes.from_stat(os.lstat(path)))

    def open(self, path: str, flags: int, attr: Any) -> Any:
        def opened() -> Handle:
            fd = os.open(
                path,
                flags,
                (attr.st_mode if attr._flags & attr.FLAG_PERMISSIONS else None) or 0o666,
            )
            way = "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb"
            file = os.fdopen(fd, "r+b" if way == "r+b" else way, 0)
            handle = Handle(flags)
            handle.filename = path
            handle.readfile = handle.writefile = file
            return handle

        return self._tried(opened)

    def remove(self, path: str) -> int:
        return self._tried(os.remove, path)

    def rename(self, oldpath: str, newpath: str) -> int:
        return (
            paramiko.SFTP_FAILURE
            if os.path.lexists(newpath)
            else self._tried(os.rename, oldpath, newpath)
        )

    def mkdir(self, path: str, attr: Any) -> int:
        return self._tried(os.mkdir, path)

    def chattr(self, path: str, attr: Any) -> int:
        return self.change(path, attr)

    def readlink(self, path: str) -> Any:
        return self._tried(os.readlink, path)

    def symlink(self, target_path: str, path: str) -> int:
        return self._tried(os.symlink, target_path, path)


def serve_paramiko(folder: Path) -> None:
    key = (folder / "authorized_keys").read_text().split()[1]
    host_key = paramiko.Ed25519Key.from_private_key_file(str(folder / "host_key"))
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    kept = []
    while True:
        connection, _ = listening.accept()
        transport = paramiko.Transport(connection)
        transport.add_server_key(host_key)
        transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
        transport.start_server(server=Login(key), event=threading.Event())
        kept.append(transport)


def main(folder: Path) -> None:
    settings = json.loads((folder / "settings.json").read_text())
    if settings["library"] == "paramiko":
        serve_paramiko(folder)
    else:
        asyncio.run(serve_asyncssh(folder, settings["fault"]))


__all__ = ["MadeUpServer", "PrivateServer"]

if __name__ == "__main__":
    main(Path(sys.argv[1]))
