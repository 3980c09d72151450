"""Finds the parts and fences that copies which were cut short left below a folder; removes them.

A part that a copy may still work on counts as held: while another process has it locked or open,
and while the fence of its run, `.TOKEN.pscp-run` in a folder at or above it, is open. Where this
system does not tell, as a file system may be shared with other machines, each counts as open until
it is a day old, unless that is forced.

Sent with Learn. Not here: the names of parts (../reading/paths.py), what a user sees of this
(../../calls/cleaning.py).
Read next: ../serving/end.py.
"""

import contextlib
import fcntl
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ..asking import answers
from ..frames import failures
from ..reading import files
from ..reading.paths import Root, to_bytes, to_text
from ..writing.parts import WAS_FILE

if TYPE_CHECKING:
    from typing import Protocol

    class End(Protocol):
        """The end that is asked."""

        search: "Optional[Search]"


DAY_S = 24 * 3600
_OF_ONE_MACHINE = b"ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs tmpfs overlay".split()
PAGE_ITEMS = 500
PAGE_S = 2.0  # then the page is sent, so that a search ends soon once nobody asks for more
FOUND, HELD, FAILED = "found", "held", "failed"
# A part of this or an earlier version; the token is the first eight digits.
_PART = re.compile(rb"\A\..+\.([0-9a-f]{8})[0-9a-f]*\.pscp-part\Z", re.DOTALL)
_FENCE = re.compile(rb"\A\.([0-9a-f]{8})\.pscp-run\Z")

# FOUND and HELD with [path, bytes, age in seconds, whether it was the file itself
# (../writing/parts.py)]; FAILED with [path, why]
Item = Tuple[str, List[object]]


class Clean(NamedTuple):
    """Ask what copies that were cut short left below a folder. Answer: a page: `found` and `held`
    rows `[path, bytes, age in seconds, whether it was the file itself]`, `failed` rows
    `[path, why]`, `is_last`.
    """

    path: Optional[str]  # as typed (null: the next page of the same search)
    remove: bool
    force: bool = False  # also where nobody can tell whether a copy holds it


def part_token(name: bytes) -> bytes:
    """Return the token in a part's name; b"" where the name is no part's."""
    match = _PART.match(name)
    return match.group(1) if match else b""


def fence_token(name: bytes) -> bytes:
    """Return the token in a fence's name; b"" where the name is no fence's."""
    match = _FENCE.match(name)
    return match.group(1) if match else b""


class Page:
    """One answer of a search; it is full at a number of rows, or after a time."""

    def __init__(self) -> None:
        self._rows: Dict[str, List[List[object]]] = {FOUND: [], HELD: [], FAILED: []}
        self._is_last = True
        self._count, self._end_s = 0, time.monotonic() + PAGE_S

    @property
    def answer(self) -> Dict[str, object]:
        """Return the rows of each kind, and whether they are the last."""
        return {**self._rows, "is_last": self._is_last}

    def add(self, item: Optional[Item]) -> bool:
        """Add what a step of the search found, if anything. False where the page is full."""
        if item is not None:
            self._rows[item[0]].append(item[1])
            self._count += 1
        self._is_last = self._count < PAGE_ITEMS and time.monotonic() <= self._end_s
        return self._is_last


