"""An SSH server made with paramiko: commands and SFTP, for the one key it is given.

    python3 paramiko_server.py FOLDER

Prints its port, and serves until its standard input ends. A thread a connection, and some more a
command.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import paramiko
from paramiko.sftp import SFTP_OK

BLOCK_BYTES = 32 * 1024
SIZE_S, SIZE_PATIENCE_S = 3.0, 8.0  # how long setting a file's size takes, and at most


class Server(paramiko.ServerInterface):
    def __init__(self, allowed: str, shell: str) -> None:
        self._allowed, self._shell = allowed, shell  # without a shell there are no commands

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if key.get_base64() != self._allowed:
            return paramiko.AUTH_FAILED
        print(f"Accepted publickey for {username}", file=sys.stderr, flush=True)
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind == "session":
            return paramiko.OPEN_SUCCEEDED
        return paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_env_request(self, channel: Any, name: bytes, value: bytes) -> bool:
        return True

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if not self._shell:
            return False
        threading.Thread(target=run, args=(channel, self._shell, command), daemon=True).start()
        return True


def run(channel: paramiko.Channel, shell: str, command: bytes) -> None:
    """The command with three pipes, as under sshd."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        [shell, "-c", command], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
    )
    assert child.stdin and child.stdout and child.stderr
    pairs = ((child.stdout, channel.sendall), (child.stderr, channel.sendall_stderr))
    drains = [threading.Thread(target=drain, args=pair, daemon=True) for pair in pairs]
    for thread in drains:
        thread.start()
    threading.Thread(target=feed, args=(channel, child.stdin), daemon=True).start()
    for thread in drains:
        thread.join()
    status = child.wait()
    with contextlib.suppress(OSError, EOFError):
        channel.send_exit_status(status if status >= 0 else 128 - status)
    channel.close()


def feed(channel: paramiko.Channel, stdin: Any) -> None:
    with contextlib.suppress(OSError), stdin:
        while data := channel.recv(BLOCK_BYTES):
            view = memoryview(data)
            while view:
                view = view[stdin.write(view) :]


def drain(out: Any, send: Any) -> None:
    with contextlib.suppress(OSError), out:
        while data := out.read(BLOCK_BYTES):
            send(data)


# --- files


class Handle(paramiko.SFTPHandle):
    """A file by its descriptor."""

    def __init__(self, fd: int, flags: int) -> None:
        super().__init__(flags)
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)

    def read(self, offset: int, length: int) -> Any:
        return tried(lambda: os.pread(self._fd, length, offset))

    def write(self, offset: int, data: bytes) -> Any:
        return done(lambda: os.pwrite(self._fd, data, offset))

    def stat(self) -> Any:
        return tried(lambda: paramiko.SFTPAttributes.from_stat(os.fstat(self._fd)))

    def chattr(self, attr: paramiko.SFTPAttributes) -> Any:
        """Set attributes. Setting a size empties the file, as paramiko does it: here so late that
        another connection has not found it yet when it looks, or has filled it meanwhile.
        """
        if attr._flags & attr.FLAG_SIZE:
            until_s = time.monotonic() + SIZE_PATIENCE_S
            time.sleep(SIZE_S)
            while os.fstat(self._fd).st_size and time.monotonic() < until_s:
                if os.fstat(self._fd).st_blocks:
                    break
                time.sleep(0.001)
        return done(lambda: paramiko.SFTPServer.set_file_attr(f"/proc/self/fd/{self._fd}", attr))


class Files(paramiko.SFTPServerInterface):
    """The files of this machine, as they are."""

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> Any:
        mode = attr.st_mode if attr.st_mode is not None else 0o666
        return tried(lambda: Handle(os.open(path, flags, mode), flags))

    def list_folder(self, path: str) -> Any:
        def listed() -> list[paramiko.SFTPAttributes]:
            with os.scandir(path) as found:
                return [
                    paramiko.SFTPAttributes.from_stat(entry.stat(follow_symlinks=False), entry.name)
                    for entry in found
                ]

        return tried(listed)

    def stat(self, path: str) -> Any:
        return tried(lambda: paramiko.SFTPAttributes.from_stat(os.stat(path)))

    def lstat(self, path: str) -> Any:
        return tried(lambda: paramiko.SFTPAttributes.from_stat(os.lstat(path)))

    def remove(self, path: str) -> int:
        return done(lambda: os.remove(path))

    def rename(self, oldpath: str, newpath: str) -> int:
        if os.path.lexists(newpath):
            return paramiko.SFTP_FAILURE
        return done(lambda: os.rename(oldpath, newpath))

    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        return done(lambda: os.mkdir(path, 0o777 if attr.st_mode is None else attr.st_mode))

    def rmdir(self, path: str) -> int:
        return done(lambda: os.rmdir(path))

    def chattr(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        return done(lambda: paramiko.SFTPServer.set_file_attr(path, attr))

    def readlink(self, path: str) -> Any:
        return tried(lambda: os.readlink(path))

    def symlink(self, target_path: str, path: str) -> int:
        return done(lambda: os.symlink(target_path, path))

    def canonicalize(self, path: str) -> str:
        return os.path.normpath(os.path.join(os.getcwd(), path))


class FilesAndMore(Files):
    def posix_rename(self, oldpath: str, newpath: str) -> int:
        return done(lambda: os.rename(oldpath, newpath))


def tried(act: Any) -> Any:
    """What it returns, or the SFTP status that its OSError means."""
    try:
        return act()
    except OSError as error:
        return paramiko.SFTPServer.convert_errno(error.errno)


def done(act: Any) -> int:
    found = tried(lambda: (act(), SFTP_OK)[1])
    return int(found)


def serve(sock: socket.socket, key: paramiko.PKey, allowed: str, shell: str) -> None:
    transport = paramiko.Transport(sock)
    transport.add_server_key(key)
    files = FilesAndMore if shell else Files
    transport.set_subsystem_handler("sftp", paramiko.SFTPServer, files)
    with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
        transport.start_server(server=Server(allowed, shell))


def main(folder: Path) -> None:
    settings = json.loads((folder / "settings.json").read_text())
    os.environ.update(settings["environment"])
    os.chdir(os.environ["HOME"])
    shell = "" if settings["is_bare"] else settings["shell"] or "/bin/sh"
    key = paramiko.Ed25519Key.from_private_key_file(str(folder / "host_key"))
    allowed = (folder / "authorized_keys").read_text().split()[1]
    listener = socket.create_server((settings["address"], 0), backlog=64)
    print(listener.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            serve(sock, key, allowed, shell)

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()
    os._exit(0)  # threads of paramiko's may hang on


if __name__ == "__main__":
    main(Path(sys.argv[1]))
