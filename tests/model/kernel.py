"""A file system in memory, and the system calls on it: what stands in for `os` and `fcntl`.

It has what races are about: inodes apart from names, link counts, numbers of inodes that are used
again at once (as ext4 does), descriptors of folders, files without a name (O_TMPFILE), and flock(2)
per open file description. Each call goes through the scheduler first, so another task may go
before it; after each that changes something the world is looked at.

Not here: symbolic links, permissions of others. Read next: schedule.py.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from typing import Any

from schedule import Process, Scheduler

from pscp.endpoint.there import reuse

UID = 1000
DEVICE = 42
_REAL = (
    "O_", "SEEK_", "POSIX_", "strerror", "path", "fsencode", "fsdecode", "stat_result",
)  # fmt: skip


class Inode:
    """A file or a folder."""

    def __init__(self, number: int, mode: int) -> None:
        self.number, self.mode, self.links = number, mode, 0
        self.data = bytearray()
        self.names: dict[bytes, Inode] = {}  # of a folder
        self.mtime_ns = self.atime_ns = 0
        self.opened = 0
        self.has_locks = True
        self.locks: dict[Open, int] = {}

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


class Open:
    """An open file description; descriptors that were duplicated share it."""

    def __init__(self, inode: Inode) -> None:
        self.inode, self.offset, self.times = inode, 0, 1
        inode.opened += 1


class Status:
    """What stat(2) tells."""

    st_dev, st_uid, st_gid, st_blocks = DEVICE, UID, UID, 0

    def __init__(self, inode: Inode) -> None:
        self.st_ino, self.st_mode, self.st_nlink = inode.number, inode.mode, inode.links
        self.st_size = len(inode.data)
        self.st_mtime_ns, self.st_atime_ns = inode.mtime_ns, inode.atime_ns
        # Of a change long ago: nobody waits for who wanted a lock then; times are kept to the ns.
        self.st_ctime, self.st_ctime_ns = 0.0, 1


class Kernel:
    """The file system, and whether it has locks and files without a name."""

    def __init__(self, scheduler: Scheduler, has_locks: bool, clones: bool = False) -> None:
        self.scheduler, self._has_locks, self.clones = scheduler, has_locks, clones
        self.changed: Callable[[], None] = lambda: None
        self._numbers = iter(range(2, 1_000_000))
        self._free: list[int] = []
        self.top = self.destination = self.new_inode(stat.S_IFDIR | 0o755)
        self.destination = self._add(self.top, b"dest", stat.S_IFDIR | 0o755)
        self.private = self._add(self.top, b"tmp", stat.S_IFDIR | 0o1777)
        scheduler.on_death = self._close_all

    def new_inode(self, mode: int) -> Inode:
        number = min(self._free, default=0) or next(self._numbers)
        if number in self._free:
            self._free.remove(number)
        made = Inode(number, mode)
        made.mtime_ns = self.now_ns()
        return made

    def _add(self, folder: Inode, name: bytes, mode: int) -> Inode:
        made = folder.names[name] = self.new_inode(mode)
        made.has_locks = self._has_locks or folder is not self.destination
        made.links += 1
        folder.mtime_ns = self.now_ns()
        return made

    def add_file(self, name: bytes, data: bytes, mode: int, mtime_ns: int) -> None:
        """A file that is at the destination before all begins."""
        made = self._add(self.destination, name, stat.S_IFREG | mode)
        made.data[:], made.mtime_ns = data, mtime_ns

    def now_ns(self) -> int:
        return int(self.scheduler.now_s * 1e9)

    def _close_all(self, process: Process) -> None:
        for fd in list(process.descriptors):
            self.close_of(process, fd)

    def close_of(self, process: Process, fd: int) -> None:
        file = process.descriptors.pop(fd, None)
        if file is None:
            raise _error(errno.EBADF)
        file.times -= 1
        if not file.times:
            file.inode.locks.pop(file, None)
            file.inode.opened -= 1
            self.free(file.inode)

    def free(self, inode: Inode) -> None:
        """The number of an inode that nobody has any more may be used again."""
        if not inode.links and not inode.opened and inode.number:
            self._free.append(inode.number)
            inode.number = 0

    def holders(self, inode: Inode) -> list[int]:
        return [
            process.pid for process in self.scheduler.processes
            if any(file in inode.locks for file in process.descriptors.values())
        ]  # fmt: skip


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class FakeFcntl:
    """The module `fcntl`."""

    LOCK_SH, LOCK_EX, LOCK_UN, LOCK_NB = (
        fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN, fcntl.LOCK_NB,
    )  # fmt: skip

    def __init__(self, fake: FakeOs) -> None:
        self._fake = fake

    def flock(self, fd: int, kind: int) -> None:
        file = self._fake.enter(f"flock {fd} {kind}", fd)
        inode = file.inode
        if not inode.has_locks:
            raise _error(errno.ENOLCK)
        inode.locks.pop(file, None)  # flock(2): converting a lock is letting go of it first
        if kind & fcntl.LOCK_UN:
            return
        wants_all = kind & fcntl.LOCK_EX
        if any(wants_all or held == fcntl.LOCK_EX for held in inode.locks.values()):
            assert kind & fcntl.LOCK_NB
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        inode.locks[file] = fcntl.LOCK_EX if wants_all else fcntl.LOCK_SH

    def ioctl(self, fd: int, request: int, old_fd: int) -> None:
        """FICLONE: the file is what the old one is."""
        assert request == reuse._CLONE
        inode = self._fake.enter(f"ioctl {fd} clone {old_fd}", fd).inode
        if not self._fake.kernel.clones:
            raise _error(errno.EOPNOTSUPP)
        inode.data[:] = self._fake.enter("... of it", old_fd).inode.data


class FakeOs:
    """The module `os`: what the endpoint may call, and nothing else of it."""

    supports_follow_symlinks: frozenset[Any] = frozenset()

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self._scheduler = kernel, kernel.scheduler
        self._random = iter(range(1, 1 << 24))

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_REAL):
            return getattr(os, name)
        raise AttributeError(f"{name} is not simulated")

    def enter(self, call: str, fd: int | None = None) -> Any:
        """A call begins; returns the open file of its descriptor."""
        self._scheduler.point(call)
        return None if fd is None else self._opened(fd)

    def _opened(self, fd: int) -> Open:
        found: Open | None = self._scheduler.current.process.descriptors.get(fd)
        if found is None:
            raise AssertionError(f"descriptor {fd} is not open")
        return found

    def _write_something(self) -> None:
        if self._scheduler.is_full:
            self._scheduler.is_full = False
            self._scheduler.trace.append("... finds no space")
            raise _error(errno.ENOSPC)

    # --- without a file

    def urandom(self, count: int) -> bytes:
        return next(self._random).to_bytes(count, "big")

    def geteuid(self) -> int:
        return UID

    def getpid(self) -> int:
        return self._scheduler.current.process.pid

    def kill(self, pid: int, _: int) -> None:
        self._scheduler.point(f"kill {pid}")
        for process in self._scheduler.processes:
            if process.pid == pid:
                self._scheduler.kill(process)

    # --- names

    def _folder(self, dir_fd: int | None, path: Any) -> tuple[Inode, bytes]:
        name = os.fsencode(path)
        if dir_fd is not None:
            return self._opened(dir_fd).inode, name.removeprefix(b"./")
        folder, *names = self.kernel.top, *name.strip(b"/").split(b"/")
        for each in names[:-1]:
            folder = self._find(folder, each)
        return folder, names[-1]

    def _find(self, folder: Inode, name: bytes) -> Inode:
        if name == b".":
            return folder
        if name not in folder.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return folder.names[name]

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        self.enter(f"open {path!r} {'create' if flags & os.O_CREAT else ''}")
        folder, name = self._folder(dir_fd, path)
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            self._write_something()
            return self._descriptor(self.kernel.new_inode(stat.S_IFREG | mode))
        if flags & os.O_CREAT and name not in folder.names:
            self._write_something()
            inode = self.kernel._add(folder, name, stat.S_IFREG | mode)
            fd = self._descriptor(inode)
            self.kernel.changed()
            return fd
        inode = self._find(folder, name)
        if flags & os.O_EXCL and flags & os.O_CREAT:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if flags & os.O_DIRECTORY and not inode.is_folder:
            raise _error(errno.ENOTDIR)
        return self._descriptor(inode)

    def _descriptor(self, inode: Inode) -> int:
        held = self._scheduler.current.process.descriptors
        fd = next(number for number in range(3, 1000) if number not in held)
        held[fd] = Open(inode)
        return fd

    def close(self, fd: int) -> None:
        self._opened_checked(fd)
        self.kernel.close_of(self._scheduler.current.process, fd)

    def _opened_checked(self, fd: int) -> None:
        self._scheduler.check()
        self._opened(fd)

    def dup(self, fd: int) -> int:
        file = self.enter(f"dup {fd}", fd)
        file.times += 1
        held = self._scheduler.current.process.descriptors
        made = next(number for number in range(3, 1000) if number not in held)
        held[made] = file
        return made

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self.enter(f"mkdir {path!r}")
        folder, name = self._folder(dir_fd, path)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.kernel._add(folder, name, stat.S_IFDIR | mode)

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Status:
        self.enter(f"stat {path!r}")
        return Status(self._find(*self._folder(dir_fd, path)))

    def fstat(self, fd: int) -> Status:
        return Status(self.enter(f"fstat {fd}", fd).inode)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.enter(f"unlink {path!r}")
        folder, name = self._folder(dir_fd, path)
        self._find(folder, name)
        self._take_name(folder, name)
        self.kernel.changed()

    def _take_name(self, folder: Inode, name: bytes) -> None:
        inode = folder.names.pop(name)
        folder.mtime_ns = self.kernel.now_ns()
        inode.links -= 1
        self.kernel.free(inode)

    def rename(self, old: Any, new: Any, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self.enter(f"rename {old!r} {new!r}")
        (folder, before), (to, after) = (
            self._folder(src_dir_fd, old), self._folder(dst_dir_fd, new),
        )  # fmt: skip
        inode = self._find(folder, before)
        if to.names.get(after) is inode:
            return
        if after in to.names:
            self._take_name(to, after)
        del folder.names[before]
        to.names[after] = inode
        folder.mtime_ns = to.mtime_ns = self.kernel.now_ns()
        self.kernel.changed()

    def link(self, old: Any, new: Any, *, dst_dir_fd: int, follow_symlinks: bool) -> None:
        self.enter(f"link {old!r} {new!r}")
        inode = self._opened(int(os.fsdecode(old).rpartition("/")[2])).inode
        folder, name = self._folder(dst_dir_fd, new)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._write_something()
        folder.names[name] = inode
        folder.mtime_ns = self.kernel.now_ns()
        inode.links += 1
        self.kernel.changed()

    # --- contents

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        return bytes(self.enter(f"pread {fd}", fd).inode.data[offset : offset + count])

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        inode = self.enter(f"pwrite {fd} {bytes(data)!r} {offset}", fd).inode
        self._write_something()
        if len(inode.data) < offset:
            inode.data.extend(bytes(offset - len(inode.data)))
        inode.data[offset : offset + len(data)] = bytes(data)
        inode.mtime_ns = self.kernel.now_ns()
        self.kernel.changed()
        return len(data)

    def write(self, fd: int, data: Any) -> int:
        file = self._opened(fd)
        file.offset += self.pwrite(fd, data, file.offset)
        return len(data)

    def ftruncate(self, fd: int, size: int) -> None:
        inode = self.enter(f"ftruncate {fd} {size}", fd).inode
        self._write_something()
        del inode.data[size:]
        inode.data.extend(bytes(size - len(inode.data)))
        inode.mtime_ns = self.kernel.now_ns()
        self.kernel.changed()

    def fsync(self, fd: int) -> None:
        self.enter(f"fsync {fd}", fd)

    def posix_fadvise(self, fd: int, offset: int, count: int, advice: int) -> None:
        self._opened(fd)

    def fchmod(self, fd: int, mode: int) -> None:
        inode = self.enter(f"fchmod {fd} {mode:o}", fd).inode
        inode.mode = stat.S_IFMT(inode.mode) | mode
        self.kernel.changed()

    def chown(self, fd: int, uid: int, gid: int) -> None:
        self.enter(f"chown {fd}", fd)

    def utime(self, at: Any, *, ns: tuple[int, int], dir_fd: int | None = None) -> None:
        fd = at if dir_fd is None else dir_fd  # of the folder that b"." is
        inode = self.enter(f"utime {fd}", fd).inode
        inode.atime_ns, inode.mtime_ns = ns
        self.kernel.changed()
