"""Replication over pscp's own lanes, to and from a real sshd: what test_fuse.py does without them.

Not here: what is planned and refused (test_fuse.py). Read next: conftest.py.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import forked
import pytest
from conftest import started_processes
from e2e.ways import ZFS
from faults.conftest import until
from servers.private import PrivateServer

import pscp
from pscp.ground import errors
from pscp.ground.counters import Counters
from pscp.ground.processes import descendants, living
from pscp.stream.stream import Ran
from pscp.zfs.link import Link, PipeStatuses
from zfs.conftest import Ends, Pool, end_agents, is_agent

# The direction cannot matter.
PUSH = pytest.mark.parametrize("far", ["push"], indirect=True)
PULL = pytest.mark.parametrize("far", ["pull"], indirect=True)
LARGE = 24_000_000
AMIDST = 4_000_000
WINDOW = 8 * 1024 * 1024


def running(words: str) -> list[int]:
    """The processes of this machine whose command line ends with that; zfs splits it at the @."""
    found = []
    for process in living():
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/cmdline", "rb") as file:
            if file.read().replace(b"\0", b" ").strip().endswith(words.encode()):
                found.append(process.pid)
    return found


class Acting(Link):
    """pscp's own link; in a stream's midst, once, something happens."""

    def __init__(self, link: Link, act: Callable[[], object]) -> None:
        self._link, self._act = link, act
        self._went, self._acted = 0, False

    def run(self, argv: Sequence[str]) -> Ran:
        return self._link.run(argv)

    def pipe(
        self, producer: Sequence[str], consumer: Sequence[str], is_push: bool,
        progress: Callable[[int], object],
    ) -> PipeStatuses:  # fmt: skip
        def went(count: int) -> None:
            progress(count)
            self._went += count
            if self._went >= AMIDST and not self._acted:
                self._acted = True
                self._act()

        return self._link.pipe(producer, consumer, is_push, went)

    def close(self) -> None:
        self._link.close()


def amidst(act: Callable[[], object]) -> dict[str, Any]:
    """Options with which a replication of LARGE is underway, at both ends, when it acts."""
    connect = lambda *of: Acting(Link(*of), act)  # noqa: E731
    return {"connect": connect, "window_bytes": WINDOW}


def kill(pids: list[int]) -> None:
    """Kill those that have not just ended by themselves; fail if there was none."""
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_full_then_incremental(far: Ends) -> None:
    far.write("large", AMIDST)
    far.grow("one", "two")
    result = far.replicate()
    assert result.ok and far.received() == ["one", "two"]
    assert result.bytes > AMIDST and result.connections in (1, 2)
    far.grow("three")
    assert far.replicate().ok and far.received() == ["one", "two", "three"]
    unchanged = far.replicate()
    assert (unchanged.bytes, unchanged.connections) == (0, 0)


@PUSH
def test_a_tree_with_siblings_at_once(far: Ends) -> None:
    for below in ("/a", "/b", "/c", "/a/deep"):
        far.sender.do("create", f"{far.source}{below}")
        far.write("file", 500_000, below=below)
    result = far.replicate(recursive=True, snapshot_name="one", parallel=3)
    assert result.ok and result.files == 5
    for below in ("", "/a", "/b", "/c", "/a/deep"):
        assert far.received(below) == ["one"]


@PULL  # of a push: test_killed_agents
def test_killed_connections(far: Ends, sshd: PrivateServer) -> None:
    """All lanes of a stream at once."""
    far.write("large", LARGE)
    far.grow("one", "two")

    def cut() -> None:
        kill([process.pid for process in descendants(sshd.pid) if is_session(process.pid)])

    result = far.replicate(**amidst(cut))
    assert result.ok and far.received() == ["one", "two"]


def is_session(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().startswith("sshd")
    return False


def test_killed_agents(far: Ends) -> None:
    """H2: all of a host at once. It ended the replication, though killed connections did not."""
    far.write("large", LARGE)
    far.grow("one", "two")

    def cut() -> None:
        kill([p.pid for p in started_processes() if is_agent(p.pid)])

    result = far.replicate(**amidst(cut))
    assert result.ok and far.received() == ["one", "two"]
    told = "\n".join(far.told.notes)
    assert "trying again" in told and "fewer connections" not in told, told


@pytest.mark.parametrize(
    ("victim", "said"),
    [("zfs send {0.source} one", "zfs send did not finish"), ("zfs receive {0.dest}", "")],
    ids=["sender", "receiver"],
)
def test_a_killed_end(far: Ends, victim: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """zfs-fuse itself may go on; it is reported, and the next run makes it right."""
    monkeypatch.setattr("pscp.zfs.dataset_job.ATTEMPTS", 1)
    far.write("large", LARGE)
    far.snapshot("one")
    result = far.replicate(**amidst(lambda: kill(running(victim.format(far)))))
    [failure] = result.failures
    assert failure.error == "StreamCut" and said in failure.message
    assert far.replicate().ok and far.received() == ["one"]


def test_a_failed_sender_never_looks_like_an_end(
    far: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zfs receive sees half a stream for what it is; a receiver that does not is ended first."""
    monkeypatch.setattr("pscp.zfs.dataset_job.ATTEMPTS", 1)
    far.snapshot("one")
    ended = tmp_path / "ended"
    scripts = {
        "sender": f'[ "$1" != send ] || {{ head -c {AMIDST} /dev/zero; exit 1; }}',
        "receiver": f'[ "$1" != receive ] || {{ cat >/dev/null; exec touch {ended}; }}',
    }
    for name, script in scripts.items():
        real = shlex.join(getattr(far, name).zfs)
        (tmp_path / name).write_text(f'#!/bin/sh\n{script}\nexec {real} "$@"\n')
        (tmp_path / name).chmod(0o755)
    near, there = ("sender", "receiver") if far.is_push else ("receiver", "sender")
    [failure] = far.replicate(
        zfs_command=str(tmp_path / near), far_zfs_command=str(tmp_path / there)
    ).failures
    assert (failure.error, failure.path) == ("StreamCut", far.source)
    assert "zfs send did not finish: exit status 1" in failure.message
    assert not ended.exists()


