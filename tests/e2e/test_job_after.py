"""`after` of a job, where it is not the common case: sources at a host, and what cannot be moved.

Not here: a job that pushes and removes (test_jobs.py), Moves themselves (test_moves.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from job_runs import part, run_of
from prometheus_client import generate_latest

from e2e.test_jobs import Place, journaled_chunks, place, start
from e2e.test_run_jobs import run
from pscp.ground.values import MIB
from pscp.jobs import check
from pscp.jobs.reports.notifications import collect
from pscp.jobs.reports.outcome import Outcome
from pscp.jobs.reports.report import lines, summary
from pscp.jobs.toml.job import Job

__all__ = ["place"]


def pulling(place: Place, *patterns: str, **fields: Any) -> Job:
    """A job that collects from folder `one` of the host, and removes there."""
    sources = tuple(f"{place.destination()}{each}" for each in patterns or ("*.rec",))
    given = {"sources": sources, "destinations": (f"{place.home}/here/",), "after": "remove"}
    return place.job(**{**given, **fields})


def fill_there(place: Place, *names: str, size: int = 1000) -> None:
    for name in names:
        (place.there(0) / name).write_bytes(os.urandom(size))


def here(place: Place) -> set[str]:
    return set(os.listdir(place.home / "here"))


# --- sources at a host


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_what_is_collected_is_removed_at_its_host(place: Place, remote: str) -> None:
    fill_there(place, "a.rec", "b.rec", "c.other")
    job = pulling(place, options={"remote": remote})
    collected = place.run_one(job)
    assert (collected.outcome, collected.files_removed) == (Outcome.DONE, 2), collected
    assert here(place) == {"a.rec", "b.rec"} and os.listdir(place.there(0)) == ["c.other"]
    quiet = place.run_one(job)  # nor is it a failure that all of it was collected before
    assert (quiet.outcome, quiet.exit_code, quiet.files_removed) == (Outcome.NOTHING, 7, 0), quiet
    gone = place.run_one(pulling(place, "gone/*.rec", options={"remote": remote}))
    assert gone.outcome == Outcome.FAILED, "a disk that is not mounted is no quiet night"


def test_what_may_still_change_at_the_host_waits_there(place: Place) -> None:
    fill_there(place, "old.rec", "new.rec")
    os.utime(place.there(0) / "old.rec", (10**9, 10**9))
    found = place.run_one(pulling(place, min_age_s=3600))
    assert (found.outcome, found.files_removed, found.files_waiting) == (Outcome.DONE, 1, 1)
    assert here(place) == {"old.rec"} and os.listdir(place.there(0)) == ["new.rec"]


@pytest.mark.parametrize("listed", ["sources-from", "sources-command"])
def test_what_a_list_names_at_a_host_is_removed_there(place: Place, listed: str) -> None:
    fill_there(place, "a.rec", "b.rec")
    path = place.home / "list"
    path.write_text(f"{place.destination()}a.rec\n")
    given: dict[str, Any] = {"sources_from": str(path)}
    if listed == "sources-command":
        given = {"sources_command": ("cat", str(path))}
    moving = place.run_one(pulling(place, **given, sources=(), after="move", move_to="/sent"))
    assert moving.outcome == Outcome.MISCONFIGURED and "on this machine" in moving.message
    found = place.run_one(pulling(place, **given, sources=()))
    assert (found.outcome, found.files_removed) == (Outcome.DONE, 1), found
    assert here(place) == {"a.rec"} and os.listdir(place.there(0)) == ["b.rec"]


def test_a_run_that_is_killed_as_it_collects_loses_nothing(place: Place) -> None:
    fill_there(place, "a.rec")
    fill_there(place, "b.rec", size=8 * MIB)
    kept = {each.name: each.read_bytes() for each in place.there(0).iterdir()}
    slow = {"limit_kbit_s": 20_000, "chunk_bytes": MIB}
    with start(place, pulling(place, options=slow)) as process:
        until(lambda: journaled_chunks(place.home) >= 4)
        process.kill()
        process.communicate()
    assert set(os.listdir(place.there(0))) == kept.keys()
    found = place.run_one(pulling(place, options={"chunk_bytes": MIB}))
    assert (found.outcome, found.files_removed) == (Outcome.DONE, 2), found
    assert os.listdir(place.there(0)) == []
    assert {name: (place.home / "here" / name).read_bytes() for name in here(place)} == kept


@pytest.mark.parametrize("where", ["--dry-run", "--explain", "--check"])
def test_what_would_be_removed_at_the_host_is_told(
    place: Place, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fill_there(place, "a.rec")
    text = '[job.night]\nsources = "one/*.rec"\ndestinations = "here/"\nafter = "remove"\n'
    assert run(place, text, where) == 0
    out, err = capfd.readouterr()
    assert where != "--dry-run" or "1 file would be removed at the source" in err
    assert where != "--explain" or "--remove-source-files" in out
    assert os.listdir(place.there(0)) == ["a.rec"] and here(place) == set()


@pytest.mark.parametrize(
    ("listed", "code"),
    [
        ('"one/*.none"', 7), ('"here/*.none"', 7), ('["one/*.rec", "one/*.none"]', 0),
        ('["one/*.none", "one/none"]', 1), ('"one/none/*"', 1),
    ],
)  # fmt: skip
def test_a_dry_run_ends_as_the_run_where_a_pattern_matches_nothing(
    place: Place, listed: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ended with 1 where none at a host did, and with 0 where none here did."""
    fill_there(place, "a.rec")
    to = "one/new/" if "here" in listed else "here/"
    text = f'[job.night]\nsources = {listed}\ndestinations = "{to}"\n'
    codes = [run(place, text, "--dry-run"), run(place, text)]
    assert codes == [code, code], capfd.readouterr().err
    assert (" 1 failed" in capfd.readouterr().err) is (code == 1)


