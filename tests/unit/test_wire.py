"""wire.py and hashes.py: frames survive any split of the stream, and garbage is refused; digests.

Read next: test_session.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import pytest
import xxhash
from conftest import unavailable
from hypothesis import given, settings
from hypothesis import strategies as st

from pscp.endpoint.frames import hashes, wire
from pscp.transfer.begin_requests import fastest

Copied = tuple[int, int, int, int, bytes]

types = st.sampled_from(sorted(wire.NAMES))
frames = st.tuples(
    types,
    st.integers(0, 255),
    st.integers(0, 2**64 - 1),
    st.integers(0, wire.MAX_OFFSET),
    st.binary(max_size=200) | st.integers(0, 5000).map(bytes),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters()),  # surrogates too
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def packed(frame: Copied) -> bytes:
    type_, flags, id_, offset, payload = frame
    return wire.frame(type_, payload, id_, offset, flags)


def taken(decoder: wire.Decoder) -> list[Copied]:
    """Every frame that is whole now, copied: a payload is valid only until the next spaces()."""
    found = []
    while (frame := decoder.next()) is not None:
        found.append((frame.type, frame.flags, frame.id, frame.offset, bytes(frame.payload)))
    return found


def decoded(pieces: Iterable[bytes], decoder: wire.Decoder | None = None) -> list[Copied]:
    """As a channel is read: into the room that there is, each time."""
    decoder = decoder or wire.Decoder()
    found = []
    for piece in pieces:
        left = memoryview(piece)
        while left:
            count = 0
            for space in decoder.spaces():  # as readv() fills them
                part = left[count : count + len(space)]
                space[: len(part)] = part
                count += len(part)
            assert count, "a decoder without room would read an end of the stream"
            decoder.filled(count)
            left = left[count:]
            found += taken(decoder)
    return found


def split(data: bytes, places: Iterable[int]) -> list[bytes]:
    cuts = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 2**20), max_size=20), st.booleans())
def test_any_split_of_the_stream_gives_the_same_frames(
    sent: list[Copied], places: list[int], has_place: bool
) -> None:
    data = b"".join(map(packed, sent))
    decoder = wire.Decoder()
    if has_place:
        decoder.place = lambda id_, offset, length: memoryview(bytearray(length))
    assert decoded(split(data, places), decoder) == sent


def test_a_block_is_read_into_its_place() -> None:
    block, room = bytes(range(256)) * 1024, bytearray(1 << 18)
    decoder = wire.Decoder()
    decoder.place = lambda id_, offset, length: memoryview(room)[offset : offset + length]
    data = packed((wire.DATA, 0, 7, 0, block)) + packed((wire.TICK, 0, 0, 0, b""))
    found = decoded([data[:100], data[100:]], decoder)
    assert found == [(wire.DATA, 0, 7, 0, block), (wire.TICK, 0, 0, 0, b"")]
    assert room == block


@settings(max_examples=20)
@given(st.lists(st.integers(0, wire.MAX_PAYLOAD_BYTES), min_size=3, max_size=5), st.data())
def test_large_frames_share_the_decoder_room(lengths: list[int], data: st.DataObject) -> None:
    """Their bytes reach the end of the room, so the front of a frame moves to its beginning."""
    sent: list[Copied] = [
        (wire.DATA, 0, n, 0, bytes([n + 1]) * length) for n, length in enumerate(lengths)
    ]
    stream = b"".join(map(packed, sent))
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=4))
    assert decoded(split(stream, places)) == sent


def test_the_largest_frame_fits_and_a_larger_one_is_refused() -> None:
    largest = wire.frame(wire.DATA, bytes(wire.MAX_PAYLOAD_BYTES))
    assert [len(frame[4]) for frame in decoded([largest])] == [wire.MAX_PAYLOAD_BYTES]
    with pytest.raises(wire.WireError):
        decoded([wire.header(wire.DATA, bytes(wire.MAX_PAYLOAD_BYTES + 1))])


@given(frames, st.data())
def test_a_frame_with_a_wrong_byte_in_its_header_is_no_other_exception(
    frame: Copied, data: st.DataObject
) -> None:
    damaged = bytearray(packed(frame))
    place = data.draw(st.integers(0, wire.HEADER.size - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    try:
        found = decoded([bytes(damaged)])
    except wire.WireError:
        return
    assert found != [frame]


@pytest.mark.parametrize(
    "header",
    [
        wire.header(0, b""),
        wire.header(max(wire.NAMES) + 1, b""),
        wire.HEADER.pack(wire.DATA, 0, 1, 0, 0, 0, 0),
        wire.header(wire.DATA, range(2**32 - 1)),
        wire.header(wire.DATA, b"", offset=2**63),
    ],
    ids=["type 0", "type unknown", "check", "length", "offset"],
)
def test_each_bound_of_the_header_is_checked(header: bytes) -> None:
    decoder = wire.Decoder()
    decoder.feed(header)
    with pytest.raises(wire.WireError):
        decoder.next()


def test_what_is_fed_comes_before_what_is_read() -> None:
    decoder = wire.Decoder()
    first, second = wire.frame(wire.HELLO, b"{}"), wire.frame(wire.TICK)
    decoder.feed(first + second[:5])
    assert decoded([second[5:]], decoder) == [
        (wire.HELLO, 0, 0, 0, b"{}"),
        (wire.TICK, 0, 0, 0, b""),
    ]


# --- JSON


def frame_of(payload: bytes) -> wire.Frame:
    return wire.Frame(wire.REPLY, 0, 0, 0, memoryview(payload))


@given(json_values)
def test_json_survives_whatever_the_names_are(value: object) -> None:
    payload = wire.to_json(value)
    assert payload.isascii()
    # The standard library's own answer: it joins a pair of surrogates into one character.
    assert frame_of(payload).json() == json.loads(json.dumps(value))


# --- packs


@given(json_values, st.lists(st.binary(max_size=50), max_size=6))
def test_a_pack_survives(entries: object, bodies: list[bytes]) -> None:
    found, rest = wire.unpack_payload(memoryview(wire.pack_payload(entries, bodies)))
    assert found == json.loads(json.dumps(entries))
    assert bytes(rest) == b"".join(bodies)


def test_a_pack_that_is_cut_anywhere_in_its_list_is_a_wire_error() -> None:
    whole = wire.pack_payload(["one", 2], [])
    assert wire.unpack_payload(memoryview(whole))[0] == ["one", 2]
    for length in range(len(whole)):
        with pytest.raises(wire.WireError):
            wire.unpack_payload(memoryview(whole)[:length])


def a_block(payload: bytes, flags: int) -> tuple[bytes, bytes]:
    block, check = wire.block_of(wire.Frame(wire.DATA, flags, 7, 0, memoryview(payload)))
    return bytes(block), check


def test_a_block_may_be_followed_by_its_check() -> None:
    check = wire.check_of(b"the digest so far")
    assert (len(check), check.rstrip(b"\0")) == (wire.CHECK_BYTES, b"the digest so far")
    assert a_block(b"block", 0) == (b"block", b"")
    assert a_block(b"block" + check, wire.CHECKED) == (b"block", check)
    with pytest.raises(wire.WireError, match="without its check"):
        a_block(check[1:], wire.CHECKED)


# --- digests, by whichever library


# From XXH3's short inputs (to 240 bytes) over its first stripes to several of its blocks.
contents = st.binary(max_size=600) | st.integers(0, 5000).map(
    lambda n: bytes(i * 31 % 251 for i in range(n))
)


@pytest.fixture(scope="module")
def by_ctypes() -> type:
    found = hashes._xxhash_library()
    if found is None:
        unavailable("no libxxhash is installed")
    assert isinstance(found, type)
    return found


@given(data=contents, places=st.lists(st.integers(0, 5000), max_size=5))
def test_the_c_library_agrees_with_the_package(
    by_ctypes: type, data: bytes, places: list[int]
) -> None:
    writable, readonly = by_ctypes(), by_ctypes()
    for piece in split(data, places):
        writable.update(memoryview(bytearray(piece)))  # as blocks are: by their address
        readonly.update(piece)
    wanted = xxhash.xxh3_128(data).digest()
    assert (writable.digest(), readonly.digest()) == (wanted, wanted)
    for of_all in (data, memoryview(bytearray(data))):
        assert by_ctypes.of(of_all) == hashes.digest_of("xxh3-128", of_all) == wanted  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", hashes.ALGORITHMS)
def test_the_digest_of_a_whole_is_that_of_its_pieces(name: str) -> None:
    hasher = hashes.new(name)
    hasher.update(b"one ")
    hasher.update(b"two")
    assert hashes.digest_of(name, b"one two") == hasher.digest()


def test_two_digests_of_the_c_library_do_not_mix(by_ctypes: type) -> None:
    first, second = by_ctypes(), by_ctypes()
    first.update(b"one")
    second.update(b"two")
    del second
    first.update(b" more")
    assert first.digest() == xxhash.xxh3_128(b"one more").digest()


def test_the_algorithms_are_what_they_are_called() -> None:
    wanted = {
        "sha256": hashlib.sha256(b"pscp").digest(),
        "blake2b": hashlib.blake2b(b"pscp", digest_size=32).digest(),
        "xxh3-128": xxhash.xxh3_128(b"pscp").digest(),
    }
    for name in hashes.ALGORITHMS:
        hasher = hashes.new(name)
        hasher.update(b"pscp")
        assert hasher.digest() == wanted[name]
    assert hashes.STRONG in hashes.ALGORITHMS


def test_the_fastest_is_that_of_the_slower_end() -> None:
    assert fastest({"a": 1000, "b": 100}, {"a": 10, "b": 90}) == "b"
    assert fastest({"a": 1000, "b": 100}, {"b": 1}) == "b"
    assert fastest({"b": 5, "a": 5}, {"a": 5, "b": 5}) == "a"  # the same at both ends
    with pytest.raises(ValueError, match="empty"):
        fastest({"a": 1.0}, {"b": 1.0})
