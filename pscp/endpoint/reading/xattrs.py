"""Extended attributes of files, also POSIX ACLs: read at the source, set at the sink.

Sent when a copy begins with -a, or that may find something at its destination. Not here: modes,
times and owners (metadata.py), which attributes a file system cannot have (../there/attributes.py).
"""

import base64
import contextlib
import errno
import functools
import itertools
import os
import stat
import threading
from typing import Callable, Dict, List, Optional, Union

from ..frames import system
from . import files

File = Union[int, str]  # an open one, or a path as of files.unopened()
_NO_ATTRIBUTES = frozenset(
    [errno.ENOTSUP, errno.ENODATA, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP]
)
# What the modules of this machine's kernel give its files by its own rules.
_LABELS = tuple("security." + each for each in ("selinux", "SMACK64", "apparmor", "ima", "evm"))
_CLONE_FS = 0x200
_IS_AGENT = __name__.startswith("pscp_agent.")  # in a process of its own
_XATTRS_MAX_BYTES = 64 * 1024  # of one file: all of its attributes travel in one frame


def is_copied(name: str) -> bool:
    """Is it an attribute of user.* or a POSIX ACL, or, for root, of trusted.* or security.*, but
    for labels?
    """
    if name.startswith(("user.", "system.posix_acl_")):
        return True
    is_roots = name.startswith(("security.", "trusted.")) and not name.startswith(_LABELS)
    return is_roots and os.geteuid() == 0


def read(full: bytes, place: files.Place, mode: int, follow: bool) -> Dict[str, str]:
    """Return a file's attributes in base64. Most files have none, which a look at the whole path
    tells at once. Raises OSError.
    """
    if not hasattr(os, "listxattr"):
        return {}
    try:
        if not any(map(is_copied, os.listxattr(full, follow_symlinks=follow))):
            return {}
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            with system.closing(files.open_for_reading(place, follow)) as fd:
                values = _read(fd)
        else:
            with files.unopened(place, follow) as path:
                values = _read(path)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return {}
        raise
    if values and sum(map(len, itertools.chain(*values.items()))) > _XATTRS_MAX_BYTES:
        raise system.os_error(errno.E2BIG)
    return values


def _read(file: File) -> Dict[str, str]:
    names = filter(is_copied, os.listxattr(file))
    return {n: base64.b64encode(os.getxattr(file, n)).decode("ascii") for n in names}


def give(file: File, attributes: object) -> None:
    """Set the extended attributes that this end's filesystem has. The mode is the caller's to set
    after it: the owner may be let write. Raises OSError.
    """
    if not isinstance(attributes, dict) or not hasattr(os, "setxattr"):
        return
    has = of(file) or {}
    for name, value in attributes.items():
        if not is_copied(name):
            continue
        try:
            wanted = base64.b64decode(value)
            if has.get(name) != wanted:
                _as_writer(file, functools.partial(os.setxattr, file, name, wanted))
        except (TypeError, ValueError):
            raise system.os_error(errno.EINVAL)  # no valid name, or value
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise


def _as_writer(file: File, change: "Callable[[], None]") -> None:
    """Change an attribute, which the system lets only those do who may write."""
    try:
        change()
    except PermissionError:
        mode = stat.S_IMODE(os.stat(file).st_mode)
        if mode & stat.S_IWUSR:
            raise
        os.chmod(file, mode | stat.S_IWUSR)
        change()


def remove_others(file: File, attributes: object) -> None:
    """Remove the attributes that a file has besides these, as the ACL that a folder lends it. The
    mode is the caller's to set after it.
    """
    kept = attributes if isinstance(attributes, dict) else ()
    for name in of(file) or ():
        if name not in kept:
            with contextlib.suppress(OSError):
                _as_writer(file, functools.partial(os.removexattr, file, name))


def would_change(folder_fd: int, name: bytes, value: object, keeps_others: bool) -> bool:
    """Would these attributes change what has this name, as far as the file system can keep them? A
    look at its name tells of most that there are none.

    Args:
        keeps_others: those that it has besides stay, as a folder's do.
    """
    has_some, must = bool(with_some(folder_fd, [name])), wanted(value)
    if must == {} and not has_some:
        return False
    with files.unopened((folder_fd, name), False) as path:
        has = of(path)
        if has is None or must is None:
            return must is None  # to give those fails, which says why
        if not keeps_others and has.keys() - must.keys():
            return True
        return any(has.get(each) != must[each] and may_have(path, each) for each in must)


def with_some(folder_fd: int, names: List[bytes]) -> List[int]:
    """Return the places of the names in an open folder that have attributes which copies keep."""
    if not hasattr(os, "listxattr"):
        return []
    try:
        # The path that it has now: one through /proc takes twice the time for each name.
        path = os.readlink(os.fsencode("%s/%d" % (system.FD_PATHS, folder_fd)))
        before = os.path.join(path, b"")
    except OSError:
        return []
    try:
        found = in_folder(folder_fd, before, names, False)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        found = [_listed(before + name) for name in names]
    if not any(found):
        return []
    return [place for place, each in enumerate(found) if any(map(is_copied, each))]


_own = threading.local()  # .folder: whether this thread has a working folder of its own


def in_folder(
    fd: Optional[int], before: bytes, names: List[bytes], follow: bool
) -> List[List[str]]:
    """Return the names of all attributes of each file in a folder. Raises OSError.

    They are looked at from within the folder `fd`: a path of six folders takes 0.8 us more for
    each, a tenth of what an unchanged file costs. Where there is none, or this thread shares its
    working folder with others, it is by the path that the names have `before` them.
    """
    if fd is None or not _has_own_folder():
        return [os.listxattr(before + name, follow_symlinks=follow) for name in names]
    with system.closing(os.open(".", os.O_PATH | os.O_CLOEXEC)) as here:
        os.fchdir(fd)
        try:
            return [os.listxattr(name, follow_symlinks=follow) for name in names]
        finally:
            os.fchdir(here)


def _has_own_folder() -> bool:
    """Has this thread a working folder of its own (unshare(2))? The main thread of a program that
    calls us gets none, as all its threads share that.
    """
    if not hasattr(_own, "folder"):
        unshare = system.libc_function("unshare")
        may = _IS_AGENT or threading.current_thread() is not threading.main_thread()
        _own.folder = may and unshare is not None and unshare(_CLONE_FS) == 0
    return bool(_own.folder)


def _listed(path: bytes) -> List[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError:
        return []


def may_have(file: File, name: str) -> bool:
    """Can the file system keep an attribute of this name?"""
    if not hasattr(os, "getxattr"):
        return False
    try:
        os.getxattr(file, name)
    except OSError as error:
        return error.errno != errno.ENOTSUP
    return True


def of(file: File) -> Optional[Dict[str, bytes]]:
    """Return the attributes of a file that copies keep; None where there can be none."""
    try:
        return {n: os.getxattr(file, n) for n in os.listxattr(file) if is_copied(n)}
    except (OSError, AttributeError):  # the latter where Python has no such calls
        return None


def wanted(value: object) -> Optional[Dict[str, bytes]]:
    """Return the attributes that the file would be given; None where they are no valid ones."""
    if not isinstance(value, dict):
        return {} if value is None else None
    try:
        return {n: base64.b64decode(v) for n, v in value.items() if is_copied(n)}
    except ValueError:
        return None
