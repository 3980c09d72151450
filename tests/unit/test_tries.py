"""The tries of a task of a cluster: what an earlier one sends late changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pscp.endpoint.frames import failures
from pscp.endpoint.serving.end import End
from pscp.endpoint.writing import fence, tries

TOKEN, RUN = "0123456789abcdef", "aaaaaaaa"


@pytest.fixture
def root_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    fence.claim(fd, TOKEN, RUN, [])
    yield fd
    os.close(fd)


def begin_try(root: Path, task: int, run: str = RUN) -> object:
    found: list[tuple[object, bool]] = []
    request = tries.BeginTry(str(root), TOKEN, run, task)
    End(0).answer(request, lambda answer, is_failed: found.append((answer, is_failed)))
    [(answer, is_failed)] = found
    return failures.parse_failure(answer)["kind"] if is_failed else answer


def may_change(root_fd: int, lane: int) -> bool:
    own = fence.Fence(root_fd, TOKEN, RUN, lane)
    try:
        with own.held():
            return True
    except failures.Refusal:
        return False
    finally:
        own.close()


def test_a_further_try_shuts_out_those_before_it(root_fd: int, tmp_path: Path) -> None:
    numbers = [begin_try(tmp_path, 1)]
    other = begin_try(tmp_path, 2)
    for _ in range(3):
        numbers.append(begin_try(tmp_path, 1))
        *before, last = (number for number in numbers if isinstance(number, int))
        assert isinstance(other, int)
        # Each has lanes from its number on; those of other tasks, and the coordinator's, go on.
        assert [may_change(root_fd, number + 5) for number in before] == [False] * len(before)
        assert all(may_change(root_fd, lane) for lane in (last + 1, last + 900, other + 1, 1, 2))


def test_a_lane_may_begin_while_the_state_gets_shorter(
    root_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads it unlocked, and found the end of a longer one: "another run has taken over"."""
    for number in range(1, 6):
        fence.revoke(root_fd, TOKEN, RUN, number * fence.TASK + 1)
    change, begun = os.pwrite, list[bool]()

    def pwrite(fd: int, content: bytes, offset: int) -> int:
        count = change(fd, content, offset)
        fence.Fence(root_fd, TOKEN, RUN, 1).close()
        begun.append(True)
        return count

    monkeypatch.setattr(os, "pwrite", pwrite)
    fence.revoke(root_fd, TOKEN, RUN, 6 * fence.TASK + fence.LAST)  # in the place of the others
    assert begun == [True]


def test_a_try_that_has_lost_lanes_is_shut_out_by_the_next(root_fd: int, tmp_path: Path) -> None:
    """They are no tries."""
    first = begin_try(tmp_path, 1)
    assert isinstance(first, int)
    for lost in (first + 1, first + 3):
        fence.revoke(root_fd, TOKEN, RUN, lost)
        assert not may_change(root_fd, lost) and may_change(root_fd, first + 2)
    second = begin_try(tmp_path, 1)
    assert isinstance(second, int)
    assert not may_change(root_fd, first + 2) and may_change(root_fd, second + 1)
    assert begin_try(tmp_path, 1) != second and not may_change(root_fd, second + 1)


def test_a_task_that_is_given_back_is_shut_out_whole(root_fd: int, tmp_path: Path) -> None:
    """So what the coordinator gives to others is not done by any try of it that comes late."""
    numbers = [begin_try(tmp_path, 7), begin_try(tmp_path, 7)]
    other = begin_try(tmp_path, 8)
    fence.revoke(root_fd, TOKEN, RUN, 7 * fence.TASK)
    later = begin_try(tmp_path, 7)
    for number in (*numbers, later):
        assert isinstance(number, int) and not may_change(root_fd, number + 1)
    assert isinstance(other, int) and may_change(root_fd, other + 1)


def test_all_tasks_below_a_number_are_shut_out(root_fd: int, tmp_path: Path) -> None:
    """In one number, so that the fence of a copy of many tasks stays short."""
    fence.revoke(root_fd, TOKEN, RUN, 3)  # a lane of the coordinator
    numbers = {task: begin_try(tmp_path, task) for task in (1, 2, 3, 4)}
    fence.revoke(root_fd, TOKEN, RUN, 3 * fence.TASK)
    for below in (2, 3):
        fence.revoke(root_fd, TOKEN, RUN, below * fence.TASK - 1)
        numbers[1] = begin_try(tmp_path, 1)
        for task, number in numbers.items():
            assert isinstance(number, int)
            assert may_change(root_fd, number + 1) is (task >= below and task != 3)
    assert may_change(root_fd, 1) and not may_change(root_fd, 3)
    content = (tmp_path / os.fsdecode(fence.fence_name(TOKEN))).read_text()
    lost = fence.state_of(content.encode())["lost"]
    assert sorted(lost)[1:3] == [fence.TASK + fence.TRY, 3 * fence.TASK - 1] and lost[0] == 3


def test_a_try_of_another_run_begins_nothing(root_fd: int, tmp_path: Path) -> None:
    before = (tmp_path / os.fsdecode(fence.fence_name(TOKEN))).read_bytes()
    assert begin_try(tmp_path, 1, run="bbbbbbbb") == failures.SUPERSEDED
    assert (tmp_path / os.fsdecode(fence.fence_name(TOKEN))).read_bytes() == before
