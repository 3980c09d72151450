"""`wait`: a copy waits while the very same copy is running, in this process or in another one.

Not here: the lock itself (../unit/test_journal.py), jobs of pscp-run that wait (test_run_jobs.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import until
from faults.conftest import Calling

import pscp
from e2e.ways import Notes, Way, make


def places(way: Way) -> Any:
    [source], destination = way.locations(["t"], "")
    return source, destination


def fields(way: Way) -> Any:
    return {"config_file": way.server.ssh_config, "batch": True, "recursive": True}


@contextmanager
def running(way: Way, *, lasts: threading.Event) -> Iterator[Calling]:
    """A copy of one file that has landed, and that does not end before `lasts` is set."""
    make(way.source, "t/file")
    has_begun = threading.Event()

    def hold(_: pscp.FileEvent) -> None:
        has_begun.set()
        lasts.wait()

    call = Calling(lambda: pscp.copy(*places(way), on_file=hold, **fields(way)))
    try:
        until(lambda: has_begun.is_set() or call.found is not None)
        yield call
    finally:
        lasts.set()
        call.ended()


@pytest.mark.parametrize("wait", [True, 3600])
def test_a_copy_waits_for_the_same_copy(push: Way, wait: bool | int) -> None:
    over, notes = threading.Event(), Notes()
    with running(push, lasts=over) as first:
        with pytest.raises(pscp.CopyRunning) as raised:
            pscp.copy(*places(push), **fields(push))
        assert raised.value.hint == "wait=True waits for it"  # A6
        with pytest.raises(pscp.CopyRunning):
            pscp.copy(*places(push), wait=0.01, **fields(push))
        second = Calling(
            lambda: pscp.copy(*places(push), wait=wait, reporter=notes, **fields(push))
        )
        until(lambda: notes.texts)
        over.set()
        assert (first.ended().files, second.ended().files_resumed) == (1, 1)
    assert notes.texts == ["the same copy is already running; waiting for it"]


def test_a_copy_that_waits_can_be_cancelled(push: Way) -> None:
    over, notes = threading.Event(), Notes()
    with running(push, lasts=over), pscp.Session(push.server.host, **fields(push)) as session:
        waits = Calling(lambda: session.copy(*places(push), wait=True, reporter=notes))
        until(lambda: notes.texts)
        session.cancel()
        assert isinstance(waits.ended(), pscp.Cancelled)


def test_several_that_wait_are_all_done(push: Way) -> None:
    make(push.source, "t/file")
    calls = [Calling(lambda: pscp.copy(*places(push), wait=True, **fields(push))) for _ in range(4)]
    results: list[pscp.Result] = [call.ended() for call in calls]
    assert sorted(result.files for result in results) == [0, 0, 0, 1]
    assert sum(result.files_resumed for result in results) == 3


@pytest.mark.parametrize("wait", [-1, "yes", float("nan")])
def test_what_is_no_time_is_refused(wait: Any) -> None:
    with pytest.raises(pscp.UsageError, match="wait must be True, False or a number of seconds"):
        pscp.copy("nothing", "nowhere:", wait=wait)
