"""pscp-run --check over a real sshd, and --status as a command.

Not here: what becomes of each answer (../unit/test_job_status.py), the far ends without root's
powers (conftest.py).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MakeServer
from forked import POWERLESS
from job_runs import HOSTILE, Remembered, Tags, part, run_of
from programs import script
from servers.private import PrivateServer

import pscp
from e2e.conftest import ShellThat, SshdThat
from e2e.test_copy_sftp import without_python
from pscp.calls import looking
from pscp.cli import run_jobs
from pscp.ground.errors import CopyError, UsageError
from pscp.jobs import check
from pscp.jobs.reports import timers
from pscp.jobs.reports.history import KILLED, history_of
from pscp.jobs.reports.lock import locked, state_path
from pscp.jobs.reports.outcome import Outcome
from pscp.jobs.toml.config import Config
from pscp.jobs.toml.job import Job


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


def test_what_to_do_is_told_in_the_same_line(sshd: PrivateServer, tmp_path: Path) -> None:
    """It stood behind a "\\x0a"."""
    (tmp_path / "a").write_text("a")
    job = job_to(sshd, tmp_path, sources=(f"{tmp_path}/a",), after="move", move_to="/proc/1/sent")
    _, text, code = asked(job)
    assert code == 2 and "is on another file system; name a folder on the same" in text


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


def test_a_folder_that_may_not_be_written_in(sshd_that: SshdThat, tmp_path: Path) -> None:
    server = sshd_that(f'exec {" ".join(POWERLESS)} /bin/sh "$@"')
    (tmp_path / "closed").mkdir(mode=0o555)
    [row], text, code = asked(job_to(server, tmp_path / "closed"))
    assert (code, row.mark, row.writable) == (1, "FAIL", "no")
    assert f"{tmp_path}/closed cannot be written in" in text


def test_folders_of_reports_and_metrics_are_looked_at(sshd: PrivateServer, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    report = (
        ("text", f"{tmp_path}/there/a.txt"), ("html", f"{tmp_path}/none/a.html"),
        ("json", f"{tmp_path}/none/a.json"),
    )  # fmt: skip
    job = job_to(sshd, tmp_path, tmp_path / "x", report=report, metrics=f"{tmp_path}/no/")
    rows, _, code = asked(job)
    why = [f"{key}: {tmp_path}/{name}: there is no such folder"
           for key, name in (("report", "none"), ("metrics", "no"))]  # fmt: skip
    assert code == 1 and [row.reasons for row in rows] == [why, [], []]
    assert [row.destination for row in rows] == ["-", *job.destinations]
    assert [row.mark for row in rows] == ["FAIL", "ok", "ok"]


def test_the_key_that_signs_is_looked_at(sshd: PrivateServer, tmp_path: Path) -> None:
    """The run alone told that it was not there."""
    (tmp_path / "there").mkdir()
    key = tmp_path / "key"
    options = pscp.Options(config_file=sshd.ssh_config, manifest=f"{tmp_path}/m", sign=str(key))
    job = job_to(sshd, tmp_path / "there", options=options)
    [row, there], _, code = asked(job)
    assert (code, row.destination, row.mark, there.mark) == (2, "-", "FAIL", "ok")
    assert row.reasons[0].startswith(f"sign {key}: No such file or directory; it takes the file")
    key.touch()
    assert asked(job)[2] == 0


def pull_to(server: PrivateServer, folder: Path) -> Job:
    sources = (f"{server.host}:/nowhere/*",)
    return dataclasses.replace(job_to(server), destinations=(str(folder),), sources=sources)


def test_where_a_pull_goes_is_looked_at(sshd: PrivateServer, tmp_path: Path) -> None:
    [row], _, code = asked(pull_to(sshd, tmp_path))
    assert (code, row.writable) == (0, "yes") and " of " in row.free and row.clock == "same"


def answering(folder: Path, command: str) -> str:
    """A python3 that has this command say what is there."""
    text = f'case "$3" in *statvfs*) {command};; *) exec "{sys.executable}" "$@";; esac'
    return str(script(folder / "python", text))


def test_a_clock_that_is_off_is_a_warning(make_sshd: MakeServer, tmp_path: Path) -> None:
    back = "import json, sys; a = json.load(sys.stdin); a[0] -= 3600; print(json.dumps(a))"
    python = answering(tmp_path, f'"{sys.executable}" "$@" | exec "{sys.executable}" -c "{back}"')
    [row], text, code = asked(job_to(make_sshd(python=python), tmp_path))
    # What the question took on its way is no part of it: on a busy machine, seconds.
    assert (code, row.mark) == (0, "warn") and -3600 <= int(row.clock.removesuffix(" s")) < -3000
    assert f"the clock there is off by {row.clock}" in text


def test_a_far_end_without_python_is_told(
    make_sshd: MakeServer, shell_that: ShellThat, tmp_path: Path
) -> None:
    server = without_python(make_sshd, shell_that)
    [row], text, code = asked(job_to(server, tmp_path))
    assert (code, row.mark) == (0, "warn") and row.login.endswith(" s, SFTP")
    assert "no python3 there" in text
    job = job_to(server, tmp_path)
    its = dataclasses.replace(job, options=dataclasses.replace(job.options, remote="agent"))
    assert asked(its)[2] == 2
    its = dataclasses.replace(job, options=dataclasses.replace(job.options, backup=True))
    [row], text, code = asked(its)
    assert (code, row.mark) == (2, "FAIL") and "      backup needs the agent" in text


def test_a_far_end_that_answers_something_else(make_sshd: MakeServer, tmp_path: Path) -> None:
    python = answering(tmp_path, f"cat {tmp_path}/said")
    job = job_to(make_sshd(python=python), tmp_path)
    for said in ("[]", "{}", '[1, {"shell": 7}]', '["1", {}]', "no JSON"):
        (tmp_path / "said").write_text(said)
        [row], _, code = asked(job)
        assert code == 1 and "answer" in row.reasons[0]


@pytest.mark.parametrize(
    ("there", "mark"),
    [({"free_bytes": 0}, "FAIL"), ({"has_names_left": False}, "FAIL"), ({"free_bytes": 4}, "warn")],
)
def test_a_full_disk_is_told(
    there: dict[str, object], mark: str, tmp_path: Path, sshd: PrivateServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    full = {**looking._seen(str(tmp_path)), "free_bytes": 99, "total_bytes": 100, **there}
    monkeypatch.setattr(looking, "_seen", lambda path: full)
    [row], _, _ = asked(pull_to(sshd, tmp_path))
    assert row.mark == mark and str(tmp_path) in row.reasons[0]


def test_a_look_is_had_wherever_the_agent_runs(far_python: str, tmp_path: Path) -> None:
    for path in (str(tmp_path), f"{tmp_path}/to/be/made", "", "~"):
        words = [far_python, "-W", "error", "-IS", "-c", looking._PROGRAM, path]
        _, its = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        assert its["is_writable"] and its["has_names_left"] and its["folder"].startswith("/")
        assert not path or path == "~" or its["folder"] == str(tmp_path)


def test_a_program_looks_before_it_copies(sshd: PrivateServer, tmp_path: Path) -> None:
    config = sshd.ssh_config
    seen = pscp.look(f"{sshd.host}:{tmp_path}/to/be/made", config_file=config)
    assert (seen.folder, seen.is_writable, seen.is_sftp) == (str(tmp_path), True, False)
    assert 0 < seen.free_bytes < seen.total_bytes and seen.login_s > 0 and seen.python
    here = pscp.look(tmp_path)
    assert (here.folder, here.total_bytes, here.login_s) == (seen.folder, seen.total_bytes, 0)
    with pytest.raises(pscp.Unreachable):
        pscp.look(f"{sshd.host}:", config_file=config, port=1)
    assert os.listdir(tmp_path) == []


# --- the commands


def test_check_as_a_command(
    sshd: PrivateServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = {"night": job_to(sshd, tmp_path), "other": Job("other", ("nowhere.invalid:/",))}
    assert run_jobs.act("check", Config("/etc/jobs.toml", jobs), ["night"], {}) == 0
    heads, line = capfd.readouterr().out.splitlines()
    assert heads.split()[:3] == ["job", "destination", "login"]
    assert line.split()[:3] == ["ok", "night", f"{sshd.host}:{tmp_path}"]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(timers, "find", lambda jobs, config, now_s, **given: {})
    past = Remembered([run_of(part())])
    monkeypatch.setattr(run_jobs, "history_of", lambda path, note: past)
    jobs = {name: Job(name, ("store1:/vault/",)) for name in ("recordings", "other")}
    return Config("/etc/jobs.toml", jobs)


LOCKS = """
import subprocess
import sys
from pscp.jobs.reports.lock import locked
with locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_status_as_a_command(
    config: Config,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    argv = [sys.executable, "-c", LOCKS, state_path(config.path, "recordings")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        run_jobs.act("status", config, ["recordings"], {})
        other.terminate()
    assert f"running (process {other.pid}, since " in capfd.readouterr().out
    assert run_jobs.act("status", config, ["recordings"], {}) == 0
    assert "done" in capfd.readouterr().out.splitlines()[1]
    both = ("recordings", "other")
    assert run_jobs.act("status", config, both, {"json": True}) == 1, "other never ran"
    assert [each["job"] for each in json.loads(capfd.readouterr().out)] == ["recordings", "other"]


def test_a_run_that_was_killed_is_behind_at_once(
    config: Config,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was "done", and 0, until the next run closed its row."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    past = history_of(config.path, pytest.fail)
    monkeypatch.setattr(run_jobs, "history_of", lambda path, note: past)
    past.record(run_of(part(), run="1"))
    past.begin(run_of(job="recordings", run="2", outcome=Outcome.CUT, message="under way"))
    asked = functools.partial(run_jobs.act, "status", config, ["recordings"])
    with locked(state_path(config.path, "recordings")):
        assert asked({}) == 0
    assert asked({"json": True}) == 1
    [told] = json.loads(capfd.readouterr().out.partition("\n")[2].partition("\n")[2])
    assert (told["outcome"], told["behind"]) == ("cut", KILLED) and told["last_success_s"]
    page = tmp_path / "page.html"
    assert asked({"html": str(page)}) == 1 and KILLED in Tags(page.read_text()).text


@pytest.mark.parametrize(
    ("kept", "why"), [("folder", "Is a directory"), ("damaged", "file is not a database")]
)
def test_a_history_that_cannot_be_read_is_no_job_that_never_ran(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str, why: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(run_jobs, "history_of", history_of)
    path = Path(history_of(config.path).path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no database" * 100)
    if kept == "folder":
        path.unlink()
        path.mkdir()
    for words in ({}, {"json": True}, {"html": str(tmp_path / "page.html")}):
        with pytest.raises(CopyError, match=re.escape(f"cannot read {path}: {why}")):
            run_jobs.act("status", config, ["recordings"], words)
    assert not (tmp_path / "page.html").exists()


def test_status_as_a_page(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    both = ("recordings", "other")
    assert run_jobs.act("status", config, both, {"html": str(path)}) == 1
    assert path.read_text().startswith("<!DOCTYPE html>") and os.listdir(tmp_path) == ["page.html"]
    with pytest.raises(UsageError, match="No such file"):
        run_jobs.act("status", config, both, {"html": f"{tmp_path}/none/page.html"})
