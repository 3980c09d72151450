"""The frame: its layout, its packing, and the Decoder that finds frames in a byte stream.

A frame is a header of 28 bytes and a payload (all integers big-endian):

    0       1       2       4            8           16          24           28
    +-------+-------+-------+------------+-----------+-----------+------------+---------- - -
    | type  | flags | check | length     | id        | offset    | crc        | payload
    | u8    | u8    | u16   | u32        | u64       | u64       | u32        | length bytes
    +-------+-------+-------+------------+-----------+-----------+------------+---------- - -

`check` is the CRC-16 of the header with zero in its place: a wrong bit in `length` would have the
receiver wait for ever. `crc` is the CRC-32 of what no digest covers: a JSON payload, and the list
of a PACK. SSH protects what is on the network; these find what a faulty memory changed.

`id` names a file in FILE, GET, DATA, DIGEST and ACK, and a request in ASK, REPLY and PACK.

Not here: which frame is legal when (session.py), and any input or output.
Read next: session.py.
"""

import binascii
import json
import struct
import zlib
from typing import (
    TYPE_CHECKING,
    Callable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Sized,
    Tuple,
    Union,
)

if TYPE_CHECKING:
    from typing import Protocol

    from .system import Payload

    class Send(Protocol):
        """A function that sends a frame over a channel."""

        def __call__(
            self, type_: int, id_: int, offset: int, payload: Payload, flags: int = 0
        ) -> None: ...


HEADER = struct.Struct(">BBHIQQI")

# The types of frames. The far end is always of this same version, so numbers may change.
HELLO = 1  # agent: what its machine has (JSON)
ASK = 2  # coordinator: a request (JSON)
REPLY = 3  # agent: its answer (JSON); flag FAILED: an error
FILE = 4  # coordinator: which file `id` is from now on (JSON); empty: it is none
GET = 5  # coordinator: asks for `length` bytes (payload: u32) of file `id` at `offset`
DATA = 6  # source: a block of file `id` at `offset`
DIGEST = 7  # source: the chunk is complete: its length, then its digest; FAILED: an error
ACK = 8  # sink: the chunk is written and matches: LANDED; FAILED: an error; flag MISMATCH
PACK = 9  # source: small files, whole: u32 length of a JSON list, the list, their bytes
TICK = 10  # agent: it still runs
REFUSED = 11  # agent: why it ends, as its last frame (JSON)

_IN_ORDER = "HELLO ASK REPLY FILE GET DATA DIGEST ACK PACK TICK REFUSED"
NAMES = dict(enumerate(_IN_ORDER.split(), HELLO))

FAILED = 1  # flag: the payload is an error, as JSON
MISMATCH = 2  # flag of ACK: what arrived does not have the digest that was sent
CHECKED = 4  # flag of DATA: the block is followed by a check

STREAM_GONE = "the far end of the stream is gone"  # a REFUSED: it went with its agent

CHECK_BYTES = 32  # the digest of a chunk up to here, and zeros: SHA-256 has 32, others fewer

COUNT = struct.Struct(">I")
LANDED = struct.Struct(">IQ")  # a chunk's length in bytes, and the sink's receipt for it

# A receipt tells which part a chunk was written to: the inode number of the part. In a stream it is
# the number of chunks that were written. 0: the chunk was not written.
SOME_PART = 1  # the receipt where nothing tells one part from another

# The largest block is 1 MiB (options/connection_options.py); a JSON payload is cut to fit in
# the same room.
MAX_PAYLOAD_BYTES = (1 << 20) + (1 << 16)
MAX_FRAME_BYTES = HEADER.size + MAX_PAYLOAD_BYTES
MAX_OFFSET = (1 << 63) - 1  # off_t
MAX_TIME_NS = MAX_OFFSET * 10**9  # time_t; a broken clock has left files of the year 2446
# Random ones, which tell where a login's output ends and an agent's begins; but for the last, which
# says whether a HELLO is to follow.
MARKER_BYTES = 16
WITH_HELLO, WITHOUT_HELLO = b"\1", b"\0"
PROTOCOL_STATUS = 99  # the exit status of an agent that was sent what is no frame


class WireError(Exception):
    """Raised where the peer sent bytes that are no frame, or a frame that is not allowed here."""


