"""How a manifest is written: JSON lines, sha256sum's form, and BagIt's. docs/manifests.md has it.

Not here: how one is read (reading.py), where the digests come from (making.py).
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from pscp.endpoint.paths import to_bytes
from pscp.errors import UsageError

JSONL, SHA256SUM, BAGIT = FORMATS = ("jsonl", "sha256sum", "bagit")
VERSION = 1
NAME = "pscp-manifest"
# What the digests of chunks are of, however a copy had cut the file. It bounds what is hashed again
# for a flipped bit, and how long lines get: a TiB has 17 MB of digests.
CHUNK_BYTES = 4 * 1024 * 1024
PAYLOAD = "data/"  # the folder of a bag that its manifest is about (RFC 8493, 2.1.2)

_SUMS = (".sha256", ".sha256sum", "sha256sums", "sha256sum.txt", "sha256sums.txt")


class Record(NamedTuple):
    """A file of a manifest."""

    path: str  # below the root, as in endpoint/paths.py
    size_bytes: int | None  # None where the form has none
    mtime_ns: int | None
    digest: str  # SHA-256 in hex
    chunks: tuple[str, ...]  # of a file of several chunks that of each; else ()


def format_of(name: str, chosen: str | None) -> str:
    """Return the form of a manifest of this name: the one that was chosen, else by its ending."""
    last = os.path.basename(name).lower()
    if chosen is not None:
        return chosen
    if last == "manifest-sha256.txt":
        return BAGIT
    return SHA256SUM if last.endswith(_SUMS) else JSONL


def json_line(values: Mapping[str, object]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode("ascii") + b"\n"


def line_of(record: Record, form: str) -> bytes:
    """Return the record's line. Raises UsageError for a name that the form cannot hold."""
    if form == JSONL:
        return _in_json(record)
    name = to_bytes(record.path)
    digest = record.digest.encode("ascii")
    if form == SHA256SUM:  # coreutils, "sha256sum invocation": a backslash before an escaped line
        escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
        return b"%s%s  %s\n" % (b"\\" if escaped != name else b"", digest, escaped)
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError("is not UTF-8, as names in a bag have to be") from None
    for byte in (b"%", b"\n", b"\r"):  # RFC 8493, 2.1.3: these, and no others
        name = name.replace(byte, b"%%%02X" % byte[0])
    return b"%s  %s%s\n" % (digest, PAYLOAD.encode(), name)


def _in_json(record: Record) -> bytes:
    """JSON is of Unicode (RFC 8259, 8.1), so bytes that are no UTF-8 are in base64."""
    raw = to_bytes(record.path)
    values: dict[str, object]
    try:
        values = {"path": raw.decode("utf-8")}
    except UnicodeDecodeError:
        values = {"path_base64": base64.b64encode(raw).decode("ascii")}
    values |= {"size": record.size_bytes, "mtime_ns": record.mtime_ns, "sha256": record.digest}
    return json_line(values | ({"chunks": record.chunks} if record.chunks else {}))


def header_line(made: str, sources: list[str], destination: str, root: str) -> bytes:
    """Return the first line of a manifest in JSON lines; `made` is the time in UTC."""
    return json_line(
        {
            "format": NAME,
            "version": VERSION,
            "algorithm": "sha256",
            "chunk_bytes": CHUNK_BYTES,
            "made": made,
            "sources": [_shown(each) for each in sources],
            "destination": _shown(destination),
            "root": _shown(root),
        }
    )


def _shown(text: str) -> str:
    """Return a text for people to read, without what is no Unicode."""
    return os.fsencode(text).decode("utf-8", "replace")


def end_line(form: str, files: int, size_bytes: int, failed: int) -> bytes:
    """Return the last line, which says whether the manifest is whole: whether no file failed."""
    if form == JSONL:
        counted = {"files": files, "bytes": size_bytes, "failed": failed, "whole": not failed}
        return json_line(counted)
    if form == SHA256SUM and failed:
        return b"# not whole: %d failed, and are not listed\n" % failed
    return b""
