"""pscp-run --check over a real sshd, and --status as a command.

Not here: what becomes of each answer (../unit/test_job_status.py), the far ends without root's
powers (conftest.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import MakeServer
from job_runs import HOSTILE, Remembered, part, run_of

import pscp
from e2e.conftest import POWERLESS, ShellThat
from e2e.test_copy_sftp import without_python
from pscp.cli import run_status
from pscp.errors import UsageError
from pscp.jobs import check, timers
from pscp.jobs.job import Job
from pscp.selftest.servers import PrivateServer


@dataclasses.dataclass(frozen=True)
class Asked:
    """A command line and a config, as run_status sees them."""

    jobs: dict[str, Job]
    path: str = "/etc/jobs.toml"


@dataclasses.dataclass(frozen=True)
class Words:
    jobs: Sequence[str] = ()
    json: bool = False
    html: str | None = None


def job_to(server: PrivateServer, *folders: Path | str, **fields: object) -> Job:
    options = pscp.Options(config_file=server.ssh_config)
    given = {"name": "night", "sources": ("/nowhere/*",), "options": options, **fields}
    return Job(destinations=tuple(f"{server.host}:{each}" for each in folders), **given)  # type: ignore[arg-type]


def asked(*jobs: Job) -> tuple[list[check.Row], str, int]:
    rows = check.check(jobs)
    return rows, "\n".join(check.table(rows)), check.exit_code(rows)


# --- check


def test_a_destination_that_takes_everything(sshd: PrivateServer, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    [row, to_be_made], _, code = asked(job_to(sshd, tmp_path / "there", tmp_path / "new" / "er"))
    assert (code, row.mark, row.reasons) == (0, "ok", []), row
    assert row.login.endswith(" s") and row.python.count(".") == 2 and row.clock == "same"
    assert (row.writable, to_be_made.writable) == ("yes", "yes") and " of " in row.free
    assert os.listdir(tmp_path) == ["there"] and not os.listdir(tmp_path / "there")


def test_hostile_names_are_folders_like_others(sshd: PrivateServer, tmp_path: Path) -> None:
    folder = tmp_path / "-x\n$(false)'\"\udcff"
    folder.mkdir()
    [row], _, code = asked(job_to(sshd, folder))
    assert (code, row.writable) == (0, "yes"), row


def test_no_name_breaks_the_table(tmp_path: Path) -> None:
    row = check.Row(HOSTILE, HOSTILE, reasons=[HOSTILE])
    assert [line.isprintable() for line in check.table([row])] == [True] * 3


def test_a_host_that_does_not_answer_is_told_beside_those_that_do(
    sshd: PrivateServer, tmp_path: Path
) -> None:
    closed = job_to(sshd, tmp_path, name="closed")
    closed = dataclasses.replace(closed, options=dataclasses.replace(closed.options, port=1))
    rows, text, code = asked(closed, job_to(sshd, tmp_path))
    assert code == 3 and [row.mark for row in rows] == ["FAIL", "ok"]
    assert rows[0].login == "failed" and "refuse" in text.splitlines()[2]


def test_a_folder_that_may_not_be_written_in(
    make_sshd: MakeServer, shell_that: ShellThat, tmp_path: Path
) -> None:
    server = make_sshd(shell=shell_that(f'exec {" ".join(POWERLESS)} /bin/sh "$@"'))
    (tmp_path / "closed").mkdir(mode=0o555)
    [row], text, code = asked(job_to(server, tmp_path / "closed"))
    assert (code, row.mark, row.writable) == (1, "FAIL", "no")
    assert f"{tmp_path}/closed: Permission denied" in text


def test_sources_that_are_removed_are_looked_at(
    make_sshd: MakeServer, shell_that: ShellThat, tmp_path: Path
) -> None:
    """By a pull, whose source is at the end without root's powers."""
    server = make_sshd(shell=shell_that(f'exec {" ".join(POWERLESS)} /bin/sh "$@"'))
    (tmp_path / "closed").mkdir(mode=0o555)
    job = dataclasses.replace(
        job_to(server), destinations=(str(tmp_path),), after="remove",
        sources=(f"{server.host}:{tmp_path}/closed/*.rec",),
    )  # fmt: skip
    [row], text, code = asked(job)
    assert (code, row.writable) == (1, "yes") and " of " in row.free
    assert f"{tmp_path}/closed: Permission denied, so nothing is removed" in text
    assert asked(dataclasses.replace(job, after="keep"))[2] == 0


