"""pscp-run, running jobs: what it says, and its exit codes.

Not here: the runs themselves (test_jobs.py), the file of jobs.
"""

from __future__ import annotations

import types
from typing import Any

import pytest

from e2e.test_jobs import Place, place
from pscp.cli.run_jobs import run_jobs
from pscp.jobs.job import Job

__all__ = ["place"]


def run(place: Place, *jobs: Job, only: tuple[str, ...] = (), **words: Any) -> int:
    config: Any = types.SimpleNamespace(path=place.config, jobs={job.name: job for job in jobs})
    given = {"jobs": only or tuple(config.jobs), "if_running": None, "verbose": False}
    command: Any = types.SimpleNamespace(**{**given, **words})
    return run_jobs(config, command)


def test_it_is_quiet_where_all_went_well(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.fill("a")
    nothing = place.job("nothing", sources=(f"{place.home}/one/x*",))
    assert run(place, place.job(), nothing) == 0
    assert run(place, nothing) == 7
    assert capfd.readouterr() == ("", "")


def test_it_tells_what_failed_and_not_what_went_well(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    place.fill("a")
    bad = place.job("bad", before="echo why; exit 3")
    gone = place.job("gone", sources=(f"{place.home}/here/gone",))
    assert run(place, bad, place.job("good"), gone) == 1
    err = capfd.readouterr().err
    assert "bad: failed: before: exit status 3; nothing was copied" in err
    assert "before said: why" in err and "here/gone: " in err and "good" not in err


def test_it_says_what_happens_where_that_is_asked_for(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    place.fill("a")
    assert run(place, place.job(), verbose=True) == 0
    assert f"job: {place.destination()}: done" in capfd.readouterr().err


def test_what_a_job_depends_on_is_run_too(place: Place) -> None:
    first, second = place.job("first"), place.job("second", depends_on=("first",))
    run(place, second, first, only=("second",))
    assert [each.job for each in place.history.runs()] == ["second", "first"]
