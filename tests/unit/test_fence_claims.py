"""The fence on a real file system: claims at the same time, and what others put in its place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

from pscp.endpoint import fence

TOKEN, NONCES = "70707070", ("11111111", "22222222")


@pytest.fixture
def root_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_of_two_claims_at_the_same_time_one_finds_the_other(root_fd: int) -> None:
    """A5: descriptors of one process exclude each other as those of two machines' agents do."""

    def claim(nonce: str) -> str:
        together.wait()
        return str(fence.claim(root_fd, TOKEN, nonce, [])["held"])

    with ThreadPoolExecutor(2) as both:
        for _ in range(100):
            together = Barrier(2)
            held = list(both.map(claim, NONCES))
            assert sorted(map(bool, held)) == [False, True]
            for nonce in NONCES:
                fence.release(root_fd, TOKEN, nonce)
            assert not os.listdir(root_fd)


def test_a_file_of_ours_that_another_user_linked_there_stays(root_fd: int, tmp_path: Path) -> None:
    """B2: whoever may write to the folder makes a hard link; the fence then lies elsewhere."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    os.link(precious, tmp_path / os.fsdecode(fence.fence_name(TOKEN)))
    assert fence.claim(root_fd, TOKEN, NONCES[0], []) == {"held": "", "earlier": [], "folds": False}
    fence.Fence(root_fd, TOKEN, NONCES[0], 0).close()
    fence.release(root_fd, TOKEN, NONCES[0])
    assert precious.read_text() == "precious"


def test_lanes_that_hold_it_in_turn_leave_a_gap(root_fd: int) -> None:
    """A lost lane is told off, and none of the others ended, while sixteen are at work."""
    fence.claim(root_fd, TOKEN, NONCES[0], [])
    is_over = Event()

    def work(lane: int) -> None:
        with contextlib.closing(fence.Fence(root_fd, TOKEN, NONCES[0], lane)) as mine:
            while not is_over.is_set():
                with mine.held():
                    is_over.wait(0.01)  # as the renames of a pack may take

    with ThreadPoolExecutor(16) as lanes:
        working = [lanes.submit(work, lane) for lane in range(16)]
        try:
            fence.revoke(root_fd, TOKEN, NONCES[0], 99)
        finally:
            is_over.set()
        for each in working:
            each.result()
    fence.release(root_fd, TOKEN, NONCES[0])
