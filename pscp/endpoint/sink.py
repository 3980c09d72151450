"""The sink end of a copy: verifies chunks and packs, writes them, makes files final.

Used by the agent when it is pushed to, and by a lane when it pulls. Every name is resolved below
the destination's root without following links (paths.Root), whoever chose it. A
block is written once the digest of its chunk up to there matched, and only into a part that still
has its name (parts.py); blocks without such a check are held in memory until the chunk's digest
matched. Whatever has a final name is changed only while this lane's run owns the copy (fence.py).

Not here: what it does as the sink of a transfer test does (null_ends.py), a part's way to its final
name (commit.py), what is checked of entries before they come here (entries.py).
Read next: commit.py.
"""

import os
import stat
from typing import Callable, List, NamedTuple, Optional, Tuple, Union

from . import commit, failures, fence, files, metadata, tree, wire
from .null_ends import Done, NullSink
from .parts import Parts
from .paths import Root, is_unfinished, to_bytes

_KINDS = {stat.S_IFREG: tree.FILE, stat.S_IFDIR: tree.FOLDER, stat.S_IFLNK: tree.LINK}


class Copy(NamedTuple):
    """Which copy, run and lane a sink works for; and the runs before that may have left parts."""

    token: str
    nonce: str  # "": a dry run, which changes nothing
    lane: int
    earlier: List[str]


