"""The sink end of a copy: verifies chunks and packs, writes them, makes files final.

Used by the agent when it is pushed to, and by a lane when it pulls. Every name is resolved below
the destination's root without following links (paths.Root), whoever chose it. A block is
written once the digest of its chunk up to the block's end matched, and only into a part that still
has its name (parts.py); blocks without such a check are held in memory until the chunk's digest
matched. A file with its final name is changed only while this lane's run owns the copy (fence.py).

Not here: what every sink does (verifying.py), what of a file that is there goes into its part
(../there/reuse.py), what is there already (../there/lookup.py), how a part gets its final name
(commit.py), the checks of entries that came over the wire (../asking/entries.py).
Read next: commit.py.
"""

import contextlib
import os
from typing import (
    TYPE_CHECKING,
    Callable,
    ContextManager,
    List,
    NamedTuple,
    Optional,
    Set,
    Tuple,
    Union,
)

from ..frames import failures, system, wire
from ..reading import files, metadata, tree
from ..reading.paths import Root, alike_names, is_unfinished, private_parts, status_of, to_bytes
from . import commit, fence, removal
from .parts import NAMELESS, PRIVATE, SHARED, Part, Parts, file_to_replace
from .verifying import VerifyingSink

if TYPE_CHECKING:
    from typing import Protocol

    class Linker(Protocol):
        """Gives files of other folders names below the root (../there/linkdest.py)."""

        def folder(self, path: str) -> int: ...
        def link(self, value: tree.Entry, digest: str, algorithm: str) -> Optional[int]: ...
        def link_listed(
            self,
            path: str,
            names: List[bytes],
            places: List[int],
            differing: Callable[[int], List[int]],
        ) -> Set[int]: ...
        def close(self) -> None: ...

        @property
        def problems(self) -> List[str]: ...


class Copy(NamedTuple):
    """The copy, the run and the lane that a sink works for."""

    token: str
    nonce: str  # of the run; "" in a dry run, which changes nothing
    lane: int
    earlier: List[str]  # nonces of runs that may have left parts


