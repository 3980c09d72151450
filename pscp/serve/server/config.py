"""Reads serve.toml: the settings, or every mistake in it at once, each with its line.

Nothing is looked at on the disk: a folder may be mounted later, keys may be written later, and
neither keeps the server from the others' users. --check does look (unready()).

Not here: what is common to files in TOML (../../toml/reading.py), what the settings are
(../settings.py).
Read next: ../settings.py.
"""

from __future__ import annotations

import grp
import ipaddress
import os
import pwd
import re
from collections.abc import Collection, Iterator
from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter

from pscp.ground.errors import UsageError
from pscp.ground.values import parse_kbit_s, parse_size
from pscp.serve.settings import RULES, Settings, User
from pscp.toml.reading import Form, Mistakes, nearest, parsed
from pscp.toml.values import File, Key, Number, Seconds, Text, after, closed, several

NAME = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}", re.ASCII
)  # a user's; no path's part, no option
STATE = "/var/lib/pscp-serve"
_WHICH = "--config names the file"
_NO_KEY = "nobody could log in: it needs keys, password or ca"


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
    if not re.fullmatch("0?[0-7]{3}", text):
        raise UsageError(f"{text!r} is no mode", "such as 640")
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
SERVER = {
    "listen": Key(
        several(Annotated[Text, after(_address)]), "addresses and ports to listen at", [":2222"]
    ),
    "host-keys": Key(
        several(File), "private keys, such as sshd's; without one it is made in `state`",
        ["/etc/ssh/ssh_host_ed25519_key"],
    ),
    "state": Key(File, f"a folder for what the server keeps ({STATE})", "/srv/pscp-serve"),
    "run-as": Key(
        Annotated[Text, after(_user_here)], "the user to become once ports and keys are open",
        "nobody",
    ),
    "workers": Key(Count, "processes (one for each processor)", 4),
    "memory": Key(Size, "the most memory for what is under way, of all connections (1G)", "4G"),
    "keep-parts": Key(Seconds, "how long an upload that was cut can be resumed (7d)", "2d"),
    "after-upload": Key(
        Words, "a command to run for each upload, with its path behind it; no shell", ["/bin/push"]
    ),
    "after-upload-jobs": Key(Count, "so many of these at once (1)", 4),
    "uploads": Key(File, "a file that gets a line of JSON for each upload", "/srv/uploads.jsonl"),
    "log": Key(File, "a file for lines of JSON (standard error)", "/var/log/pscp-serve.jsonl"),
    "metrics": Key(
        File, "a file for node_exporter's textfile collector", "/srv/metrics/pscp_serve.prom"
    ),
    "command": Key(
        Words, "asked, with the name behind it, for a user that the file has not: it prints the "
        "user's table as JSON", ["/usr/local/bin/customer"],
    ),
    "connections": Key(Count, "the most connections (1000)", 5000),
    "per-address": Key(Count, "the most connections from one address (50)", 200),
    "per-user": Key(Count, "the most connections of one user (100)", 20),
    "open-files": Key(Count, "the most open files of one session (256)", 64),
    "idle": Key(Seconds, "end a connection on which nothing moves for so long (10min)", "1h"),
    "login-time": Key(Seconds, "end a connection without a login after so long (30s)", "1min"),
    "proxy": Key(Networks, "balancers, whose PROXY headers are believed", ["192.0.2.0/28"]),
}  # fmt: skip
USER = {
    "folder": Key(File, "all that the user sees is below it", "/srv/incoming/alice"),
    "rules": Key(
        Annotated[several(Literal[RULES]), after(_rules)],
        "what the user may do: read, write, append-only", ["write"],
    ),
    "keys": Key(
        File, "a file in authorized_keys' form, or a folder of these", "/etc/pscp-serve/alice.pub"
    ),
    "password": Key(
        Annotated[Text, after(_hash)], "what --hash-password prints", "$argon2id$v=19$..."
    ),
    "ca": Key(File, "public keys of authorities, whose certificates are taken", "ca.pub"),
    "quota-bytes": Key(Size, "the most that the folder may hold", "500G"),
    "quota-files": Key(Count, "the most files, folders and links in the folder", 100_000),
    "rate": Key(Rate, "the most to receive and send, as --limit", "200M"),
    "largest": Key(Size, "the largest file", "50G"),
    "names": Key(several(Text), "patterns of names that a file may have", ["*.rec", "*.json"]),
    "addresses": Key(Networks, "from where the user may log in", ["192.0.2.0/24"]),
    "owner": Key(Annotated[Text, after(_owner)], "whose the files become", "ingest:ingest"),
    "mode": Key(Annotated[Text, after(_mode)], "the mode of files (640)", "600"),
}  # fmt: skip