class Sink(NullSink):
    """Takes the files of one copy at this end, and writes them."""

    def __init__(
        self, root: str, copy: Copy, policy: metadata.Policy, algorithm: str, strong: bool
    ) -> None:
        """Raises OSError for a root that cannot be opened, Refusal where the run is superseded."""
        super().__init__(algorithm, strong)
        self.root = Root(root)
        self._copy, self._policy = copy, policy
        try:
            self._fence = self._open_fence()
        except BaseException:
            self.root.close()
            raise
        self._parts = Parts(self.root, self._fence, copy.token, copy.nonce)
        self._settler = commit.Settler(self.root, self._fence, self._parts, policy, strong)
        self._open: files.OpenFiles[tree.Entry, files.FileSink] = files.OpenFiles(self._opened)
        self._held: List[bytes] = []  # of the chunk that is arriving: what is not written yet
        self._failure: Optional[failures.Data] = None  # of writing it
        self._is_damaged = False  # a check of it did not match
        self._receipt = 0  # of the part that it was written to
        self._room = memoryview(bytearray(1 << 18))

    def _open_fence(self) -> fence.AnyFence:
        if not self._copy.nonce:
            return fence.NoFence()
        try:
            return fence.Fence(self.root.fd, self._copy.token, self._copy.nonce, self._copy.lane)
        except fence.NoFenceLeft:  # a lane may begin late: it may remove parts, and no more
            return fence.LostFence()

    # --- large files, by chunks

    def forget(self, id_: int) -> None:
        super().forget(id_)
        self._open.close_file(id_)

    def _opened(self, value: tree.Entry) -> files.FileSink:
        try:
            fd = self._parts.open(value.path)
        except FileNotFoundError:
            fd = self._parts.make(value.path)
        try:
            with self._parts.written(fd, value.path):  # or it might be the file by now
                files.make_room(fd, value.size, "sparse" in value.extra)
        except BaseException:
            os.close(fd)
            raise
        return files.FileSink(fd, "dig" in value.extra)

    def write(self, id_: int, offset: int, block: memoryview, check: bytes = b"") -> None:
        """Write a block of the chunk that is arriving, if its check matches; without one hold it.

        complete() tells what went wrong.
        """
        if self._arriving.is_over:
            self._held, self._failure, self._is_damaged = [], None, False
        super().write(id_, offset, block)
        if not check:
            self._held.append(bytes(block))
        elif check != wire.check_of(self._hasher.digest()):
            self._is_damaged = True
        elif not self._is_damaged and self._failure is None:
            self._write([*self._held, block], id_, offset + len(block))

    def _write(self, blocks: "List[Union[bytes, memoryview]]", id_: int, end: int) -> None:
        """Write verified blocks, the last of which ends there."""
        self._held = []
        value = self._entry(id_)
        try:
            file = self._open.get(id_, value)
            with self._parts.written(file.fd, value.path):
                offset = end - sum(len(block) for block in blocks)
                for block in blocks:
                    file.write(memoryview(block), offset)
                    offset += len(block)
            self._receipt = self._parts.receipt(file.fd)
        except (OSError, failures.Refusal) as error:
            self._failure = failures.from_exception(error, value.path)

    def complete(
        self, id_: int, offset: int, length: int, digest: bytes
    ) -> Tuple[bool, int, Optional[failures.Data]]:
        """Write what is held if the chunk matches its digest: does it; the receipt; what failed."""
        matches = super().complete(id_, offset, length, digest)[0]
        if not matches or self._is_damaged:
            return False, 0, None
        if self._held:
            self._write([*self._held], id_, offset + length)
        if self._failure is not None:
            return False, 0, self._failure
        return True, self._receipt, None

    def make(self, value: tree.Entry) -> int:
        file = self._opened(value)
        try:
            return self._parts.receipt(file.fd)
        finally:
            file.close()

    def finish(self, value: tree.Entry, strong: str, receipt: int, done: Done) -> None:
        try:
            fd = self._to_finish(value, receipt)
        except (OSError, failures.Refusal) as error:
            done([failures.from_exception(error, value.path)])
            return
        if fd is None:  # by a lane that died, maybe before the new name was durable
            self._settler.make_names_durable(value.path.rpartition("/")[0])
            done([None])
            return
        whole = commit.Part(fd, value, strong, commit.SHARED)
        self._settler.add(commit.Batch([whole], done))

    def _to_finish(self, value: tree.Entry, receipt: int) -> Optional[int]:
        """The part's descriptor; None where the file has its final name already."""
        replaced = failures.Refusal(failures.VERIFY, value.path, "its part was replaced")
        try:
            fd = self._parts.open(value.path, receipt=receipt)
        except (FileNotFoundError, failures.Refusal):
            if self._is_finished(value, receipt):
                return None
            with self._fence.held():  # raises where another run removed it
                raise replaced
        if self._parts.receipt(fd) == receipt:
            return fd
        os.close(fd)
        if self._is_finished(value, receipt):  # this part was made late, and is removed at the end
            return None
        raise replaced

    def _is_finished(self, value: tree.Entry, receipt: int) -> bool:
        """Was it renamed already, by a lane that died before it could say so?"""
        try:
            fd = self._opened_there(value.path)
        except OSError:
            return False
        try:
            return (self._parts.receipt(fd), os.fstat(fd).st_size) == (receipt, value.size)
        finally:
            os.close(fd)

    # --- small files, folders and links, by packs

    def _settle(self, parts: List[commit.Part], done: Done) -> None:
        if parts:
            self._settler.add(commit.Batch(parts, done))
        else:
            done([])

    def _make_part(self, value: tree.Entry, digest: str, body: memoryview) -> commit.Part:
        try:
            fd, kind = self._new_small(value.path)
        except FileNotFoundError:
            with self._fence.held(), self.root.lock:
                self.root.at(value.path, make=True)
            fd, kind = self._new_small(value.path)
        try:
            written = os.write(fd, body) if body else 0
            while written < len(body):
                written += os.write(fd, body[written:])
        except OSError:
            os.close(fd)
            if kind == commit.PRIVATE:
                commit.unlink_private(self.root, self._parts, value.path)
            raise
        return commit.Part(fd, value, digest, kind)

    def _new_small(self, path: str) -> Tuple[int, int]:
        """Make the part of a small file: its descriptor, and whose name it has.

        Raises FileNotFoundError while a folder on the way is missing.
        """
        with self.root.lock:
            folder_fd, name = self.root.at(path)
            fd = files.new_small(folder_fd)
            if fd is not None:
                return fd, commit.NAMELESS
            flags = files.PART_FLAGS | os.O_CREAT | os.O_EXCL
            name = self._parts.private_name(name)
            return os.open(name, flags, 0o600, dir_fd=folder_fd), commit.PRIVATE

    def _make_folder(self, value: tree.Entry) -> None:
        """Make the folder, unfinished until finish_folder()."""
        with self._fence.held(), self.root.lock:
            self.root.folder(value.path, make=True)

    def _make_link(self, value: tree.Entry) -> None:
        def make(part: bytes, folder_fd: int) -> None:
            os.symlink(to_bytes(value.target), part, dir_fd=folder_fd)
            metadata.apply_to_link(folder_fd, part, value, self._policy)

        self._put(value, make)

    def _put(self, value: tree.Entry, make: Callable[[bytes, int], None]) -> None:
        """Make something under a name that only this lane knows, then give it its own."""
        with self._fence.held(), self.root.lock:
            folder_fd, name = self.root.at(value.path, make=True)
            commit.replaced(folder_fd, name, value.path)
            part = self._parts.private_name(name)
            try:
                make(part, folder_fd)
                os.rename(part, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            finally:
                _unlink(part, folder_fd)  # rename does nothing when both are the same file

    def make_names_durable(self, made: List[tree.Entry]) -> None:
        for path in {value.path.rpartition("/")[0] for value in made if value.path}:
            self._settler.make_names_durable(path)

    # --- after all files: hard links, then folders' metadata

    def hard_link(self, value: tree.Entry) -> None:
        with self.root.lock:
            from_fd, first = self.root.at(value.target)
            from_fd = os.dup(from_fd)  # the next at() may close it

        def make(part: bytes, folder_fd: int) -> None:
            os.link(first, part, src_dir_fd=from_fd, dst_dir_fd=folder_fd, follow_symlinks=False)

        try:
            self._put(value, make)
        finally:
            os.close(from_fd)

    def finish_folder(self, value: tree.Entry) -> None:
        with self._fence.held(), self.root.lock:
            fd = self.root.folder(value.path)
            # Before its metadata changes: so the first folder's fsync commits all, and the next
            # ones find nothing to wait for.
            os.fsync(fd)
            metadata.apply_to_folder(fd, value, self._policy, "new" in value.extra)

    # --- what is there already

    def look(self, path: str) -> List[object]:
        """Return kind, size, mtime_ns, and the runs that left a part; kind "" for nothing."""
        if not path:
            return [tree.FOLDER, 0, 0, []]
        try:
            with self.root.lock:
                folder_fd, name = self.root.at(path)
                left = self._parts.left(folder_fd, name, self._copy.earlier)
                return [*_kind_and_size(folder_fd, name), left]
        except (OSError, failures.Refusal):
            return ["", 0, 0, []]  # the attempt to write there will tell

    def digests(
        self, path: str, part: bool, extents: List[files.Extent], algorithm: str
    ) -> List[Optional[str]]:
        """The hex digest of each extent of the file, or of its part; None where it is shorter."""
        try:
            fd = self._parts.open(path) if part else self._opened_there(path)
        except FileNotFoundError:
            return [None] * len(extents)
        try:
            found = [files.digest_of(fd, each, algorithm, self._room) for each in extents]
            return [None if digest is None else digest.hex() for digest in found]
        finally:
            os.close(fd)

    def _opened_there(self, path: str) -> int:
        """A descriptor of the file."""
        with self.root.lock:
            folder_fd, name = self.root.at(path)
            return os.open(name, files.READ_FLAGS | os.O_NOFOLLOW, dir_fd=folder_fd)

    def extents(self, path: str, offset: int) -> Tuple[List[files.Extent], bool]:
        """The file's next stretches of data, and whether these were the last."""
        fd = self._opened_there(path)
        try:
            size = os.fstat(fd).st_size
            found = files.data_extents(fd, size, offset, files.EXTENTS_MOST)
        finally:
            os.close(fd)
        return found, len(found) < files.EXTENTS_MOST

    def inherit(self, value: tree.Entry, nonce: str) -> bool:
        """Go on with what an earlier run left of the file; False where that cannot be."""
        return self._parts.inherit(value.path, value.size, nonce)

    def discard(self, path: str, nonces: List[str]) -> bool:
        return all([self._parts.remove(path, nonce) for nonce in nonces])

    def adopt(self, value: tree.Entry) -> None:
        """The file is here already and verified: with -p give it its source's metadata."""
        if not self._policy.preserve:
            return
        fd = self._opened_there(value.path)
        try:
            with self._fence.held():
                metadata.apply_to_file(fd, value, self._policy, None)
        finally:
            os.close(fd)

    def revoke(self, lane: int) -> None:
        fence.revoke(self.root.fd, self._copy.token, self._copy.nonce, lane)

    def release(self) -> None:
        fence.release(self.root.fd, self._copy.token, self._copy.nonce)

    def close(self) -> None:
        self._settler.close()
        self._open.close()
        self._fence.close()
        self.root.close()


def _unlink(name: bytes, folder_fd: int) -> None:
    try:
        os.unlink(name, dir_fd=folder_fd)
    except FileNotFoundError:
        pass


def _kind_and_size(folder_fd: int, name: bytes) -> Tuple[str, int, int]:
    """Return what has this name, its size and mtime_ns.

    An unfinished folder counts as not there, so that it is finished.
    """
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return "", 0, 0
    if is_unfinished(status.st_mode):
        return "", 0, 0
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    return (kind, status.st_size, status.st_mtime_ns) if kind else ("other", 0, 0)
