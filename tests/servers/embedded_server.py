"""The embedded SSH server's own process: `python -m servers.embedded_server FOLDER`.

FOLDER holds the keys and settings that private.py wrote there. The port, which the system
chooses, is printed on the first line; after that it serves until its stdin ends. A command
runs under a shell with three pipes, as under sshd, and its bytes pass through unchanged.

Not here: starting, ending and reaching the server (private.py); a pty, forwarding, SFTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import asyncssh

Client: TypeAlias = "asyncssh.SSHServerProcess[bytes]"
BUFFER_BYTES = 256 * 1024  # what asyncio reads from a pipe at once


async def serve(folder: Path) -> None:
    """Serve until stdin ends: until the process that started this one closes it or dies."""
    settings = json.loads((folder / "settings.json").read_text())
    account = pwd.getpwuid(os.getuid())
    shell = settings["shell"] or account.pw_shell or "/bin/sh"
    environment = {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": shell,
        "PATH": os.environ.get("PATH", os.defpath),
        **settings["environment"],
    }

    async def session(process: Client) -> None:
        await run_command(process, shell, environment)

    listener = await asyncssh.listen(
        settings["address"],
        0,
        server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "authorized_keys"),
        process_factory=session,
        encoding=None,
        line_editor=False,
        allow_pty=False,
        agent_forwarding=False,
        x11_forwarding=False,
        gss_host=None,
    )
    await serve_until_input_ends(listener)


async def serve_until_input_ends(listener: asyncssh.SSHAcceptor) -> None:
    """Print the port, and serve while the process that started this one holds stdin open."""
    print(listener.get_port(), flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    await ended.wait()
    listener.close()


async def run_command(process: Client, shell: str, environment: Mapping[str, str]) -> None:
    """Run the client's command with three pipes, as sshd does, and return its exit status to it."""
    ends = [os.pipe() for _ in range(3)]
    (stdin, to_child), (from_child, stdout), (errors_from_child, stderr) = ends
    child = await asyncio.create_subprocess_exec(
        shell,
        *(["-c", process.command] if process.command else []),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=environment["HOME"],
        env=environment,
        start_new_session=True,
    )
    for end in (stdin, stdout, stderr):
        os.close(end)
    feeding = asyncio.create_task(feed(process, to_child))
    await asyncio.gather(
        drain(from_child, process.stdout), drain(errors_from_child, process.stderr)
    )
    status = await child.wait()
    feeding.cancel()
    await asyncio.wait([feeding])
    if status >= 0:
        process.exit(status)
    else:
        process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))


# asyncssh's own redirect() is not used: it ends a pipe from within the callback that says there
# is room in it again, and asyncio then drops what that callback had just written (CPython 3.11
# to 3.13, _UnixWritePipeTransport._write_ready): up to 64 KiB before the end were lost.


async def feed(process: Client, descriptor: int) -> None:
    """Copy from the client to the command's stdin, and close that when the client ends."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(descriptor, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await process.stdin.read(BUFFER_BYTES):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


async def drain(descriptor: int, out: asyncssh.SSHWriter[bytes]) -> None:
    """Copy from the command to the client; close the pipe if the client is lost."""
    reader = asyncio.StreamReader(limit=BUFFER_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    try:
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await reader.read(BUFFER_BYTES):
                out.write(data)
                await out.drain()
    finally:
        transport.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
