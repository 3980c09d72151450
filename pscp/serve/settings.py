"""What pscp-serve does, as serve.toml says it: each key is declared once, a field of its dataclass.

Not here: how serve.toml is read and checked (server/config.py), its types (../toml/values.py).
"""

from __future__ import annotations

import grp
import ipaddress
import pwd
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from pscp.ground.errors import UsageError
from pscp.ground.values import parse_kbit_s, parse_size
from pscp.toml.values import File, Key, Number, Seconds, Text, after, several

RULES = ("read", "write", "append-only")
STATE = "/var/lib/pscp-serve"
_AT_START = ("listen", "host_keys", "state", "log", "workers", "run_as", "after_upload_jobs")


def _address(text: str, folder: str) -> tuple[str, int]:
    """Return the address and port of, for example, 0.0.0.0:22, [::]:22 or :22."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text!r} is no address and port", "such as 0.0.0.0:2222 or [::]:2222")
    host = host.removeprefix("[").removesuffix("]") or "0.0.0.0"  # noqa: S104 - it was asked for
    try:
        return str(ipaddress.ip_address(host)), int(port)
    except ValueError:
        raise UsageError(f"{host!r} is no address", "a name may be another one later") from None


def _network(text: str, folder: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise UsageError(f"{text!r} is no network", "such as 192.0.2.0/24") from None


def _mode(text: str, folder: str) -> int:
    if not re.fullmatch("0?[0246]{3}", text):  # with x it would be a part (landing.py)
        raise UsageError(f"{text!r} is no mode of a file that nobody executes", "such as 640")
    return int(text, 8)


def _owner(text: str, folder: str) -> tuple[int, int]:
    """Return the numbers of USER or USER:GROUP, of names or of numbers."""
    user, _, group = text.partition(":")
    try:
        uid = int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
        if group:
            return uid, int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
        return uid, uid if user.isdecimal() else pwd.getpwnam(user).pw_gid
    except KeyError:
        raise UsageError(f"{text!r}: there is no such user or group here") from None


def _hash(text: str, folder: str) -> str:
    if not text.startswith("$argon2"):
        raise UsageError("is no argon2 hash", "pscp-serve --hash-password makes one")
    return text


def _user_here(text: str, folder: str) -> str:
    try:
        return pwd.getpwnam(text).pw_name
    except KeyError:
        raise UsageError(f"{text!r}: there is no such user here") from None


def _rules(words: tuple[str, ...], folder: str) -> frozenset[str]:
    return frozenset(words)


Size = Annotated[Number, after(lambda text, folder: parse_size(text, ""))]
Rate = Annotated[Number, after(lambda text, folder: parse_kbit_s(text) * 125)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Networks: Any = several(Annotated[Text, after(_network)])
Words: Any = Annotated[several(Text), AfterValidator(tuple)]


def _key(kind: Any, meaning: str, example: object, default: Any = MISSING) -> Any:
    """Return the field of a key of serve.toml: its type there, its meaning, an example."""
    return field(default=default, metadata={"key": Key(kind, meaning, example)})


def keys_of(table: type[User] | type[Settings]) -> dict[str, Key]:
    """Return the keys of a table of serve.toml, with "-" where its fields have "_"."""
    found = {each.name.replace("_", "-"): each.metadata.get("key") for each in fields(table)}
    return {name: key for name, key in found.items() if key is not None}


# fmt: off
@dataclass(frozen=True)
class User:
    """A user: what may be seen and done, and how a login is proven. Sizes are in bytes."""

    name: str
    folder: str = _key(File, "all that the user sees is below it", "/srv/incoming/alice")
    rules: frozenset[str] = _key(
        Annotated[several(Literal[RULES]), after(_rules)],
        "what the user may do: read, write, append-only", ["write"])
    keys: str = _key(
        File, "a file in authorized_keys' form, or a folder of these",
        "/etc/pscp-serve/alice.pub", "")
    password: str = _key(
        Annotated[Text, after(_hash)], "what --hash-password prints", "$argon2id$v=19$...", "")
    ca: str = _key(File, "public keys of authorities, whose certificates are taken", "ca.pub", "")
    quota_bytes: int | None = _key(Size, "the most that the folder may hold", "500G", None)
    quota_files: int | None = _key(
        Count, "the most files, folders and links in the folder", 100_000, None)
    rate: int | None = _key(  # bytes a second
        Rate, "the most to receive and send, as --limit", "200M", None)
    largest: int | None = _key(Size, "the largest file", "50G", None)
    names: tuple[str, ...] = _key(
        several(Text), "patterns of names that a file may have", ["*.rec", "*.json"], ())
    addresses: tuple[str, ...] = _key(
        Networks, "from where the user may log in", ["192.0.2.0/24"], ())
    owner: tuple[int, int] | None = _key(  # uid and gid; None: the server's own
        Annotated[Text, after(_owner)], "whose the files become", "ingest:ingest", None)
    mode: int = _key(  # folders get x where r is
        Annotated[Text, after(_mode)], "the mode of files (640)", "600", 0o640)


@dataclass(frozen=True)
class Settings:
    """The whole of serve.toml. Times are in seconds, sizes in bytes; "" is none."""

    users: Mapping[str, User]
    listen: tuple[tuple[str, int], ...] = _key(
        several(Annotated[Text, after(_address)]), "addresses and ports to listen at", [":2222"])
    host_keys: tuple[str, ...] = _key(
        several(File), "private keys, such as sshd's; without one it is made in `state`",
        ["/etc/ssh/ssh_host_ed25519_key"], ())
    state: str = _key(
        File, f"a folder for what the server keeps ({STATE})", "/srv/pscp-serve", STATE)
    run_as: str = _key(
        Annotated[Text, after(_user_here)], "the user to become once ports and keys are open",
        "nobody", "")
    workers: int = _key(Count, "processes (one for each processor)", 4, 0)
    memory: int = _key(
        Size, "the most memory for what is under way, of all connections (1G)", "4G", 1 << 30)
    keep_parts: float = _key(
        Seconds, "how long an upload that was cut can be resumed (7d)", "2d", 7 * 86400.0)
    after_upload: tuple[str, ...] = _key(
        Words, "a command to run for each upload, with its path behind it; no shell",
        ["/bin/push"], ())
    after_upload_jobs: int = _key(Count, "so many of these at once (1)", 4, 1)
    uploads: str = _key(
        File, "a file that gets a line of JSON for each upload", "/srv/uploads.jsonl", "")
    log: str = _key(
        File, "a file for lines of JSON (standard error)", "/var/log/pscp-serve.jsonl", "")
    metrics: str = _key(
        File, "a file for node_exporter's textfile collector", "/srv/metrics/pscp_serve.prom", "")
    command: tuple[str, ...] = _key(
        Words, "asked, with the name behind it, for a user that the file has not: it prints the "
        "user's table as JSON", ["/usr/local/bin/customer"], ())
    connections: int = _key(Count, "the most connections (1000)", 5000, 1000)
    per_address: int = _key(Count, "the most connections from one address (50)", 200, 50)
    per_user: int = _key(Count, "the most connections of one user (100)", 20, 100)
    open_files: int = _key(Count, "the most open files of one session (256)", 64, 256)
    idle: float = _key(
        Seconds, "end a connection on which nothing moves for so long (10min)", "1h", 600.0)
    login_time: float = _key(
        Seconds, "end a connection without a login after so long (30s)", "1min", 30.0)
    proxy: tuple[str, ...] = _key(
        Networks, "balancers, whose PROXY headers are believed", ["192.0.2.0/28"], ())
# fmt: on


@dataclass
class Current:
    """The settings that hold now, which SIGHUP replaces; connections that there are go on."""

    settings: Settings

    def renew(self, settings: Settings) -> list[str]:
        """Take new settings, but for what holds from a start on. Return which of these wait."""
        kept = {key: getattr(self.settings, key) for key in _AT_START}
        self.settings = replace(settings, **kept)
        return [key.replace("_", "-") for key in _AT_START if getattr(settings, key) != kept[key]]