def test_a_source_here_that_cannot_be_removed_is_told(
    sshd: PrivateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {" ".join(POWERLESS)} "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "closed").mkdir(mode=0o555)
    job = job_to(sshd, tmp_path, sources=(f"{tmp_path}/closed/*",), after="remove")
    monkeypatch.setattr(sys, "executable", str(python))
    [row], text, code = asked(job)
    assert (code, row.writable) == (1, "yes")
    assert f"{tmp_path}/closed: Permission denied, so nothing is removed" in text


def test_a_clock_that_is_off_is_a_warning(
    sshd: PrivateServer, make_sshd: MakeServer, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nfor word do [ "$word" = "{check._CLOCK}" ] &&'
        f' exec "{sys.executable}" -c "import time; print(time.time() - 3600)"; done\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    [row], text, code = asked(job_to(make_sshd(python=str(python)), tmp_path))
    assert (code, row.mark, row.clock) == (0, "warn", "-3600 s")
    assert "the clock there is 3600 s behind" in text


def test_a_far_end_without_python_is_told(
    make_sshd: MakeServer, shell_that: ShellThat, tmp_path: Path
) -> None:
    server = without_python(make_sshd, shell_that)
    [row], text, code = asked(job_to(server, tmp_path))
    assert (code, row.mark) == (0, "warn") and row.login.endswith(" s, SFTP")
    assert "no python3 there" in text
    job = job_to(server, tmp_path)
    its = dataclasses.replace(job, options=dataclasses.replace(job.options, remote="agent"))
    assert asked(its)[2] == 3


def test_a_far_end_that_answers_something_else(make_sshd: MakeServer, tmp_path: Path) -> None:
    for said in ("[]", '{"folders": []}', '{"folders": [7]}', '{"folders": [{}]}', "no JSON"):
        python = tmp_path / "python"
        python.write_text(
            f'#!/bin/sh\ncase "$3" in *statvfs*) echo {said!r};;'
            f' *) exec "{sys.executable}" "$@";; esac\n'
        )
        python.chmod(0o755)
        [row], _, code = asked(job_to(make_sshd(python=str(python)), tmp_path))
        assert code == 1 and "answer" in row.reasons[0]


def test_a_full_disk_is_told() -> None:
    for free_bytes, free_files, mark in ((0, 5, "FAIL"), (9, 0, "FAIL"), (4, 5, "warn")):
        row = check.Row("night", "store1:/vault/")
        its = {"folder": "/vault", "why_not_writable": "", "total_bytes": 100}
        its |= {"free_bytes": free_bytes, "free_files": free_files}
        check._tell_room(row, check._folder(its))
        assert row.mark == mark and "/vault" in row.reasons[0]


def test_the_probe_runs_wherever_the_agent_does(far_python: str, tmp_path: Path) -> None:
    _, folders = check._facts(lambda argv: _output(far_python, *argv), [str(tmp_path), "", "~"])
    assert [each.why_not_writable for each in folders] == [""] * 3
    assert folders[0].path == str(tmp_path)


def _output(python: str, *argv: str) -> str:
    import subprocess

    words = [python, "-W", "error", "-IS", "-c", *argv]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


# --- the commands


def test_check_as_a_command(
    sshd: PrivateServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = {"night": job_to(sshd, tmp_path), "other": Job("other", ("nowhere.invalid:/",))}
    assert run_status.check_all(Asked(jobs), Words(["night"])) == 0
    heads, line = capfd.readouterr().out.splitlines()
    assert heads.split()[:3] == ["job", "destination", "login"]
    assert line.split()[:3] == ["ok", "night", f"{sshd.host}:{tmp_path}"]


@pytest.fixture
def status_of(monkeypatch: pytest.MonkeyPatch) -> tuple[Asked, Remembered]:
    monkeypatch.setattr(timers, "find", lambda jobs, config, now_s: {})
    jobs = {name: Job(name, ("store1:/vault/",)) for name in ("recordings", "other")}
    return Asked(jobs), Remembered([run_of(part())])


def test_status_as_a_command(
    status_of: tuple[Asked, Remembered], capfd: pytest.CaptureFixture[str]
) -> None:
    config, past = status_of
    assert run_status.show_status(config, Words(["recordings"]), past) == 0
    assert "done" in capfd.readouterr().out.splitlines()[1]
    assert run_status.show_status(config, Words(json=True), past) == 1, "other never ran"
    assert [each["job"] for each in json.loads(capfd.readouterr().out)] == ["recordings", "other"]


def test_status_as_a_page(status_of: tuple[Asked, Remembered], tmp_path: Path) -> None:
    config, past = status_of
    path = tmp_path / "page.html"
    assert run_status.show_status(config, Words(html=str(path)), past) == 1
    assert path.read_text().startswith("<!DOCTYPE html>") and os.listdir(tmp_path) == ["page.html"]
    with pytest.raises(UsageError, match="No such file"):
        run_status.show_status(config, Words(html=f"{tmp_path}/none/page.html"), past)