def _table(name: str, keys: dict[str, Key], **more: Any) -> Any:
    its = {
        key: Annotated[each.kind, Field(description=each.meaning, examples=[each.example])]
        for key, each in keys.items()
    }
    return closed(name, its | more)


_USER = _table("User", USER)
DOCUMENT: TypeAdapter[dict[str, Any]] = TypeAdapter(
    _table("serve.toml", SERVER, user=GenericAlias(dict, (str, _USER)))
)
_ONE: TypeAdapter[dict[str, Any]] = TypeAdapter(closed("user", {"user": _USER}))


def _unknown(*place: str) -> str:
    """Say what is wrong with a key that there is not."""
    *tables, key = place
    if not tables and key in USER:
        return f"{key} belongs to a user: write it below [user.NAME]"
    if tables and key in SERVER:
        return f"{key} is the server's: write it above the first [user.NAME]"
    return f"there is no {key!r}{nearest(key.replace('_', '-'), USER if tables else SERVER)}"


def load(path: str) -> Settings:
    """Read and check a file of settings. Raises UsageError, with a line for each mistake."""
    document, wrong = parsed(path, _WHICH, "the server does not start so")
    checked = Form(DOCUMENT, {"user": 3}, _unknown).read(
        document, os.path.dirname(os.path.abspath(path)), wrong
    )
    if ("listen",) not in wrong.lines:
        wrong.add((), 'listen is missing: such as listen = ["0.0.0.0:2222"]')
    users = checked.pop("user", {})
    for name in users:
        said = {key for key in USER if ("user", name, key) in wrong.lines}  # sound or not
        for text in _incomplete(name, said, "run-as" in checked):
            wrong.add(("user", name), f"user.{name}: {text}")
    if not {("user",), ("command",)} & wrong.lines.keys():
        wrong.add((), "there is no user: give it a table such as [user.NAME], or a command")
    wrong.raise_any()
    known = {name: _user(name, its) for name, its in users.items()}
    given = {key.replace("-", "_"): value for key, value in checked.items()}
    return Settings(**{"host_keys": (), "state": STATE, **given}, users=known)


def _incomplete(name: str, its: Collection[str], runs_as: bool = False) -> Iterator[str]:
    if not NAME.fullmatch(name):
        yield "a user's name has letters, digits and _ . @ + -"
    for key in ("folder", "rules"):
        if key not in its:
            yield f"{key} is missing"
    if not {"keys", "password", "ca"} & {*its}:
        yield _NO_KEY
    if runs_as and "owner" in its:
        yield "owner needs a server that is root: it does not go with run-as"


def _user(name: str, its: dict[str, Any]) -> User:
    return User(name=name, **{key.replace("-", "_"): value for key, value in its.items()})


def user_of(name: str, its: Any) -> User:
    """Return the user that a command has described. Raises UsageError, ValueError."""
    wrong = Mistakes("the command", {(): 1}, "")
    checked = Form(_ONE, {"user": 2}, _unknown).read({"user": its}, "/", wrong)
    for text in _incomplete(name, checked.get("user", {})):
        wrong.add((), text)
    wrong.raise_any()
    return _user(name, checked["user"])


def unready(settings: Settings) -> Iterator[str]:
    """Yield what keeps users of sound settings out for now: files that there are not."""
    for user in settings.users.values():
        if not os.path.isdir(user.folder):
            yield f"user.{user.name}: {user.folder} is no folder"
        for file in filter(None, (user.keys, user.ca)):
            if not os.access(file, os.R_OK):
                yield f"user.{user.name}: {file} cannot be read"