@PUSH
def test_what_the_receiver_says_against_a_stream(far: Ends) -> None:
    far.grow("one")
    far.replicate(mount=True, readonly=False)
    (far.receiver.folder(far.dest) / "precious").write_text("mine")
    far.write("large", LARGE)
    far.snapshot("two")
    with pytest.raises(pscp.FilesFailed) as raised:
        far.replicate(raises=True)
    [failure] = raised.value.result.failures
    assert "force_rollback" in raised.value.hint
    assert failure.error == "Diverged" and "has been modified" in failure.message


def assert_ended(far: Ends) -> None:
    """At both ends; and the next run makes it right."""
    assert not far.receiver.exists(f"{far.dest}@one")
    end_agents()
    until(lambda: is_destroyed(far.receiver, far.dest))
    assert far.replicate().ok and far.received() == ["one"]


def is_destroyed(pool: Pool, dataset: str) -> bool:
    """Whether a dataset whose receiving ended is gone; what still receives is busy, and is not.

    zfs-fuse takes back what it began only once, and leaves it for good where some command looks at
    it just then (2 of 40 cuts beside four that asked without end, 0 of 40 beside none).
    """
    with contextlib.suppress(RuntimeError):
        pool.do("destroy", dataset)
    return not pool.exists(dataset)


@PULL
def test_an_interrupt_ends_it_at_both_ends(far: Ends) -> None:
    far.write("large", LARGE)
    far.snapshot("one")

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        far.replicate(**amidst(interrupt))
    assert_ended(far)


@PUSH
def test_an_exception_of_progress_ends_it_at_both_ends(far: Ends) -> None:
    """A9."""
    far.write("large", LARGE)
    far.snapshot("one")

    def fail(now: Counters) -> None:
        if now.bytes_done >= AMIDST:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        far.replicate(progress=fail, window_bytes=WINDOW, limit_kbit_s=200_000)
    assert_ended(far)


@PUSH
def test_a_host_that_is_not_there(far: Ends) -> None:
    far.host = "no-such-host.invalid"
    with pytest.raises(errors.ConnectError):
        far.replicate()


@PUSH
def test_the_command(far: Ends, sshd: PrivateServer) -> None:
    far.grow("one", "two")
    ends = (far.sender, far.receiver) if far.is_push else (far.receiver, far.sender)
    argv = [
        *ZFS, "-F", sshd.ssh_config, "-B", "-c", "2", "--zfs-command", shlex.join(ends[0].zfs),
        "--far-zfs-command", shlex.join(ends[1].zfs), *far.places,
    ]  # fmt: skip
    done = forked.run(argv, capture_output=True, text=True, timeout=200, check=False)
    summary = done.stderr.splitlines()[-1]  # behind a note of what zfs-fuse mounts, on a pull
    assert done.returncode == 0 and summary.startswith("1 dataset, 2 streams, "), done.stderr
    assert far.received() == ["one", "two"]