# --- what cannot be


@pytest.mark.parametrize("is_there", [True, False])
def test_another_file_system_to_move_to_is_found_before_a_run(
    place: Place, other_disk: Path, capfd: pytest.CaptureFixture[str], is_there: bool
) -> None:
    """Also while no source is there yet."""
    if is_there:
        place.fill("a")
    text = f'[job.night]\nsources = "here/*"\ndestinations = "one/"\nafter = "move {other_disk}"\n'
    why = "is on another file system"
    codes = {each: run(place, text, *each.split()) for each in ("--check", "--dry-run", "")}
    said = capfd.readouterr()
    assert codes == dict.fromkeys(codes, 2) if is_there else codes["--check"] == 2
    assert why in said.out and (why in said.err) == is_there
    assert place.arrived() == set()


def test_sources_that_could_not_be_removed_are_told_before_a_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.fill("a")
    closed = f"{place.home}/here"
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and access(path, mode))
    row, there = check.check([place.job(after="remove")])
    assert (row.mark, row.destination, there.mark) == ("warn", "-", "ok")
    assert row.reasons == [f"{closed}: cannot be written in, so no source there can be removed"]
    [row] = check.check([place.job()])
    assert row.mark == "ok", row


def test_why_a_mirror_deleted_nothing_is_in_the_report(place: Place) -> None:
    """It was a note alone, which nobody saw without -v."""
    place.fill("a")
    (place.there(0) / "old").touch()
    sources = (f"{place.home}/here/a", f"{place.home}/here/gone")
    found = place.run_one(place.job(sources=sources, options={"delete": True}))
    assert (found.outcome, found.destinations[0].files_failed) == (Outcome.FAILED, 1)
    why = "nothing was deleted, since a source is missing"
    assert [each.message for each in found.destinations[0].failures if not each.path] == [why]
    assert any(why in line for line in lines(found)) and place.arrived() == {"a", "old"}


# --- what cannot be removed


@pytest.mark.parametrize("ends", [1, 2])
def test_a_source_that_stays_is_the_failure_of_the_run(place: Place, ends: int) -> None:
    """It was that of whichever destination ended last."""
    place.fill("a")
    (place.home / "b").write_text("b")
    (place.home / "here" / "b").symlink_to(place.home / "b")
    ran = place.run_one(place.job(ends=ends, after="remove"))
    assert (ran.outcome, ran.exit_code, ran.files_removed) == (Outcome.FAILED, 1, 1)
    assert "b" in ran.message and "link" in ran.message
    for each in ran.destinations:
        assert (each.outcome, each.files_failed, each.failures) == (Outcome.DONE, 0, ())
        assert place.history.last_success("job", each.destination)
        values = generate_latest(collect(ran, {})).decode()
        assert 'pscp_job_exit_code{job="job"} 1.0' in values
        its = f'{{destination="{each.destination}",job="job"}}'
        assert f"pscp_job_destination_exit_code{its} 0.0" in values
    assert here(place) == {"b"}
    assert summary(ran) == " ".join(ran.message.split("\n"))


def test_what_stays_does_not_hide_a_destination_that_failed() -> None:
    bad = part(outcome=Outcome.UNREACHABLE, message="no route")
    assert summary(run_of(bad, message="b stays")) == f"b stays; {bad.destination}: no route"
