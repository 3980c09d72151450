"""Modes, times, owners and extended attributes, as they are applied at the sink.

With preserve (-p) a file gets its source's mode and times; without, the mode less the umask,
setuid, setgid and sticky. Archive (-a) adds the owner, where we are root, and the attributes.

Not here: contents (files.py), what the walk reads (tree.py), owners (ownership.py), extended
attributes (xattrs.py).
Read next: ../writing/sink.py.
"""

import contextlib
import errno
import os
import stat
from typing import Dict, NamedTuple, Optional, Union

from ..frames import failures, system, wire
from . import files
from .tree import Entry, device_of, of_archives


class Policy(NamedTuple):
    """How metadata is applied at this sink."""

    preserve: bool
    archive: bool
    umask: int

    def mode(self, mode: int, made: int = 0) -> int:
        """Return the mode of something new whose source has `mode`. A folder that has the mode
        `made` so far keeps the setgid bit that the folder above has lent it, but for -p.
        """
        return mode & 0o7777 if self.preserve else mode & 0o777 & ~self.umask | made & 0o2000


def current_umask() -> int:
    """Return this process's umask: from /proc, else by setting another for a moment."""
    with contextlib.suppress(OSError), open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def apply_to_file(fd: int, entry: Entry, policy: Policy, before: Optional[os.stat_result]) -> None:
    """Give an open file its metadata. `before` is the file it will replace, if any. It loses the
    attributes that its source has not.

    Without -p the new file gets the old one's mode, and its owner where we may, as with cp(1).
    """
    keeps = before if not policy.preserve else None
    if policy.archive:
        _give_owner_and_attributes(fd, entry.extra, True)
    elif keeps is not None:
        _keep_owner(fd, keeps)
    # Last: an ACL has modes of its own, and not everybody gives attributes to what is read-only.
    os.fchmod(fd, policy.mode(entry.mode) if keeps is None else keeps.st_mode & 0o777)
    if policy.preserve:
        os.utime(fd, ns=(_atime_ns(entry), entry.mtime_ns))


def apply_to_folder(fd: int, entry: Entry, policy: Policy, is_new: bool) -> None:
    """Give a folder its metadata once everything in it has landed. Raises Refusal where that was
    there before and is another user's, whose alone it is to change.
    """
    try:
        if policy.archive:
            _give_owner_and_attributes(fd, entry.extra, is_new)
        if policy.preserve or is_new:
            os.fchmod(fd, policy.mode(entry.mode, os.fstat(fd).st_mode))
        if policy.preserve:
            os.utime(fd, ns=(_atime_ns(entry), entry.mtime_ns))
    except PermissionError:
        if is_new or os.fstat(fd).st_uid == os.geteuid():
            raise
        raise failures.Refusal(failures.OWNER, "", "belongs to another user")


def apply_to_link(folder_fd: int, name: bytes, entry: Entry, policy: Policy) -> None:
    """Give a symbolic link the metadata that the system keeps of links."""
    if policy.archive and os.geteuid() == 0:
        ownership, xattrs = of_archives()
        uid, gid = ownership.wanted(entry.extra)
        os.chown(name, uid, gid, dir_fd=folder_fd, follow_symlinks=False)
        if "x" in entry.extra:
            with files.unopened((folder_fd, name), False) as path:
                xattrs.give(path, entry.extra["x"])
    if policy.preserve and os.utime in os.supports_follow_symlinks:
        times = (_atime_ns(entry), entry.mtime_ns)
        os.utime(name, ns=times, dir_fd=folder_fd, follow_symlinks=False)


def apply_to_fifo(folder_fd: int, name: bytes, entry: Entry, policy: Policy) -> None:
    """Give a FIFO that was just made its metadata. Raises OSError where it is another thing."""
    with system.closing(files.open_for_reading((folder_fd, name), False)) as fd:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            raise system.os_error(errno.ESTALE)
        apply_to_file(fd, entry, policy, None)


def apply_to_device(folder_fd: int, name: bytes, entry: Entry, policy: Policy) -> None:
    """Give a device its metadata unopened. Raises OSError where another thing has the name."""
    with files.unopened((folder_fd, name), False) as path:
        if device_of(os.stat(path)) != entry.target:
            raise system.os_error(errno.ESTALE)
        _give_owner_and_attributes(path, entry.extra, True)
        os.chmod(path, policy.mode(entry.mode))
        os.utime(path, ns=(_atime_ns(entry), entry.mtime_ns))


def _atime_ns(entry: Entry) -> int:
    value = entry.extra.get("a")
    return value if isinstance(value, int) and abs(value) <= wire.MAX_TIME_NS else entry.mtime_ns


def _give_owner_and_attributes(
    file: Union[int, str], extra: Dict[str, object], is_new: bool
) -> None:
    ownership, xattrs = of_archives()
    ownership.give(file, extra)
    if is_new:
        xattrs.remove_others(file, extra.get("x"))
    xattrs.give(file, extra.get("x"))


def _keep_owner(fd: int, before: os.stat_result) -> None:
    now = os.fstat(fd)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(PermissionError):
            os.chown(fd, before.st_uid, before.st_gid)
