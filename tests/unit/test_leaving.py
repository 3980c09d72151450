"""Logins that a program leaves behind: which processes end some time after it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import until

from pscp.ground import leaving
from pscp.ground.leaving import LoginProcess
from pscp.ground.processes import descendants, is_at_work


class Login:
    """A program that has started another one, as ssh its ProxyCommand."""

    def __init__(self) -> None:
        argv = ["sh", "-c", "sleep 1000 & echo $!; wait"]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.below = int(self.process.stdout.readline())

    def end(self) -> None:
        for pid in (self.below, self.process.pid):
            if is_at_work(pid):
                os.kill(pid, 9)
        self.process.communicate()


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Iterator[Login]:
    monkeypatch.setattr(leaving, "LET_GO_S", 0.1)
    started = Login()
    yield started
    started.end()


def left(monkeypatch: pytest.MonkeyPatch, *logins: LoginProcess | None) -> None:
    """End the program, which leaves these, and wait for who waits for them."""
    before = descendants(os.getpid())
    monkeypatch.setattr(leaving, "_leaving", [lambda: logins])
    leaving.end_later()
    for waiter in descendants(os.getpid()) - before:
        os.waitpid(waiter.pid, 0)


def test_a_login_goes_with_what_it_has_started(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = subprocess.Popen(["sleep", "1000"])  # a shell's own, that became the program by exec
    try:
        left(monkeypatch, None, LoginProcess(login.process.pid))
        until(lambda: not is_at_work(login.process.pid) and not is_at_work(login.below))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("is_open", [True, False])
def test_what_leads_to_a_connection_that_is_kept_stays(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """Through a jump host the connections that --persist had kept were lost after four seconds."""
    socket = tmp_path / "socket"
    if is_open:
        socket.touch()
    left(monkeypatch, LoginProcess(login.process.pid, str(socket)))
    until(lambda: not is_at_work(login.process.pid))
    assert is_at_work(login.below) is is_open


def test_one_that_has_ended_by_itself_is_nobodys_any_more(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "LET_GO_S", 1000.0)
    os.kill(login.process.pid, 9)
    left(monkeypatch, LoginProcess(login.process.pid))
    assert is_at_work(login.below)


def test_where_no_process_can_be_made_nothing_is_said(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A good copy ended with a traceback, and exit code 1."""

    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    left(monkeypatch, LoginProcess(login.process.pid))
    assert is_at_work(login.process.pid)
