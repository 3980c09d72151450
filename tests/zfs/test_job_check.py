"""pscp-run --check of a job with datasets: zfs is asked at both ends, and nothing is changed.

Not here: other jobs (../e2e/test_job_check.py), what a replication does (test_over_ssh.py).
"""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

import pscp
from pscp.jobs import check
from pscp.jobs.toml.job import Job
from pscp.zfs.settings import Settings
from zfs.conftest import Ends

PUSH = pytest.mark.parametrize("far", ["push"], indirect=True)


def job_of(far: Ends) -> Job:
    assert far.over_ssh is not None
    options = pscp.Options(config_file=str(far.over_ssh["config_file"]))
    settings = Settings(
        zfs_command=shlex.join(far.sender.zfs), far_zfs_command=shlex.join(far.receiver.zfs)
    )
    source, dest = far.places
    return Job("night", (dest,), datasets=(source,), options=options, settings=settings)


@PUSH
def test_datasets_that_can_be_replicated(far: Ends) -> None:
    far.grow("one")
    [row] = check.check([job_of(far)])
    assert (row.mark, row.reasons) == ("ok", []) and row.login.endswith(" s")
    assert not far.receiver.exists(far.dest)


@PUSH
def test_a_dataset_that_is_not_there_is_told(far: Ends) -> None:
    far.source = "tank/none"
    rows = check.check([job_of(far)])
    assert check.exit_code(rows) == 1 and "tank/none" in rows[0].reasons[0]


@PUSH
def test_a_parent_that_is_not_there_is_told(far: Ends) -> None:
    """It was found ready, and the night failed."""
    for below in ("below", "other"):
        far.sender.do("create", f"{far.source}/{below}")
    far.snapshot("one", "-r")
    far.dest = "vault/none/a"
    job = job_of(far)
    assert job.settings is not None
    rows = check.check([replace(job, settings=replace(job.settings, recursive=True))])
    assert check.exit_code(rows) == 1
    first, second = rows[0].reasons
    assert first.startswith(f"vault/none/a: {far.host}: there is no dataset vault/none; zfs list")
    assert second == "vault/none/a/below and 1 more: what they lie below was not replicated"


@PUSH
def test_a_far_end_without_zfs_is_told(far: Ends) -> None:
    job = job_of(far)
    settings = replace(job.settings, far_zfs_command="/nowhere/zfs")
    rows = check.check([replace(job, settings=settings)])
    assert check.exit_code(rows) == 1 and "zfs" in rows[0].reasons[0]
