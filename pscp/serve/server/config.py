"""Reads serve.toml: the settings, or every mistake in it at once, each with its line.

Nothing is looked at on the disk: a folder may be mounted later, keys may be written later, and
neither keeps the server from the others' users. --check does look (unready()).

Not here: what is common to files in TOML (../../toml/reading.py), which keys there are
(../settings.py).
Read next: ../settings.py.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from types import GenericAlias
from typing import Any

from pydantic import TypeAdapter

from pscp.serve.settings import Settings, User, keys_of
from pscp.toml.reading import Form, Mistakes, nearest, parsed
from pscp.toml.values import closed, types_of

# A user's; no path's part, no option.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}", re.ASCII)
_WHICH = "--config names the file"
_NO_KEY = "nobody could log in: it needs keys, password or ca"


SERVER, USER = keys_of(Settings), keys_of(User)


_USER = closed("User", types_of(USER))
_KEYS = {**types_of(SERVER), "user": GenericAlias(dict, (str, _USER))}
DOCUMENT: TypeAdapter[dict[str, Any]] = TypeAdapter(closed("serve.toml", _KEYS))
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
    known = {name: User(name, **_fields(its)) for name, its in users.items()}
    return Settings(known, **_fields(checked))


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


def _fields(its: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in its.items()}


def user_of(name: str, its: Any) -> User:
    """Return the user that a command has described. Raises UsageError, ValueError."""
    wrong = Mistakes("the command", {(): 1}, "")
    checked = Form(_ONE, {"user": 2}, _unknown).read({"user": its}, "/", wrong)
    for text in _incomplete(name, checked.get("user", {})):
        wrong.add((), text)
    wrong.raise_any()
    return User(name, **_fields(checked["user"]))


def unready(settings: Settings) -> Iterator[str]:
    """Yield what sound settings name, and is not there: users are kept out, or files not told."""
    for user in settings.users.values():
        if not os.path.isdir(user.folder):
            yield f"user.{user.name}: {user.folder} is no folder"
        for file in filter(None, (user.keys, user.ca)):
            if not os.access(file, os.R_OK):
                yield f"user.{user.name}: {file} cannot be read"
    for key, argv in (("after-upload", settings.after_upload), ("command", settings.command)):
        if argv and shutil.which(argv[0]) is None:
            yield f"{key}: {argv[0]} is no program"
    if settings.uploads and not os.path.isdir(os.path.dirname(settings.uploads)):
        yield f"uploads: there is no folder {os.path.dirname(settings.uploads)}"
