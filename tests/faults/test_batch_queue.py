"""Copies by the jobs of a batch queue: stand-ins for sbatch and scancel, whose jobs run here.

Not here: what becomes of workers (test_cluster.py), a queue's words (../unit/test_batch.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree
from programs import script

from faults.conftest import MIB, Ended, Running, Way, fill, until

# A job's folder is named by its number: its script, its process, and whether it was cancelled.
SBATCH = """
number=1
until mkdir $queue/$number 2>/dev/null; do number=$((number + 1)); done
if [ $number -gt $(cat $queue/takes) ]; then
    echo "sbatch: error: Batch job submission failed: no more" >&2
    exit 1
fi
cp "$1" $queue/$number/script
if [ -e $queue/starts ]; then
    out=$(sed -n 's/^#SBATCH -e //p' "$1" | sed "s/%J/$number/")
    setsid sh $queue/$number/script >$out 2>&1 </dev/null &
    echo $! >$queue/$number/pid
fi
echo Submitted batch job $number
"""
SCANCEL = """
[ ! -e $queue/hangs ] || [ $# -gt 1 ] || exec tail -f /dev/null
for number in "$@"; do
    [ ! -e $queue/$number/pid ] || kill -KILL -- -$(cat $queue/$number/pid)
    touch $queue/$number/cancelled
done
"""
CONFIGURED = """
jobqueue:
  slurm:
    cores: 8
    memory: 4GB
"""


@dataclasses.dataclass(frozen=True)
class Queue:
    """A batch queue whose commands are scripts; `takes` is how many jobs it takes."""

    folder: Path
    push: Way

    def start(
        self,
        *,
        takes: int = 9,
        starts: bool = True,
        python: str = "",
        argv: Sequence[str] = (),
    ) -> Running:
        """Start a copy by two jobs, or another command."""
        (self.folder / "takes").write_text(str(takes))
        if starts:
            (self.folder / "starts").touch()
        config = self.folder / "dask"
        config.mkdir()
        own = f"    python: {python}\n" if python else ""
        (config / "queue.yaml").write_text(CONFIGURED + own)
        environ = {
            **os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.push.home), "DASK_CONFIG": str(config),
            "DASK_TEMPORARY_DIRECTORY": str(self.folder),
        }  # fmt: skip
        argv = argv or self.push.argv("--cluster", "slurm:2", "-c", "2", "-a", "-v")
        out, err = self.folder / "stdout", self.folder / "stderr"
        with open(out, "wb") as to_out, open(err, "wb") as to_err:
            none = subprocess.DEVNULL
            process = subprocess.Popen(argv, stdin=none, stdout=to_out, stderr=to_err, env=environ)
        return Running(process, out, err)

    def finish(self, **words: Any) -> Ended:
        running = self.start(**words)
        try:
            return running.ended()
        finally:
            running.kill()

    @property
    def jobs(self) -> list[Path]:
        return [path.parent for path in sorted(self.folder.glob("*/script"))]

    def assert_over(self) -> None:
        """All jobs were cancelled, and nothing of the copy's is left in the home."""
        until(lambda: all((job / "cancelled").exists() for job in self.jobs), "are cancelled")
        assert list(self.push.home.glob(".pscp-jobs-*")) == []


@pytest.fixture
def queue(push: Way, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    folder = tmp_path_factory.mktemp("queue")
    (folder / "bin").mkdir()
    script(folder / "bin" / "sbatch", f"queue={folder}{SBATCH}")
    script(folder / "bin" / "scancel", f"queue={folder}{SCANCEL}")
    yield Queue(folder, push)
    for path in folder.glob("*/pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(path.read_text()), signal.SIGKILL)


def test_jobs_move_a_tree(queue: Queue) -> None:
    fill(queue.push.source / "big", 24 * MIB)
    fill(queue.push.source / "folder" / "small", 500)
    ended = queue.finish()
    assert (ended.code, ended.err) == (0, ""), ended
    assert ended.end["workers"]
    assert_same_tree(queue.push.source, queue.push.destination)
    texts = [(job / "script").read_text() for job in queue.jobs]
    assert len(texts) == 2
    for text in texts:
        assert "tls://" in text and "--tls-key" in text
        assert "--nthreads 1" in text and "--nworkers" not in text
    queue.assert_over()


def test_no_job_starts_and_an_interrupt_ends_the_wait(queue: Queue) -> None:
    fill(queue.push.source / "file", 500)
    running = queue.start(starts=False)
    try:
        until(lambda: len(queue.jobs) == 2, "both are submitted")
        running.send(signal.SIGINT)
        ended = running.ended()
    finally:
        running.kill()
    assert ended.code == 130 and "interrupted" in ended.err, ended
    assert "Traceback" not in ended.err
    queue.assert_over()


def test_a_queue_that_does_not_answer_at_the_end(queue: Queue) -> None:
    """An interrupt ends the copy within seconds all the same, and the jobs, once it answers."""
    fill(queue.push.source / "file", 500)
    (queue.folder / "hangs").touch()  # where one job is to be cancelled
    running = queue.start(starts=False)
    try:
        until(lambda: len(queue.jobs) == 2, "both are submitted")
        until(lambda: any(queue.push.destination.iterdir()), "the copy has begun")
        running.send(signal.SIGINT)
        assert running.ended().code == 130
    finally:
        running.kill()
    queue.assert_over()


def test_a_queue_that_takes_no_job(queue: Queue) -> None:
    fill(queue.push.source / "file", 500)
    ended = queue.finish(takes=0)
    assert ended.code == 3, ended
    what = "--cluster slurm: no job could be submitted: sbatch: error: Batch job submission failed"
    assert f"{what}: no more\n" in ended.err and "Traceback" not in ended.err
    assert not queue.push.arrived()
    queue.assert_over()


def test_a_queue_that_takes_fewer_jobs(queue: Queue) -> None:
    fill(queue.push.source / "file", 500)
    ended = queue.finish(takes=1)
    assert (ended.code, ended.err) == (0, ""), ended
    assert (
        "slurm takes 1 of 2 jobs: sbatch: error: Batch job submission failed: no more" in ended.out
    )
    assert_same_tree(queue.push.source, queue.push.destination)
    queue.assert_over()


def test_jobs_that_end_at_once(queue: Queue) -> None:
    """Their Python has nothing that they need."""
    fill(queue.push.source / "file", 500)
    python = script(queue.folder / "bin" / "other", "echo No module named pscp >&2; exit 1")
    ended = queue.finish(python=str(python))
    assert ended.code == 3, ended
    assert "slurm's jobs 1, 2 had no worker; one wrote: No module named pscp\n" in ended.err
    assert not queue.push.arrived()
    queue.assert_over()


def test_a_tree_is_not_hashed_by_jobs_that_end_at_once(queue: Queue) -> None:
    fill(queue.push.source / "file", 500)
    (queue.folder / "sums").write_text(f"{'0' * 64}  file\n")
    python = script(queue.folder / "bin" / "other", "echo No module named pscp >&2; exit 1")
    program = "from pscp.cli.start import pscp_verify; pscp_verify()"
    words = "--cluster", "slurm:2", str(queue.folder / "sums"), str(queue.push.source)
    ended = queue.finish(python=str(python), argv=[sys.executable, "-c", program, *words])
    assert ended.code == 3 and ended.out == "", ended
    assert "slurm's jobs 1, 2 had no worker; one wrote: No module named pscp\n" in ended.err
    queue.assert_over()
