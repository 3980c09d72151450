"""hashes.py: every way to a digest gives the same digest, whatever the pieces.

Read next: pscp/endpoint/frames/hashes.py.
"""

from __future__ import annotations

import hashlib

import pytest
import xxhash
from conftest import unavailable
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.frames import hashes

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


def pieces_of(data: bytes, places: list[int]) -> list[bytes]:
    cuts = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(data=contents, places=st.lists(st.integers(0, 5000), max_size=5))
def test_the_c_library_agrees_with_the_package(
    by_ctypes: type, data: bytes, places: list[int]
) -> None:
    writable, readonly = by_ctypes(), by_ctypes()
    for piece in pieces_of(data, places):
        writable.update(memoryview(bytearray(piece)))  # as blocks are: by their address
        readonly.update(piece)
    wanted = xxhash.xxh3_128(data).digest()
    assert (writable.digest(), readonly.digest()) == (wanted, wanted)


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


def test_speeds_are_positive_and_of_every_algorithm() -> None:
    speeds = hashes.speeds()
    assert speeds.keys() == hashes.ALGORITHMS.keys()
    assert all(speed > 0 for speed in speeds.values())


def test_the_fastest_is_that_of_the_slower_end() -> None:
    assert hashes.fastest({"a": 1000, "b": 100}, {"a": 10, "b": 90}) == "b"
    assert hashes.fastest({"a": 1000, "b": 100}, {"b": 1}) == "b"
    assert hashes.fastest({"b": 5, "a": 5}, {"a": 5, "b": 5}) == "a"  # the same at both ends
    with pytest.raises(ValueError, match="empty"):
        hashes.fastest({"a": 1.0}, {"b": 1.0})
