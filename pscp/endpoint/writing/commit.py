"""Makes complete parts final, in batches: fsync, then metadata, then the rename.

The kernel is told to write all parts of a batch before the first fsync, so that the batch waits
for the disk about once, not once a file. A file gets its final name only when it is whole,
verified and on the disk.

Not here: what is written into a part (../reading/files.py, sink.py), what is kept of the file that
it replaces (backup.py), further names of it (../there/hardlinks.py).
"""

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Callable, Dict, Iterable, List, Optional, Tuple

from ..frames import failures, wire
from ..reading import files, metadata
from ..reading.paths import Root
from . import removal
from .fence import AnyFence, is_named
from .parts import NAMELESS, SHARED, Compared, Part, Parts, file_to_replace

if TYPE_CHECKING:
    from .backup import Keeper

_PARTS_WAITING = 128  # open descriptors; add() waits while so many are not settled yet

# Where making a file durable takes less than this, a thread for it costs more than it saves:
# two threads that each make many short system calls hand CPython's lock back and forth. On
# tmpfs the sink of a pack took 70 microseconds a file with the thread and 38 without.
_QUICK_S = 100e-6
# A processor that is busy with others makes a batch seem slow now and then: only after so many, one
# after the other, the thread gets them, and of each so many as many are tried again without it.
_SLOW, _ROUND = 3, 64

# How a file is opened so that it is not freed: 2 GiB that are in memory take 0.3 to 0.9 s.
_HOLDING = getattr(os, "O_PATH", 0) and os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

Batch = Tuple[List[Part], failures.Done]  # settled together; called with what became of each


