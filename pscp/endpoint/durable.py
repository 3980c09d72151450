"""Makes parts final, in batches: durable first, then given metadata, then renamed.

Every part that waits is handed to the kernel for writing before the first fsync, so that the
batch costs about one wait for the disk, not one a file. A file has its final name only when it
is whole, verified and on the disk.

Not here: what is written into a part (files.py, sink.py).
"""

import os
import stat
import threading
import time
from typing import Any, Callable, List, Optional

from . import failures, files, metadata
from .names import Root, part_name

_PARTS_WAITING = 128  # open descriptors; adding waits when so many are not settled yet

# Where making a file durable takes less than this, a thread for it costs more than it saves:
# two threads that each make many short system calls hand CPython's lock back and forth. On
# tmpfs the sink of a pack took 70 microseconds a file with the thread and 38 without.
_QUICK_S = 100e-6

Done = Callable[[List[Optional[failures.Data]]], None]


class Part:
    """A complete part file, with what it is to become."""

    def __init__(self, fd: int, entry: Any, strong: str, token: str, is_named: bool) -> None:
        self.fd, self.entry, self.strong = fd, entry, strong
        self.token, self.is_named = token, is_named  # what is in its name, if it needs one


class Batch:
    """Parts that are settled together, and who wants to know."""

    def __init__(self, parts: List[Part], done: Done) -> None:
        self.parts, self.done = parts, done


def unlink_part(root: Root, path: str, token: str) -> None:
    """Remove a file's part, if it has one."""
    try:
        with root.lock:
            folder_fd, name = root.at(path)
            os.unlink(part_name(name, token), dir_fd=folder_fd)
    except FileNotFoundError:
        pass


class Settler:
    """A thread that settles what it is given, so that the data behind it need not wait."""

    def __init__(self, root: Root, policy: metadata.Policy, strong: bool) -> None:
        self._root, self._policy, self._strong = root, policy, strong
        self._changed = threading.Condition()
        self._waiting: List[Batch] = []
        self._unsettled = 0
        self._closing = False
        self._error: Optional[BaseException] = None  # nobody hears any more; or a bug
        self._thread: Optional[threading.Thread] = None
        self._room: Optional[memoryview] = None
        self._is_quick = True  # until a batch shows otherwise

    def add(self, batch: Batch) -> None:
        """Settle the batch: now where that is quick, else soon, in the thread.

        Waits while too much is waiting already. Raises what telling of an earlier one raised;
        this one is settled all the same, so that no part is left.
        """
        # Not while the thread is at work: a read-back (-s) has one buffer.
        if self._is_quick and len(batch.parts) > 1 and not self._unsettled:
            begun_s = time.perf_counter()
            self._settle([batch])
            self._is_quick = time.perf_counter() - begun_s < _QUICK_S * len(batch.parts)
            return
        with self._changed:
            while self._unsettled >= _PARTS_WAITING and self._error is None:
                self._changed.wait()
            self._unsettled += len(batch.parts)
            self._waiting.append(batch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="settler", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Settle what waits, then end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                batches, self._waiting = self._waiting, []
            try:
                self._settle(batches)
            except BaseException as error:  # raised again where the next batch is added
                self._error = error
            with self._changed:
                self._unsettled -= sum(len(batch.parts) for batch in batches)
                self._changed.notify_all()

    def _settle(self, batches: List[Batch]) -> None:
        if sum(len(batch.parts) for batch in batches) > 1:
            for batch in batches:
                for part in batch.parts:
                    files.start_writing_back(part.fd)
        outcomes = [[self._outcome(part) for part in batch.parts] for batch in batches]
        paths = {part.entry.path.rpartition("/")[0] for batch in batches for part in batch.parts}
        for path in paths:
            self._make_names_durable(path)
        for batch, outcome in zip(batches, outcomes):
            batch.done(outcome)

    def _make_names_durable(self, path: str) -> None:
        """Without this, a power cut could undo the renames in this folder."""
        try:
            with self._root.lock:
                os.fsync(self._root.folder(path))
        except (OSError, failures.Refusal):
            pass  # the files are there; not every filesystem lets a folder be synced

    def _outcome(self, part: Part) -> Optional[failures.Data]:
        """None: the part is the file now. Else why it is not; then the part is gone."""
        path = part.entry.path
        try:
            try:
                self._finish(part)
                return None
            finally:
                os.close(part.fd)
        except (OSError, failures.Refusal) as error:
            try:
                unlink_part(self._root, path, part.token)
            except (OSError, failures.Refusal):
                pass  # the first failure is the one that tells
            return failures.from_exception(error, path)

    def _finish(self, part: Part) -> None:
        os.fsync(part.fd)
        if self._strong:
            self._read_back(part)
        with self._root.lock:
            folder_fd, name = self._root.at(part.entry.path)
            if not part.is_named:  # most often nothing is called so yet
                metadata.apply_to_file(part.fd, part.entry, self._policy, None)
                if files.name_new(part.fd, folder_fd, name):
                    return
            before = replaced(folder_fd, name, part.entry.path)
            metadata.apply_to_file(part.fd, part.entry, self._policy, before)
            temporary = part_name(name, part.token)
            if not part.is_named:
                files.name_new(part.fd, folder_fd, temporary)
            os.rename(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)

    def _read_back(self, part: Part) -> None:
        """-s: what lies on the disk has the digest of the source."""
        if self._room is None:
            self._room = memoryview(bytearray(1 << 18))
        files.start_writing_back(part.fd)  # clean by now, so this drops it from memory
        digest = files.digest_of(part.fd, (0, part.entry.size), "sha256", self._room)
        if digest is None or digest.hex() != part.strong:
            message = "what lies at the destination is not what was read at the source"
            raise failures.Refusal(failures.VERIFY, part.entry.path, message)


def replaced(folder_fd: int, name: bytes, path: str) -> Optional[os.stat_result]:
    """The file that `name` is now, if it is one. Refusal when it must not be replaced."""
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode):
        return status
    if stat.S_ISLNK(status.st_mode):
        return None
    what = "a folder" if stat.S_ISDIR(status.st_mode) else "a special file"
    raise failures.Refusal(failures.DESTINATION, path, "is %s at the destination" % what)
