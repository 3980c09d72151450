"""A night in miniature: 300 files arrive, pscp-run is started again and again, and much goes wrong.

What is told of each run is compared with what is seen by night.py, which every run() does.

Not here: 20,000 files and an hour (../soak_night.py); each fault by itself (../e2e/test_jobs.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest
from conftest import QUICK_LOGINS, MakeFar, require_sshd
from night import LOCKED, Night, Running, Sshd, full

from faults.conftest import MIB, PATIENCE_S, until
from pscp.endpoint.frames import wire
from pscp.jobs.reports.outcome import JobRun, Outcome

HOSTILE = ["-rf.rec", "a\nb.rec", " .rec", os.fsdecode(b"\xff\xfe.rec"), "*.rec", "one:x.rec"]
BIG = ["big-1.rec", "big-2.rec", "big-3.rec", "big-4.rec"]
ROUNDS, ROUND = 14, 20  # files
FIRST_GROWING = 10
DAY_S = 24 * 3600.0


def coming() -> Iterator[list[str]]:
    yield [*HOSTILE, *(f"first-grows-{each}.rec" for each in range(FIRST_GROWING))]
    for number in range(ROUNDS):
        names = [f"{number:02}-{each:02}.rec" for each in range(ROUND - 1)]
        yield [*names, f"{number:02}-grows.rec"]


@pytest.fixture
def night(make_far: MakeFar, own_home: Path) -> Iterator[Night]:
    require_sshd()
    with contextlib.ExitStack() as stack:
        night = Night(own_home, lambda: Sshd(QUICK_LOGINS, environment=make_far()), coming(), stack)
        night.begin = forked.start
        yield night


def test_a_night_in_miniature(night: Night) -> None:
    assert outcome(night.run()) == Outcome.NOTHING  # nothing has settled
    done(night.run())
    a_server_dies(night)
    a_server_comes_back(night)
    a_disk_is_full(night)
    a_run_is_killed(night)
    the_link_is_cut(night)
    a_file_grows_once_more(night)
    the_clock_is_set_back(night)
    night.finish()
    assert len(night.arrivals.names) == 300
    night.check_end()


def outcome(run: JobRun | None) -> Outcome | None:
    return None if run is None else run.outcome


def done(run: JobRun | None) -> JobRun:
    """A run after which files are at both ends, and not here any more."""
    assert run is not None and run.outcome == Outcome.DONE, run
    assert run.files_removed
    return run


# --- what happens, each in a run or two


def a_server_dies(night: Night) -> None:
    """Where nothing is tried again; it is up by the next run."""
    is_blocked = night.blocked("two", wire.PACK)

    def die(running: Running) -> None:
        until(is_blocked)
        night.servers["two"].kill()

    run = night.run(die)
    assert run is not None and run.outcome == Outcome.UNREACHABLE
    assert [part.outcome for part in run.destinations] == [Outcome.DONE, Outcome.UNREACHABLE]
    assert run.files_removed == 0 < run.destinations[0].files
    night.mend("two")
    night.servers["two"].revive()
    done(night.run())


def a_server_comes_back(night: Night) -> None:
    """While the run that has lost it goes on trying."""
    night.configure(retry_for="10min")
    is_blocked = night.blocked("two", wire.PACK)

    def die_and_come_back(running: Running) -> None:
        until(is_blocked)
        night.servers["two"].kill()
        night.mend("two")
        running.until_said("again in")
        night.servers["two"].revive()

    run = done(night.run(die_and_come_back))
    assert run.destinations[0].attempts == 1 < run.destinations[1].attempts
    night.configure()


def a_disk_is_full(night: Night) -> None:
    with full(night.home / "two"):
        run = night.run()
    assert run is not None and run.outcome == Outcome.FAILED
    assert [part.outcome for part in run.destinations] == [Outcome.DONE, Outcome.FAILED]
    why = {each.message for each in run.destinations[1].failures if each.path}
    assert why == {"No space left on device"}
    assert run.files_removed == 0 < run.destinations[0].files
    night.arrivals.arrive(BIG)
    done(night.run())


def a_run_is_killed(night: Night) -> None:
    """In the midst of a large file, while another run has found that the job is locked."""
    is_blocked = night.blocked("one", wire.DATA, after=MIB)

    def kill(running: Running) -> None:
        until(is_blocked)
        second = night.start()
        assert second.process.wait(PATIENCE_S) == LOCKED
        assert f"(process {running.process.pid}, since " in second.said()
        running.process.kill()

    assert night.run(kill) is None
    night.mend("one")
    done(night.run())
    assert "killed" in night.history.runs()[1].message


def the_link_is_cut(night: Night) -> None:
    night.links["one"].rule("kill", connections=[night.links["one"].connections], type=wire.PACK)
    run = done(night.run())
    assert [part.connections_lost for part in run.destinations] == [1, 0]
    night.mend("one")


def a_file_grows_once_more(night: Night) -> None:
    """While it is on its way to one end, and at the other already: it stays for the next run."""
    name = next(name for name in sorted(os.listdir(night.home / "here")) if name[2:] == "-00.rec")
    is_blocked = night.blocked("one", wire.PACK)

    def grow(running: Running) -> None:
        until(lambda: is_blocked() and name in night.there("two"))
        night.arrivals.grow_again(name)
        night.mend("one")

    done(night.run(grow))
    assert name in os.listdir(night.home / "here") and name not in dict(night.removed())
    done(night.run())


def the_clock_is_set_back(night: Night) -> None:
    done(night.run(step_s=-DAY_S))
    done(night.run(step_s=-DAY_S))
    done(night.run())
