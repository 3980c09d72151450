"""One worker process of pscp-serve: it takes connections at its ports until it is told to end.

Not here: the processes (process.py), what a user may do once logged in.
Read next: logins.py.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

import asyncssh

from pscp.endpoint.frames.system import has_aes
from pscp.ground.errors import UsageError
from pscp.serve.account import Account
from pscp.serve.events import Events
from pscp.serve.landing import sweep
from pscp.serve.server import gate
from pscp.serve.server.config import load
from pscp.serve.server.logins import Logins
from pscp.serve.server.shared import Shared
from pscp.serve.server.status import socket_path
from pscp.serve.session import Sessions, ciphers
from pscp.serve.settings import Current, User
from pscp.transports.libraries.asyncssh_server_internals import Connection

_SWEEP_S = 3600.0
_LOOK_S = 5.0  # from one look for what is idle to the next
_ENDING_S = 5.0  # for all connections, once the server is to end
_REFUSED_S, _REFUSED = 1.0, 256  # so long, and so many, connections are held that are refused
_KEEPALIVE_S, _KEEPALIVES = 30.0, 4  # a client that does not answer so often is gone


class Worker:
    """The connections of one process."""

    def __init__(
        self, path: str, current: Current, shared: Shared, keys: Sequence[asyncssh.SSHKey]
    ) -> None:
        """`path` is the file of settings, read again at SIGHUP; "" for none."""
        self._path = path
        self._current = current
        self._keys = keys
        self._shared = shared
        self._gate = gate.Gate(current, shared)
        self._seen: dict[str, User] = {}  # users, also those of whom a command has told
        self._events = Events(current.settings.log)
        self._sessions = Sessions(current, self._events, shared.workers)
        self._connections: dict[Connection, None] = {}  # the oldest first
        self._refused = collections.deque[socket.socket]()
        self._ended = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()

    def listen(self) -> None:
        """Take SIGTERM and SIGHUP from now on."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._ended.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._begin(self._read_again()))

    async def run(self, listeners: Sequence[socket.socket], first_fd: int) -> None:
        """Take connections until SIGTERM, or the end of the first process: a pipe's other end."""
        self._options = await self._made_options()
        asyncio.get_running_loop().add_reader(first_fd, self._ended.set)
        with socket_path(self._current.settings.state, self._shared.worker) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            status = await asyncio.start_unix_server(self._answer, path)
            os.chmod(path, 0o600)
        for listener in listeners:
            listener.setblocking(False)
            self._begin(self._accept(listener))
        self._begin(self._look())
        self._begin(self._sweep())
        await self._ended.wait()
        status.close()
        await self._end()

    def _begin(self, what: Any) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        for connection in [*self._connections]:
            connection.disconnect(asyncssh.DISC_BY_APPLICATION, "the server ends")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_S):
                for connection in [*self._connections]:
                    await connection.wait_closed()
                await asyncio.gather(*self._sessions.works, return_exceptions=True)
        self._sessions.close()

    async def _read_again(self) -> None:
        self._events.reopen()
        with contextlib.suppress(UsageError):  # the first process tells it, and the old ones hold
            if self._path:
                self._current.renew(load(self._path))
                self._options = await self._made_options()
                memory_bytes = self._current.settings.memory // self._shared.workers
                self._sessions.windows.memory_bytes = memory_bytes

    async def _made_options(self) -> asyncssh.SSHServerConnectionOptions:
        made: asyncssh.SSHServerConnectionOptions
        made = await asyncssh.SSHServerConnectionOptions.construct(
            server_factory=lambda: Logins(self._current, self._gate, self._sessions),
            server_host_keys=self._keys,
            login_timeout=self._current.settings.login_time,
            gss_host=None,
            keepalive_interval=_KEEPALIVE_S,
            keepalive_count_max=_KEEPALIVES,
            encryption_algs=ciphers(has_aes()),
            compression_algs=None,
            agent_forwarding=False,
        )
        return made

    # --- connections

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listener)
            except OSError:  # too many open files, or a client that is gone already
                await asyncio.sleep(0.05)
                continue
            await asyncio.sleep(0)  # those before it go first, however many there are
            if gate.is_within(address[0], self._current.settings.proxy):
                self._begin(self._proxied(client, address[0]))
            else:
                self._admit(client, address[0])

    async def _proxied(self, client: socket.socket, balancer: str) -> None:
        try:
            address = await gate.proxied(client)
        except (OSError, ValueError, TimeoutError) as error:
            client.close()
            self._refuse(balancer, f"PROXY header: {error}")
            return
        self._admit(client, address or balancer)

    def _admit(self, client: socket.socket, address: str) -> None:
        if why := self._gate.why_refused(address):
            self._close_later(client)
            self._refuse(address, why)
            return
        self._gate.enter(address)
        self._begin(self._serve(client, address))

    def _close_later(self, client: socket.socket) -> None:
        """Keep who is refused waiting: who is told at once comes again at once."""
        self._refused.append(client)
        if len(self._refused) > _REFUSED:
            self._refused.popleft().close()
        asyncio.get_running_loop().call_later(_REFUSED_S, client.close)

    def _refuse(self, address: str, why: str) -> None:
        self._events.count("refused", "")
        if self._gate.is_told(address):
            self._events.tell("refused", "", address, what="connection", why=why)

    async def _serve(self, client: socket.socket, address: str) -> None:
        """Have SSH spoken over a socket until its connection ends."""
        connection = Connection(self._options, address)
        try:
            self._make_room()
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client)
        except OSError:
            client.close()
            self._gate.leave(address)
            return
        self._connections[connection] = None
        try:
            await connection.wait_closed()
        finally:
            self._connections.pop(connection, None)

    def _make_room(self) -> None:
        """End a connection without a login where half of all may be such.

        It is one that has sent nothing, if there is any, and the oldest of the address that has
        most of them.
        """
        most = max(self._current.settings.connections // (2 * self._shared.workers), 10)
        waiting = [each for each in self._connections if each.user is None]
        if len(waiting) < most:
            return
        front = [each for each in waiting if not each.received_bytes] or waiting
        addresses = [each.address for each in front]
        [(address, _)] = collections.Counter(addresses).most_common(1)
        oldest = front[addresses.index(address)]
        del self._connections[oldest]
        oldest.abort()

    async def _look(self) -> None:
        """Note how fast each connection is, and end those on which nothing moves for too long."""
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = time.monotonic()
            active = {each.connection for each in self._sessions.open}
            for session in [*self._sessions.open]:
                session.end_idle(now_s)
            for each in [*self._connections]:
                each.measure(now_s)
                if each.user is not None:
                    self._seen[each.user.name] = each.user
                if each in active or each.user is None:
                    each.used_s = now_s  # a session has its own time, and so has a login
                elif now_s - each.used_s > self._current.settings.idle:
                    each.disconnect(asyncssh.DISC_BY_APPLICATION, "no session for too long")

    async def _sweep(self) -> None:
        """Have parts removed that nobody has resumed in time; of the users listed, one worker."""
        loop = asyncio.get_running_loop()
        while True:
            listed = {} if self._shared.worker else self._current.settings.users
            for user in {**self._seen, **listed}.values():
                await loop.run_in_executor(None, self._sweep_folder, user)
            await asyncio.sleep(_SWEEP_S)

    def _sweep_folder(self, user: User) -> None:
        settings = self._current.settings
        try:
            with contextlib.closing(Account(settings.state, user)) as account:
                if parts := sweep(user, account, settings.keep_parts):
                    self._events.tell("swept", user.name, "", parts=parts)
        except OSError as error:
            self._events.tell("swept", user.name, "", ok=False, why=str(error))

    # --- what is told

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tell whoever asks who is connected, and the counters."""
        told = {
            "sessions": [self._standing(each) for each in self._connections],
            "counters": [[*key, number] for key, number in self._events.counters.items()],
        }
        writer.write(json.dumps(told).encode())
        with contextlib.suppress(OSError):
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    def _standing(self, its: Connection) -> dict[str, object]:
        sessions = [each for each in self._sessions.open if each.connection is its]
        uploads = [upload for each in sessions for upload in each.files.uploads()]
        return {
            "user": its.user.name if its.user is not None else "",
            "address": its.address,
            "seconds": round(time.monotonic() - its.began_s, 1),
            "received_bytes": its.received_bytes,
            "sent_bytes": its.sent_bytes,
            "bytes_per_s": round(its.bytes_per_s),
            "window_bytes": sum(each.window_bytes for each in sessions),
            "uploads": [(os.fsdecode(path), size_bytes) for path, size_bytes in uploads],
        }
