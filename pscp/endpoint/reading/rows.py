"""What a folder has, in one text: names, modes, sizes and times, and where links lead.

Sent when a copy begins that compares whole folders. Not here: who lists a folder, and who compares
it (../there/listings.py).
"""

import array
import base64
import os
import stat
import struct
import sys
import zlib
from typing import Dict, List, NamedTuple, Optional

from ..frames import wire

NAMES_MOST = 16384  # in one listing: some 200 KB as it travels, in a frame of 1 MiB
_TEXT_MOST_BYTES = 384 * 1024
_RAW_MOST_BYTES = 8 * 1024 * 1024  # NAMES_MOST of the longest names, and some targets of links


class Listing(NamedTuple):
    """The content of one folder of a source, or of a stretch of its names, but for what gets
    entries of its own.
    """

    text: str  # as Rows makes it
    files: int  # and links, of which the text says all
    is_whole: bool  # whether only folders get entries of their own
    owner: Optional[List[object]]  # of all files, as an Entry has it; null without -a
    up_to: str  # the name that the stretch ends with, where the folder has more; else ""
    after: str = ""  # the name that ends the stretch before it; "": it begins with the first


class Rows(NamedTuple):
    """The names in a folder, and what is compared of each; of folders only that they are some, and
    of what gets an entry of its own, with the mode 0, nothing.
    """

    names: List[bytes]
    modes: List[int]
    sizes: List[int]
    mtimes_ns: List[int]
    targets: Dict[int, bytes]  # of links, by their places

    def add(self, name: bytes, mode: int, size: int, mtime_ns: int) -> None:
        self.names.append(name)
        self.modes.append(mode)
        self.sizes.append(size)
        self.mtimes_ns.append(mtime_ns)

    def is_file(self, place: int) -> bool:
        """Is it a file or a link?"""
        return self.modes[place] not in (0, stat.S_IFDIR)

    def files(self) -> int:
        return len(self.modes) - self.modes.count(0) - self.modes.count(stat.S_IFDIR)

    def read_targets(self, fd: Optional[int], before: bytes) -> None:
        """Read where the links lead, in the folder `fd`, or where names have this `before` them."""
        if not any(map(stat.S_ISLNK, set(self.modes))):  # of most folders
            return
        for place, mode in enumerate(self.modes):
            if stat.S_ISLNK(mode):
                name = self.names[place]
                self.targets[place] = target_of(fd, name if fd is not None else before + name)

    def pack(self) -> str:
        numbers = _swapped(array.array("q", self.modes + self.sizes + self.mtimes_ns)).tobytes()
        texts = b"\0".join([*self.names, *(self.targets[place] for place in sorted(self.targets))])
        raw = struct.pack(">I", len(self.names)) + numbers + texts
        # With a small window: of most folders the usual one takes longer to set up than to use.
        deflate = zlib.compressobj(1, zlib.DEFLATED, 12, 5)
        return base64.b64encode(deflate.compress(raw) + deflate.flush()).decode("ascii")


def unpack(text: str) -> Rows:
    """Return the rows that pack() has made a text of. Raises WireError for any other."""
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(base64.b64decode(text), _RAW_MOST_BYTES)
        if not inflate.eof:
            raise ValueError
        (count,) = struct.unpack_from(">I", raw)
        numbers = array.array("q", raw[4 : 4 + 24 * count])
        texts = raw[4 + 24 * count :].split(b"\0")
        modes, sizes, mtimes_ns = (
            _swapped(numbers)[n * count : (n + 1) * count].tolist() for n in range(3)
        )
        has_links = any(map(stat.S_ISLNK, set(modes)))
        links = [n for n, mode in enumerate(modes) if stat.S_ISLNK(mode)] if has_links else []
    except (ValueError, OverflowError, struct.error, zlib.error):
        raise wire.WireError("a listing of another shape")
    if len(mtimes_ns) != count or len(texts) != max(count + len(links), 1):
        raise wire.WireError("a listing of another shape")
    return Rows(texts[:count], modes, sizes, mtimes_ns, dict(zip(links, texts[count:])))


def _swapped(numbers: "array.array[int]") -> "array.array[int]":
    """Return the numbers in the other order of bytes where this machine has another than most."""
    if sys.byteorder == "little":
        return numbers
    numbers = numbers[:]
    numbers.byteswap()
    return numbers


def as_listing(
    rows: Rows, owner: Optional[List[object]], is_whole: bool, up_to: str, after: str = ""
) -> Optional[Listing]:
    """Return the listing, None where it is too long, or a time is out of all bounds."""
    try:
        text = rows.pack()
    except OverflowError:
        return None
    if len(text) > _TEXT_MOST_BYTES:
        return None
    return Listing(text, rows.files(), is_whole, owner, up_to, after)


def target_of(fd: Optional[int], path: bytes) -> bytes:
    """Return where a link leads, in the folder `fd` where that is not None."""
    try:
        return os.readlink(path, dir_fd=fd)
    except OSError:
        return b""  # no link has this target, so that it gets an entry, which says why
