"""System calls and facts of this machine: pipes, limits, processor, processes.

Not here: files (../reading/files.py), settings of the kernel (../there/kernel.py).
"""

import contextlib
import errno
import functools
import os
import resource
from typing import Callable, Iterator, List, Optional, Sequence, Union

FD_PATHS = "/proc/self/fd"  # proc(5): by them what was opened with O_PATH is changed
_DESCRIPTORS = 4096


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close this descriptor at the end of a block."""
    try:
        yield fd
    finally:
        os.close(fd)


def os_error(number: int) -> OSError:
    """Return the error with this errno: a PermissionError, for instance."""
    return OSError(number, os.strerror(number))


def write_all(fd: int, parts: Sequence[Union[bytes, memoryview]]) -> None:
    """Write every byte of the parts, in one system call where the pipe has room."""
    left = sum(map(len, parts))
    while True:
        count = os.writev(fd, parts)
        left -= count
        if not left:
            return
        views: List[memoryview] = []
        for part in [memoryview(part) for part in parts]:
            if count >= len(part):
                count -= len(part)
            else:
                views.append(part[count:])
                count = 0
        parts = views


class Block:
    """Bytes that were read from a file, where they lie in it, and their check."""

    def __init__(self, view: memoryview, fd: int, offset: int) -> None:
        self.view, self.fd, self.offset = view, fd, offset
        self.check = b""

    def __len__(self) -> int:
        return len(self.view) + len(self.check)


def send_pages(fd: int, header: bytes, block: Block, move: Callable[[int, int], int]) -> None:
    """Write a header and a block; the file's pages, not a copy of them, if possible.

    `move` moves pages from this offset on, so many bytes at most, and returns their number.
    Measured for 1 GiB from tmpfs: splice(2) cost this end 0.18 CPU-seconds and the pipe's reader
    0.14, a plain write 0.33 and 0.33. The digest finds a file that changed in between.
    """
    write_all(fd, [header])
    offset, left = block.offset, len(block.view)
    try:
        while left:
            count = move(offset, left)
            if count == 0:  # the file was cut short: send what was read of it
                break
            offset, left = offset + count, left - count
    except OSError:  # this filesystem cannot; or the other end is gone: the next write raises
        pass
    write_all(fd, [block.view[len(block.view) - left :], block.check])


class Lent:
    """Bytes that stay unchanged until the far end has acknowledged them."""

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def __len__(self) -> int:
        return len(self.view)


def lend(fd: int, header: bytes, lent: Lent) -> None:
    """Write a header and these bytes into a pipe; their pages, not a copy of them, if possible.

    Measured for 1 GiB through a pipe of 1 MiB: vmsplice(2) cost this end 0.08 CPU-seconds and the
    pipe's reader 0.24, a plain write 0.36 and 0.49.
    """
    write_all(fd, [header])
    done = _vmsplice(fd, lent.view)
    if done < len(lent):
        write_all(fd, [lent.view[done:]])


def _vmsplice(fd: int, view: memoryview) -> int:
    """Call vmsplice(2) until all is written, and return the bytes written: fewer where the pipe is
    broken or takes none this way, 0 where there is no such call.
    """
    function = libc_function("vmsplice")
    if function is None:
        return 0
    import ctypes

    address, done = ctypes.addressof(ctypes.c_char.from_buffer(view)), 0
    while done < len(view):
        iovec = (ctypes.c_size_t * 2)(address + done, len(view) - done)
        count = function(fd, iovec, ctypes.c_ulong(1), 0)
        if count < 0 and ctypes.get_errno() != errno.EINTR:
            break
        done += max(count, 0)
    return done


@functools.lru_cache(maxsize=None)
def libc_function(name: str) -> "Optional[Callable[..., int]]":
    """Return a function of the C library that returns an int; None where there is no such one."""
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True)[name]
    except (ImportError, AttributeError, OSError):
        return None


_CAN_SPLICE = hasattr(os, "splice")  # Linux, Python 3.10

Payload = Union[bytes, memoryview, Block, Lent]


def send(fd: int, header: bytes, payload: Payload) -> None:
    """Write a frame: its header and its payload."""
    if isinstance(payload, Lent):
        lend(fd, header, payload)
    elif not isinstance(payload, Block):
        write_all(fd, [header, payload])
    elif _CAN_SPLICE and payload.fd >= 0:
        file_fd = payload.fd
        send_pages(fd, header, payload, lambda at, n: os.splice(file_fd, fd, n, offset_src=at))
    else:
        write_all(fd, [header, payload.view, payload.check])


def widen_pipe(fd: int) -> None:
    """Let a pipe hold 1 MiB, so that each system call moves more. Does nothing but on Linux."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.fcntl(fd, 1031, 1 << 20)  # F_SETPIPE_SZ, which has a name only from Python 3.10 on


def raise_descriptor_limit() -> None:
    """Allow 4096 open files, as the hard limit permits: small files wait open to be settled."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def has_aes() -> Optional[bool]:
    """Does this processor have AES instructions? None where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return "aes" in line.split()
    return None


def makes_devices() -> bool:
    """May this process make devices, and give them their metadata unopened?"""
    return os.geteuid() == 0 and hasattr(os, "O_PATH") and os.path.isdir(FD_PATHS)


def cpu_seconds(pid: int) -> Optional[float]:
    """Return the CPU-seconds that a process has used; None where the system does not tell."""
    path = "/proc/%d/schedstat" % pid
    with contextlib.suppress(OSError, ValueError, IndexError), open(path) as file:
        return int(file.read().split()[0]) / 1e9
    return None


# Filesystems that may give a file another inode number when it is looked up again.
_WEAK_INODES = ("fuse", "cifs", "smb", "9p", "vboxsf", "vmhgfs", "prl_fs", "afs")


def has_stable_inodes(device: int) -> bool:
    """Do inode numbers tell files apart on this device (st_dev)? True where proc(5) lacks it."""
    number = "%d:%d" % (os.major(device), os.minor(device))
    with contextlib.suppress(OSError, IndexError), open("/proc/self/mountinfo") as lines:
        for line in lines:
            if line.split()[2] == number:
                return not line.rpartition(" - ")[2].startswith(_WEAK_INODES)
    return True


def holders(fd: int) -> List[int]:
    """Return the other processes that hold a lock on the open file, as far as proc(5) tells."""
    status, pids = os.fstat(fd), set()
    try:
        with open("/proc/locks") as lines:
            for line in lines:
                fields = line.replace("->", "").split()
                if fields[5].rpartition(":")[2] == str(status.st_ino):
                    pids.add(int(fields[4]))
    except (OSError, ValueError, IndexError):
        return []
    return [pid for pid in pids if pid != os.getpid() and _has_open(pid, status)]


def _has_open(pid: int, status: os.stat_result) -> bool:
    folder = "/proc/%d/fd" % pid
    with contextlib.suppress(OSError):
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(os.path.join(folder, number)), status):
                    return True
    return False
