"""The state folder: small values kept from one run to the next, a file each, and locks; and a
folder for sockets. What a file holds is replaced in one step, also at a power loss: a reader finds
all of one or other.

A value that is lost or unreadable counts as none. Most values only save time; without its record
(../zfs/record.py), a replication prunes less. This module imports little, since the first value is
read before ssh starts.

Not here: the journals that lie in the same folder (../transfer/terms/journal.py), what is
remembered of a host (../connect/known/host_memory.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from typing import IO

_RUN_FOLDER_MAX = 48  # characters: a socket takes 103 (macOS), and ssh adds 17 of its own

_LABEL_MAX = 64  # characters of a file's name, which may have 255 bytes

NO_FOLDER = "one is made in $XDG_RUNTIME_DIR or /tmp, for the user alone"  # for control_folder()


@contextlib.contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """Yield a new file, which gets this name once the block has ended well. Raises OSError."""
    from pscp.endpoint.reading.paths import part_name  # here: few values need it

    folder = os.path.dirname(path)
    name = os.fsencode(os.path.basename(path))  # as of a part, so that no walk takes it along
    new = os.path.join(folder, os.fsdecode(part_name(name, os.urandom(11).hex())))
    try:
        with open(new, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    with contextlib.suppress(OSError):  # a folder may not be read, or its filesystem not sync it
        folder_fd = os.open(folder or ".", os.O_RDONLY)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)


def folder() -> str:
    """$XDG_STATE_HOME/pscp, by the XDG base directory specification."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "pscp")


def make_folder(path: str) -> None:
    """Make this folder, which is in the state folder, and those above it, for the user alone.

    A mode that lets others in, as one made by an earlier version, is changed. Raises OSError.
    """
    own = folder()
    if path.startswith(own):
        os.makedirs(os.path.dirname(own), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(own, 0o700)
        status = os.stat(own)
        if status.st_mode & 0o077 and status.st_uid == os.getuid():
            os.chmod(own, 0o700)
    os.makedirs(path, exist_ok=True, mode=0o700)


Key = tuple[object, ...]  # of strings, numbers and None


def recall_entry(folder_name: str, label: str, key: Key) -> object:
    """Return the value that remember_entry() kept for this key; None where there is none."""
    found = recall(_name_of(folder_name, label, key))
    if not isinstance(found, dict) or found.get("key") != ascii(key):
        return None
    value: object = found.get("value")
    return value


def remember_entry(folder_name: str, label: str, key: Key, value: object) -> bool:
    """Keep a value for this key, with the key beside it. Return False where it cannot be kept."""
    return remember(_name_of(folder_name, label, key), {"key": ascii(key), "value": value})


def forget_entry(folder_name: str, label: str, key: Key) -> None:
    """Remove the value that remember_entry() kept for this key, if there is one."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder(), _name_of(folder_name, label, key)))


def _name_of(folder_name: str, label: str, key: Key) -> str:
    """Return a readable name for the key's file: two keys that get the same one overwrite each
    other, and neither is taken for the other. (hashlib takes 3 ms to load, zlib none.)
    """
    readable = re.sub(r"[^A-Za-z0-9.@-]", "_", label)[:_LABEL_MAX]
    number = zlib.crc32(ascii(key).encode())
    return os.path.join(folder_name, f"{readable}-{number:08x}.json")


def recall(name: str) -> object:
    """Return the value of this name; None where there is none."""
    try:
        with open(os.path.join(folder(), name)) as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError):
        return None


def remember(name: str, value: object) -> bool:
    """Keep the value under this name. Return False where it cannot be kept.

    A folder that cannot be written is no reason to fail.
    """
    path = os.path.join(folder(), name)
    written = f"{path}.{os.getpid()}"
    try:
        make_folder(os.path.dirname(path))
        with open(written, "w") as file:
            file.write(json.dumps(value))  # in one piece, which is much faster
        os.replace(written, path)
        return True
    except OSError:
        with contextlib.suppress(OSError):  # on a full disk, each run would leave one more
            os.unlink(written)
        return False


def private_path(folder: str) -> str:
    """Return a new path in the folder for sockets, whose name begins with this process's number."""
    return f"{folder}/{os.getpid():07x}-{os.urandom(4).hex()}"


def remove_private() -> None:
    """Remove what this process has left in the folder for sockets."""
    folder = control_folder()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder) if folder else ():
            if name.startswith(f"{os.getpid():07x}-"):
                os.unlink(f"{folder}/{name}")


def control_folder() -> str | None:
    """Return the user's own folder for sockets, made where it is missing; None: there is none."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if len(base) > _RUN_FOLDER_MAX or not re.fullmatch(r"/[\w/.-]+", base, re.ASCII):
        base = "/tmp"  # noqa: S108 - the folder below is looked at
    folder = f"{base}/pscp-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
    except OSError:
        return None
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return folder if is_ours and not status.st_mode & 0o077 else None


def lock(path: str) -> IO[bytes]:
    """Take the flock(2) of a file, which is made where it is missing; to close it lets go.

    What is started does not inherit it, and a crash leaves none behind. Raises BlockingIOError
    where another process has it, OSError.
    """
    make_folder(os.path.dirname(path))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    file = open(fd, "ab")  # noqa: SIM115 - the caller closes it
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def holder(path: str) -> str:
    """Return which other process has a flock(2): " (process 123, since 02:15)"; "" if unknown."""
    from pscp.endpoint.frames import system  # here: few commands need it

    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(path) as file:
            [pid] = system.holders(file.fileno())
        with open(f"/proc/{pid}/stat") as status, open("/proc/uptime") as uptime:
            ticks = int(status.read().rpartition(")")[2].split()[19])  # proc(5): starttime
            age_s = float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
        since = time.localtime(time.time() - age_s)
        form = "%H:%M" if age_s < 12 * 3600 else "%Y-%m-%d %H:%M"
        return f" (process {pid}, since {time.strftime(form, since)})"
    return ""
