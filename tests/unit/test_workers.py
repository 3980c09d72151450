"""A run of all tests ends, whatever one of them leaves or waits for (tests/workers.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import workers

LEAVES_A_THREAD = """
import threading
def test_it():
    threading.Thread(target=threading.Event().wait).start()
"""
NEVER_ENDS = """
import os, threading
def test_it():
    os.write({told}, b".")
    threading.Event().wait()
"""


def started(folder: Path, text: str, *fds: int) -> subprocess.Popen[bytes]:
    (folder / "test_it.py").write_text(text)
    argv = [sys.executable, workers.__file__, "--noconftest", "-c/dev/null", "-pno:cacheprovider"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([*argv, folder], stdout=log, stderr=log, pass_fds=fds)


def test_a_thread_that_a_test_left_does_not_keep_its_worker(tmp_path: Path) -> None:
    assert started(tmp_path, LEAVES_A_THREAD).wait(60) == 0


def test_a_late_worker_is_aborted_and_says_where_it_was(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    worker = started(tmp_path, NEVER_ENDS.format(told=writer), writer)
    assert os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    assert workers.ended(worker, time.monotonic()) == -signal.SIGABRT
    assert "in test_it" in (tmp_path / "log").read_text()
