"""The jobs of a batch queue: what is said of them, and what dask-jobqueue may not do.

Not here: jobs that run (../faults/test_batch_queue.py).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pscp
from pscp.cluster import batch
from pscp.cluster.batch import Jobs
from pscp.cluster.dispatcher import no_worker


def jobs_of(folder: Path, *ids: str) -> Jobs:
    jobs = Jobs("slurm", str(folder))
    jobs.ids = {f"SLURMCluster-{number}": each for number, each in enumerate(ids)}
    return jobs


def test_each_queue_has_a_name_in_dask_jobqueue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("SLURM", "PBS", "LSF", "SGE", "OAR", "HTCondor")

    class Job:
        cancel_command = "cancel"

    class Made:
        job_cls = Job

        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, **words: object) -> str:
            return self.name

    made: Any = SimpleNamespace(**{f"{name}Cluster": Made(name) for name in names})
    monkeypatch.setattr(batch, "_dask_jobqueue", lambda: made)
    monkeypatch.setattr(batch, "_configured", lambda kind, name, default="1": default)
    for name in names:
        jobs = Jobs(name.lower(), str(tmp_path))
        assert batch._made(jobs, name.lower(), str(tmp_path), has_tls=False) == name
        assert jobs.cancel_command == "cancel"
        assert pscp.Options(cluster=f"{name.lower()}:8").cluster


@pytest.mark.parametrize(
    "where", ["call()", "t = threading.Thread(target=call); t.start(); t.join()"]
)
def test_a_programs_signals_stay_as_they_are(where: str, tmp_path: Path) -> None:
    """dask-jobqueue has a Ctrl-C exit with 0, as of a copy that is whole; and no thread may."""
    program = (
        "import signal, sys, threading\nfrom pscp.cluster import batch\n"
        "def call(): batch._dask_jobqueue(); print('loaded')\n"
        f"{where}\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.signal)\n"
    )
    environ = {**os.environ, "DASK_CONFIG": str(tmp_path)}
    argv = [sys.executable, "-c", program]
    ran = subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=200)
    assert ran.stdout.splitlines()[:1] == ["loaded"], ran
    assert ran.stdout.splitlines()[1].startswith("True <function signal at "), ran


def test_without_certificates_nobody_is_asked_for_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def found(name: str, *more: Any) -> Any:
        return None if name == "cryptography" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    with (
        pytest.raises(pscp.UsageError, match="cryptography is not installed"),
        batch.submitted("slurm", 2, has_tls=True),
    ):
        pass


def test_what_a_job_asks_for_has_to_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(batch, "_dask_jobqueue", lambda: SimpleNamespace(PBSCluster=None))
    with (
        pytest.raises(pscp.UsageError, match=r"nothing sets jobqueue\.pbs\.cores") as raised,
        batch.submitted("pbs", 2, has_tls=False),
    ):
        pass
    assert "docs/cluster.md" in raised.value.hint and not any(tmp_path.iterdir())


def test_a_folder_for_jobs_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    with (
        pytest.raises(pscp.UsageError, match="slurm: /nowhere: No such file") as raised,
        batch.submitted("slurm", 2, has_tls=False),
    ):
        pass
    assert "jobqueue.slurm.shared-temp-directory" in raised.value.hint


# --- what is said


def test_who_waits_says_for_what(tmp_path: Path) -> None:
    assert no_worker(None) == "no worker of the cluster is there: waiting"
    jobs = jobs_of(tmp_path, "9", "10")
    where = f"what these write is in {tmp_path}"
    assert no_worker(jobs).endswith(f"waiting for slurm's jobs 9, 10; {where}")
    (tmp_path / ".key.pem").write_text("secret\n")
    (tmp_path / "worker-9.out").write_text("")
    assert jobs.waiting.endswith(where)
    for written, said in (
        ("INFO - Begin\nINFO - End\x1b worker\n\n", "INFO - End\\x1b worker"),
        ("INFO\nslurmstepd: error: CANCELLED\nINFO\n", "slurmstepd: error: CANCELLED"),
        ("ModuleNotFoundError: No module named 'x'\nTypeError: y\nEnd\n", "No module named 'x'"),
    ):
        (tmp_path / "worker-9.err").write_text(written)
        assert jobs.waiting.endswith(f"{said}; all is in {tmp_path}") and "wrote: " in jobs.waiting
    assert jobs_of(tmp_path, "8").waiting.startswith("for slurm's job 8; ")
    many = jobs_of(tmp_path, *map(str, range(1, 101)))
    assert many.waiting.startswith("for slurm's jobs 1, 2, 3 and 97 more; ")


def test_why_a_job_is_refused() -> None:
    text = "Command exited with non-zero exit code.\nstdout:\n\nstderr:\nsbatch: bad\nso: no\n\n\n"
    for error, said in (
        (RuntimeError(text), "sbatch: bad; so: no"),
        (RuntimeError("one\ntwo"), "one; two"),
        (FileNotFoundError(2, "No such file or directory", "sbatch"), "sbatch: No such file"),
    ):
        assert batch._why(error).startswith(said)


def test_a_queue_refuses_jobs(tmp_path: Path) -> None:
    jobs = Jobs("slurm", str(tmp_path))
    jobs.refusals = ["too many", "too many"]
    with pytest.raises(pscp.Unreachable, match="no job could be submitted: too many"):
        jobs.check_submitted()
    jobs.ids = {"a": "7"}
    jobs.check_submitted()
    assert jobs.refused == "slurm takes 1 of 3 jobs: too many"
    assert not jobs_of(tmp_path, "7").refused


def test_a_copy_ends_once_all_jobs_are_over(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, "7", "8")
    jobs.see([], 0.0)
    jobs.see(["SLURMCluster-0"], 1000.0)
    jobs.see([], 2000.0)  # the other one still waits in the queue
    jobs.see(["SLURMCluster-1-0", "SLURMCluster-1-1"], 3000.0)  # of two processes
    jobs.see([], 3000.0 + batch._LOST_S)  # one may come back
    said = r"jobs 7, 8 have none any more: their time may be up \(jobqueue\.slurm\.walltime\)"
    with pytest.raises(pscp.ConnectionLost, match=f"{said}$"):
        jobs.see([], 3001.0 + batch._LOST_S)
    (tmp_path / "worker-7.err").write_text("No module named 'pscp'\nEnd\n")
    with pytest.raises(pscp.ConnectionLost, match=f"{said}; one wrote: No module named 'pscp'$"):
        jobs.see([], 3001.0 + batch._LOST_S)


def test_a_copy_ends_once_all_jobs_have_said_that_they_end(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, "7", "8")
    (tmp_path / ".over-1").touch()
    jobs.see([], 0.0)
    (tmp_path / ".over-2").touch()
    jobs.see(["SLURMCluster-0"], 1.0)  # of a job that the queue has begun again
    jobs.see([], 2.0)
    with pytest.raises(pscp.ConnectionLost, match="jobs 7, 8 have none any more"):
        jobs.see([], 100.0)
    jobs = jobs_of(tmp_path, "7", "8")
    with pytest.raises(pscp.ConnectionLost, match=r"slurm's jobs 7, 8 had no worker$"):
        jobs.see([], 0.0)


def test_jobs_are_cancelled_by_a_process_that_nobody_waits_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda words, **more: started.append(words))
    jobs = jobs_of(tmp_path, "7", "8")
    jobs.cancel_command = "scancel -f"
    jobs.cancel_at_once()
    jobs_of(tmp_path).cancel_at_once()
    assert started == [["scancel", "-f", "7", "8"]]