class Frame(NamedTuple):
    """A frame that was received. The payload is valid until the Decoder's next space()."""

    type: int
    flags: int
    id: int
    offset: int
    payload: memoryview

    @property
    def name(self) -> str:
        return NAMES[self.type]

    def json(self) -> object:
        """Return the payload's JSON value. Raises WireError."""
        return _parse_json(self.payload, self.type)

    def number(self) -> int:
        """Return the number that the payload begins with. Raises WireError."""
        return _count(self.payload, self.type)


def _count(payload: memoryview, type_: int) -> int:
    if len(payload) < COUNT.size:
        raise WireError("a short %s frame" % NAMES[type_])
    return int(COUNT.unpack_from(payload)[0])


def _parse_json(text: memoryview, type_: int) -> object:
    try:
        return json.loads(bytes(text).decode("ascii"))
    except (ValueError, RecursionError):
        raise WireError("a %s frame holds no JSON" % NAMES[type_])


def header(type_: int, payload: Sized, id_: int = 0, offset: int = 0, flags: int = 0) -> bytes:
    """Return the 28 bytes before this payload, of which only the length matters for DATA."""
    fields = (len(payload), id_, offset, zlib.crc32(_covered(type_, flags, payload)))
    return HEADER.pack(type_, flags, _check(type_, flags, fields), *fields)


def _check(type_: int, flags: int, fields: Sequence[int]) -> int:
    return binascii.crc_hqx(HEADER.pack(type_, flags, 0, *fields), 0)


def _covered(type_: int, flags: int, payload: Sized) -> Union[bytes, memoryview]:
    """Return the part of a payload that the crc covers; a digest covers the rest."""
    if type_ == DATA or (type_ == DIGEST and not flags):
        return b""
    assert isinstance(payload, (bytes, memoryview))
    if type_ == PACK and len(payload) >= COUNT.size:
        return payload[: COUNT.size + COUNT.unpack_from(payload)[0]]
    return payload


def frame(type_: int, payload: bytes = b"", id_: int = 0, offset: int = 0, flags: int = 0) -> bytes:
    """Return a small frame in one piece."""
    return header(type_, payload, id_, offset, flags) + payload


def check_of(digest: bytes) -> bytes:
    """Return the check that follows a block: the digest of its chunk up to the block's end."""
    return digest.ljust(CHECK_BYTES, b"\0")


def block_of(frame: Frame) -> Tuple[memoryview, bytes]:
    """Return the block of a DATA frame, and its check; b"" where it has none."""
    if not frame.flags & CHECKED:
        return frame.payload, b""
    if len(frame.payload) < CHECK_BYTES:
        raise WireError("a DATA frame without its check")
    return frame.payload[:-CHECK_BYTES], bytes(frame.payload[-CHECK_BYTES:])


def to_json(value: object) -> bytes:
    """Return JSON in ASCII; a path's undecodable bytes (surrogateescape) become \\udcXX."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def pack_payload(entries: object, bodies: List[bytes]) -> bytes:
    """Return the payload of a PACK frame: the files' list, then their bytes end to end."""
    listed = to_json(entries)
    return b"".join([COUNT.pack(len(listed)), listed, *bodies])


def unpack_payload(payload: memoryview) -> Tuple[object, memoryview]:
    """Return what pack_payload() packed: the files' list, and their bytes as one view."""
    end = COUNT.size + _count(payload, PACK)
    return _parse_json(payload[COUNT.size : end], PACK), payload[end:]


TRICKLE_BYTES = 64 * 1024
# A reader waits so long where bytes come in small pieces, each of which costs a system call and a
# turn of CPython's lock. The pipe has room for what comes meanwhile, at up to 1 GB/s.
GATHER_S = 0.001
# What is read together with a block: a DIGEST frame, with 16 bytes of digest, and a header.
_NEXT_BYTES = 2 * HEADER.size + COUNT.size + 16

# Returns where a block of this (id, offset, length in bytes) is to be read to; None: nowhere.
Place = Callable[[int, int, int], Optional[memoryview]]