class Search:
    """A search below one folder, which goes on from page to page."""

    def __init__(self, path: str, remove: bool, *, force: bool = False) -> None:
        """`force` takes what nobody is seen to hold. Raises Refusal and OSError for a folder that
        cannot be opened.
        """
        self._full = os.path.realpath(os.path.expanduser(to_bytes(path)) or b".")
        if not os.path.isdir(self._full):
            raise failures.Refusal(failures.DESTINATION, path, "no such folder")
        self._root, self._remove, self._force = Root(to_text(self._full)), remove, force
        self._open: Optional[Set[Tuple[int, int]]] = None
        self._mounts: Dict[bytes, bytes] = {}
        self._items = self._search()

    def page(self) -> Dict[str, object]:
        """Return what the search finds in the next two seconds, and whether that is the last."""
        page = Page()
        self._open, self._mounts = open_files(), mounts()
        for item in self._items:
            if not page.add(item):
                break
        return page.answer

    def _search(self) -> Iterator[Optional[Item]]:
        """Yield per name the item, or None for what is no part. A folder comes before its items."""
        with contextlib.closing(self._root):
            pending = [""]
            while pending:
                path = pending.pop()
                try:
                    fd = self._root.folder(path)
                    names = sorted(os.fsencode(name) for name in os.listdir(fd))
                except FileNotFoundError:  # it has gone meanwhile
                    continue
                except (OSError, failures.Refusal) as error:
                    yield FAILED, [path, failures.from_exception(error, path)["message"]]
                    continue
                folders: List[str] = []
                for name in names:
                    yield self._item(fd, name, path, folders)
                pending += reversed(folders)

    def _item(self, fd: int, name: bytes, folder: str, folders: List[str]) -> Optional[Item]:
        """Return the item of a name in this folder, if it has one; add a folder to `folders`."""
        path = folder + "/" + to_text(name) if folder else to_text(name)
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                return self._judged(fd, name, path, status)
            folders.append(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            return FAILED, [path, failures.from_exception(error, path)["message"]]
        return None

    def _judged(self, fd: int, name: bytes, path: str, status: os.stat_result) -> Optional[Item]:
        """Return the item of a file or link: None where it is no part, or another user's."""
        token = part_token(name) or fence_token(name)
        kind = stat.S_IFMT(status.st_mode)
        if not token or kind not in (stat.S_IFREG, stat.S_IFLNK) or status.st_uid != os.geteuid():
            return None
        age_s = time.time() - status.st_mtime
        was_file = kind == stat.S_IFREG and bool(status.st_mode & WAS_FILE)
        row = [path, status.st_size, max(int(age_s), 0), was_file]
        # A link cannot be seen to be open, and on some systems no file can.
        is_unseen = kind == stat.S_IFLNK or self._open is None
        if (
            (is_unseen and self._is_young(age_s))
            or self._is_open(status)
            or self._is_fenced(token, path)
        ):
            return HELD, row
        return FOUND if self._take(fd, name, status) else HELD, row

    def _take(self, fd: int, name: bytes, status: os.stat_result) -> bool:
        """Lock the file and, with `remove`, remove it. False where another process holds it."""
        lock_fd = -1
        try:
            if stat.S_ISREG(status.st_mode):
                lock_fd = files.open_for_reading((fd, name), False)
                if not _is_locked(lock_fd, status):
                    return False
            now = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if _identity(now) != _identity(status):
                return False  # it is another file by now, or a copy goes on with it
            if self._remove:
                os.unlink(name, dir_fd=fd)
            return True
        finally:
            if lock_fd >= 0:
                os.close(lock_fd)

    def _is_young(self, age_s: float) -> bool:
        return age_s < DAY_S and not self._force

    def _is_open(self, status: os.stat_result) -> bool:
        return self._open is not None and (status.st_dev, status.st_ino) in self._open

    def _is_fenced(self, token: bytes, path: str) -> bool:
        """May a copy hold a fence with this token, beside the file or above it?"""
        folder = os.path.join(self._full, to_bytes(path))
        while folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)
            try:
                fence = os.lstat(os.path.join(folder, b"." + token + b".pscp-run"))
            except OSError:
                continue
            is_unseen = self._open is None or not is_of_this_machine(folder, self._mounts)
            if self._is_open(fence) or (is_unseen and self._is_young(time.time() - fence.st_mtime)):
                return True
        return False


def _identity(status: os.stat_result) -> Tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _is_locked(fd: int, status: os.stat_result) -> bool:
    """Lock the file exclusively. False where another process has it locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:  # this filesystem has no locks: its age decides
        return time.time() - status.st_mtime > DAY_S


def mounts() -> Dict[bytes, bytes]:
    """Return the type of the file system at each mount point (proc(5)); none without /proc."""
    found: Dict[bytes, bytes] = {}
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            before, _, after = line.partition(b" - ")
            point = re.sub(
                rb"\\([0-7]{3})", lambda m: bytes([int(m.group(1), 8)]), before.split()[4]
            )
            found[point] = after.split()[0]
    return found


def is_of_this_machine(folder: bytes, mounted: Dict[bytes, bytes]) -> bool:
    """Is the folder on a file system that no other machine writes to?"""
    while folder not in mounted and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return mounted.get(folder) in _OF_ONE_MACHINE


def open_files() -> Optional[Set[Tuple[int, int]]]:
    """Return device and inode of each file that a process here has open, as far as we may see it.

    None where the system does not tell.
    """
    if not os.path.isdir("/proc/self/fd"):
        return None
    found: Set[Tuple[int, int]] = set()
    for pid in os.listdir("/proc"):
        folder = "/proc/%s/fd" % pid
        try:
            names = os.listdir(folder) if pid.isdigit() else []
        except OSError:  # it has ended, or is another user's
            continue
        for name in names:
            try:
                status = os.stat("%s/%s" % (folder, name))
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                found.add((status.st_dev, status.st_ino))
    return found


def _clean(of: "End", request: Clean) -> Dict[str, object]:
    if request.path is not None:
        of.search = Search(request.path, request.remove, force=request.force)
    if of.search is None:
        raise answers.not_here("search")
    return of.search.page()


answers.add(answers.ITSELF, {Clean: _clean})
