"""The files that are copied, in memory, and whether a copy of them is right.

They lie on a tmpfs, so that no disk is measured: sources under source/, each run's copy in a
fresh folder. What there is no room for raises LeftOut.

Not here: who copies them (tools.py). Read next: rounds.py.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30
MEMORY = Path("/dev/shm")
BLOCK_BYTES = 16 * MIB
MARGIN_BYTES = GIB  # left for the tools themselves and the rest of the machine
SMALL_BYTES = (1024, 8192)  # the least and the most that a small file holds
FILES_A_FOLDER = 100
CHANGE_BYTES = 64 * 1024  # of a file of which an earlier version is there


class LeftOut(Exception):
    """Something that cannot be measured here, and why."""


@dataclass(frozen=True)
class Load:
    """What a tool moves: a file, or a tree of them."""

    path: Path
    bytes: int
    files: int
    is_tree: bool
    before: Path | None = None  # the version of the file that is at the destination already

    @property
    def name(self) -> str:
        return self.path.name


class Stock:
    """The folder in memory. `close` removes it."""

    def __init__(self) -> None:
        if not os.path.ismount(MEMORY):
            raise LeftOut(f"there is no tmpfs to measure from memory to memory at {MEMORY}")
        self.folder = Path(tempfile.mkdtemp(prefix="pscp-bench-", dir=MEMORY))
        self.sources = self.folder / "source"
        self.sources.mkdir()
        self._loads: dict[str, Load] = {}
        self._runs = 0

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def discard(self) -> None:
        """Removes all sources, for the next regime's room."""
        self._loads.clear()
        shutil.rmtree(self.sources)
        self.sources.mkdir()

    def fresh_folder(self) -> Path:
        self._runs += 1
        folder = self.folder / f"copy-{self._runs}"
        folder.mkdir()
        return folder

    def file(self, size_bytes: int) -> Load:
        name = f"file-{size_bytes}"
        if name not in self._loads:
            self._need(2 * size_bytes)
            write_random(self.sources / name, size_bytes)
            self._loads[name] = Load(self.sources / name, size_bytes, 1, False)
        return self._loads[name]

    def changed_file(self, size_bytes: int) -> Load:
        """A file, and an earlier version of it: a hundredth differs, in pieces all over it."""
        load, before = self.file(size_bytes), self.sources / f"before-{size_bytes}"
        self._need(2 * size_bytes)
        shutil.copyfile(load.path, before)
        places = random.Random(size_bytes)
        with open(before, "r+b") as file:
            for _ in range(max(1, size_bytes // 100 // CHANGE_BYTES)):
                file.seek(places.randrange(max(1, size_bytes - CHANGE_BYTES)))
                file.write(os.urandom(CHANGE_BYTES))
        os.utime(before, (0, 0))  # rsync takes what is of the same second for unchanged
        return replace(load, before=before)

    def tree(self, small: int, big_bytes: tuple[int, ...] = ()) -> Load:
        """So many small files, and one of each of these sizes."""
        name = f"tree-{small}-{len(big_bytes)}"
        if name not in self._loads:
            # In a tmpfs a file takes whole pages, and about one more for itself.
            self._need(2 * (sum(big_bytes) + small * (SMALL_BYTES[1] + 4096)))
            root = self.sources / name
            total = write_small_files(root, small)
            for number, size in enumerate(big_bytes):
                write_random(root / f"big-{number}", size)
            self._loads[name] = Load(root, total + sum(big_bytes), small + len(big_bytes), True)
        return self._loads[name]

    def _need(self, size_bytes: int) -> None:
        # A tmpfs may promise more than can be had without swapping.
        [available] = re.findall(r"^MemAvailable: +(\d+)", Path("/proc/meminfo").read_text(), re.M)
        free = min(shutil.disk_usage(self.folder).free, int(available) * 1024) - MARGIN_BYTES
        if size_bytes > free:
            raise LeftOut(
                f"needs {size_bytes / GIB:.1f} GiB in {MEMORY}, "
                f"and {max(0, free) / GIB:.1f} GiB can be had"
            )


def write_random(path: Path, size_bytes: int) -> None:
    """Random, so that no tool gains from compressing, and no file like another."""
    with open(path, "wb") as file:
        for start in range(0, size_bytes, BLOCK_BYTES):
            file.write(os.urandom(min(BLOCK_BYTES, size_bytes - start)))


def write_small_files(root: Path, count: int) -> int:
    """Returns the bytes written. The sizes are the same each time."""
    sizes = random.Random(count)
    total = 0
    for number in range(count):
        folder = root / f"folder-{number // FILES_A_FOLDER}"
        folder.mkdir(parents=True, exist_ok=True)
        size = sizes.randint(*SMALL_BYTES)
        (folder / f"small-{number}").write_bytes(os.urandom(size))
        total += size
    return total


def difference(load: Load, copied: Path) -> str:
    """In what a copy differs from its source; "" where it is byte-identical."""
    folder = copied.parents[1]
    ends = [path.relative_to(folder) for path in (load.path, copied)]
    done = subprocess.run(["diff", "-qr", *ends], cwd=folder, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    return f"{lines[0]} (one of {len(lines)} differences)" if done.returncode else ""
