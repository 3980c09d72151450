"""Locations: a path here, or a host and a path there, as they are typed.

Not here: the options of a copy (../options/options.py), and anything that opens a file or a
connection.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pscp.ground.errors import CopyError, UsageError

MAX_PORT = 65535

# Patterns. `re` compiles one where it is first used, so that a command pays for few of them.
CONTROL = r"[\x00-\x1f\x7f-\x9f]"
# What ssh itself refuses since 9.6 (CVE-2023-51385): a ProxyCommand may hand it to a shell.
UNSAFE_IN_HOST = r"['`\"$\\;&<>|(){}\[\]@,\s]"
_UNSAFE_IN_USER = r"['`\";&<>|(){}]|(^|\s)-|\\$"
_OTHER_SCHEMES = {"sftp", "ftp", "ftps", "http", "https", "file", "ssh", "scp"}  # these in capitals
_AUTHORITY = r"(?:(.*)@)?(\[[^\[\]]*\]|[^:\[\]]*)(?::(.*))?"
_BRACKETS_BEGIN = r"\[|[^/:]*@\["
_ONE_HOST = r"(?:[^/:,\[\]]*@)?(?:\[[^/\[\]]*\]|[^/:,\[\]]+)"
_SEVERAL_HOSTS = rf"{_ONE_HOST}(?:,{_ONE_HOST})+:"
_IN_BRACKETS = rf"(?:{_BRACKETS_BEGIN})[^/]*?\]:"


@dataclass(frozen=True)
class Location:
    """`[user@]host:path`, `ssh://[user@]host[:port]/path`, or a local path, as typed.

    `host1,host2:path` is a place that several hosts see; the first one's name is in `host`.
    """

    text: str  # as typed
    path: str  # any bytes but NUL (os.fsdecode: surrogateescape); "" is the home folder
    host: str | None = None  # None: this machine
    user: str | None = None
    port: int | None = None
    others: tuple[Location, ...] = ()  # the same path, as further hosts have it

    def __post_init__(self) -> None:
        check_path(self.path)
        if self.host is not None:
            _check_name("host", self.host, UNSAFE_IN_HOST)
        elif not self.path:
            raise UsageError("a path is empty")
        if self.user is not None:
            _check_name("user", self.user, _UNSAFE_IN_USER)
        if self.port is not None and not 1 <= self.port <= MAX_PORT:
            raise UsageError(f"the port must be 1 to {MAX_PORT}, not {self.port}")

    @property
    def is_remote(self) -> bool:
        """True where the location names a host."""
        return self.host is not None

    @property
    def literal_path(self) -> str:
        """The local path, with a leading "~" as a name: the shell has expanded what it was to."""
        return f"./{self.path}" if self.path.startswith("~") else self.path

    @property
    def prefix(self) -> str:
        """The text before a path on the same host, `user@host:`; empty for a local one."""
        if self.host is None:
            return ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        names = [f"{self.user}@{host}" if self.user is not None else host]
        return ",".join(names + [each.prefix[:-1] for each in self.others]) + ":"

    @property
    def login(self) -> str:
        """`user@host` or `host`, as ssh takes it; empty for a local path."""
        host = self.host or ""
        names = [f"{self.user}@{host}" if self.user is not None else host]
        return ",".join(names + [each.login for each in self.others])

    @property
    def each_host(self) -> tuple[Location, ...]:
        """The path as each of its hosts has it alone: one location, if there is one host."""
        if not self.others:
            return (self,)
        first = replace(self, others=())
        return (replace(first, text=first.prefix + self.path), *self.others)


def placed(message: str, text: str) -> str:
    """Return a message with the location before it, as it is typed, that it is about. Where the
    message names that or its host already, as a login's does, it is named once.
    """
    if message.startswith(text):
        return message
    return f"{text}: {message.removeprefix(text.partition(':')[0] + ': ')}"


def parse_location(text: str) -> Location:
    """Read a location as scp(1) does: a "/" before the first ":" means a local path.

    `[user@]host1,[user@]host2:path` is a place that several hosts see.
    In the URL form the path begins after the slash that ends the host, so that one slash means
    the home folder and two mean the root. A "+" there is a plus (RFC 3986), not a blank.
    """
    check_path(text)
    for scheme in ("ssh://", "scp://"):
        if text.startswith(scheme):
            return _parse_url(text, text[len(scheme) :])
    at = _find_colon(text)
    if at is None:
        return Location(text, text)
    user, sign, host = text[:at].rpartition("@")
    if not host and sign:
        hint = "an IPv6 address is in brackets: user@[::1]:PATH"
        raise UsageError(f"{text}: a host is missing", hint)
    if text.startswith("//", at + 1) and text[:at].lower() in _OTHER_SCHEMES:
        raise UsageError(f"{text}: a URL here is ssh://USER@HOST:PORT/PATH, or HOST:PATH")
    if text.startswith((":", "//"), at + 1) and (text[at + 1] == ":" or host == "rsync"):
        hint = "HOST:PATH goes over SSH; an IPv6 address is in brackets, [::1]:PATH; a name"
        hint += " that begins with a colon is HOST:./:NAME"
        raise UsageError(f"{text}: rsync's daemon is not spoken here", hint)
    if "," not in text[:at]:
        return Location(text, text[at + 1 :], _without_brackets(host), user if sign else None)
    each = [parse_location(f"{name}:{text[at + 1 :]}") for name in text[:at].split(",")]
    if not all(place.is_remote for place in each) or len({place.login for place in each}) < len(
        each
    ):
        raise UsageError(f"{text}: a host is missing, or named twice")
    return replace(each[0], text=text, others=tuple(each[1:]))


def as_location(value: str | os.PathLike[str] | Location) -> Location:
    """Return the location that a program gives: a text is parsed, a path is one of this machine."""
    if isinstance(value, Location):
        return value
    if isinstance(value, str):
        return parse_location(value)
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(path, str):
        return Location(path, path)
    raise UsageError(
        f"a location is a text, a path or a pscp.Location, not {type(value).__name__}: {value!r}",
        "os.fsdecode() makes a text of bytes" if isinstance(path, bytes) else "see pscp.copy",
    )


def parse_host(text: str) -> Location:
    """Read a host alone: [user@]host, with a ":" after it or not, or a URL. No path."""
    location = parse_location(text)
    if not location.is_remote and "/" not in text:
        location = parse_location(f"{text}:")
    if not location.is_remote or location.path or location.others:
        raise UsageError(f"{text} is not a host alone")
    return location


class Reach(NamedTuple):
    """What a copy to one of several destinations changes there, by paths that can be compared."""

    text: str  # the destination, as typed
    folders: tuple[str, ...]  # what comes there
    backups: str  # the folder for backups, where that is beside them, else ""


def backups_beside(folder: str, backup_dir: str | None) -> str:
    """Return the path of a folder for backups that is beside this one, else ""."""
    is_beside = backup_dir is not None and backup_dir.startswith(("/", "../"))
    return os.path.normpath(os.path.join(folder, backup_dir or "")) if is_beside else ""


def may_undo(*, mirrors: bool, backup_dir: str | None) -> bool:
    """Return whether what copies of this kind do to one place can undo what one did to another."""
    return mirrors or backups_beside("", backup_dir) != ""


def what_undoes(one: Reach, other: Reach, *, mirrors: bool) -> tuple[str, str]:
    """Return why the one copy would undo the other, and what to do; "" if it does not.

    Where it `mirrors` it would delete what the other has brought, and its backups may replace that.
    """
    pairs = itertools.product(one.folders, other.folders)
    if mirrors and any(inner != outer and _is_in(inner, outer) for outer, inner in pairs):
        return f"{other.text} lies in {one.text}, which becomes a mirror", ""
    for folders, whose in (((other.backups,), "those of"), (other.folders, "what comes to")):
        if one.backups and any(_is_in(one.backups, f) or _is_in(f, one.backups) for f in folders):
            what = f"the backups of {one.text} and {whose} {other.text}"
            hint = "a folder in DEST, such as --backup-dir old, is of each one's own"
            return f"--backup-dir: {what} would be in one folder", hint
    return "", ""


def check_beside(places: Sequence[Location], *, mirrors: bool, backup_dir: str | None) -> None:
    """Raise UsageError where a copy to one of these would undo one to another, as far as names
    tell.
    """
    named = []
    for place in places if may_undo(mirrors=mirrors, backup_dir=backup_dir) else ():
        path = os.path.normpath(os.path.join("~", place.path.removeprefix("~/")))
        named.append((place, Reach(place.text, (path,), backups_beside(path, backup_dir))))
    for (place, one), (another, other) in itertools.permutations(named, 2):
        if place.port == another.port and _logins(place) & _logins(another):
            why, hint = what_undoes(one, other, mirrors=mirrors)
            if why:
                raise UsageError(why, hint)


def _is_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _logins(place: Location) -> set[str]:
    return {each.login for each in place.each_host}


def check_direction(sources: Sequence[Location], destination: Location) -> None:
    """Refuse sources on several hosts, and a copy that stays on this machine."""
    if not sources:
        raise UsageError("a source is missing: give SOURCE... and DEST")
    hosts = {(source.login, source.port) for source in sources}
    if len(hosts) > 1:
        hint = "name the host before each path (h:a h:b, not h:a :b); run pscp once for each host"
        if destination.is_remote and not sources[0].is_remote:
            hint = "to copy from here to several hosts at once: --fan-out"
        raise UsageError("the sources are on different hosts", hint)
    if not sources[0].is_remote and not destination.is_remote:
        raise UsageError(
            "source and destination are both on this machine; pscp copies over SSH",
            "use cp, or write the far side as HOST:PATH",
        )


def _find_colon(text: str) -> int | None:
    """Return where the host ends, or None for a local path (colon() in OpenSSH's misc.c)."""
    if several := re.match(_SEVERAL_HOSTS, text):
        return several.end() - 1
    if re.match(_BRACKETS_BEGIN, text):
        match = re.match(_IN_BRACKETS, text)
        return match.end() - 1 if match else None
    head, colon, _ = text.partition(":")
    return len(head) if head and colon and "/" not in head else None


def _parse_url(text: str, rest: str) -> Location:
    authority, _, path = rest.partition("/")
    match = re.fullmatch(_AUTHORITY, authority, re.DOTALL)
    if match is None:
        raise UsageError(f"{text}: a URL looks like ssh://USER@HOST:PORT/PATH")
    user, host, port = match[1], match[2], match[3]
    if port is not None and not re.fullmatch(r"[0-9]{1,18}", port):
        raise UsageError(f"the port: {port!r} is not a whole number")
    return Location(
        text,
        _percent_decoded(path),
        _without_brackets(host),
        None if user is None else _percent_decoded(user),
        None if port is None else int(port),
    )


def _percent_decoded(text: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise UsageError(f"{text}: a % in a URL needs two hex digits after it")
    raw = re.sub(rb"%(..)", lambda match: bytes.fromhex(match[1].decode()), os.fsencode(text))
    return os.fsdecode(raw)


def _without_brackets(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def plain_path(path: str) -> str:
    """Return a path here as people read it: without each "x/..", unless x is a link elsewhere."""
    if ".." not in path.split("/"):
        return path
    plain = os.path.normpath(path)
    return plain if os.path.realpath(plain) == os.path.realpath(path) else path


def absolute(path: str) -> str:
    """Return the absolute path of one here. Raises CopyError where the current folder is gone."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        message = "the current folder was removed, and a path here begins in it"
        raise CopyError(message, "cd to a folder that is there") from None


def check_path(path: str) -> None:
    if not isinstance(path, str):
        raise UsageError(f"a path is a text here, not {type(path).__name__}: {path!r}")
    if "\0" in path:
        raise UsageError(f"{path}: a NUL byte cannot be in a path")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UsageError(f"{path}: no file name can be spelled like this") from None


def _check_name(what: str, name: str, unsafe: str) -> None:
    hint = "a local file with a colon in its name is written ./NAME"
    if what == "host" and "," in name:
        raise UsageError(f"{name}: several hosts are written HOST,HOST:PATH, and not as a URL")
    if not name:
        raise UsageError(f"the {what} name is empty", hint)
    if name.startswith("-"):
        raise UsageError(f'{name}: a {what} name cannot start with "-"', hint)
    if re.search(CONTROL, name) or re.search(unsafe, name):
        raise UsageError(f"{name}: a character here cannot be in a {what} name", hint)
    check_path(name)
