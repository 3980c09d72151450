"""What stands between a copy and its file system: each call of `os` may fail, end all, or be lost.

The copy is a process of its own (whole.py), in which these functions take the place of those of
`os`. Each that changes something below the case's folder is counted; at one that is drawn the
process is killed or stopped, a call fails, a write is short, or a file of the source changes. What
was not synced is written down for a power cut (power.py).

Not here: which is drawn (whole.py). EINTR: Python makes such a call again by itself.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from power import Log

KILL, STOP, FAIL, SHORT, CHANGE = "kill", "stop", "fail", "short", "change"
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE)
ANY, FOLDER_SYNC = "any", "sync a folder"
# Names of calls by what is drawn: any of a group counts.
GROUPS = {
    "write": ("pwrite", "write", "ftruncate"),
    "sync": ("fsync",),  # of a file
    FOLDER_SYNC: (),  # fsync(2) of a folder
    "name": ("rename", "link", "symlink"),
    "make": ("open", "mkdir"),
    "remove": ("unlink", "rmdir"),
    "metadata": ("fchmod", "chmod", "utime", "chown", "setxattr"),
    "read": ("preadv", "pread"),
}
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}
_BY_FD = {"pwrite", "write", "ftruncate", "fsync", "fchmod", "preadv", "pread"}
_CREATES = os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY


class Disturbance(NamedTuple):
    """What happens at the `nth` call, from 0 on, of a group."""

    act: str
    group: str = ANY
    nth: int = 0
    errno: int = errno.EIO
    stays: bool = False  # all later ones of the group fail as well
    of: str = ""  # only calls below this folder of the case: "source", "there"

    def __str__(self) -> str:
        which = f"{self.act} at {self.group} {self.nth}"
        if self.act == FAIL:
            which += f" ({errno.errorcode[self.errno]}{', and all later ones' * self.stays})"
        return which + (f" below {self.of}" if self.of else "")


class Calls:
    """The functions of `os` in this process, once install() was called."""

    def __init__(
        self, root: bytes, disturbance: Disturbance | None, log: Log, change: Callable[[], None]
    ) -> None:
        self._root, self._disturbance, self._log, self._change = root, disturbance, log, change
        self.lock = threading.RLock()  # so that the log has the order in which things happened
        self._left = disturbance.nth if disturbance else -1
        self._real: dict[str, Any] = {}
        self._acting = 0  # the thread that changes something for what is drawn: no call of a copy

    def install(self) -> None:
        for name in _GROUP_OF:
            self._real[name] = getattr(os, name)
        for name in _GROUP_OF:
            setattr(os, name, self._wrapped(name))
        os.replace = os.rename

    def _wrapped(self, name: str) -> Callable[..., Any]:
        real, group = self._real[name], _GROUP_OF[name]

        def call(*args: Any, **more: Any) -> Any:
            if name == "open" and not (args[1] if len(args) > 1 else more["flags"]) & _CREATES:
                return real(*args, **more)
            if self._acting == threading.get_ident():
                return real(*args, **more)
            path = self._path(name, args, more)
            if path is None:
                return real(*args, **more)
            is_folder = name == "fsync" and os.path.isdir(path)
            with self.lock:
                if self._meet(FOLDER_SYNC if is_folder else group, path) == SHORT and name in (
                    "pwrite",
                    "write",
                ):
                    args = (args[0], memoryview(args[1])[: max(1, len(args[1]) // 2)], *args[2:])
                return self._log.around(name, path, real, args, more, self._path)

        call.__name__ = name
        return call

    def _path(self, name: str, args: Any, more: Any) -> bytes | None:
        """Return the path below the case's folder that a call is about; None for another one."""
        first = args[0]
        if isinstance(first, int):
            path = _of_fd(first)
            if name in ("utime", "setxattr", "chown", "chmod") or name in _BY_FD:
                return path if path.startswith(self._root) else None
        path = os.fsencode(args[1] if name in ("link", "symlink") else first)
        folder_fd = more.get("dst_dir_fd" if name == "link" else "src_dir_fd")
        if name != "link" and folder_fd is None:
            folder_fd = more.get("dir_fd")
        if not path.startswith(b"/"):
            above = _of_fd(folder_fd) if folder_fd is not None else os.getcwdb()
            path = above if path == b"." else above + b"/" + path
        return path if path.startswith(self._root) else None

    def _meet(self, group: str, path: bytes) -> str:
        """Do what is drawn, if it is this call's turn, and return it. The caller holds the lock."""
        drawn = self._disturbance
        if drawn is None or drawn.group not in ((group,) if group == "read" else (group, ANY)):
            return ""
        if drawn.of and not path.startswith(os.path.join(self._root, drawn.of.encode())):
            return ""
        self._left -= 1
        if self._left != -1 and not (drawn.stays and self._left < 0):
            return ""
        self._act(drawn)
        return drawn.act

    def _act(self, drawn: Disturbance) -> None:
        self._log.note("disturbed", drawn.act)
        if drawn.act == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif drawn.act == STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif drawn.act == CHANGE:
            self._acting = threading.get_ident()
            try:
                self._change()
            finally:
                self._acting = 0
        elif drawn.act == FAIL:
            raise OSError(drawn.errno, os.strerror(drawn.errno))


def _of_fd(fd: int) -> bytes:
    try:
        return os.readlink(b"/proc/self/fd/%d" % fd)
    except OSError:
        return b""
