"""The readers of bytes that need no far end: what they may raise for any input, and what holds.

Each function takes an input, and raises whatever its reader is not allowed to raise; or an
AssertionError where something else does not hold.

Not here: both ends of a copy (ends.py).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from fuzz import scratch
from pscp import UsageError
from pscp.connect.bootstrap import MISSHAPEN
from pscp.connect.known.host_memory import HostMemory
from pscp.endpoint.asking import entries
from pscp.endpoint.frames import failures, wire
from pscp.endpoint.frames.session import COORDINATOR, Arriving, Session
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.files import Identity
from pscp.endpoint.reading.rows import unpack
from pscp.endpoint.there import listings
from pscp.endpoint.there.listings import listing as checked_listing
from pscp.endpoint.writing import fence
from pscp.ground import locations, state, values
from pscp.ground.errors import BadManifest
from pscp.ground.locations import Location
from pscp.jobs.toml.config import load
from pscp.manifests.formats import Manifest
from pscp.options import attributes, filters
from pscp.options.attributes import parse_modes, parse_owner
from pscp.options.options import Options, with_fields
from pscp.sftp.protocol import packets, tasks
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.event_loop import Loop
from pscp.sftp.protocol.packets import Attrs, SftpError
from pscp.stream.pipe import checked_report
from pscp.transfer.pieces import answers
from pscp.transfer.terms.journal import Journal
from pscp.transfer.walk import decide
from pscp.transfer.walk.folder_check import differing
from pscp.transports.mux_protocol import MuxMaster

Seen = tuple[int, int, int, int, bytes]


# --- frames


def frames(data: bytes) -> None:
    """The decoder finds the same frames however the bytes are cut; all that reads one refuses."""
    choice, stream = data[:2].ljust(2, b"\0"), data[2:]
    if choice[0] & 1:
        stream = with_right_checks(stream)
    whole = decoded(stream, len(stream) or 1, False)
    pieces = decoded(stream, max(1 + choice[1], len(stream) // 100), bool(choice[0] & 2))
    assert whole == pieces
    session, arriving = Session(COORDINATOR), Arriving()
    for type_, flags, id_, offset, payload in whole[0]:
        found = wire.Frame(type_, flags, id_, offset, memoryview(payload))
        with contextlib.suppress(wire.WireError):
            session.check(found)
        with contextlib.suppress(wire.WireError):
            block, check = wire.block_of(found)
            assert len(block) + len(check) == len(payload)
            arriving.block(id_, offset, len(block), 1 << 20)
        with contextlib.suppress(wire.WireError):
            failures.parse_failure(found.json())
        with contextlib.suppress(wire.WireError):
            listed, bodies = wire.unpack_payload(found.payload)
            entries.check_sizes(*entries.parse_pack(listed), len(bodies))


def with_right_checks(stream: bytes) -> bytes:
    """Return the stream with the checks that its frames should have, as far as there are any."""
    found, at = [], 0
    while at + wire.HEADER.size <= len(stream):
        type_, flags, _, length, id_, offset, _ = wire.HEADER.unpack_from(stream, at)
        payload = stream[at + wire.HEADER.size :][:length]
        with contextlib.suppress(struct.error):
            found.append(wire.frame(type_, payload, id_, offset, flags))
        at += wire.HEADER.size + len(payload)
    return b"".join([*found, stream[at:]])


_ROOM = memoryview(bytearray(wire.MAX_PAYLOAD_BYTES))


def decoded(stream: bytes, step: int, has_place: bool) -> tuple[list[Seen], bool]:
    """Return the frames of a stream that comes in pieces, and whether it was refused."""
    decoder, found = wire.Decoder(), []
    if has_place:
        decoder.place = lambda id_, offset, length: _ROOM[:length] if id_ & 1 else None
    try:
        while stream:
            left = stream[:step]
            stream = stream[step:]
            for space in decoder.spaces():
                count = min(len(space), len(left))
                space[:count] = left[:count]
                left = left[count:]
                decoder.filled(count)
                if not left:
                    break
            stream = left + stream
            decoder.is_trickling(step)
            while (frame := decoder.next()) is not None:
                found.append((*frame[:4], bytes(frame.payload)))
    except wire.WireError:
        return found, True
    return found, False


# --- answers


def _said(value: Any) -> None:
    """What is said of a failure travels on, and is printed."""
    answer = failures.parse_failure(value)
    json.dumps(answer).encode("ascii")
    assert answer["kind"] in failures.KINDS and len(answer["path"]) <= 8192
    assert len(answer["message"]) <= 1024 and abs(answer["errno"]) < 1 << 31


def decided(there: decide.There) -> None:
    entry = tree.Entry(tree.FILE, 0, "a", 5, 0o644, 10**18, 1, {})
    assert decide.decide(entry, there, decide.Rules.of(Options())) in decide.Action
    assert decide.difference(entry, there, decide.Rules.of(Options())) is not None


ANSWERS: dict[str, Callable[[Any], object]] = {
    "failure": _said,
    "places": answers.places,
    "extents": lambda value: answers.extents(value, 0, 1 << 30),
    "digests": lambda value: answers.digests(value, [[(0, 1)]]),
    "texts": answers.texts,
    "there": lambda value: decided(decide.parse_lookup_row(value)),
    "entry": entries.entry,
    "rows": lambda value: entries.check_sizes(*entries.parse_pack(value), 5),
    "heard": checked_report,
    "listing": checked_listing,
    "differing": lambda value: differing(checked_listing(value[0]), value[1]),
}


def answer(data: bytes) -> None:
    """Each line is the name of a check, and the answer that it is given."""
    for line in data.split(b"\n"):
        with contextlib.suppress(*MISSHAPEN):
            value: Any = wire.Frame(wire.REPLY, 0, 0, 0, memoryview(line)).json()
            name, answered = value
            ANSWERS[name](answered)


def listing(data: bytes) -> None:
    """A listing is refused, or compared with a folder, and is what a packed one says."""
    text = data[1:].decode("latin-1")
    if data[:1] > b"\x0f":  # else no change would get through what it is packed in
        text = base64.b64encode(zlib.compress(data[1:], 1)).decode()
    try:
        rows = unpack(text)
    except wire.WireError:
        return
    assert len(rows.names) == len(rows.modes) == len(rows.sizes) == len(rows.mtimes_ns)
    assert unpack(rows.pack()) == rows
    folder_fd = os.open(scratch.folder(), os.O_RDONLY)
    try:
        listings._differing(folder_fd, rows, (-1, -1), archive=True)
    finally:
        os.close(folder_fd)


# --- files of this machine


def journal(data: bytes) -> None:
    """Whatever a journal says, it is read; what it knows of a file is inside that file."""
    path = scratch.state_folder() / "key.journal"
    path.write_bytes(data)
    found = Journal("key")
    identity = Identity(1000, 5, 7)
    for name in ["a", *found.unwanted()]:
        found.knows_another(name, identity)
        landed = found.landed(name, identity)
        if landed is not None:
            end = 0
            assert type(landed.algorithm) is str
            for (offset, length), digest in landed.digests.items():
                assert end <= offset < offset + length <= 1000 and type(digest) is str
                assert type(offset) is type(length) is int
                end = offset + length
    found.run("0123")
    number = found.file("new", identity, "sha256", "zeros")
    found.chunk(number, 0, 10, "00")
    found.close(complete=False)
    again = Journal("key")
    assert again.runs[-1] == "0123"
    after = again.landed("new", identity)
    assert after is not None and after.digests.get((0, 10)) == "00"
    assert after.runs == {"0123": "zeros"}
    again.close(complete=True)


def manifest(data: bytes) -> None:
    """The first byte chooses the form. The records are all read twice, and say the same."""
    names = ("m.jsonl", "SHA256SUMS", "manifest-sha256.txt")
    path = scratch.folder() / names[data[0] % 3 if data else 0]
    path.write_bytes(data[1:])
    try:
        found = Manifest(str(path))
    except BadManifest as error:
        assert len(error.message) < 2000 and "\x1b" not in error.message
        return
    with contextlib.closing(found):
        records = list(found.records())
        assert {record.path for record in records} == found.paths
        for record in records:
            assert not record.path.startswith("/") and ".." not in record.path.split("/")
            assert record.kind != "file" or re.fullmatch("[0-9a-f]{64}", record.digest)
            assert "\0" not in record.target and (record.kind == "link") is bool(record.target)


def memory(data: bytes) -> None:
    """What is remembered of a host, in a file that anything may have written."""
    scratch.state_folder()
    host, options = Location("h:", "", "h"), Options()
    state.remember_entry("hosts", host.login, HostMemory(host, options)._key(), {})
    [path] = (scratch.state_folder() / "hosts").iterdir()
    key = json.dumps(ascii(HostMemory(host, options)._key())).encode()
    path.write_bytes(data.replace(b"NOW", str(time.time()).encode()).replace(b"KEY", key))
    for is_push in (True, False):
        known = HostMemory(host, options).recall(is_push)
        assert 0 <= known.logins_at_once <= 1024 and 0 <= known.lanes <= 1024
        known.believed(2), known.lanes_bytes_s, known.after(8, 1e9, 4), known.over(0.1, 2, "")
        HostMemory(host, options).remember(is_push, known.after(3, 1e6, 4))
    connections, cipher = HostMemory(host, options).advice()
    HostMemory(host, options).advice_lines(cipher)
    assert 0 <= connections <= 1024 and not cipher.startswith("-")
    HostMemory(host, options).uses_sftp(), HostMemory(host, options).refuses_direct()
    HostMemory(host, options).asks()
    assert HostMemory(host, options).save_advice(2, "x")


def fences(data: bytes) -> None:
    """Whatever is in a fence: it has a state, and a run can claim what nobody owns."""
    found = fence.state_of(data)
    assert isinstance(found["run"], str) and all(isinstance(n, int) for n in found["lost"])
    answer, after = fence.decide([found], "new", [])
    assert (after is None) == bool(answer["held"])
    root = scratch.folder()
    (root / ".01234567.pscp-run").write_bytes(data)
    (root / ".01234567.pscp-run").chmod(0o600)
    fd = os.open(root, os.O_RDONLY)
    try:
        claimed = fence.claim(fd, "01234567", "new", [found["run"]])
        assert not claimed["held"]
        fence.revoke(fd, "01234567", "new", 3)
        fence.release(fd, "01234567", "new")
        assert os.listdir(fd) == []
    finally:
        os.close(fd)


def jobs(data: bytes) -> None:
    """jobs.toml: its jobs, or an error with a line."""
    path = scratch.folder() / "jobs.toml"
    path.write_bytes(data)
    try:
        load(str(path))
    except UsageError as error:
        for line in error.message.split("\n"):
            assert re.fullmatch(rf"{re.escape(str(path))}:[0-9]+: [^\n]+", line), line


# --- what is typed


def _matched(text: str) -> None:
    """An expression is one, and takes no time that grows by leaps."""
    compiled = tree.compiled(filters.regexes([("exclude", text[:60]), ("include", "*")]))
    begun_s = time.process_time()
    for path in ("a", "a/b.o", "a" * 250, "ab/" * 80 + "c", text[:100].replace("\0", "")):
        with contextlib.suppress(UnicodeEncodeError):
            tree.is_excluded(compiled, path, False)
    assert time.process_time() - begun_s < 2.0, "a filter that never ends"


TYPED: dict[str, Callable[[str], object]] = {
    "size": lambda text: values.parse_size(text, "x"),
    "ports": values.parse_ports,
    "cpus": values.parse_cpus,
    "seconds": lambda text: values.parse_seconds(text, "x"),
    "rate": values.parse_kbit_s,
    "number": lambda text: values.parse_number(text, "x"),
    "address": lambda text: values.check_address("x", text),
    "modes": lambda text: parse_modes(text, 0o022),
    "owner": lambda text: [attributes.known_id(each) for each in parse_owner(text)],
    "location": locations.parse_location,
    "host": locations.parse_host,
    "filter": _matched,
}


def typed(data: bytes) -> None:
    """Each line is a kind of value and a text as typed, or a field of Options and its value."""
    for line in data.split(b"\n"):
        try:
            name, value = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if not isinstance(name, str):
            continue
        with contextlib.suppress(UsageError):
            if name in TYPED:
                TYPED[name](os.fsdecode(str(value).encode("utf-8", "surrogatepass")))
            else:
                given = tuple(value) if isinstance(value, list) else value
                with_fields(Options(), {name: given})


# --- answers of other programs


def mux(data: bytes) -> None:
    """What an ssh answers at its socket."""
    here, there = socket.socketpair()
    with here, there:
        there.settimeout(1)
        master = object.__new__(MuxMaster)
        master._socket = here
        there.sendall(data[1:][:100_000])
        there.shutdown(socket.SHUT_WR)
        calls = (master.wait_for_session, master.wait_for_exit, master.receive)
        with contextlib.suppress(OSError):
            while True:
                calls[data[0] % 3 if data else 0](0.5)


def sftp(data: bytes) -> None:
    """Answers of an SFTP server, to requests of every kind. The first byte: lengths made right?"""
    stream = _with_right_lengths(data[1:]) if data[:1] > b"\x7f" else data[1:]
    with _client() as client:
        asked = _questions(client)
        decoder = client._decoder
        step = 1 + (data[0] if data else 0) % 64 * 16
        try:
            while stream:
                space = decoder.space()
                count = min(step, len(space), len(stream))
                assert count, "no room for the next bytes"
                space[:count], stream = stream[:count], stream[count:]
                decoder.filled(count)
                decoder.is_trickling(count)
                client._take_all()
        except packets.BadPacket:
            pass
        for future in asked:
            if future.done():
                with contextlib.suppress(SftpError, packets.BadPacket):
                    _use(future.result())
        assert client.write_bytes > 0 and client.read_bytes > 0


def _with_right_lengths(stream: bytes) -> bytes:
    found, at = b"", 0
    while at + 9 <= len(stream):
        length = min(int.from_bytes(stream[at : at + 4], "big"), len(stream) - at - 4)
        found += struct.pack(">I", length) + stream[at + 4 : at + 4 + length]
        at += 4 + max(length, 5)
    return found


@contextlib.contextmanager
def _client() -> Iterator[Client]:
    ends = [*os.pipe(), *os.pipe()]
    try:
        yield Client(ends[0], ends[3], Loop())
    finally:
        for fd in ends:
            os.close(fd)


def _questions(client: Client) -> list[tasks.Future[Any]]:
    """Ask for one of each kind; their numbers are 1, 2, and so on."""
    client.extensions = {b"statvfs@openssh.com": b"2", b"limits@openssh.com": b"1"}
    asked: list[tasks.Future[Any]] = [
        client.lstat(b"a"), client.open(b"a", 1), client.readdir(b"h"), client.realpath(b"."),
        client.readlink(b"l"), client.opendir(b"d"), client.remove(b"f"), client.fstat(b"h"),
        tasks.start(client.get_limits()), tasks.start(client.filesystem(b"b")),
        tasks.start(client.filesystem(b"a")), *client.write(b"h", 0, memoryview(b"x" * 100)),
    ]  # fmt: skip
    landed = tasks.Future[Any]()
    client.read(b"h", 0, 100, lambda view, error: None if landed.done() else landed.set_result(1))
    return [*asked, landed]


def _use(value: object) -> None:
    for each in value if isinstance(value, list) else [value]:
        attrs = each[1] if isinstance(each, tuple) and len(each) == 2 else each
        if isinstance(attrs, Attrs):
            assert attrs.kind and abs(attrs.mtime_ns) < 1 << 63
            packets.attrs(attrs)
