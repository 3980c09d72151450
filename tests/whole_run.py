"""Runs all tests in several workers, which are pytest-xdist's: `python whole_run.py [ARGUMENT...]`.

What this adds to xdist: those files of a folder that took longest in the last run come first, and
the quick folders last, so that the workers end together; and where memory has room for it, what the
tests write is kept there, since a third of what the kernel did for them was to make and sync files.
A test that fails, fails the run. It ends: pytest-timeout ends each test (pyproject.toml) and the
whole, and shows what each thread did; xdist kills a worker that a thread keeps from ending.

Not here: what scripts/test checks besides. Read next: conftest.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = HERE.parent / ".pytest_cache" / "seconds.json"  # of each file, in the last whole run
LIMIT_S = 30 * 60  # all of it takes half as long on two processors
MEMORY = "/dev/shm"
ROOM_BYTES = 4 << 30  # a tenth of it is used, each test's folder being removed when it passes
# In this order, so that a worker keeps what is shared in a folder; first those of few long files.
FOLDERS = ("zfs", "conformance", "model", "faults", "e2e")


class WholeRun:
    """The plugin of the process that gives the tests to the workers."""

    def __init__(self, config: pytest.Config, ends: contextlib.ExitStack) -> None:
        where = MEMORY if has_room(MEMORY) else None
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="pscp-", dir=where))
        os.chmod(folder, 0o711)  # as /tmp: some tests become another user
        os.environ["TMPDIR"] = folder  # the workers' as well, which are not started yet
        tempfile.tempdir = None
        # Short, since each worker has a folder in it, and a socket's path has 107 bytes.
        config.option.basetemp = config.option.basetemp or f"{folder}/t"
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:  # at once: pytest's own report comes when all is over
            print(f"\nFAILED {report.nodeid}\n{report.longreprtext}", file=sys.stderr, flush=True)

    def pytest_sessionfinish(self) -> None:
        SECONDS.parent.mkdir(exist_ok=True)
        SECONDS.write_text(json.dumps(self._seconds))


class Worker:
    """The plugin of the processes that run the tests."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        sort_by_duration(items)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self) -> Generator[None, object, object]:
        """Have names that are no UTF-8 in a failure's text written so that they can be sent."""
        return as_utf8((yield))


def begin(config: pytest.Config) -> None:
    """Have the tests' files in memory, and the files' durations kept, if there are workers."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker())
    elif config.getoption("numprocesses", None):
        ends = contextlib.ExitStack()
        config.pluginmanager.register(WholeRun(config, ends))
        config.add_cleanup(ends.close)


def sort_by_duration(items: list[pytest.Item]) -> None:
    """Sort the files of tests by folder, and in a folder those first that took longest before."""
    known: dict[str, float] = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}

    def place(item: pytest.Item) -> tuple[int, str, float, str]:
        folder, file = item.path.parent.name, item.nodeid.partition("::")[0]
        rank = FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)
        return rank, folder, -known.get(file, 1e9), file

    items.sort(key=place)


def as_utf8(value: object) -> object:
    """Return the same lists, dictionaries and texts, each character of which UTF-8 can encode."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {as_utf8(key): as_utf8(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(as_utf8, value))
    return value


def has_room(folder: str) -> bool:
    """Tell whether the tests' files have room there: programs, and files with attributes."""
    try:
        now = os.statvfs(folder)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            os.setxattr(file.fileno(), "user.pscp", b"")  # in memory since Linux 6.6
    except OSError:
        return False
    has_bytes = now.f_bavail * now.f_frsize >= ROOM_BYTES
    return has_bytes and not now.f_flag & os.ST_NOEXEC


def main(argv: list[str]) -> int:
    """Run all tests in several workers; more than processors, since many tests wait for logins."""
    if not SECONDS.exists():  # the workers begin at once, so that each would compile most of it
        words = ["--collect-only", "-qq", *argv]
        subprocess.run([sys.executable, "-m", "pytest", *words], stdout=subprocess.DEVNULL)
    workers = str(2 + (os.cpu_count() or 1))
    by_file = ["-n", workers, "--dist", "loadfile", "--no-loadscope-reorder"]
    shown = ["-q", "--durations=20", f"--session-timeout={LIMIT_S}"]
    return pytest.main([*by_file, *shown, *argv])


if __name__ == "__main__":
    os.chdir(HERE.parent)
    sys.exit(main(sys.argv[1:]))
