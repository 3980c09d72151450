"""What every sink does with what arrives: it hashes each chunk and pack, and compares the digest.

Not here: the sink that writes what is verified (sink.py), and that of -t, which drops it
(null_sink.py).
Read next: sink.py.
"""

import abc
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from ..asking import entries
from ..frames import failures, hashes, wire
from ..frames.session import Arriving
from ..reading import source, tree

if TYPE_CHECKING:
    from .parts import Part


_BY_NAME = (tree.LINK, tree.FIFO, tree.DEVICE)  # they have no content


class VerifyingSink(source.FileTable, abc.ABC):
    """Verifies what arrives; what becomes of it, each sink says."""

    place: Optional[wire.Place] = None  # a block stays in the Decoder's buffer

    def __init__(self, algorithm: str, strong: bool) -> None:
        super().__init__()
        self._algorithm, self._strong = algorithm, strong
        self._arriving = Arriving()
        self._hasher = hashes.new(algorithm)

    # --- large files, by chunks

    def write(self, id_: int, offset: int, block: memoryview, check: bytes = b"") -> None:
        """Hash a block of the chunk that is arriving; `check` is b"" where it has none."""
        if self._arriving.block(id_, offset, len(block), self._entry(id_).size):
            self._hasher = hashes.new(self._algorithm)
        self._hasher.update(block)

    def complete(
        self, id_: int, offset: int, length: int, digest: bytes
    ) -> Tuple[bool, int, Optional[failures.Data]]:
        """End a chunk. Returns whether its digest matches, the receipt, and a failure if any."""
        self._arriving.complete(id_, offset, length)
        return self._hasher.digest() == digest, wire.SOME_PART, None

    def abandon(self) -> None:
        """Forget the chunk that is arriving: the source could not read the rest of it."""
        self._arriving.abandon()

    @abc.abstractmethod
    def make(self, value: tree.Entry) -> int:
        """Make the part of a file that is one hole and so has no chunk. Returns its receipt."""

    @abc.abstractmethod
    def finish(self, value: tree.Entry, strong: str, receipt: int, done: failures.Done) -> None:
        """Make the part with this receipt the file, as all chunks have landed; then call `done`."""

    # --- small files, folders and links, by packs

    def pack(
        self, listed: List[tree.Entry], rows: List[object], bodies: memoryview, done: failures.Done
    ) -> None:
        """Write the files, folders and links of a pack; call `done`, now or later."""
        outcome: failures.Outcome = [None] * len(listed)
        parts: Dict[int, Part] = {}  # by place in the pack, in its order
        offset = 0
        checked = entries.check_sizes(listed, rows, len(bodies))
        for place, (value, row) in enumerate(zip(listed, checked)):
            if not isinstance(row, str):
                outcome[place] = row
                continue
            body = bodies[offset : offset + value.size]
            offset += len(body)
            try:
                part = self._small(value, row, body)
            except (OSError, failures.Refusal) as error:
                outcome[place] = failures.from_exception(error, value.path)
                continue
            if part is not None:
                parts[place] = part

        def settled(of_parts: failures.Outcome) -> None:
            for place, failure in zip(parts, of_parts):
                outcome[place] = failure
            done(outcome)

        made = [n for n, v in enumerate(listed) if v.kind in _BY_NAME and outcome[n] is None]
        synced = self.make_names_durable([listed[place] for place in made])
        for place, failure in zip(made, synced):
            outcome[place] = failure
        if parts:
            self._settle(list(parts.values()), settled)
        else:
            settled([])

    def _small(self, value: tree.Entry, digest: str, body: memoryview) -> "Optional[Part]":
        if value.kind == tree.FOLDER:
            self._make_folder(value)
        elif value.kind in _BY_NAME:
            self.make_by_name(value)
        else:
            algorithm = hashes.STRONG if self._strong else self._algorithm
            if hashes.digest_of(algorithm, body).hex() != digest:
                raise failures.Refusal(failures.DAMAGED, value.path, "arrived damaged")
            return self._make_part(value, digest, body)
        return None

    @abc.abstractmethod
    def _make_part(self, value: tree.Entry, digest: str, body: memoryview) -> "Optional[Part]":
        """Make the part of a small file; None where it has none."""

    @abc.abstractmethod
    def _make_folder(self, value: tree.Entry) -> None:
        """Make the folder, unfinished until finish_folder()."""

    @abc.abstractmethod
    def make_by_name(self, value: tree.Entry) -> None:
        """Make a link, a FIFO or a device, also where a lane that was lost has made it."""

    @abc.abstractmethod
    def _settle(self, parts: "List[Part]", done: failures.Done) -> None:
        """Make these parts final; then call `done`."""

    @abc.abstractmethod
    def make_names_durable(self, values: List[tree.Entry]) -> failures.Outcome:
        """Sync the folder of each of these folders and links, once; return why that failed."""

    # --- after all files

    @abc.abstractmethod
    def finish_folder(self, value: tree.Entry) -> None:
        """Give the folder its metadata: everything in it has landed."""

    @abc.abstractmethod
    def discard(self, path: str, nonces: List[str]) -> Optional[bool]:
        """Remove the file's parts of these runs ("": this one). False where one is still there."""

    @abc.abstractmethod
    def sweep(self, folders: List[str]) -> None:
        """Remove the parts of small files that lanes which died left in these folders."""

    @abc.abstractmethod
    def revoke(self, lane: int) -> None:
        """Have nothing done any more that a lost lane of this run still has on its way."""

    @abc.abstractmethod
    def release(self) -> None:
        """Have no run own the copy any more: it is over, and late bytes are refused."""

    @abc.abstractmethod
    def folds(self, folder: str, make: bool) -> bool:
        """Tell whether the folder takes two names that are nearly the same for one."""

    @abc.abstractmethod
    def unmark(self) -> None:
        """Have the folder that the copy made be like any other: the copy is complete."""

    @abc.abstractmethod
    def close(self) -> None:
        """Finish what was requested, then close all files and folders."""
