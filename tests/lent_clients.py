"""Connections such as a program makes itself, with paramiko or asyncssh, to be handed to pscp.

Not here: the tests (conformance/, e2e/test_transports.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import asyncssh
import paramiko
from servers.private import PrivateServer

PATIENCE_S = 30.0  # for what takes a moment


@contextlib.contextmanager
def lent_client(library: str, server: PrivateServer) -> Iterator[Any]:
    """A paramiko.SSHClient, or an asyncssh.SSHClientConnection whose loop has its own thread."""
    if library == "paramiko":
        with paramiko.SSHClient() as client:
            client.load_host_keys(str(server.folder / "known_hosts"))
            client.connect(
                "127.0.0.1", server.port, server.user, allow_agent=False, look_for_keys=False,
                key_filename=str(server.folder / "user_key"),
            )  # fmt: skip
            yield client
        return
    loop = LoopThread()
    try:
        connection = loop.run(begun(server))
        yield connection
        loop.run(ended(connection))
    finally:
        loop.close()


async def begun(server: PrivateServer) -> asyncssh.SSHClientConnection:
    return await asyncssh.connect(server.host, config=[server.ssh_config])


async def ended(connection: asyncssh.SSHClientConnection) -> None:
    connection.close()
    await connection.wait_closed()


class LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
