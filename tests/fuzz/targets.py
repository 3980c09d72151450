"""The table of what is fuzzed, and the inputs to begin with, which the code itself has made.

Not here: what each does with an input (readers.py, ends.py).
"""

from __future__ import annotations

import base64
import json
import stat
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fuzz import ends, readers
from pscp.endpoint.frames import wire
from pscp.endpoint.reading import tree
from pscp.endpoint.there import listings
from pscp.manifests.formats import NAME, VERSION
from pscp.sftp.protocol import packets

CORPUS = Path(__file__).parent / "corpus"
SHA = "ab" * 32


class Target(NamedTuple):
    """What an input is given to."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    most_bytes: int = 8192  # of an input
    share: float = 1.0  # of the mutations of a test run: less where each takes long


def corpus(name: str) -> list[bytes]:
    """Return the inputs that are kept of a target, by their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def _lines(*values: Any) -> bytes:
    return b"\n".join(json.dumps(value, separators=(",", ":")).encode() for value in values)


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


def _answers() -> Iterable[bytes]:
    failure = {"kind": "system", "path": "a", "message": "no", "errno": 5}
    text = _packed_listing()
    yield _lines(["failure", failure])
    yield _lines(["places", [[0, failure], [2, failure]]], ["texts", ["a", "b"]])
    yield _lines(["extents", [[[0, 10], [4096, 10]], False]], ["digests", [[SHA, None], failure]])
    yield _lines(["there", ["file", 5, 10**18, ["0123"], 0o644, [0, 0], ""]])
    yield _lines(["there", ["link", 0, 0, [], 0, [], "to"]])
    yield _lines(["entry", _entry("file", "a", 5, sparse=1)])
    yield _lines(["entry", _entry("link", "l", to="x", o=[0, 0, "a", "b"])])
    yield _lines(["entry", _entry("folder", "d", x={"user.a": "YQ=="})])
    yield _lines(["entry", [*_entry("error", "e")[:7], failure]])
    yield _lines(["rows", [[_entry("file", "a", 5), [5, SHA]], [_entry("file", "b", 5), failure]]])
    yield _lines(["heard", {"status": 0, "failure": None, "deaf": False, "said": [["x", 1]]}])
    yield _lines(["listing", [text, 2, True, [0, 0, "root", "root"]]])
    yield _lines(["differing", [[text, 2, True, None], [False, [0, 1], 0]]])


def _packed_listing() -> str:
    rows = listings.Rows([], [], [], [], {})
    rows.add(b"a", stat.S_IFREG | 0o644, 5, 10**18)
    rows.add(b"l", stat.S_IFLNK | 0o777, 1, 10**18)
    rows.add(b"d", stat.S_IFDIR, 0, 0)
    rows.targets[1] = b"a"
    return rows.pack()


def _listings() -> Iterable[bytes]:
    text = _packed_listing()
    raw = zlib.decompress(base64.b64decode(text))
    yield b"\0" + text.encode()
    yield b"\xff" + raw


def _journals() -> Iterable[bytes]:
    file = ["file", 1, "a", 1000, 5, 7, "sha256"]
    chunks = [["chunk", 1, 0, 100, "00"], ["chunk", 1, 100, 900, "11"]]
    yield _lines(["run", "0123"], [*file, "0123", "zeros"], *chunks) + b"\n"
    yield _lines(["run", "0123"], ["to", "/r", ["a"], ["b"]], file, *chunks) + b"\n"
    yield _lines(["run", "0123"], file, *chunks, ["done", 1], file, chunks[0]) + b"\n"
    yield _lines(file, file, chunks[1], ["file", 2, "a", 1000, 5, 7, "sha256"], *chunks)
    yield b""


def _manifests() -> Iterable[bytes]:
    head = {"format": NAME, "version": VERSION, "algorithm": "sha256", "chunk_bytes": 1 << 20}
    file = {"path": "a/b", "size": 5, "mtime_ns": 10**18, "sha256": SHA}
    large = {**file, "path": "c", "size": 3 << 19, "chunks": [SHA, SHA]}
    odd = {**file, "path_base64": "/2E="}
    del odd["path"]
    end = {"whole": True, "files": 3, "bytes": 10 + (3 << 19)}
    yield b"\0" + _lines(head, file, large, odd, end) + b"\n"
    yield b"\0" + _lines(head, {"whole": False, "files": 0, "bytes": 0}) + b"\n"
    sums = f"{SHA}  a/b\n{SHA} *./c\n\\{SHA}  d\\ne\\\\\n".encode()
    yield b"\1" + sums
    yield b"\1# not whole\r\n" + sums
    yield b"\2" + f"{SHA}  data/a%0Ab\n{SHA}\tdata/%25\n".encode()


def _memories() -> Iterable[bytes]:
    known = [4, 8, 0.1, "bbr", 1e8, 16, 1e9, True, 4, "stream tls"]
    value = {"push": known, "push_at": "NOW", "pull": [2, 0, 0.01, "", 0.0, 0, 0.0, False, 0, ""],
             "pull_at": "NOW", "connections": 8, "cipher": "aes128-gcm@openssh.com",
             "remote": "sftp", "asks": False, "no_direct_at": "NOW"}  # fmt: skip
    for each in (value, {"connections": 3}, {}, {**value, "push": known[:3]}):
        yield b'{"key":KEY,"value":%s}' % json.dumps(each).replace('"NOW"', "NOW").encode()