class Settler:
    """Settles batches, in a thread where that takes long, so that no data waits for the disk."""

    def __init__(
        self, root: Root, fence: AnyFence, parts: Parts, policy: metadata.Policy, strong: bool
    ) -> None:
        self._root, self._fence, self._parts = root, fence, parts
        self._policy, self._strong = policy, strong
        self._changed = threading.Condition()
        self._waiting: List[Batch] = []
        self._unsettled = 0
        self._closing = False
        self._error: Optional[BaseException] = None  # of the thread: the lane is lost, or a bug
        self._thread: Optional[threading.Thread] = None
        self._room: Optional[memoryview] = None
        self.keeper: "Optional[Keeper]" = None  # where what is replaced is kept
        self._slow = 0  # batches, one after the other, that have taken long

    def add(self, parts: List[Part], done: failures.Done) -> None:
        """Settle the parts at once where that is quick, else in the thread, then call `done`.

        Waits while too many parts are waiting. Raises what the `done` of an earlier batch raised;
        these parts are settled nevertheless, so that none is left over.
        """
        # Not while the thread is at work: a read-back (-s) has one buffer.
        if self._slow % _ROUND < _SLOW and len(parts) > 1 and not self._unsettled:
            self._settle([(parts, done)])
            return
        with self._changed:
            while self._unsettled >= _PARTS_WAITING and self._error is None:
                self._changed.wait()
            self._unsettled += len(parts)
            self._waiting.append((parts, done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="settler", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Settle what waits, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self.keeper is not None:
            self.keeper.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                batches, self._waiting = self._waiting, []
            count = sum(len(parts) for parts, _ in batches)
            try:
                self._settle(batches)
            except BaseException as error:  # raised again where the next batch is added
                self._error = error
                _fail(batches, error)
            with self._changed:
                self._unsettled -= count
                self._changed.notify_all()

    def _settle(self, batches: List[Batch]) -> None:
        """Settle the parts of these batches, and take each from the list as it is answered."""
        parts = [part for batch, _ in batches for part in batch]
        begun_s = time.perf_counter()
        if len(parts) > 1:
            for part in parts:
                files.start_writing_back(part.fd)
        _try(parts, self._make_durable)
        self._name_small([part for part in parts if part.kind != SHARED and not part.failure])
        for part in parts:
            if part.kind == SHARED and not part.failure:
                _try([part], self._name_large)
            if part.failure and part.kind != SHARED:  # the coordinator discards the run's part
                with contextlib.suppress(OSError, failures.Refusal):
                    self._parts.unlink_private(part.entry.path)
            part.close()
        named = [part for part in parts if not part.failure]
        outcome = self.make_names_durable(part.entry.path for part in named)
        for part, failure in zip(named, outcome):
            part.failure = failure
        is_quick = time.perf_counter() - begun_s < _QUICK_S * len(parts)
        self._slow = 0 if is_quick else self._slow + 1
        try:
            while batches:
                batch, done = batches.pop(0)
                done([part.failure for part in batch])
        finally:  # with no lock held, and nobody waiting
            for part in parts:
                part.free_old()

    def make_names_durable(self, paths: Iterable[str]) -> failures.Outcome:
        """Sync the folders of these names, each once, so that no power cut undoes a rename in them.
        Return why that failed.
        """
        synced: Dict[str, Optional[failures.Data]] = {}
        outcome: failures.Outcome = []
        for path in paths:
            folder = path.rpartition("/")[0]
            if folder not in synced:
                synced[folder] = None
                try:
                    self.sync(folder)
                except (OSError, failures.Refusal) as error:  # which would keep the folder open
                    synced[folder] = failures.from_exception(error, "")
            why = synced[folder]
            outcome.append({**why, "path": why["path"] or path} if why else None)
        return outcome

    def sync(self, folder: str) -> None:
        """Bring the names in a folder to the disk. Raises OSError, Refusal."""
        try:
            fd = self._root.folder_as_is(folder)
        except PermissionError:  # it got the mode that hides it from us once it had been synced
            return
        removal.sync_folder(fd)

    def _make_durable(self, part: Part) -> None:
        os.fsync(part.fd)
        if self.keeper is not None and part.kind == SHARED:  # that may take long: before the locks
            part.compared = self.keeper.compare(part)
        if self._strong:
            self._read_back(part)

    def _name_small(self, parts: List[Part]) -> None:
        try:
            with self._fence.held():
                _try(parts, self.name)
        except (OSError, failures.Refusal) as error:  # superseded, or the fence cannot be read
            for part in parts:
                part.failure = failures.from_exception(error, part.entry.path)

    def name(self, part: Part) -> None:
        """Give a part that only this lane knows its final name. The caller holds the fence."""
        folder_fd, name = part.place or self._root.at(part.entry.path)
        if part.kind == NAMELESS:  # most often nothing is called so yet
            metadata.apply_to_file(part.fd, part.entry, self._policy, None)
            if files.name_new(part.fd, folder_fd, name):
                return
        before = file_to_replace(folder_fd, name, part.entry.path)
        metadata.apply_to_file(part.fd, part.entry, self._policy, before)
        temporary = self._parts.private_name(name)
        if part.kind == NAMELESS:
            files.name_new(part.fd, folder_fd, temporary)
        self._rename(part, folder_fd, temporary, name)

    def _rename(self, part: Part, folder_fd: int, temporary: bytes, name: bytes) -> None:
        """Give a part its final name, and look whether it is the part that has it now: others may
        write to the folder. Raises Refusal.

        It has its mode already: were that given last, a crash in between would leave a whole file
        that nobody gives its mode any more.
        """
        if is_named(part.fd, folder_fd, temporary):
            self.replace(folder_fd, temporary, name, part.entry.path, part.compared)
            if self._parts.receipt(part.fd) == wire.SOME_PART:  # no inodes to tell files apart by
                return
            if is_named(part.fd, folder_fd, name):
                return
        raise part_replaced(part.entry.path)

    def replace(
        self,
        folder_fd: int,
        part: bytes,
        name: bytes,
        path: str,
        compared: Optional[Compared] = None,
    ) -> None:
        """Give a part its final name. The caller holds the fence."""
        if self.keeper is not None:
            self.keeper.keep(folder_fd, name, path, part, compared)
        os.rename(part, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)

    def _name_large(self, part: Part) -> None:
        """Give a part that all lanes know its final name, unless another lane did so."""
        path = part.entry.path
        with self._parts.lock_for_renaming(part.fd, path), self._fence.held():
            folder_fd, name = self._root.at(path)
            temporary = self._parts.name(name)
            if not is_named(part.fd, folder_fd, temporary):
                if is_named(part.fd, folder_fd, name):
                    return
                raise part_replaced(path)
            if os.fstat(part.fd).st_size != part.entry.size:
                raise failures.Refusal(failures.VERIFY, path, "its part has another size")
            before = file_to_replace(folder_fd, name, path)
            metadata.apply_to_file(part.fd, part.entry, self._policy, before)
            if _HOLDING:
                with contextlib.suppress(OSError):  # nothing is there
                    part.old_fd = os.open(name, _HOLDING, dir_fd=folder_fd)
            self._rename(part, folder_fd, temporary, name)

    def _read_back(self, part: Part) -> None:
        """Raise Refusal unless what lies on the disk has the source's digest (-s)."""
        if self._room is None:
            self._room = memoryview(bytearray(1 << 18))
        files.start_writing_back(part.fd)  # clean by now, so this drops it from memory
        digest = files.digest_of(part.fd, (0, part.entry.size), "sha256", self._room)
        if digest is None or digest.hex() != part.strong:
            message = "what lies at the destination is not what was read at the source"
            raise failures.Refusal(failures.VERIFY, part.entry.path, message)


def part_replaced(path: str) -> failures.Refusal:
    return failures.Refusal(failures.SYSTEM, path, "its part was replaced")


def _fail(batches: List[Batch], error: BaseException) -> None:
    """Answer batches that a mistake of ours left open: nothing else would end the wait."""
    for parts, done in batches:
        for part in parts:
            part.close()
        with contextlib.suppress(Exception):  # a lost channel: then nobody waits
            done([failures.data(failures.SYSTEM, part.entry.path, repr(error)) for part in parts])


def _try(parts: List[Part], act: Callable[[Part], None]) -> None:
    """Call `act` with each part; a failure is kept in the part."""
    for part in parts:
        try:
            act(part)
        except (OSError, failures.Refusal) as error:
            part.failure = failures.from_exception(error, part.entry.path)
