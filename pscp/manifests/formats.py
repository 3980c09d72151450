"""How a manifest is written and read: JSON lines, sha256sum's form, and BagIt's. docs/manifests.md
has it.

Anybody may have written the one that is read: each line is checked before a tree is.

Not here: where the digests come from (making.py), its signature (signing.py), what its paths may
reach (../endpoint/reading/paths.py).
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pscp.endpoint.frames import failures
from pscp.endpoint.frames.wire import MAX_TIME_NS
from pscp.endpoint.reading import paths, tree
from pscp.endpoint.reading.paths import to_bytes, to_text
from pscp.ground.errors import BadManifest, UsageError
from pscp.ground.terminal_text import printable
from pscp.options.option_rows import MANIFEST_FORMATS

JSONL, SHA256SUM, BAGIT = MANIFEST_FORMATS
VERSION = 2  # 1 had files alone
NAME = "pscp-manifest"
# What the digests of chunks are of, however a copy had cut the file. It bounds what is hashed again
# for a flipped bit, and how long lines get: a TiB has 17 MB of digests.
CHUNK_BYTES = 4 * 1024 * 1024
PAYLOAD = "data/"  # the folder of a bag that its manifest is about (RFC 8493, 2.1.2)

_SUMS = (".sha256", ".sha256sum", "sha256sums", "sha256sum.txt", "sha256sums.txt")
_LINE_MOST = 512 * 1024 * 1024  # bytes: the chunks' digests of 32 TiB
_PATH_MOST = 128 * 1024  # bytes: each may become six in a request, which has 1 MiB
_SIZE_MOST = 1 << 63
_CHUNK_LEAST, _CHUNK_MOST = 64 * 1024, 1 << 30
_HEX = re.compile(r"[0-9a-f]{64}")
_SUM = re.compile(rb"(\\?)([0-9a-fA-F]{64}) [ *](.*)", re.DOTALL)
_BAG = re.compile(rb"()([0-9a-fA-F]{64})[ \t]+\*?(.*)", re.DOTALL)
_ESCAPE = re.compile(rb"\\(.?)", re.DOTALL)
_ESCAPED = {b"\\": b"\\", b"n": b"\n", b"r": b"\r"}
_CUT = "it was not written, or not copied, to its end: take a whole one"  # a hint


class Manifest:
    """A manifest that is sound. Its records may be read several times; close() it."""

    def __init__(self, name: str) -> None:
        """Raises BadManifest, with the line, for what is malformed; UsageError for no such file."""
        self.name = name
        # A copy that nobody else can change: what was checked, and signed, is what is used.
        self.file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed by close()
        self.chunk_bytes = 0  # 0: there are no digests of chunks
        self.lists_links = False  # and FIFOs: only JSON lines from version 2 on can
        self.paths: set[str] = set()
        self.is_whole = True  # no file failed when it was made
        self.size_bytes = 0  # of all files, as far as their sizes are known
        self._number = 0  # of the line that is read
        try:
            self._take_copy()
            self._form = self._seen()
            for record in self.records():
                if record.path in self.paths:
                    raise self._bad(f"{_shown(record.path)} is listed twice")
                self.paths.add(record.path)
                self.size_bytes += record.size_bytes or 0
            if not self.paths and self._form != JSONL:  # as sha256sum -c refuses it
                raise BadManifest(f"{name}:1: lists no file")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.file.close()

    def _take_copy(self) -> None:
        try:
            with open(self.name, "rb") as file:
                shutil.copyfileobj(file, self.file)
            self.file.flush()
        except OSError as error:
            hint = "MANIFEST is a file on this machine, and stands before ROOT"
            raise UsageError(f"{self.name}: {error.strerror}", hint) from None

    def _seen(self) -> str:
        """Return the form: only JSON begins with a brace, and a bag's manifest has its name."""
        self.file.seek(0)
        first = self.file.read(1)
        if not first:
            raise BadManifest(f"{self.name}:1: is no manifest, but empty")
        if first == b"{":
            return JSONL
        return BAGIT if format_of(self.name, None) == BAGIT else SHA256SUM

    def _bad(self, what: str, hint: str = "") -> BadManifest:
        return BadManifest(f"{self.name}:{self._number}: {what}", hint)

    # --- records

    def records(self) -> Iterator[Record]:
        """Yield the records, each of them checked. Raises BadManifest."""
        self.file.seek(0)
        self._number = 0
        lines = self._lines()
        yield from self._of_json(lines) if self._form == JSONL else self._of_sums(lines)

    def _lines(self) -> Iterator[bytes]:
        while line := self.file.readline(_LINE_MOST):
            self._number += 1
            if not line.endswith(b"\n"):
                raise self._bad("the line is cut short", _CUT)
            yield line[:-1]

    def _of_sums(self, lines: Iterator[bytes]) -> Iterator[Record]:
        pattern = _SUM if self._form == SHA256SUM else _BAG
        for line in lines:
            if line.startswith(b"#") and self._form == SHA256SUM:
                self.is_whole &= not line.startswith(b"# not whole")
                continue
            found = pattern.fullmatch(line.removesuffix(b"\r"))
            if found is None:
                raise self._bad(
                    "is no line of a manifest: a SHA-256 in hex, two blanks, and a path"
                )
            escaped, digest, name = found.groups()
            if self._form == BAGIT:
                name = re.sub(rb"%(0[AaDd]|25)", lambda code: bytes([int(code[1], 16)]), name)
            name = self._unescaped(name) if escaped else name
            path = self._checked(name.removeprefix(b"./"))  # as `find .` and sha256sum write it
            yield Record(path, None, None, digest.decode("ascii").lower(), ())

    def _unescaped(self, name: bytes) -> bytes:
        def byte(found: re.Match[bytes]) -> bytes:
            if found[1] not in _ESCAPED:
                raise self._bad("has a backslash that escapes nothing")
            return _ESCAPED[found[1]]

        return _ESCAPE.sub(byte, name)

    def _checked(self, name: bytes) -> str:
        """Return a path that stays below the root."""
        path = to_text(name)
        try:
            if len(name) > _PATH_MOST:
                raise failures.Refusal(failures.UNSAFE, path, "a path that is too long")
            paths.check(path)
        except failures.Refusal:
            raise self._bad(f"{_shown(path)} is not the path of a file below the root") from None
        return path

    # --- JSON lines

    def _of_json(self, lines: Iterator[bytes]) -> Iterator[Record]:
        first = next(lines)  # at least a brace is there
        self._take_header(self._object(first))
        files = size_bytes = 0
        for line in lines:
            values = self._object(line)
            if "whole" in values:
                self._take_end(values, files, size_bytes)
                if next(lines, None) is not None:
                    raise self._bad("something comes after the line that ends the manifest")
                return
            record = self._record(values)
            files, size_bytes = files + 1, size_bytes + (record.size_bytes or 0)
            yield record
        self._number += 1
        raise self._bad("the manifest is cut short: its last line is missing", _CUT)

    def _object(self, line: bytes) -> dict[str, Any]:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            raise self._bad("is not JSON") from None
        if not isinstance(values, dict):
            raise self._bad("is no JSON object")
        return values

    def _take_header(self, values: dict[str, Any]) -> None:
        if values.get("format") != NAME:
            raise self._bad(f'does not begin a manifest: "format" is not "{NAME}"')
        if values.get("version") not in (1, VERSION):
            what = f"has version {values.get('version')!r:.40}; this pscp knows 1 and {VERSION}"
            raise self._bad(what, "another version of pscp wrote it: verify with that one")
        if values.get("algorithm") != "sha256":
            raise self._bad(f"has digests of {values.get('algorithm')!r:.40}, not of sha256")
        self.lists_links = values["version"] == VERSION
        self.chunk_bytes = self._number_of(values, "chunk_bytes", _CHUNK_LEAST, _CHUNK_MOST)

    def _take_end(self, values: dict[str, Any], files: int, size_bytes: int) -> None:
        if (values.get("files"), values.get("bytes")) != (files, size_bytes):
            raise self._bad("ends a manifest of other files than those above it")
        self.is_whole = values["whole"] is True

    def _record(self, values: dict[str, Any]) -> Record:
        path = self._checked(self._raw(values, "path"))
        kind = values.get("kind", tree.FILE)
        if kind == tree.LINK:
            mtime_ns = self._number_of(values, "mtime_ns", -MAX_TIME_NS, MAX_TIME_NS)
            return Record(path, 0, mtime_ns, "", (), kind, self._target(values))
        if kind in (tree.FIFO, tree.DEVICE):
            target = self._target(values) if kind == tree.DEVICE else ""
            return Record(path, 0, None, "", (), kind, target)
        if kind != tree.FILE:
            raise self._bad('"kind" is none of "link", "fifo", "device"')
        size_bytes = self._number_of(values, "size", 0, _SIZE_MOST - 1)
        mtime_ns = self._number_of(values, "mtime_ns", -MAX_TIME_NS, MAX_TIME_NS)
        chunks = values.get("chunks", [])
        count = -(-size_bytes // self.chunk_bytes)
        if not isinstance(chunks, list) or len(chunks) != (count if count > 1 else 0):
            raise self._bad(f'"chunks" is no list of the {count} digests that its size needs')
        digests = [self._digest(each) for each in (values.get("sha256"), *chunks)]
        return Record(path, size_bytes, mtime_ns, digests[0], tuple(digests[1:]))

    def _target(self, values: dict[str, Any]) -> str:
        target = self._raw(values, "target")
        if not target or b"\0" in target or len(target) > _PATH_MOST:
            raise self._bad("has a target that no link can have")
        return to_text(target)

    def _raw(self, values: dict[str, Any], name: str) -> bytes:
        text, coded = values.get(name), values.get(f"{name}_base64")
        try:
            if isinstance(text, str) and coded is None:
                return text.encode("utf-8")
            if isinstance(coded, str) and text is None:
                return base64.b64decode(coded, validate=True)
        except ValueError:
            pass
        raise self._bad(f'has neither a "{name}" nor a "{name}_base64"')

    def _digest(self, value: object) -> str:
        if not isinstance(value, str) or not _HEX.fullmatch(value):
            raise self._bad("has a digest that is not 64 hex digits")
        return value

    def _number_of(self, values: dict[str, Any], name: str, least: int, most: int) -> int:
        value = values.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self._bad(f'"{name}" is no possible number')
        return value


def _shown(path: str) -> str:
    """Return a path as a message has it, which may be of any length and content."""
    return f'"{printable(path[:200])}"'


class Record(NamedTuple):
    """A file of a manifest, a link, a FIFO or a device."""

    path: str  # below the root, as in endpoint/reading/paths.py
    size_bytes: int | None  # None where the form has none
    mtime_ns: int | None
    digest: str  # SHA-256 in hex
    chunks: tuple[str, ...]  # of a file of several chunks that of each; else ()
    kind: str = tree.FILE  # or LINK, FIFO, DEVICE, which have no digest
    target: str = ""  # of a link; of a device its numbers


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
    """Return the record's line; of a link, a FIFO or a device b"", but for JSON lines.

    Raises UsageError for a name that the form cannot hold.
    """
    if form == JSONL:
        return _in_json(record)
    if record.kind != tree.FILE:
        return b""
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
    values: dict[str, object] = _name_in_json("path", record.path)
    if record.kind == tree.FILE:
        values |= {"size": record.size_bytes, "mtime_ns": record.mtime_ns, "sha256": record.digest}
        return json_line(values | ({"chunks": record.chunks} if record.chunks else {}))
    values["kind"] = record.kind
    if record.kind == tree.LINK:
        values |= {**_name_in_json("target", record.target), "mtime_ns": record.mtime_ns}
    elif record.kind == tree.DEVICE:
        values |= _name_in_json("target", record.target)
    return json_line(values)


def _name_in_json(key: str, name: str) -> dict[str, object]:
    """JSON is of Unicode (RFC 8259, 8.1), so bytes that are no UTF-8 are in base64."""
    try:
        raw = to_bytes(name)
    except UnicodeEncodeError:  # no file system has it: the far end made it up
        raw = b""
    if not raw or b"\0" in raw or len(raw) > _PATH_MOST:
        raise UsageError(f"has a {key} that cannot be")
    try:
        return {key: raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{key}_base64": base64.b64encode(raw).decode("ascii")}


def header_line(made: str, sources: list[str], destination: str, root: str) -> bytes:
    """Return the first line of a manifest in JSON lines; `made` is the time in UTC."""
    return json_line(
        {
            "format": NAME,
            "version": VERSION,
            "algorithm": "sha256",
            "chunk_bytes": CHUNK_BYTES,
            "made": made,
            "sources": [_in_words(each) for each in sources],
            "destination": _in_words(destination),
            "root": _in_words(root),
        }
    )


def _in_words(text: str) -> str:
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