def _fences() -> Iterable[bytes]:
    yield b'{"run": "0123", "lost": [1, 2], "earlier": ["aa", "bb"]}'
    yield b'{"run": "", "lost": [], "earlier": []}'
    yield b'{"run": "0123", "lost": [1e999], "earlier": []}'
    yield b""


def _jobs() -> Iterable[bytes]:
    yield b"""[defaults]
archive = true
[host."h"]
port = 2222
[job.a]
sources = ["/x", "./y"]
destinations = ["h:z", "i:y/"]
before = "true"
exclude = ["*.o", "+ a"]
keep = 3
"""
    yield b"""[job.b]
sources-command = ["find", "."]
destinations = ["h:x"]
depends-on = ["c"]
delete = true
max-delete = 5
at-least-bytes = "1G"
[job.c]
sources = "/x"
destinations = "/z"
strong = true
limit = "10M"
"""


def _typed() -> Iterable[bytes]:
    yield _lines(["size", "4M"], ["size", "1GiB"], ["ports", "5000-5010"], ["cpus", "0,2-5"])
    yield _lines(["seconds", "90min"], ["rate", "1.5G"], ["number", "-12"], ["address", "::1"])
    yield _lines(["modes", "D755,F644,u=rwX,go-w,+s"], ["owner", "me:4711"], ["owner", ":g"])
    yield _lines(["location", "u@h:p"], ["location", "ssh://u@[::1]:22//x%20"], ["host", "[::1]:"])
    yield _lines(["filter", "/a/**/b*[!x-z[:alpha:]]?.o/"], ["filter", "**/x/***"])
    yield _lines(["filter", "a*b*c*d*e*f*g*h"], ["filter", "**a**b**c/*d*/e"])
    yield _lines(["chmod", "u+x"], ["chown", "a:b"], ["backup_dir", ".old"], ["suffix", "~"])
    yield _lines(["filters", [["exclude", "a"]]], ["cpus", [1, 2]], ["bind", ["127.0.0.1"]])
    yield _lines(["ssh_options", ["Port=2"]], ["persist", "10m"], ["cipher", "aes"], ["port", 22])
    yield _lines(["block_bytes", 65536], ["plane_ports", [1, 2]], ["link_dest", ["../a"]])


def _muxes() -> Iterable[bytes]:
    hello = struct.pack(">III", 8, 1, 4)
    alive = struct.pack(">IIII", 12, 0x80000005, 0, 4711)
    opened = struct.pack(">IIII", 12, 0x80000006, 1, 0)
    refused = struct.pack(">IIII", 14, 0x80000003, 1, 2) + b"no"
    ended = struct.pack(">IIII", 12, 0x80000004, 0, 7)
    for start in (b"\0", b"\1", b"\2"):
        yield start + hello + alive + opened + ended
        yield start + hello + refused


def _sftp() -> Iterable[bytes]:
    version = struct.pack(">IBI", 5 + 14, packets.VERSION, 3) + packets.text(b"a@b") * 2
    attrs = packets.attrs(packets.Attrs(5, 0, 0, stat.S_IFREG | 0o644, 1, 2))
    numbers = b"".join(packets.large(n) for n in (4096, 4096, 9, 9, 9, 9, 9, 9, 3, 0, 255))
    name = packets.text(b"n") + packets.text(b"-rw") + attrs
    answers = [
        (packets.ATTRS, attrs), (packets.HANDLE, packets.text(b"h")),
        (packets.NAME, packets.number(2) + name * 2), (packets.NAME, packets.number(1) + name),
        (packets.NAME, packets.number(1) + name), (packets.HANDLE, packets.text(b"h")),
        (packets.STATUS, packets.number(0) + packets.text(b"ok") * 2), (packets.ATTRS, attrs),
        (packets.EXTENDED_REPLY, numbers[:32]), (packets.EXTENDED_REPLY, numbers),
        (packets.EXTENDED_REPLY, numbers), (packets.STATUS, packets.number(4)),
        (packets.DATA, packets.text(b"x" * 50)),
    ]  # fmt: skip
    sent = [packets.packet(type_, n, body) for n, (type_, body) in enumerate(answers, 1)]
    for head in (b"\x7f", b"\xff"):
        yield head + version + b"".join(sent)
        yield head + b"".join(reversed(sent))
    yield b"\xff" + packets.packet(packets.ATTRS, 1, packets.number(0x8000000F) + b"\xff" * 40)
    yield b"\x01Welcome to this host\n"


TARGETS: dict[str, Target] = {
    "frames": Target(readers.frames, _frames),
    "answers": Target(readers.answer, _answers),
    "listing": Target(readers.listing, _listings),
    "journal": Target(readers.journal, _journals),
    "manifest": Target(readers.manifest, _manifests),
    "memory": Target(readers.memory, _memories),
    "fence": Target(readers.fences, _fences),
    "jobs": Target(readers.jobs, _jobs, share=0.2),
    "typed": Target(readers.typed, _typed),
    "mux": Target(readers.mux, _muxes),
    "sftp": Target(readers.sftp, _sftp),
    "agent": Target(ends.agent, ends.agent_seeds, share=0.5),
    "copy": Target(ends.copy, ends.copy_seeds, 256, share=0.03),
}
assert tree.FILE == "file"
