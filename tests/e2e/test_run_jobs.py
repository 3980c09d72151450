"""pscp-run, running the jobs of a file: what it says, and its exit codes.

Not here: the runs themselves (test_jobs.py), the file (test_run_command.py).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from conftest import MakeServer

from e2e.conftest import ShellThat
from e2e.test_copy_sftp import without_python
from e2e.test_jobs import Place, place
from pscp.cli.run import main

__all__ = ["place"]


def run(place: Place, text: str, *words: str) -> int:
    """Runs jobs of a file, of which `here` and `one` are the folders of the place."""
    common = f'[defaults]\nconfig = "{place.server.ssh_config}"\nconnections = 1\n'
    text = text.replace("one/", place.destination()).replace("here/", f"{place.home}/here/")
    Path(place.config).write_text(common + text)
    return main(["--config", place.config, *words])


GOOD = '[job.good]\nsources = ["here/*"]\ndestinations = ["one/"]\n'
NOTHING = '[job.nothing]\nsources = ["here/x*"]\ndestinations = ["one/"]\n'


def test_it_is_quiet_where_all_went_well(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.fill("a")
    assert run(place, GOOD + NOTHING) == 0
    assert run(place, GOOD + NOTHING, "nothing") == 7
    assert capfd.readouterr() == ("", "")
    assert place.arrived() == {"a"}


def test_it_tells_what_failed_and_not_what_went_well(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    place.fill("a")
    bad = (GOOD + 'before = "echo why; exit 3"\n').replace("good", "bad")
    gone = GOOD.replace("good", "gone").replace("here/*", "here/gone")
    assert run(place, bad + GOOD + gone) == 1
    err = capfd.readouterr().err
    assert "bad: failed" in err and "before (sh): exit status 3; nothing was copied" in err
    assert "before said:" in err and "why" in err and "here/gone" in err and "good" not in err


@pytest.mark.parametrize("what", ["--list", "--explain", "--check", "--dry-run", "-v"])
def test_what_a_copy_would_refuse_is_a_mistake_in_the_file(
    place: Place, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The jobs before it were run, and --explain had lines for it."""
    place.fill("a")
    bad = GOOD.replace("good", "bad") + f'relative = true\nafter = "move {place.home}/moved"\n'
    assert run(place, GOOD + bad, what) == 2
    out, err = capfd.readouterr()
    assert "job.bad: relative does not go with a folder into which sources are moved" in err
    assert out == "" and place.arrived() == set()


def test_no_hint_to_a_person_is_one_for_programs(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    listed = GOOD.replace('sources = ["here/*"]', 'sources-command = "echo ssh://h:x/"')
    for what in ("--dry-run", "-v"):
        assert run(place, listed, what) == 2
    err = capfd.readouterr().err
    assert "'x' is not a whole number" in err and "help(" not in err


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("", 0),
        ("port = 1", 3),
        ('ssh-option = "PreferredAuthentications=none"', 2),
        ('ssh-option = "IdentityFile=${PSCP_IS_NOT_SET}/key"', 2),
        ('after = "move /proc/1/sent"', 2),
        ('report = { text = "/nowhere/a.txt" }', 1),
        ('report = { text = "/nowhere/a.txt" }\nport = 1', 3),
    ],
)
def test_what_check_finds_ends_with_the_code_of_the_run(
    place: Place, lines: str, code: int
) -> None:
    """What the run's 2 is for, a refused key, was 3: as for a host that is down."""
    place.fill("a")
    text = f"{GOOD}{lines}\n"
    assert run(place, text, "--check") == code
    assert run(place, text) == code


