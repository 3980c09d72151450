"""The connections that outlive a run (--persist): where their sockets are, and whose they are.

Each has an ssh of its own in the background, whose socket is in a private folder. The socket's name
begins with a hash of everything that makes a connection what it is, and beside the sockets of one
hash is a file that says to where they lead.

Not here: channels of such a connection (../transports/mux_channel.py), when one is opened
(openers.py), the words of the command line (../cli/earlier_runs.py).
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from pscp.connect.known.host_setup import HostSetup, setup_key
from pscp.ground import errors, state
from pscp.ground.locations import Location
from pscp.transports import Control
from pscp.transports.mux_protocol import MuxMaster, process_of

_HASH_BYTES = 8
_NAME = re.compile(r"([a-z2-7]{13})-[0-9a-f]{4}")
_ABOUT = ".json"  # ends the name of the file that says where the connections of a hash lead
_NEW_S = 60.0  # the sockets that belong to a younger such file may be still to come


class PersistentConnection(NamedTuple):
    """A connection that is open now."""

    path: str  # of its socket
    pid: int  # of the ssh that has it
    since_s: float  # when it was opened, since the epoch
    host: str
    user: str | None
    port: int | None
    persist: str  # how long it stays once nobody uses it, as it was given to --persist

    @property
    def login(self) -> str:
        return self.host if self.user is None else f"{self.user}@{self.host}"


# The sockets of which this process has a channel: it may have several sessions, whose lanes are to
# have connections of their own.
_claimed: set[str] = set()
_claiming = threading.Lock()  # guards _claimed, and each session's part of it


class PersistentConnections:
    """The connections to one host that earlier runs left, and those that this session leaves."""

    def __init__(self) -> None:
        self._claimed: set[str] = set()  # this session's, guarded by _claiming

    def next(self, setup: HostSetup, address: str) -> Control | None:
        """Return the socket of a connection that this process does not use yet; None for none.

        A socket where nobody listens any more is removed.
        """
        folder = kept_folder()
        for path in _sockets(folder, _hash(setup, address)) if folder else ():
            control = Control(path, False, setup.options.persist or "")
            if not control.is_alive():
                with contextlib.suppress(OSError):
                    os.unlink(path)
            elif self._claim(path):
                return control
        return None

    def new(self, setup: HostSetup, address: str) -> Control:
        """Return where the ssh of a new connection is to listen. Raises UsageError."""
        folder = kept_folder()
        if folder is None:
            raise errors.UsageError("--persist: no folder for a private socket", state.NO_FOLDER)
        name = _hash(setup, address)
        about: dict[str, object] = {
            "host": setup.host.host,
            "user": setup.host.user,
            "port": setup.host.port or setup.options.port,
            "persist": setup.options.persist,
        }
        path = f"{folder}/{name}-{os.urandom(2).hex()}"
        with contextlib.suppress(OSError):  # it is for people only
            with open(f"{path}{_ABOUT}", "w") as file:
                json.dump(about, file)
            os.replace(f"{path}{_ABOUT}", f"{folder}/{name}{_ABOUT}")
        self._claim(path)
        return Control(path, True, setup.options.persist or "")

    def close(self) -> None:
        """Let other sessions of this process use what this one has used."""
        with _claiming:
            _claimed.difference_update(self._claimed)
            self._claimed.clear()

    def _claim(self, path: str) -> bool:
        """Claim a socket; return False if a session of this process has it already."""
        with _claiming:
            is_new = path not in _claimed
            if is_new:
                _claimed.add(path)
                self._claimed.add(path)
        return is_new


def _hash(setup: HostSetup, address: str) -> str:
    """Return the hash of what makes a connection to the host what it is."""
    import hashlib  # here: it takes 2 ms to load, and few commands keep connections

    options, ssh = setup.options, setup.ssh
    key = (
        setup_key(setup.host, dataclasses.replace(setup.absolute().options, debug=False)),
        ssh.digest, ssh.advised, address, options.cpus, options.congestion,
        options.rcvbuf_bytes, options.sndbuf_bytes,
    )  # fmt: skip
    digest = hashlib.sha256(ascii(key).encode()).digest()[:_HASH_BYTES]
    return base64.b32encode(digest).decode().rstrip("=").lower()


def kept_folder() -> str | None:
    """Return the folder of the sockets, made where it is missing; None: there is none.

    It lies in a folder that the user alone may enter.
    """
    folder = state.control_folder()
    if folder is None:
        return None
    try:
        os.makedirs(f"{folder}/k", mode=0o700, exist_ok=True)
    except OSError:
        return None
    return f"{folder}/k"


def _sockets(folder: str, name: str = "") -> list[str]:
    try:
        found = sorted(os.listdir(folder))
    except OSError:
        return []
    matches = (each for each in found if _NAME.fullmatch(each))
    return [f"{folder}/{each}" for each in matches if each.startswith(name)]


def kept_connections() -> list[PersistentConnection]:
    """Return all connections that are open, and remove what those that ended have left."""
    folder = kept_folder()
    if folder is None:
        return []
    found = list(_alive(folder))
    hashes = {os.path.basename(each.path)[:13] for each in found}
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            is_old = time.time() - os.lstat(path).st_mtime > _NEW_S
            if name[:13] not in hashes and is_old:
                os.unlink(path)
    return found


def _alive(folder: str) -> Iterator[PersistentConnection]:
    for path in _sockets(folder):
        pid = process_of(path)
        if pid is None:
            continue
        about: dict[str, object] = {}
        with contextlib.suppress(OSError, ValueError), open(path.rpartition("-")[0] + _ABOUT) as f:
            loaded = json.load(f)
            about = loaded if isinstance(loaded, dict) else {}
        with contextlib.suppress(OSError):
            yield _described(path, pid, about)


def _described(path: str, pid: int, about: dict[str, object]) -> PersistentConnection:
    user, port = about.get("user"), about.get("port")
    return PersistentConnection(
        path,
        pid,
        os.lstat(path).st_mtime,
        str(about.get("host", "?")),
        user if isinstance(user, str) else None,
        port if isinstance(port, int) else None,
        str(about.get("persist", "?")),
    )


def disconnect(host: Location | None) -> list[PersistentConnection]:
    """End the connections to this host, as it was written when they were opened; None: all.

    Returns those that were ended.
    """
    ended = []
    for kept in kept_connections():
        if host is None or _is_to(kept, host):
            with contextlib.suppress(OSError), contextlib.closing(MuxMaster(kept.path)) as master:
                master.terminate()
                ended.append(kept)
    return ended


def _is_to(kept: PersistentConnection, host: Location) -> bool:
    """Return whether a connection leads there; a user or a port that is not given may be any."""
    return (
        kept.host == host.host and host.user in (None, kept.user) and host.port in (None, kept.port)
    )
