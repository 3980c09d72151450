"""The table of what is fuzzed; inputs to begin with lie in corpus/, and those of pscp's own binary
formats are made here.

Not here: what each does with an input (readers.py, ends.py).
"""

from __future__ import annotations

import base64
import stat
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fuzz import ends, readers
from pscp.endpoint.frames import wire
from pscp.endpoint.reading.rows import Rows

CORPUS = Path(__file__).parent / "corpus"
SHA = "ab" * 32


class Target(NamedTuple):
    """What an input is given to."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]] = tuple
    most_bytes: int = 8192  # of an input
    share: float = 1.0  # of the mutations of a test run: less where each takes long


def corpus(name: str) -> list[bytes]:
    """Return the inputs that are kept of a target, by their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def _entry(kind: str, path: str, size: int = 0, **extra: Any) -> list[Any]:
    return [kind, 0, path, size, 0o755 if kind == "folder" else 0o644, 10**18, 1, extra]


def _frames() -> Iterable[bytes]:
    files = [[_entry("file", "a", 3), [3, SHA]], [_entry("link", "l", to="a"), [0, ""]]]
    packed = wire.pack_payload(files, [b"abc"])
    sent = [
        wire.frame(wire.HELLO, b'{"hashes":{"sha256":1.0}}'),
        wire.frame(wire.REPLY, b'{"kind":"system","path":"a","message":"no","errno":5}', 3, 0, 1),
        wire.frame(wire.DATA, b"x" * 40, 1, 0), wire.frame(wire.DATA, b"x" * 40, 2, 40, 4),
        wire.frame(wire.DIGEST, wire.COUNT.pack(80) + b"d" * 16, 1, 0),
        wire.frame(wire.PACK, packed, 4), wire.frame(wire.ACK, wire.LANDED.pack(80, 7), 1, 0),
        wire.frame(wire.TICK),
    ]  # fmt: skip
    for head in (b"\0\7", b"\1\x20", b"\3\2", b"\2\x30"):
        yield head + b"".join(sent)
        yield from (head + each for each in sent)


def _listings() -> Iterable[bytes]:
    rows = Rows([], [], [], [], {})
    rows.add(b"a", stat.S_IFREG | 0o644, 5, 10**18)
    rows.add(b"l", stat.S_IFLNK | 0o777, 1, 10**18)
    rows.add(b"d", stat.S_IFDIR, 0, 0)
    rows.targets[1] = b"a"
    text = rows.pack()
    yield b"\0" + text.encode()
    yield b"\xff" + zlib.decompress(base64.b64decode(text))


TARGETS: dict[str, Target] = {
    "frames": Target(readers.frames, _frames),
    "answers": Target(readers.answer),
    "listing": Target(readers.listing, _listings),
    "journal": Target(readers.journal),
    "manifest": Target(readers.manifest),
    "memory": Target(readers.memory),
    "fence": Target(readers.fences),
    "jobs": Target(readers.jobs, share=0.2),
    "typed": Target(readers.typed),
    "mux": Target(readers.mux),
    "sftp": Target(readers.sftp),
    "agent": Target(ends.agent, share=0.5),
    "copy": Target(ends.copy, most_bytes=256, share=0.03),
}
