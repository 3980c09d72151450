"""What pscp-serve does, as serve.toml says it: the settings of the server and of its users.

Not here: how serve.toml is read and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RULES = ("read", "write", "append-only")


@dataclass(frozen=True)
class User:
    """A user: what may be seen and done, and how a login is proven."""

    name: str
    folder: str  # a whole path; all that this user sees is below it
    rules: frozenset[str]  # of RULES
    keys: str = ""  # a file in the form of authorized_keys, or a folder of such files
    password: str = ""  # an argon2 hash
    ca: str = ""  # a file of the public keys of certificate authorities
    quota_bytes: int | None = None
    quota_files: int | None = None
    rate: int | None = None  # bytes a second
    largest: int | None = None  # bytes of one file
    names: tuple[str, ...] = ()  # patterns of allowed file names (fnmatch); none: any
    addresses: tuple[str, ...] = ()  # networks from which logins may come; none: any
    owner: tuple[int, int] | None = None  # uid and gid of what lands; None: the server's own
    mode: int = 0o640  # of files; folders get x where r is


@dataclass(frozen=True)
class Settings:
    """The whole of serve.toml. Times are in seconds."""

    listen: tuple[tuple[str, int], ...]  # addresses and ports
    host_keys: tuple[str, ...]  # files of private keys; made where there are none
    state: str  # a folder: counters of quotas, sockets, keys made at the first start
    users: Mapping[str, User]
    memory: int = 1 << 30  # bytes for all connections together
    workers: int = 0  # processes; 0: one a core
    keep_parts: float = 7 * 86400.0  # how long an upload that was cut can be resumed
    after_upload: tuple[str, ...] = ()  # a command, run with the path as its last argument
    after_upload_jobs: int = 1  # of these at once
    uploads: str = ""  # a file that gets a JSON line for each upload
    log: str = ""  # a file; "": standard error
    metrics: str = ""  # a file for node_exporter's textfile collector
    # A command asked for users that are not listed: it prints a [user] table as JSON.
    command: tuple[str, ...] = ()
    connections: int = 1000
    per_address: int = 50  # connections
    per_user: int = 100  # connections
    open_files: int = 256  # a session
    idle: float = 600.0
    login_time: float = 30.0
    proxy: tuple[str, ...] = ()  # networks whose PROXY header is believed
    run_as: str = ""  # the user that the server becomes once ports and keys are open


@dataclass
class Current:
    """The settings that hold now, which SIGHUP replaces; connections that there are go on."""

    settings: Settings
