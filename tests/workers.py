"""Runs all tests in several workers, which take files of tests from one queue: `python workers.py`.

Those of a folder that took longest in the last run come first, and the quick folders last, so that
the workers end together. There are more workers than processors, since many tests wait for logins.
What fails is tried once more, alone; twice is a failure. What passes then is named in the last
lines: it has a cause, in the test or in pscp. Before them come the tests that took longest.
It ends: a worker's threads that a test left cannot keep it, and one that is late is aborted, so
that the stacks of its threads are the last that it says.
Where memory has room for it, what the tests write is kept there: a third of what the kernel did
for them was to make and to sync files.

Not here: what scripts/test checks besides. Read next: conftest.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parent / ".pytest_cache" / "workers"
SECONDS = HERE.parent / ".pytest_cache" / "seconds.json"  # of each file, in the last run
WORKERS = 2 + (os.cpu_count() or 1)
LIMIT_S = 30 * 60.0  # all of it takes half as long on two processors
AGAIN_LIMIT_S = 10 * 60.0
SHOWN = 20
MEMORY = "/dev/shm"
ROOM_BYTES = 4 << 30  # workers take a tenth of it, each test's folder being removed when it passes
# In this order, so that a worker keeps what is shared in a folder; first those of few long files.
FOLDERS = ("zfs", "conformance", "model", "faults", "e2e")


class Queue:
    """The files that nobody has begun yet: names in a file, taken under its lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "queue"

    def fill(self, files: list[str]) -> None:
        self._path.write_text("\n".join(files))

    def take(self) -> str | None:
        with self._path.open("r+") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            first, _, rest = queue.read().partition("\n")
            queue.seek(0)
            queue.truncate()
            queue.write(rest)
        return first or None


class Worker:
    """The part of a pytest run that takes its files from a queue (a plugin)."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._seconds: defaultdict[str, float] = defaultdict(float)  # of each test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run of what was collected, which is all, what is in files from the queue."""
        if session.testsfailed:
            return None  # something cannot be collected
        items = self._items(session)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def _items(self, session: pytest.Session) -> Iterator[pytest.Item]:
        of_files: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            of_files.setdefault(str(item.path), []).append(item)
        while file := self._queue.take():
            yield from of_files.get(file, ())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:  # at once: the worker's own report comes when all is over
            with (self._queue.folder / "failed").open("a") as failed:
                failed.write(f"{report.nodeid}\n{report.longreprtext}\n")

    def pytest_sessionfinish(self) -> None:
        told = self._queue.folder / f"seconds-{os.getpid()}.json"
        told.write_text(json.dumps(self._seconds))


def ordered() -> list[str]:
    """The files of tests, folder by folder, those first that took longest in the last run."""
    known: dict[str, float] = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}

    def place(path: Path) -> tuple[int, str, float, int]:
        folder = path.parent.name
        rank = FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)
        return rank, folder, -known.get(str(path), 1e9), -path.stat().st_size

    return [str(path) for path in sorted(HERE.rglob("test_*.py"), key=place)]


def pytest_argv(number: int, *words: str) -> list[str]:
    settings = ("console_output_style=classic", f"cache_dir={CACHE / str(number)}")
    fixed = [sys.executable, __file__, "-q", *(f"--override-ini={s}" for s in settings)]
    return [*fixed, *words]


def be_pytest(argv: list[str]) -> NoReturn:
    """Run pytest, and end with it whatever threads it has left."""
    status = pytest.main(argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def ended(process: subprocess.Popen[bytes], deadline_s: float) -> int:
    """The exit status of a worker, which is aborted when it is late."""
    try:
        return process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # pytest's faulthandler writes the stacks then
        return process.wait()


def run_all(queue: Queue) -> list[int]:
    """Run the workers, show what they say, and return the numbers of those with failures."""
    deadline_s = time.monotonic() + LIMIT_S
    logs = [queue.folder / f"log-{number}" for number in range(WORKERS)]
    running = []
    for number, path in enumerate(logs):
        with path.open("wb") as log:
            argv = pytest_argv(number, f"--queue={queue.folder}")
            running.append(subprocess.Popen(argv, stdout=log, stderr=log))
    try:
        statuses = [ended(process, deadline_s) for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
                process.wait()
    for path in logs:
        sys.stderr.write(path.read_text(errors="replace"))
    return [number for number, status in enumerate(statuses) if status]


def try_again(number: int) -> tuple[list[str], bool]:
    """What failed in a worker, and whether it passes now."""
    told = CACHE / str(number) / "v" / "cache" / "lastfailed"
    names = list(json.loads(told.read_text())) if told.exists() else []
    if not names:
        return [], False  # the worker itself did
    argv = pytest_argv(number, "--last-failed", "--last-failed-no-failures", "none", "tests")
    return names, ended(subprocess.Popen(argv), time.monotonic() + AGAIN_LIMIT_S) == 0


def tell_seconds(folder: Path) -> None:
    """Show the slowest tests, and keep what each file took."""
    of_tests: dict[str, float] = {}
    for path in folder.glob("seconds-*.json"):
        of_tests.update(json.loads(path.read_text()))
    of_files: defaultdict[str, float] = defaultdict(float)
    for name, seconds in of_tests.items():
        of_files[str(HERE.parent / name.partition("::")[0])] += seconds
    SECONDS.write_text(json.dumps(of_files))
    print(f"== the slowest {SHOWN} of {len(of_tests)} tests:", file=sys.stderr)
    for name, seconds in sorted(of_tests.items(), key=lambda each: -each[1])[:SHOWN]:
        print(f"{seconds:7.1f} s  {name}", file=sys.stderr)


def is_roomy(folder: str) -> bool:
    """Tell whether the tests' files have room there: programs, and files with attributes."""
    try:
        now = os.statvfs(folder)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            os.setxattr(file.fileno(), "user.pscp", b"")  # in memory since Linux 6.6
    except OSError:
        return False
    has_room = now.f_bavail * now.f_frsize >= ROOM_BYTES
    return has_room and not now.f_flag & os.ST_NOEXEC


def main() -> int:
    os.chdir(HERE.parent)
    shutil.rmtree(CACHE, ignore_errors=True)
    CACHE.mkdir(parents=True)
    again: list[str] = []
    has_failed = False
    where = MEMORY if is_roomy(MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="pscp-", dir=where) as folder:
        os.environ["TMPDIR"] = folder
        os.chmod(folder, 0o711)  # as /tmp: some tests become another user
        queue = Queue(Path(folder))
        queue.fill(ordered())
        for number in run_all(queue):
            names, is_passing = try_again(number)
            again += names if is_passing else []
            has_failed = has_failed or not is_passing
        tell_seconds(queue.folder)
    told = [f"== {len(again)} failed and passed when tried again", *again]
    print("\n".join(told), file=sys.stderr)
    return int(has_failed)


if __name__ == "__main__":
    if sys.argv[1:]:
        be_pytest(sys.argv[1:])
    sys.exit(main())