class Decoder:
    """Finds frames in a byte stream, without copying payloads.

    Read into spaces(), call filled() with the number of bytes, then next() until it returns None.
    With a `place`, a block that has not arrived whole is read to where that says.
    """

    def __init__(self) -> None:
        self.place: Optional[Place] = None
        self._view = memoryview(bytearray(MAX_FRAME_BYTES))
        self._start = 0  # where the frames that next() has not returned begin
        self._end = 0  # where the received bytes end
        self._block: Optional[Frame] = None  # the DATA frame that is read into its place
        self._missing = 0  # bytes of that block

    def spaces(self) -> List[memoryview]:
        """Return where the next bytes go. Frames that next() returned are invalid from here on."""
        if self._block is None and not self._begin_block():
            return [self.space()]
        assert self._block is not None
        left = self._block.payload[len(self._block.payload) - self._missing :]
        return [left, self._view[:_NEXT_BYTES]]

    def _begin_block(self) -> bool:
        """Begin to read the payload at the front into its place. False where it has none."""
        kept_bytes = self._end - self._start - HEADER.size
        if self.place is None or kept_bytes < 0 or self._view[self._start] != DATA:
            return False
        type_, flags, length, id_, offset, _ = self._front()
        place = self.place(id_, offset, length)
        if place is None:
            return False
        place[:kept_bytes] = self._view[self._end - kept_bytes : self._end]
        self._block, self._missing = Frame(type_, flags, id_, offset, place), length - kept_bytes
        self._start = self._end = 0
        return True

    def space(self) -> memoryview:
        """Return one place for the next bytes, for a caller that has read them already."""
        kept_bytes = self._end - self._start
        if kept_bytes == 0:
            self._start = self._end = 0
        elif self._start and len(self._view) - self._start < self._wanted():
            self._view[:kept_bytes] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, kept_bytes
        return self._view[self._end :]

    def _wanted(self) -> int:
        """Return the bytes of the frame at the front, as far as its length is known."""
        if self._end - self._start < HEADER.size:
            return HEADER.size
        length: int = HEADER.unpack_from(self._view, self._start)[3]
        return HEADER.size + length

    def filled(self, count_bytes: int) -> None:
        """Note that so many bytes were read into spaces()."""
        of_block = min(count_bytes, self._missing)
        self._missing -= of_block
        self._end += count_bytes - of_block

    def feed(self, data: bytes) -> None:
        """Add bytes that were read elsewhere, no more than there is space() for."""
        self.space()[: len(data)] = data
        self.filled(len(data))

    def rest(self) -> bytes:
        """Return what was received after the last frame, and forget it."""
        view = self._view[self._start : self._end]
        self._start = self._end
        return bytes(view)

    def is_trickling(self, count_bytes: int) -> bool:
        """Were the `count_bytes` read last few, and are many more bytes of their block missing?

        Never of a pack: while the sink works on one, enough of the next one arrives.
        """
        if self._block is not None:
            return count_bytes < TRICKLE_BYTES < self._missing
        missing_bytes = self._wanted() - (self._end - self._start)
        return count_bytes < TRICKLE_BYTES < missing_bytes and self._view[self._start] == DATA

    def next(self) -> Optional[Frame]:
        """Return the next whole frame, or None. Raises WireError for bytes that are none."""
        if self._block is not None:
            block = self._block
            if self._missing:
                return None
            self._block = None
            return block
        if self._end - self._start < HEADER.size:
            return None
        type_, flags, length, id_, offset, crc = self._front()
        begin = self._start + HEADER.size
        if begin + length > self._end:
            return None
        self._start = begin + length
        payload = self._view[begin : begin + length]
        if crc != zlib.crc32(_covered(type_, flags, payload)):
            raise WireError("a %s frame arrived damaged" % NAMES[type_])
        return Frame(type_, flags, id_, offset, payload)

    def _front(self) -> Tuple[int, int, int, int, int, int]:
        """Return the header at the front: type, flags, length, id, offset, crc."""
        type_, flags, check, *fields = HEADER.unpack_from(self._view, self._start)
        length, id_, offset, crc = fields
        if (
            check != _check(type_, flags, fields)
            or type_ not in NAMES
            or length > MAX_PAYLOAD_BYTES
            or offset > MAX_OFFSET
        ):
            shown = bytes(self._view[self._start :][: HEADER.size])
            raise WireError("these bytes are no frame: %r" % shown)
        return type_, flags, length, id_, offset, crc
