"""Files of awkward sizes and names, and a comparison of two trees, for main.py.

The sizes lie around those where the copy does something else: nothing, a block, a chunk. The
names are those that a shell, a terminal, an option parser or a decoder trips over.

Not here: anything that a copy needs; links, modes and times (the project's tests compare these).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

from pscp.option_bounds import CHUNK_BYTES
from pscp.options import Options

MIB = 1024 * 1024
SPARSE_BYTES = 24 * MIB
NAMES = (
    b"a space",
    b" at both ends ",
    b"two\nlines",
    b"'single' \"double\" `back`",
    b"$HOME; exit 1 & true | cat > x",
    b"-x",
    b"--help",
    b"a:b",
    b"glob [a-z]*?{1,2}",
    b"~",
    b".hidden",
    b"back\\slash",
    "\u00fcn\u00efc\u00f6d\u00e9 \u2603".encode(),
    b"not UTF-8 \xff\xfe\x80",
    b"\x1b[31m",
    b"n" * 255,
)


def make_awkward_files(folder: Path) -> Iterator[str]:
    """Fill `folder`; yield a line for each name that this file system does not take."""
    block, chunk = Options().block_bytes, CHUNK_BYTES
    made_up = random.Random(folder.name)  # noqa: S311 - the same bytes each time
    (folder / "folder" / "in a folder").mkdir(parents=True)
    (folder / "empty folder").mkdir()
    for size in (0, 1, block - 1, block, block + 1, chunk - 1, chunk, chunk + 1, 3 * chunk + 4321):
        (folder / f"{size} bytes").write_bytes(made_up.randbytes(size))
    with open(folder / "sparse", "wb") as sparse:
        for offset in (chunk + 1, SPARSE_BYTES // 2):
            sparse.seek(offset)
            sparse.write(made_up.randbytes(block))
        sparse.truncate(SPARSE_BYTES)
    for parent in (folder, folder / "folder" / "in a folder"):
        for name in NAMES:
            try:
                (parent / os.fsdecode(name)).write_bytes(name)
            except OSError as error:
                yield f"left out: {os.fsdecode(name)}: {error.strerror}"


def differences(left: bytes, right: bytes) -> list[str]:
    """Return what is not the same in two trees of files and folders, a line each."""
    if os.path.isdir(left) and os.path.isdir(right):
        names = {*os.listdir(left), *os.listdir(right)}
        pairs = ((os.path.join(left, name), os.path.join(right, name)) for name in sorted(names))
        return [line for pair in pairs for line in differences(*pair)]
    shown = os.fsdecode(right)
    if not os.path.lexists(right):
        return [f"{shown}: missing"]
    if not os.path.lexists(left):
        return [f"{shown}: not in the source"]
    if os.path.isfile(left) and os.path.isfile(right):
        return [] if same_bytes(left, right) else [f"{shown}: its content differs"]
    return [f"{shown}: not the same kind of file"]


def same_bytes(left: bytes, right: bytes) -> bool:
    with open(left, "rb") as a, open(right, "rb") as b:
        while block := a.read(MIB):
            if block != b.read(MIB):
                return False
        return not b.read(1)