class Sink(VerifyingSink):
    """Writes the files of one copy at this end."""

    def __init__(
        self, root: str, copy: Copy, policy: metadata.Policy, algorithm: str, strong: bool
    ) -> None:
        """Raises OSError where the root cannot be opened, Refusal where the run is superseded."""
        super().__init__(algorithm, strong)
        self.root = Root(root)
        if policy.preserve and copy.nonce and os.geteuid() != 0:  # root needs no leave
            self.root.opens_up = self.held
        self.copy, self.policy = copy, policy
        try:
            self._fence = self._open_fence()
        except BaseException:
            self.root.close()
            raise
        self.parts = Parts(self.root, self._fence, copy.token, copy.nonce)
        self.settler = commit.Settler(self.root, self._fence, self.parts, policy, strong)
        self._open: files.OpenFiles[tree.Entry, files.FileSink] = files.OpenFiles(self.open_part)
        self.linker: "Optional[Linker]" = None  # where files get names of others
        # Of the chunk that is arriving:
        self._held: List[bytes] = []  # blocks that are not written yet
        self._failure: Optional[failures.Data] = None  # why a block could not be written
        self._is_damaged = False  # a check did not match
        self._receipt = 0  # of the part that it was written to

    def _open_fence(self) -> fence.AnyFence:
        if not self.copy.nonce:
            return fence.NoFence()
        try:
            return fence.Fence(self.root.fd, self.copy.token, self.copy.nonce, self.copy.lane)
        except fence.NoFenceLeft:  # the lane began late: it may remove parts, and no more
            return fence.NoFence(is_lost=True)

    def held(self) -> "ContextManager[None]":
        """Keep other runs from taking the copy over meanwhile. Raises Refusal once one has."""
        return self._fence.held()

    # --- large files, by chunks

    def forget(self, id_: int) -> None:
        super().forget(id_)
        self._open.close_file(id_)

    def open_part(self, value: tree.Entry) -> files.FileSink:
        """Open the file's part; make it where there is none."""
        try:
            fd = self.parts.open(value.path)
        except FileNotFoundError:
            fd = self.parts.make(value.path)
        try:
            with self.parts.lock_for_writing(fd, value.path):  # else it might be the file by now
                files.make_room(fd, value.size, "sparse" in value.extra)
        except BaseException:
            os.close(fd)
            raise
        return files.FileSink(fd, "dig" in value.extra)

    def write(self, id_: int, offset: int, block: memoryview, check: bytes = b"") -> None:
        """Write a block if its check matches; hold one without a check. complete() has failures."""
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
        """Write verified blocks that follow each other, the last up to the offset `end`."""
        self._held = []
        value = self._entry(id_)
        try:
            file = self._open.get(id_, value)
            with self.parts.lock_for_writing(file.fd, value.path):
                offset = end - sum(len(block) for block in blocks)
                for block in blocks:
                    file.write(memoryview(block), offset)
                    offset += len(block)
            self._receipt = self.parts.receipt(file.fd)
        except (OSError, failures.Refusal) as error:
            self._failure = failures.from_exception(error, value.path)

    def complete(
        self, id_: int, offset: int, length: int, digest: bytes
    ) -> Tuple[bool, int, Optional[failures.Data]]:
        """Write the held blocks if the chunk's digest matches; returns as its base does."""
        matches = super().complete(id_, offset, length, digest)[0]
        if not matches or self._is_damaged:
            return False, 0, None
        if self._held:
            self._write([*self._held], id_, offset + length)
        if self._failure is None and self.root.mount is not None:
            self._sync(id_)
        if self._failure is not None:
            return False, 0, self._failure
        return True, self._receipt, None

    def _sync(self, id_: int) -> None:
        value = self._entry(id_)
        try:
            self.sync(self._open.get(id_, value).fd)
        except (OSError, failures.Refusal) as error:
            self._failure = failures.from_exception(error, value.path)

    def sync(self, fd: int) -> None:
        """Bring to the disk what was written here, where a lane at another host, which has its own
        caches, may make the file final. Raises OSError.
        """
        if self.root.mount is not None:
            os.fsync(fd)

    def make(self, value: tree.Entry) -> int:
        file = self.open_part(value)
        try:
            return self.parts.receipt(file.fd)
        finally:
            file.close()

    def finish(self, value: tree.Entry, strong: str, receipt: int, done: failures.Done) -> None:
        try:
            fd = self._to_finish(value, receipt)
        except (OSError, failures.Refusal) as error:
            done([failures.from_exception(error, value.path)])
            return
        if fd is None:  # a lane that died renamed it, maybe before the new name was durable
            done(self.settler.make_names_durable([value.path]))
            return
        self.settler.add([Part(fd, value, strong, SHARED)], done)

    def _to_finish(self, value: tree.Entry, receipt: int) -> Optional[int]:
        """Return the part's descriptor; None where the file has its final name already."""
        try:
            fd = self.parts.open(value.path, receipt=receipt)
        except (FileNotFoundError, failures.Refusal):
            if self._is_finished(value, receipt):
                return None
            with self._fence.held():  # raises where another run removed it
                raise commit.part_replaced(value.path)
        if self.parts.receipt(fd) == receipt:
            return fd
        os.close(fd)
        if self._is_finished(value, receipt):  # this part came late; it is removed at the end
            return None
        raise commit.part_replaced(value.path)

    def _is_finished(self, value: tree.Entry, receipt: int) -> bool:
        """Was the part renamed already, by a lane that died before it could report that?"""
        try:
            fd = self.open_file(value.path)
        except OSError:
            return False
        with system.closing(fd):
            return (self.parts.receipt(fd), os.fstat(fd).st_size) == (receipt, value.size)

    # --- small files, folders and links, by packs

    def _settle(self, parts: List[Part], done: failures.Done) -> None:
        self.settler.add(parts, done)

    def _make_part(self, value: tree.Entry, digest: str, body: memoryview) -> Part:
        part = self.new_small(value, digest)
        try:
            written = os.write(part.fd, body) if body else 0
            while written < len(body):
                written += os.write(part.fd, body[written:])
        except OSError:
            part.close()
            if part.kind == PRIVATE:
                self.parts.unlink_private(value.path)
            raise
        return part

    def new_small(self, value: tree.Entry, digest: str) -> Part:
        """Make the part of a small file."""
        try:
            return self._new_small(value, digest)
        except (FileNotFoundError, PermissionError):
            with self._fence.held():
                self.root.at(value.path, make=True)
            return self._new_small(value, digest)

    def _new_small(self, value: tree.Entry, digest: str) -> Part:
        folder_fd, name = place = self.root.at(value.path)
        fd, kind = files.new_small(folder_fd), NAMELESS
        if fd is None:
            flags = files.PART_FLAGS | os.O_CREAT | os.O_EXCL
            name = self.parts.private_name(name)
            fd, kind = os.open(name, flags, 0o600, dir_fd=folder_fd), PRIVATE
        part = Part(fd, value, digest, kind)
        part.place = place
        return part

    def _make_folder(self, value: tree.Entry) -> None:
        """Make the folder, unfinished until finish_folder()."""
        with self._fence.held():
            self.root.folder(value.path, make=True)

    def make_by_name(self, value: tree.Entry) -> None:
        """Make a link, a FIFO or a device, also where a lane that was lost has made it."""

        def make(part: bytes, folder_fd: int) -> None:
            if value.kind == tree.FIFO:
                os.mkfifo(part, 0o600, dir_fd=folder_fd)
                metadata.apply_to_fifo(folder_fd, part, value, self.policy)
            elif value.kind == tree.DEVICE:
                kind, number = tree.parse_device(value.target)
                os.mknod(part, kind | 0o600, number, dir_fd=folder_fd)
                metadata.apply_to_device(folder_fd, part, value, self.policy)
            else:
                os.symlink(to_bytes(value.target), part, dir_fd=folder_fd)
                metadata.apply_to_link(folder_fd, part, value, self.policy)

        def is_made(name: bytes, folder_fd: int) -> bool:
            if value.kind == tree.LINK:
                return os.readlink(name, dir_fd=folder_fd) == to_bytes(value.target)
            status = status_of(folder_fd, name)
            if status is None or tree.kind_of(status.st_mode) != value.kind:
                return False
            return value.kind == tree.FIFO or tree.device_of(status) == value.target

        self.put(value.path, make, is_made, None if value.kind == tree.LINK else is_made)

    def put(
        self,
        path: str,
        make: Callable[[bytes, int], None],
        is_made: Callable[[bytes, int], bool],
        may_replace: Optional[Callable[[bytes, int], bool]] = None,
    ) -> None:
        """Call `make` with a name that only this lane knows, and rename what that made. Raises
        OSError and Refusal, also where what has the final name then is not what was made.

        A special file is replaced only if `may_replace` says so.
        """
        with self._fence.held():
            folder_fd, name = self.root.at(path, make=True)
            if may_replace is None or not may_replace(name, folder_fd):
                file_to_replace(folder_fd, name, path)
            part = self.parts.private_name(name)
            try:
                make(part, folder_fd)
                self.settler.replace(folder_fd, part, name, path)
                if not is_made(name, folder_fd):
                    raise commit.part_replaced(path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=folder_fd)  # rename(2) left it if both are one file

    def make_names_durable(self, values: List[tree.Entry]) -> failures.Outcome:
        return self.settler.make_names_durable(value.path for value in values)

    # --- after all files: folders' metadata

    def finish_folder(self, value: tree.Entry) -> None:
        with self._fence.held():
            fd = self.root.folder(value.path)
            if "filled" in value.extra and is_unfinished(os.fstat(fd).st_mode):
                with contextlib.suppress(OSError):  # something is in it
                    self.root.rmdir(value.path)
                    return
            # Before the metadata changes: so the first folder's fsync commits all, and the next
            # ones wait for nothing.
            removal.sync_folder(fd)
            metadata.apply_to_folder(fd, value, self.policy, "new" in value.extra)

    def open_file(self, path: str) -> int:
        """Open a file that is at the destination; return its descriptor."""
        return files.open_for_reading(self.root.at(path), False)

    def discard(self, path: str, nonces: List[str]) -> Optional[bool]:
        gone = [self.parts.remove(path, nonce) for nonce in nonces]
        return None if None in gone else all(gone)

    def sweep(self, folders: List[str]) -> None:
        nonces = [*self.copy.earlier, self.copy.nonce]
        of_backups = self.settler.keeper.folders(folders) if self.settler.keeper else []
        for root, path in [*((self.root, path) for path in folders), *of_backups]:
            with contextlib.suppress(OSError, failures.Refusal), self.held():
                fd = root.folder(path)
                names = map(os.fsencode, os.listdir(fd))
                for name in private_parts(names, self.copy.token, nonces):
                    os.unlink(name, dir_fd=fd)

    def revoke(self, lane: int) -> None:
        fence.revoke(self.root.fd, self.copy.token, self.copy.nonce, lane)

    def release(self) -> None:
        fence.release(self.root.fd, self.copy.token, self.copy.nonce)

    def folds(self, folder: str, make: bool) -> bool:
        names = alike_names(self.copy.token, self.copy.nonce)
        with self.held():
            fd = self.root.folder(folder, make)
            self.root.open_up(fd)
            return _folds(fd, names)

    def unmark(self) -> None:
        self.root.unmark()  # a power cut must not bring it back once DEST has another meaning
        self.settler.sync(self.root.marked)  # also where a lane that was lost has removed it

    def close(self) -> None:
        self.settler.close()
        if self.linker:
            self.linker.close()
        self._open.close()
        self._fence.close()
        self.root.close()


def _folds(folder_fd: int, names: List[bytes]) -> bool:
    """Does the folder take the first of these names, which is not there, for another one's?"""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with fence.keeping_times(folder_fd):
        os.close(os.open(names[0], flags, 0o600, dir_fd=folder_fd))
        try:
            return any(status_of(folder_fd, name) for name in names[1:])
        finally:
            os.unlink(names[0], dir_fd=folder_fd)
