"""Makes the manifest of a copy: once it is over, the files that are good at the destination are
hashed where they lie.

So a digest is of what has landed and was verified, and it does not depend on how the copy cut its
chunks. What the quick check took for the same unread is hashed as well.

Not here: what a line looks like (formats.py), the hashing (hashing.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO

from pscp.connect.connections import Connections
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.files import Extent
from pscp.ground.errors import CopyError, FileError, UsageError
from pscp.ground.locations import Location
from pscp.ground.state import replacing
from pscp.manifests import formats, signing
from pscp.manifests.hashing import GROUP_BYTES, Hashing, is_file
from pscp.manifests.trees import opened
from pscp.options.options import Options
from pscp.progress.callbacks import FileEvent
from pscp.progress.progress import Failure as Reported
from pscp.progress.progress import LiveCounters, Reporter, Result, format_bytes
from pscp.transfer.pieces.plan import Failure, cut
from pscp.transfer.pieces.spool import Spool
from pscp.transfer.terms.copy_terms import Movers
from pscp.transfer.walk.decide import There

OnFile = Callable[[FileEvent], object]


class Making:
    """The manifest of one copy that begins. Close it."""

    def __init__(self, options: Options, froms: Sequence[Location], to: Location) -> None:
        """Raises UsageError where it can be told already that the manifest cannot be written."""
        assert options.manifest is not None
        self._options, self._froms, self._to = options, froms, to
        self._path = options.manifest
        self._form = formats.format_of(self._path, options.manifest_format)
        self._good = Spool()  # paths, and digests with -s
        folder = os.path.dirname(self._path) or "."
        # A link would be replaced by the rename: also /dev/stdout, for root.
        is_file = os.path.isfile(self._path) and not os.path.islink(self._path)
        if os.path.lexists(self._path) and not is_file:
            raise UsageError(f"--manifest {self._path}: is no file that can be replaced")
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            raise UsageError(f"--manifest {self._path}: {folder} is no folder that can be written")
        if options.sign is not None:
            signing.check_can_sign(options.sign)
        try:
            os.lstat(f"{self._path}.sig" if options.sign is not None else self._path)
        except FileNotFoundError:
            pass
        except OSError as error:  # such as a name that is too long
            raise UsageError(f"--manifest {self._path}: {error.strerror}") from None

    def close(self) -> None:
        self._good.close()

    def noting(self, then: OnFile | None) -> OnFile:
        """Return the function that gets to know each file, and passes it on to `then`."""

        def note(event: FileEvent) -> None:
            if event.outcome in ("copied", "unchanged", "metadata", "linked"):
                self._good.add([event.path, event.digest])
            if then is not None:
                then(event)

        return note

    def finish(
        self,
        result: Result,
        connections: Connections | None,
        movers: Movers,
        counters: LiveCounters,
        reporter: Reporter,
    ) -> Result:
        """Write the manifest. Return the result with the files that could not be hashed.

        Raises CopyError where it cannot be written or signed.
        """
        begun_s = time.monotonic()
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            with replacing(self._path) as file:
                writing = _Writing(file, self._form, reporter, counters)
                if self._form == formats.JSONL:
                    sources = [each.text for each in self._froms]
                    file.write(formats.header_line(begun, sources, self._to.text, result.root))
                if len(self._good):
                    shown = counters, reporter
                    counters.set(files_to_hash=len(self._good), bytes_to_hash=result.bytes)
                    with opened(result.root, connections, self._options, shown, movers) as tree:
                        if tree.reads_back and not self._options.quiet:
                            reporter.note(_reads_back(result.bytes))
                        Hashing(tree, looks_again=True).run(
                            _Hashed(path, digest, writing) for path, digest in self._good.take()
                        )
                failed = len(result.failures) + len(writing.failures)
                file.write(formats.end_line(self._form, writing.files, writing.bytes, failed))
                with contextlib.suppress(FileNotFoundError):  # never one beside an earlier one's
                    os.unlink(f"{self._path}.sig")
        except OSError as error:
            raise CopyError(
                f"{self._path}: the manifest cannot be written: {error.strerror}",
                "the files were copied; the same command again makes the manifest",
            ) from None
        seconds = time.monotonic() - begun_s if len(self._good) else 0.0
        if self._options.sign is not None:
            signing.sign(self._options.sign, self._path, batch=self._options.batch)
        failures = (*result.failures, *writing.failures)
        return dataclasses.replace(result, failures=failures, manifest_seconds=seconds)


def _reads_back(size_bytes: int) -> str:
    twice = f"files of more than {format_bytes(GROUP_BYTES)} twice"
    return f"reads {format_bytes(size_bytes)} back over SFTP for the manifest, {twice}"


class _Writing:
    """Writes the lines of files. What the tree calls uses it, one call at a time."""

    def __init__(
        self, file: IO[bytes], form: str, reporter: Reporter, counters: LiveCounters
    ) -> None:
        self._file, self._form = file, form
        self._reporter, self._counters = reporter, counters
        self.files = self.bytes = self._found_bytes = 0
        self.failures: list[Reported] = []

    def add(self, record: formats.Record) -> None:
        try:
            line = formats.line_of(record, self._form)
        except UsageError as error:
            self.fail(record.path, error.message)
            return
        self._file.write(line)
        self.files += bool(line)
        self.bytes += record.size_bytes or 0

    def begin(self, number: int, path: str, size_bytes: int) -> None:
        """Count a file that is to be hashed: of one that was unchanged the copy told no size."""
        self._found_bytes += size_bytes
        if self._found_bytes > self._counters.bytes_to_hash:
            self._counters.set(bytes_to_hash=self._found_bytes)
        if size_bytes > formats.CHUNK_BYTES:
            self._counters.begin_file(number, path, size_bytes, is_hashed=True)

    def end(self, number: int) -> None:
        self._counters.end_file(number)

    def count(self, read_bytes: int, files: int = 0) -> None:
        self._counters.add(files_hashed=files, bytes_hashed=read_bytes)

    def fail(self, path: str, message: str) -> None:
        why = f"is not in the manifest: {message}"
        self._counters.add(files_failed=1)
        self._reporter.note(f"{path}: {why}")
        self.failures.append(Reported(path, FileError.__name__, why))


class _Hashed:
    """A file that is good at the destination."""

    def __init__(self, path: str, digest: str, writing: _Writing) -> None:
        self.path, self._digest, self._writing = path, digest, writing
        self._read_bytes = 0  # that count as hashed

    def extents(self, there: There) -> Iterable[Extent] | None:
        if not is_file(there):  # a link or a special file, which has no content of its own
            return None
        self._writing.begin(id(self), self.path, there.size_bytes)
        whole, chunk_bytes = [(0, there.size_bytes)], formats.CHUNK_BYTES
        chunks = cut(whole, chunk_bytes) if there.size_bytes > chunk_bytes else ()
        return itertools.chain(whole, chunks)

    def read(self, there: There, read_bytes: int) -> None:
        is_read_twice = there.size_bytes > formats.CHUNK_BYTES
        share_bytes = read_bytes // 2 if is_read_twice else read_bytes
        self._read_bytes += share_bytes
        self._writing.count(share_bytes)

    def done(self, there: There, digests: list[str | None], failure: Failure | None) -> None:
        self._write(there, digests, failure)
        self._writing.end(id(self))
        size_bytes = there.size_bytes if digests and is_file(there) else 0
        self._writing.count(size_bytes - self._read_bytes, files=1)

    def _write(self, there: There, digests: list[str | None], failure: Failure | None) -> None:
        if not is_file(there):
            if there.failure is not None:
                self._writing.fail(self.path, there.failure["message"])
            elif there.kind == "":
                self._writing.fail(self.path, "it is gone already")
            elif there.kind not in (tree.LINK, tree.FIFO, tree.DEVICE) or self._digest:
                self._writing.fail(self.path, f"a {there.kind} has its name by now")
            else:
                self._writing.add(
                    formats.Record(self.path, 0, there.mtime_ns, "", (), there.kind, there.target)
                )
            return
        if failure is not None:
            self._writing.fail(self.path, failure["message"])
            return
        found = [digest or "" for digest in digests]
        if "" in found or (self._digest and found[0] != self._digest):
            self._writing.fail(self.path, "it has changed since it was copied")
            return
        record = formats.Record(
            self.path, there.size_bytes, there.mtime_ns, found[0], tuple(found[1:])
        )
        self._writing.add(record)
