"""SFTP packets: what is packed is read back, and nothing that comes can hurt."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.sftp.protocol import packets
from pscp.sftp.protocol.packets import Attrs, BadPacket, Cursor, Decoder

U32 = st.integers(0, 0xFFFFFFFF)
ATTRS = st.builds(
    lambda size, owner, mode, times: Attrs(size, owner[0], owner[1], mode, times[0], times[1]),
    st.none() | st.integers(0, 2**64 - 1),
    st.just((None, None)) | st.tuples(U32, U32),
    st.none() | st.integers(0, 0o7777),
    st.just((None, None)) | st.tuples(U32, U32),
)


@given(ATTRS)
def test_attributes_are_read_as_they_were_packed(value: Attrs) -> None:
    cursor = Cursor(memoryview(packets.attrs(value)))
    assert cursor.attrs() == value
    assert cursor.is_over


def test_times_that_sftp_cannot_tell_are_bounded() -> None:
    packed = packets.attrs(Attrs(atime=-5, mtime=1 << 40))
    assert Cursor(memoryview(packed)).attrs() == Attrs(atime=0, mtime=0xFFFFFFFF)


@given(st.lists(st.tuples(U32, st.binary(max_size=300)), max_size=8), st.data())
def test_packets_are_found_however_they_are_cut(
    sent: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(packets.packet(packets.STATUS, id_, payload) for id_, payload in sent)
    decoder, found = Decoder(), []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        space = decoder.space()
        space[:count], stream = stream[:count], stream[count:]
        decoder.filled(count)
        while (answer := decoder.next()) is not None:
            found.append((answer.id, bytes(answer.payload)))
    assert found == sent


def test_a_length_beyond_bounds_is_refused_at_once() -> None:
    decoder = Decoder()
    head = struct.pack(">IBI", packets.MAX_PACKET_BYTES + 1, packets.DATA, 1)
    decoder.space()[: len(head)] = head
    decoder.filled(len(head))
    with pytest.raises(BadPacket):
        decoder.next()


def test_a_name_count_beyond_bounds_is_refused() -> None:
    with pytest.raises(BadPacket):
        list(packets.names(memoryview(struct.pack(">I", 1 << 31))))


def test_a_status_is_the_error_it_means() -> None:
    assert packets.failure(memoryview(packets.number(packets.OK))) is None
    for code, number in ((packets.NO_SUCH_FILE, 2), (packets.PERMISSION_DENIED, 13)):
        error = packets.failure(memoryview(packets.number(code) + packets.text(b"so")))
        assert error is not None and error.errno == number
    error = packets.failure(memoryview(packets.number(packets.FAILURE) + packets.text(b"why")))
    assert error is not None and (error.errno, str(error)) == (None, "why")
