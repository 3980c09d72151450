"""What is copied on the bench, and what must have become of it.

Not here: comparing two trees as such (../compare.py).
Read next: link.py.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree
from conftest import until

import pscp
from core.link import CALL, CHUNK_BYTES, FROM, KILL, Bench, Fault
from pscp.endpoint.frames import wire
from pscp.endpoint.reading.files import PACK_FILE_BYTES
from pscp.endpoint.reading.paths import is_pscps_own
from pscp.ground.errors import ConnectionLost
from pscp.ground.state import folder as state_folder

LARGE_BYTES = 3 * CHUNK_BYTES + 1  # travels in chunks, the last of which is a byte
assert LARGE_BYTES > PACK_FILE_BYTES


class Trees:
    """A source, and the place where it is copied to, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.source = folder, folder / "from"
        self.to = folder / "there" / "to"
        self.source.mkdir()
        self.to.mkdir(parents=True)
        self._earlier_journals = journals()
        self.bench = Bench()  # of the last copy

    def file(self, name: str, size: int, hole_bytes: int = 0) -> Path:
        """Make a file of the source; its bytes differ from place to place."""
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = random.Random(f"{name} {size}").randbytes(size)
        if not hole_bytes:
            path.write_bytes(content)
            return path
        with path.open("wb") as file:
            file.seek(hole_bytes)
            file.write(content[hole_bytes:])
            file.truncate(max(size, hole_bytes))
        return path

    def usual(self) -> None:
        """One large file, three small ones and a folder."""
        self.file("large", LARGE_BYTES)
        for number in range(3):
            self.file(f"folder/small{number}", 1000 + number)

    def files(self) -> dict[str, Path]:
        """The source's files, by their names in it."""
        return self._files(self.source)

    @property
    def source_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files().values())

    def _files(self, root: Path) -> dict[str, Path]:
        found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(root)): path for path in found}

    def clear(self) -> None:
        """Have an empty destination again."""
        shutil.rmtree(self.to)
        self.to.mkdir()

    def copy(
        self,
        is_push: bool,
        *faults: Fault,
        call: Callable[[], object] = lambda: None,
        **fields: Any,
    ) -> pscp.Result:
        """Copy over connections with these faults; then what was late comes, and changes nothing
        of a copy that is complete. Raises what the copy raises.
        """
        self.bench = Bench(*faults)
        self.bench.call = call
        try:
            result = self.bench.copy(self.source, self.to, is_push, **fields)
            before = self.facts()
        finally:
            self.bench.close()
        assert not result.ok or self.facts() == before, "what came late changed something"
        return result

    def done(self, is_push: bool, *faults: Fault, **more: Any) -> pscp.Result:
        """Copy, as above, and nothing fails."""
        result = self.copy(is_push, *faults, **more)
        assert result.ok, (faults, result.failures)
        return result

    def copied(self, is_push: bool, *faults: Fault, **more: Any) -> pscp.Result:
        """Copy, as above; all has arrived, and nothing else is there."""
        result = self.done(is_push, *faults, **more)
        self.assert_copied()
        return result

    def cut_short(self, is_push: bool, landed: int = 1, **fields: Any) -> None:
        """Copy over connections all of which are lost with the answer after so many chunks, which
        the journal has by then.
        """

        def have_landed() -> bool:
            texts = [each.read_bytes() for each in self.new_journals()]
            return sum(text.count(b'["chunk"') for text in texts) >= landed

        type_ = wire.ACK if is_push else wire.DIGEST
        wait, *faults = (Fault(0, FROM, landed, do, 0, type_) for do in (CALL, KILL))
        faults += [Fault(number, FROM, 0, KILL) for number in range(1, 40)]
        with pytest.raises(ConnectionLost):
            call = partial(until, have_landed)
            self.copy(is_push, wait, *faults, call=call, connections=1, **fields)

    def forget(self) -> None:
        """Lose the journals of the copies of this test."""
        for journal in self.new_journals():
            journal.unlink()

    # --- what became of it

    def arrived(self) -> dict[str, Path]:
        """The files under their final names."""
        found = self._files(self.to) if self.to.exists() else {}
        return {n: path for n, path in found.items() if not is_pscps_own(os.fsencode(path.name))}

    def left(self) -> list[str]:
        """What is left beside them: parts and fences."""
        found = self.to.parent.rglob("*")
        return [path.name for path in found if is_pscps_own(os.fsencode(path.name))]

    def assert_copied(self) -> None:
        """All has arrived, and nothing else is there."""
        assert_same_tree(self.source, self.to, hard_links=True)
        assert os.listdir(self.to.parent) == [self.to.name]
        assert not self.new_journals()

    def new_journals(self) -> frozenset[Path]:
        """The journals of the copies of this test."""
        return journals() - self._earlier_journals

    def assert_whole(self) -> None:
        """What has arrived is whole, and is what was copied."""
        for name, path in self.arrived().items():
            assert path.read_bytes() == (self.source / name).read_bytes(), name

    def facts(self) -> dict[str, tuple[int, ...]]:
        """What a write to a file, or its replacement, would change."""
        found: dict[str, tuple[int, ...]] = {}
        for path in [self.to.parent, *self.to.parent.rglob("*")]:
            s = path.lstat()
            found[str(path)] = (s.st_ino, s.st_mtime_ns, s.st_mode, s.st_size)
        return found

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def journals() -> frozenset[Path]:
    return frozenset(Path(state_folder()).rglob("*.journal"))
