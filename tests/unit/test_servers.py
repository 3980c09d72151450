"""What tests and the demonstration rely on: the processes that are told, and what is imported.

Not here: the private servers themselves, which every test over ssh uses.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pscp.ground import processes
from pscp.ground.processes import living, living_by_ps

ROOT = Path(__file__).parents[2]


def test_a_process_that_stopped_is_waited_for() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        try:
            found = {each for each in living() if each.pid == child.pid}
            assert found and processes.is_at_work(child.pid)
            child.send_signal(signal.SIGSTOP)
            processes.wait_until_stopped(found)
            assert not processes.is_at_work(child.pid) and child.poll() is None
        finally:
            child.kill()
    assert not processes.is_at_work(child.pid)


def test_processes_by_ps_are_the_same() -> None:
    try:
        by_ps = living_by_ps()
    except FileNotFoundError:
        pytest.skip("ps is not installed")
    me = next(process for process in by_ps if process.pid == os.getpid())
    assert by_ps[me] == os.getppid()


def test_the_demonstration_needs_nothing_that_only_tests_have() -> None:
    """scripts/run installs pscp alone."""
    program = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='demo');"
        "sys.exit(', '.join({'pytest', 'hypothesis', 'conftest'} & sys.modules.keys()) or 0)"
    )
    demo = ROOT / "scripts" / "run.d" / "__main__.py"
    argv = [sys.executable, "-c", program, str(demo)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
