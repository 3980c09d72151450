"""machine.py: every byte is written, in whatever pieces the pipe takes it, by copy or by splice.

Read next: pscp/endpoint/frames/system.py.
"""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pscp.endpoint.frames import system
from pscp.endpoint.there import kernel

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


@settings(max_examples=20)
@given(st.lists(st.integers(0, 100_000).map(lambda n: CONTENT[:n]), min_size=1, max_size=4))
def test_all_parts_are_written_in_order(parts: list[bytes]) -> None:
    assert piped(lambda fd: system.write_all(fd, list(parts))) == b"".join(parts)


@pytest.fixture
def block(tmp_path: Path) -> Iterator[system.Block]:
    """A block that was read from offset 1000 on."""
    (tmp_path / "file").write_bytes(CONTENT)
    fd = os.open(tmp_path / "file", os.O_RDWR)
    yield system.Block(memoryview(CONTENT)[1000:], fd, 1000)
    os.close(fd)


@pytest.mark.parametrize("has_splice", [True, False])
@pytest.mark.parametrize("size", [len(CONTENT), 5000], ids=["whole", "cut short meanwhile"])
def test_a_frame_keeps_its_length(
    block: system.Block, monkeypatch: pytest.MonkeyPatch, has_splice: bool, size: int
) -> None:
    monkeypatch.setattr(system, "_CAN_SPLICE", has_splice and system._CAN_SPLICE)
    os.ftruncate(block.fd, size)
    assert piped(lambda fd: system.send(fd, b"header", block)) == b"header" + CONTENT[1000:]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO, errno.ENOSYS])
def test_a_frame_keeps_its_length_when_splice_gives_up_half_way(
    block: system.Block, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    if not system._CAN_SPLICE:
        pytest.skip("no splice here")
    splice, calls = os.splice, iter(range(2))

    def once(*args: int, **named: int) -> int:
        if next(calls):
            raise OSError(number, "no")
        return splice(args[0], args[1], 4096, **named)

    monkeypatch.setattr(os, "splice", once)
    assert piped(lambda fd: system.send(fd, b"header", block)) == b"header" + CONTENT[1000:]


def test_a_broken_pipe_is_told(block: system.Block) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with pytest.raises(BrokenPipeError):
        system.send(write_fd, b"header", block)
    os.close(write_fd)


# --- what --measure asks


def test_the_cpu_time_of_no_process_is_unknown() -> None:
    assert system.cpu_seconds(1 << 30) is None


def test_settings_of_freebsd_are_asked_of_sysctl(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that this kernel does not have is left out."""

    def asked(argv: list[str], **_: object) -> bytes:
        if argv[-1] == "net.inet.tcp.cc.algorithm":
            return b"cubic\n"
        raise subprocess.CalledProcessError(1, argv)

    monkeypatch.setattr(os, "uname", lambda: ("FreeBSD", "", "", "", ""))
    monkeypatch.setattr(subprocess, "check_output", asked)
    assert kernel.kernel_settings() == {"net.inet.tcp.cc.algorithm": "cubic"}
