"""What a user may do: which names, what of an upload that landed, which grade of rule.

Not here: what becomes of it (files.py). Read next: folder.py.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import posixpath
import re

from pscp.endpoint.reading.paths import is_pscps_own, part_name
from pscp.serve.settings import User

# Names that clients give to what they have not finished, and rename then: WinSCP's, rclone's,
# lftp's and others', pscp's.
_FILEPART = re.compile(rb"(?P<name>.+?)(?:\.filepart|(?:\.[0-9A-Za-z]{8})?\.partial|\.part)", re.S)
_PSCP_PART = re.compile(rb"\.(?P<name>.+)\.[0-9a-f]{16}\.[0-9a-f]{14,22}\.pscp-part", re.S)
_OWN_PART = re.compile(rb"\.(?P<name>.+)\.(?P<digest>[0-9a-f]{16})\.[0-9a-f]{12}\.pscp-part", re.S)


def refused(why: str) -> PermissionError:
    """Return the error of what a user may not do."""
    return PermissionError(errno.EACCES, why)


def is_part(name: bytes) -> bool:
    """Is it the name of an upload that has not landed? No client may use such a name."""
    return _OWN_PART.fullmatch(name) is not None


def is_of_run(name: bytes) -> bool:
    """Is it a file that a copy by pscp makes for itself? It is written under this name itself."""
    return is_pscps_own(name) and not is_part(name)


def has_nonce(name: bytes) -> bool:
    """Is it the part of a copy by pscp? Only who makes that copy knows the name."""
    return _PSCP_PART.fullmatch(name) is not None


def is_told(name: bytes) -> bool:
    """Is a file of this name what a client meant to upload, and not on its way to be?"""
    return named_later(name) is None and not is_pscps_own(name)


def named_later(name: bytes) -> bytes | None:
    """Return the name that a client's temporary name stands for; None if it is no such name."""
    found = _FILEPART.fullmatch(name) or _PSCP_PART.fullmatch(name)
    return found["name"] if found else None


class Rules:
    """The rules of one user."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.may_read = "read" in user.rules
        self.may_write = "write" in user.rules
        self.may_add = self.may_write or "append-only" in user.rules
        self.is_append_only = self.may_add and not self.may_write
        self.key = hashlib.sha256(os.fsencode(user.name)).hexdigest()[:12]
        self.folder_mode = user.mode | (user.mode & 0o444) >> 2

    def part(self, name: bytes) -> bytes:
        """Return the name that an upload has until it lands."""
        return name if is_of_run(name) else part_name(name, self.key)

    def may_remove(self, name: bytes) -> bool:
        return self.may_write or (self.may_add and is_of_run(name))

    def may_read_part(self, name: bytes) -> bool:
        """Return whether an upload of this name may be read before it lands: where all may be, and
        by the copy of pscp that makes it, which verifies what it has written.
        """
        return self.may_read or (self.may_add and has_nonce(name))

    def lands_as(self, part: bytes) -> bytes | None:
        """Return the name that a part of this user's gets, where the part's name still has it."""
        found = _OWN_PART.fullmatch(part)
        return found["name"] if found and self.part(found["name"]) == part else None

    def check_path(self, path: bytes) -> None:
        """Raises OSError where the path names a part."""
        if any(map(is_part, path.split(b"/"))):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def check_name(self, path: bytes) -> None:
        """Raises OSError where no file of this name may be put."""
        name = posixpath.basename(path)
        while (later := named_later(name)) is not None:
            name = later
        text = os.fsdecode(name)
        if is_of_run(name):
            return
        if self.user.names and not any(fnmatch.fnmatchcase(text, each) for each in self.user.names):
            raise refused("the name is not one of those allowed")

    def check_renamed(self, old: bytes, new: bytes) -> None:
        """Raises OSError where what pscp makes for itself would be something else, or the reverse:
        its parts alone become files, or a later run's parts.
        """
        if is_of_run(old) or is_of_run(new):
            may = has_nonce(old) and (has_nonce(new) or not is_of_run(new))
            self.check(may, "give such names")

    def check(self, may: bool, what: str) -> None:
        """Raises OSError where this user may not do it."""
        if not may:
            raise refused(f"this user may not {what}")
