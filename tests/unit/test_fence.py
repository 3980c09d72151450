"""The fence: who owns a copy, who takes it over from whom, and what late comers find."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

from pscp.endpoint.frames.failures import SUPERSEDED, Refusal
from pscp.endpoint.writing import fence

TOKEN = "01234567"
FIRST, SECOND = "aaaaaaaa", "bbbbbbbb"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def content(root: int) -> dict[str, object]:
    fd = os.open(fence.fence_name(TOKEN), os.O_RDONLY, dir_fd=root)
    try:
        found: dict[str, object] = json.loads(os.read(fd, 10_000))
        return found
    finally:
        os.close(fd)


def refused(root: int, nonce: str, lane: int = 1) -> bool:
    """Is this lane refused, whether it begins now or began before?"""
    try:
        late = fence.Fence(root, TOKEN, nonce, lane)
    except Refusal as error:
        return error.kind == SUPERSEDED
    try:
        with late.held():
            return False
    except Refusal as error:
        return error.kind == SUPERSEDED
    finally:
        late.close()


def test_claiming_twice_is_claiming_once(root: int) -> None:
    fence.claim(root, TOKEN, FIRST, [])
    assert fence.claim(root, TOKEN, FIRST, [])["held"] == ""
    assert content(root)["earlier"] == []


def test_a_late_release_removes_no_others_fence(root: int) -> None:
    fence.claim(root, TOKEN, FIRST, [])
    fence.claim(root, TOKEN, SECOND, [FIRST])
    fence.release(root, TOKEN, FIRST)
    assert not refused(root, SECOND)


def test_nobody_takes_over_while_the_fence_is_held(root: int) -> None:
    fence.claim(root, TOKEN, FIRST, [])
    holder = fence.Fence(root, TOKEN, FIRST, 1)
    fd = os.open(fence.fence_name(TOKEN), os.O_RDWR, dir_fd=root)
    with holder.held(), holder.held():
        assert not fence.lock(fd, fcntl.LOCK_EX, 0.0)
    assert fence.lock(fd, fcntl.LOCK_EX, 0.0)
    os.close(fd)
    holder.close()


HOLDER = """
import os, sys
from pscp.endpoint.writing import fence
root = os.open(sys.argv[1], os.O_RDONLY)
with fence.Fence(root, sys.argv[2], sys.argv[3], 1).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_keeps_the_fence_is_ended(
    root: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "PATIENCE_S", 0.2)
    fence.claim(root, TOKEN, FIRST, [])
    argv = [sys.executable, "-c", HOLDER, str(tmp_path), TOKEN, FIRST]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        assert fence.claim(root, TOKEN, SECOND, [FIRST])["held"] == ""
        assert holder.wait(30) == -9
    assert not refused(root, SECOND)


def test_a_fence_of_another_user_is_left_alone(root: int, tmp_path: Path) -> None:
    """It lies in the private folder then, and every lane finds it there."""
    path = tmp_path / fence.fence_name(TOKEN).decode()
    path.write_text("another's")
    os.chown(path, 65534, 65534)
    fence.claim(root, TOKEN, FIRST, [])
    assert path.read_text() == "another's"
    private = Path(f"/tmp/pscp-{os.geteuid()}") / path.name
    assert private.exists() and not refused(root, FIRST)
    fence.release(root, TOKEN, FIRST)
    assert not private.exists() and path.exists()


def test_a_root_without_locks_has_its_fence_elsewhere(
    root: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS without its lock daemon: flock(2) fails with ENOLCK."""
    real = fcntl.flock

    def flock(fd: int, kind: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path)):
            raise OSError(37, "No locks available")
        real(fd, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    fence.claim(root, TOKEN, FIRST, [])
    assert os.listdir(root) == []
    assert not refused(root, FIRST)
    assert fence.claim(root, TOKEN, SECOND, [FIRST])["earlier"] == [FIRST]
    assert refused(root, FIRST) and not refused(root, SECOND)
    fence.release(root, TOKEN, SECOND)


def test_where_modes_are_not_kept_nobody_waits_for_turns(
    root: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence.claim(root, TOKEN, FIRST, [])
    (tmp_path / os.fsdecode(fence.fence_name(TOKEN))).chmod(0o777)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with contextlib.closing(fence.Fence(root, TOKEN, FIRST, 1)) as mine, mine.held():
        pass
    assert not pauses


# --- at the same time, and what others put in its place


def test_of_two_claims_at_the_same_time_one_finds_the_other(root: int) -> None:
    """A5: descriptors of one process exclude each other as those of two machines' agents do."""

    def claim(nonce: str) -> str:
        together.wait()
        return str(fence.claim(root, TOKEN, nonce, [])["held"])

    with ThreadPoolExecutor(2) as both:
        for _ in range(100):
            together = Barrier(2)
            held = list(both.map(claim, (FIRST, SECOND)))
            assert sorted(map(bool, held)) == [False, True]
            for nonce in (FIRST, SECOND):
                fence.release(root, TOKEN, nonce)
            assert not os.listdir(root)


def test_a_file_of_ours_that_another_user_linked_there_stays(root: int, tmp_path: Path) -> None:
    """B2: whoever may write to the folder makes a hard link; the fence then lies elsewhere."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    os.link(precious, tmp_path / os.fsdecode(fence.fence_name(TOKEN)))
    assert fence.claim(root, TOKEN, FIRST, []) == {"held": "", "earlier": []}
    fence.Fence(root, TOKEN, FIRST, 0).close()
    fence.release(root, TOKEN, FIRST)
    assert precious.read_text() == "precious"


def test_lanes_that_hold_it_in_turn_leave_a_gap(root: int) -> None:
    """A lost lane is told off, and none of the others ended, while sixteen are at work."""
    fence.claim(root, TOKEN, FIRST, [])
    is_over = Event()

    def work(lane: int) -> None:
        with contextlib.closing(fence.Fence(root, TOKEN, FIRST, lane)) as mine:
            while not is_over.is_set():
                with mine.held():
                    is_over.wait(0.01)  # as the renames of a pack may take

    with ThreadPoolExecutor(16) as lanes:
        working = [lanes.submit(work, lane) for lane in range(16)]
        try:
            fence.revoke(root, TOKEN, FIRST, 99)
        finally:
            is_over.set()
        for each in working:
            each.result()
    fence.release(root, TOKEN, FIRST)


def test_a_fence_goes_from_a_folder_that_is_read_only_by_then(root: int) -> None:
    """As where the contents of a read-only folder were copied, by a user who is not root."""
    program = (
        "import os, sys; from pscp.endpoint.writing import fence\n"
        "root = int(sys.argv[1])\n"
        "os.getuid() or (os.chown(root, 1, 1), os.setgroups([]), os.setgid(1), os.setuid(1))\n"
        f"fence.claim(root, {TOKEN!r}, {FIRST!r}, [])\n"
        "os.fchmod(root, 0o555); os.utime(root, ns=(0, 7))\n"
        f"fence.release(root, {TOKEN!r}, {FIRST!r})\n"
    )
    argv = [sys.executable, "-c", program, str(root)]
    done = subprocess.run(argv, pass_fds=[root], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    status = os.fstat(root)
    assert (os.listdir(root), status.st_mode & 0o7777, status.st_mtime_ns) == ([], 0o555, 7)
