"""machine.py: every byte is written, in whatever pieces the pipe takes it, by copy or by splice.

Read next: pscp/endpoint/machine.py.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pscp.endpoint import machine

CONTENT = os.urandom(300_000)  # more than a pipe holds


def piped(write: Callable[[int], None]) -> bytes:
    """What arrives at the other end of a pipe, read in small pieces meanwhile."""
    read_fd, write_fd = os.pipe()
    found: list[bytes] = []

    def read() -> None:
        while data := os.read(read_fd, 3000):
            found.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        write(write_fd)
    finally:
        os.close(write_fd)
        reader.join()
        os.close(read_fd)
    return b"".join(found)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 100_000).map(lambda n: CONTENT[:n]), min_size=1, max_size=4))
def test_all_parts_are_written_in_order(parts: list[bytes]) -> None:
    assert piped(lambda fd: machine.write_all(fd, list(parts))) == b"".join(parts)


@pytest.fixture
def block(tmp_path: Path) -> Iterator[machine.Block]:
    """A block that was read from offset 1000 on."""
    (tmp_path / "file").write_bytes(CONTENT)
    fd = os.open(tmp_path / "file", os.O_RDWR)
    yield machine.Block(memoryview(CONTENT)[1000:], fd, 1000)
    os.close(fd)


def test_a_block_is_sent_after_its_header(block: machine.Block) -> None:
    assert piped(lambda fd: machine.send(fd, b"header", block)) == b"header" + CONTENT[1000:]


def test_a_block_is_sent_where_the_kernel_has_no_splice(
    block: machine.Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_CAN_SPLICE", False)
    assert piped(lambda fd: machine.send(fd, b"header", block)) == b"header" + CONTENT[1000:]


def test_a_frame_keeps_its_length_when_the_file_is_cut_short_meanwhile(
    block: machine.Block,
) -> None:
    os.ftruncate(block.fd, 5000)
    assert piped(lambda fd: machine.send(fd, b"header", block)) == b"header" + CONTENT[1000:]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO, errno.ENOSYS])
def test_a_frame_keeps_its_length_when_splice_gives_up_half_way(
    block: machine.Block, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    if not machine._CAN_SPLICE:
        pytest.skip("no splice here")
    splice, calls = os.splice, iter(range(2))

    def once(*args: int, **named: int) -> int:
        if next(calls):
            raise OSError(number, "no")
        return splice(args[0], args[1], 4096, **named)

    monkeypatch.setattr(os, "splice", once)
    assert piped(lambda fd: machine.send(fd, b"header", block)) == b"header" + CONTENT[1000:]


def test_a_broken_pipe_is_told(block: machine.Block) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with pytest.raises(BrokenPipeError):
        machine.send(write_fd, b"header", block)
    os.close(write_fd)
