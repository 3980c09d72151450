"""Names of files that lie unchanged in other folders, in place of copies of them (--link-dest).

Of those folders only the contents of files are shared: nothing in them is changed, and a file gets
its further name only if it is in all what its copy would be.

Sent when a copy begins with --link-dest. Not here: the requests (hardlinks.py), how a folder is
compared (listings.py), which files are asked for (../../transfer/walk/linking.py).
"""

import errno
import os
import stat
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Set

from ..frames import failures, system
from ..reading import files, tree, xattrs
from ..reading.paths import Root, to_bytes, to_text
from . import hardlinks, sameness

if TYPE_CHECKING:
    from ..writing import sink

_ROOM_BYTES = 1 << 18
_HELD_MOST = 64  # files that are linked while the fence is held


class Linker:
    """Gives files of other folders names below the root. For the thread that serves the sink."""

    def __init__(self, the_sink: "sink.Sink", base: str, path: str, *folders: str) -> None:
        """DEST is `base` below the root, and has this whole path; the folders may be relative to
        it.
        """
        self._sink, self._before = the_sink, base + "/" if base else ""
        self._is_dry = not the_sink.copy.nonce
        self._roots: List[Root] = []
        self._room = memoryview(bytearray(_ROOM_BYTES))
        self.problems = [self._open(to_bytes(path), to_bytes(folder)) for folder in folders]

    def _open(self, path: bytes, folder: bytes) -> str:
        """Open a folder; return why nothing in it can be linked to, "" for nothing."""
        where = os.path.join(path, os.path.expanduser(folder))
        if not os.path.isdir(path):  # in a dry run, which does not make DEST
            where = os.path.normpath(where)
        try:
            root = Root(to_text(where))
        except OSError as error:
            return os.strerror(error.errno or 0)
        self._roots.append(root)
        is_beside = os.fstat(root.fd).st_dev == os.fstat(self._sink.root.fd).st_dev
        return "" if is_beside else os.strerror(errno.EXDEV)

    def close(self) -> None:
        for root in self._roots:
            root.close()

    def _inside(self, path: str) -> str:
        """Return the path as it is in the other folders."""
        is_below = (path + "/").startswith(self._before)
        return path[len(self._before) :] if is_below else path

    # --- one file

    def link(self, value: tree.Entry, digest: str, algorithm: str) -> Optional[int]:
        """Link the entry to a file that is the same; return what LinkSame says of each."""
        most_bytes = -1
        for root in self._roots:
            try:
                folder_fd, name = root.at(self._inside(value.path))
                status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                if not self._is_alike(folder_fd, name, status, value):
                    continue
                if algorithm and value.kind == tree.FILE:
                    most_bytes = value.size
                    if not self._has_digest(folder_fd, name, status, digest, algorithm):
                        continue
                if self._is_dry or self._name(value.path, folder_fd, name, status):
                    return None
            except (OSError, failures.Refusal) as error:
                _check_owned(error)
        return most_bytes

    def _is_alike(
        self, folder_fd: int, name: bytes, status: os.stat_result, value: tree.Entry
    ) -> bool:
        """Is it a file of this size, or a link that leads there, with all that a copy keeps?"""
        if not sameness.has_metadata(status, value, self._sink.policy):
            return False
        if value.kind == tree.LINK:
            is_link = stat.S_ISLNK(status.st_mode)
            if not is_link or os.readlink(name, dir_fd=folder_fd) != to_bytes(value.target):
                return False
        elif not stat.S_ISREG(status.st_mode) or status.st_size != value.size:
            return False
        wanted = xattrs.wanted(value.extra.get("x"))
        return not self._sink.policy.archive or self._attributes(folder_fd, name, status) == wanted

    def _attributes(self, folder_fd: int, name: bytes, status: os.stat_result) -> Dict[str, bytes]:
        if stat.S_ISLNK(status.st_mode):
            with files.unopened((folder_fd, name), False) as path:
                return xattrs.of(path) or {}
        with system.closing(files.open_for_reading((folder_fd, name), False)) as fd:
            return xattrs.of(fd) or {}

    def _has_digest(
        self, folder_fd: int, name: bytes, status: os.stat_result, digest: str, algorithm: str
    ) -> bool:
        if not digest:
            return False
        with system.closing(files.open_for_reading((folder_fd, name), False)) as fd:
            if not os.path.samestat(os.fstat(fd), status):
                return False
            found = files.digest_of(fd, (0, status.st_size), algorithm, self._room)
            return found is not None and found.hex() == digest

    def _name(
        self, path: str, from_fd: int, name: bytes, status: os.stat_result, replaces: bool = True
    ) -> bool:
        """Give the file this path as well. Return whether it is that very file, unchanged, and not
        another that was put in its place meanwhile. Raises FileExistsError where another file has
        the path, unless it `replaces` that.
        """

        def make(there: bytes, folder_fd: int) -> None:
            os.link(name, there, src_dir_fd=from_fd, dst_dir_fd=folder_fd, follow_symlinks=False)

        def is_made(there: bytes, folder_fd: int) -> bool:
            found = os.stat(there, dir_fd=folder_fd, follow_symlinks=False)
            if files.identity(found) == files.identity(status):
                return True
            os.unlink(there, dir_fd=folder_fd)  # which it got a moment ago
            return False

        with self._sink.held():
            folder_fd, there = self._sink.root.at(path, make=True)
            try:
                make(there, folder_fd)
            except FileExistsError:
                if not replaces:
                    raise
                self._sink.put(path, make, is_made)
                return True
            return is_made(there, folder_fd)

    # --- a folder with its listing

    def folder(self, path: str) -> int:
        """Open a folder of the destination; return its descriptor, or one with nothing below it."""
        try:
            return os.dup(self._sink.root.folder(path))
        except FileNotFoundError:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def link_listed(
        self,
        path: str,
        names: List[bytes],
        places: List[int],
        differing: Callable[[int], List[int]],
    ) -> Set[int]:
        """Link those of the places in a folder's listing that are the same in another folder. What
        has the name of one already is not replaced: that is decided file by file.

        `differing` returns the places that differ in the folder of a descriptor. Returns the places
        that were linked.
        """
        linked: Set[int] = set()
        for root in self._roots:
            wanted = set(places) - linked
            try:
                fd = root.folder(self._inside(path)) if wanted else -1
            except (OSError, failures.Refusal):
                continue
            same = sorted(wanted.difference(differing(fd))) if wanted else []
            for begin in range(0, len(same), _HELD_MOST):
                with self._sink.held():  # once for several: it costs as much as a link
                    for place in same[begin : begin + _HELD_MOST]:
                        name = names[place]
                        if self._link_place(os.path.join(path, to_text(name)), fd, name):
                            linked.add(place)
        if not linked or self._is_dry:
            return linked
        # A file may have been replaced since it was compared.
        return linked.difference(differing(self._sink.root.folder(path)))

    def _link_place(self, path: str, fd: int, name: bytes) -> bool:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if self._sink.policy.archive and self._attributes(fd, name, status):
                return False
            if self._is_dry:
                return hardlinks.status_there(self._sink, path) is None
            return self._name(path, fd, name, status, replaces=False)
        except (OSError, failures.Refusal) as error:
            _check_owned(error)
            return False


def _check_owned(error: Exception) -> None:
    """Raise the error again where the copy is another run's by now; any other file is copied."""
    if isinstance(error, failures.Refusal) and error.kind == failures.SUPERSEDED:
        raise error