def test_it_says_what_happens_where_that_is_asked_for(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    place.fill("a")
    assert run(place, GOOD, "-v") == 0
    assert f"good: {place.destination()}: done" in capfd.readouterr().err
    assert run(place, f'{GOOD}transport = "asyncssh"\npersist = "1m"\n', "-v") == 0
    err = capfd.readouterr().err
    assert "persist is for transport openssh" in err and "--" not in err


def test_that_sftp_is_used_instead_is_said_once(
    place: Place, make_sshd: MakeServer, shell_that: ShellThat, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also without -v: attributes and owners' names are not kept then."""
    place.fill("a")
    bare = Place(place.home, without_python(make_sshd, shell_that))
    assert run(bare, GOOD) == 0
    told = f"good: {bare.destination()}: the far end has no python3: using SFTP; "
    [line] = capfd.readouterr().err.splitlines()
    assert line == f'pscp-run: {told}remote = "sftp" in the job says that it is to be so'
    assert run(bare, GOOD) == 0
    assert run(bare, GOOD + 'remote = "sftp"\n') == 0
    assert capfd.readouterr().err == ""


def test_what_a_job_depends_on_is_run_too(place: Place) -> None:
    second = GOOD.replace("good", "second") + 'depends-on = "good"\n'
    assert run(place, second + GOOD, "second") == 7
    assert [each.job for each in place.history.runs()] == ["second", "good"]


def test_a_pattern_of_more_files_than_a_request_has_room_for(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    here = place.home / "here"
    for number in range(1700):
        (here / f"{number:0240}").touch()
    assert run(place, GOOD, "--dry-run") == 0
    assert len(capfd.readouterr().out.splitlines()) == 1700
    assert (run(place, GOOD), run(place, GOOD)) == (0, 0)
    assert len(place.arrived()) == 1700
    [second, first] = [each.destinations[0] for each in place.history.runs()]
    assert (first.files, second.files, second.files_unchanged) == (1700, 0, 1700)
    assert run(place, GOOD + 'after = "remove"\n') == 0
    assert os.listdir(here) == []
    assert len(list(place.there(0).iterdir())) == 1700
    assert capfd.readouterr().err == ""


def test_a_history_that_takes_nothing_is_told_once(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    place.fill("a")
    path = Path(place.history.path)
    path.mkdir(parents=True)  # what is no file
    assert run(place, GOOD + NOTHING) == 0
    [told] = capfd.readouterr().err.splitlines()
    assert told.startswith(f"pscp-run: {path}: this run is not in the history")


def test_a_report_that_cannot_be_written_is_no_success(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    """N15: all is copied, and who reads reports would take the last one for this one."""
    place.fill("a")
    assert run(place, GOOD + 'report = { json = "/missing/report.json" }\n') == 1
    [told] = capfd.readouterr().err.splitlines()
    assert "/missing/report.json: No such file" in told
    assert place.there(0).joinpath("a").exists()


def test_a_run_that_may_take_for_ever_can_be_ended(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    """No clock of the machine can wait for so long."""
    end = f'max-duration = "300000d"\nbefore = "kill -TERM {os.getpid()}; exec sleep 1000"\n'
    assert run(place, GOOD + end) == 143
    assert "Exception" not in capfd.readouterr().err


def test_that_the_next_run_goes_on_is_said_once(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    kill = f"kill -TERM {os.getpid()}; exec sleep 1000"
    for ends, code in (
        ("max-duration = 1\nbefore = 'exec sleep 1000'\n", 5),
        (f"before = '{kill}'\n", 143),
    ):
        assert run(place, GOOD + ends) == code
        err = capfd.readouterr().err
        assert err.count("goes on") == 1 and "good: cut" in err, err


def test_what_was_copied_is_told_though_a_source_has_to_stay(place: Place) -> None:
    place.fill("a", "b")
    (place.home / "sent").mkdir()
    (place.home / "sent" / "a").write_text("another")
    after = 'after = "move sent"\nreport = { json = "report.json" }\n'
    assert run(place, GOOD + after) == 1
    [told] = json.loads((place.home / "report.json").read_text())["runs"]
    [part] = told["destinations"]
    assert (part["files"], part["files_unchanged"], part["bytes"]) == (2, 0, 2000)
    assert part["failures"] == [] and re.search(r"\(1\): a\b", told["message"])
    assert told["files_removed"] == 1 and os.listdir(place.home / "here") == ["a"]
