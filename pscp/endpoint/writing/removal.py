"""The one removal of a name that a person gave, and what has to be known before.

Such a name is a source that is moved, or what a mirror deletes. A copy goes through stages, each
durable before the next begins: bytes, name, folder; then what removes something. So it is asked
here, with what is known of the copy that stays.

Not here: who collects that (../../transfer/ending/moving.py, ../../transfer/ending/mirror.py), what
a rename replaces (commit.py), parts and fences, which are pscp's own (parts.py, fence.py).
"""

import errno
import os
from typing import NamedTuple

DIGEST, COMPARED = "digest", "compared"  # as it was written; where it lay already

# What fsync(2) says of a folder on file systems that cannot sync one: FUSE, some NFS and SMB.
_CANNOT_SYNC = frozenset([errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EROFS])


class Durable(NamedTuple):
    """The evidence for what stays at the destination."""

    proof: str  # how its contents are known to be the source's; "": they are not
    is_synced: bool  # its bytes, its name and the folders above it are on the disk
    is_elsewhere: bool  # it is not the very thing that would go, seen in another place


def is_safe_to_remove(durable: Durable) -> bool:
    """Return whether what this stays for may go."""
    return durable.proof in (DIGEST, COMPARED) and durable.is_synced and durable.is_elsewhere


def remove_user_name(folder_fd: int, name: bytes, is_folder: bool = False) -> None:
    """Remove a name that a person gave: of a file or link, or of an empty folder. Raises OSError.

    The caller has just seen that it still is what is_safe_to_remove() was asked about.
    """
    (os.rmdir if is_folder else os.unlink)(name, dir_fd=folder_fd)


def sync_folder(fd: int) -> None:
    """Bring the names in a folder to the disk, where its file system can. Raises OSError."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
