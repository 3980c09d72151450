"""Jobs of datasets, run over a real sshd: to several destinations, and where pscp is at fault.

Not here: --check of one (test_job_check.py), what a replication does (test_over_ssh.py).
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.test_jobs import Told

from pscp.cli.run import main
from pscp.jobs import runner
from pscp.jobs.reports.history import history_of
from pscp.jobs.reports.outcome import JobRun, Outcome
from pscp.jobs.toml.job import Job
from pscp.zfs.dataset_job import ReceivedDataset
from pscp.zfs.plan import Pair
from zfs.conftest import Ends
from zfs.test_job_check import PUSH, job_of


def run(home: Path, *jobs: Job) -> list[JobRun]:
    config = str(home / "jobs.toml")
    history = history_of(config, pytest.fail)
    found = runner.run(jobs, history, config, Told())
    assert [each.outcome for each in reversed(history.runs())] == [each.outcome for each in found]
    return found


@PUSH
def test_datasets_go_to_several_destinations_at_once(
    far: Ends, own_state: Path, tmp_path: Path
) -> None:
    """B1: their lanes were taken for those of a copy that shares what it reads with another."""
    far.grow("one", "two")
    far.receiver.do("create", far.dest)  # it goes with what is below
    both = tuple(f"{far.dest}/{name}" for name in ("first", "second"))
    job = replace(job_of(far), destinations=tuple(f"{far.host}:{each}" for each in both))
    [done] = run(tmp_path, job)
    assert done.outcome == Outcome.DONE, done
    assert [each.files for each in done.destinations] == [1, 1]
    here = far.sender.guids(far.source)
    assert [far.receiver.guids(each) for each in both] == [here, here] and len(here) == 2


@PUSH
def test_a_job_of_datasets_is_told_in_keys(
    far: Ends, own_state: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its dry run spoke as pscp-zfs, and of options that pscp-run has not."""
    far.grow("one")
    far.receiver.do("create", far.dest)
    source, dest = far.places
    assert far.over_ssh is not None
    keys = {
        "datasets": source, "destinations": dest, "config": far.over_ssh["config_file"],
        "zfs-command": shlex.join(far.sender.zfs),
        "far-zfs-command": shlex.join(far.receiver.zfs),
    }  # fmt: skip
    lines = [f"{key} = {json.dumps(str(value))}" for key, value in keys.items()]
    (tmp_path / "jobs.toml").write_text("\n".join(["[job.night]", *lines]))
    for words in (["-n"], ["-v"]):
        assert main(["--config", f"{tmp_path}/jobs.toml", *words]) == 1
        err = capfd.readouterr().err
        assert "; force-rollback overwrites" in err.replace("\n", ";"), err
        assert not re.search(r"pscp-zfs|--[a-z]", err)


@PUSH
def test_where_pscp_is_at_fault_a_job_fails_and_the_next_one_is_run(
    far: Ends, own_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: a traceback, no other job, and nothing told of it."""
    far.grow("one")

    def ends_badly(self: object, pair: Pair) -> ReceivedDataset:
        self.holds.take(pair.source.name, pair.source.snapshots)  # type: ignore[attr-defined]
        assert far.sender.do("get", "-Hp", "-o", "value", "userrefs", f"{far.source}@one") == "1\n"
        raise ZeroDivisionError("of\nnight")

    with monkeypatch.context() as patch:
        patch.setattr("pscp.zfs.dataset_job.Job.replicate", ends_badly)
        following = Job("following", (f"{far.host}:/",), sources=(f"{tmp_path}/none*",))
        [failed, nothing] = run(tmp_path, job_of(far), following)
    assert (failed.outcome, failed.exit_code) == (Outcome.FAILED, 1)
    [part] = failed.destinations
    assert (part.outcome, part.attempts) == (Outcome.FAILED, 1)
    assert part.message.startswith("pscp is at fault: ZeroDivisionError: of night (test_jobs.py, ")
    assert nothing.outcome == Outcome.NOTHING
    assert far.sender.do("get", "-Hp", "-o", "value", "userrefs", f"{far.source}@one") == "0\n"
