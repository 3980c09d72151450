"""SIGINT, SIGTERM and SIGHUP, one of them at a moment of every command's life.

PSCP_SIGNALS=40 tries so many moments of each, each signal in turn. Not here: what an end means for
a copy (test_signals.py).
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from servers.private import PrivateServer

from faults import signalled
from faults.conftest import BY_EXEC, until
from faults.signalled import CODES, Ending
from pscp.cli import start

MOMENTS = int(os.environ.get("PSCP_SIGNALS", 1))  # of each command's life
EARLY, LATER = 0.05, 0.4  # parts of its life, from where moments begin: in every other command
COMMANDS = list(signalled.commands(Path(), "", ""))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    signalled.prepare(tmp_path)
    for variable, folder in signalled.environment(tmp_path).items():
        monkeypatch.setenv(variable, folder)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_it_ends_soon_and_leaves_nothing(home: Path, sshd: PrivateServer, name: str) -> None:
    argv, life_s = signalled.commands(home, sshd.ssh_config, sshd.host)[name]
    number = COMMANDS.index(name)
    kinds = itertools.islice(itertools.cycle(CODES), number % len(CODES), None)
    first = (LATER, EARLY)[number % 2]
    for moment, kind in zip(range(MOMENTS), kinds, strict=False):
        ending = Ending(home, argv, kind, life_s * (first + moment) / MOMENTS)
        assert ending.run() == ""


# A module that begins to load, says so, and is not loaded before it is ended.
LOADING = """
import sys, time, types
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pscp.cli.copy":
            print("loading", flush=True)
            time.sleep(100)
sys.meta_path.insert(0, Finder())
from pscp.cli.start import pscp
pscp()
"""


@pytest.mark.parametrize("kind", list(CODES), ids=lambda kind: kind.name)
def test_while_the_program_is_loaded(kind: signal.Signals) -> None:
    """A46: it was Python's traceback."""
    argv = [sys.executable, "-c", LOADING]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as loading:
        assert loading.stdout is not None
        assert loading.stdout.readline() == b"loading\n"
        loading.send_signal(kind)
        said = loading.communicate()[1]
    assert (loading.returncode, said) == (CODES[kind], b"pscp: interrupted\n")


# The main thread waits for what never comes, and takes no exception once it has begun to say so.
STUCK = """
import subprocess, sys, threading
from pscp.ground import signals
signals.PATIENCE_S = 0.2
with signals.last_act(lambda: print("undone", flush=True)), signals.raise_on_signals("hint"):
    pids = [subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL).pid]
    while True:
        try:
            while pids:
                print(pids.pop(), flush=True)
            threading.Event().wait()
        except BaseException:
            pass
"""


@pytest.mark.parametrize("kind", list(CODES), ids=lambda kind: kind.name)
def test_an_end_that_never_comes_is_forced(kind: signal.Signals) -> None:
    """With what it has started ended, and what it had begun undone; what a shell started stays."""
    argv = [*BY_EXEC, sys.executable, "-c", STUCK]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as stuck:
        assert stuck.stdout is not None
        of_shell = int(stuck.stdout.readline())
        child = Path("/proc", stuck.stdout.readline().decode().strip())
        stuck.send_signal(kind)
        out, said = stuck.communicate()
    assert (stuck.returncode, out) == (CODES[kind], b"undone\n")
    assert said == b"pscp: interrupted\n      hint\n"
    until(lambda: not child.exists(), "the process below it has ended")
    os.kill(of_shell, signal.SIGKILL)  # it is there still


def test_the_statuses_of_the_first_moments_are_those_of_later() -> None:
    assert start._STATUSES == CODES
