"""Where jobs stand: cron's times, who starts which job, what is behind, and the page of it all.

Not here: reports of one run (test_job_reports.py), --status as a command (../e2e).
"""

from __future__ import annotations

import datetime
import json
import os
import re
from pathlib import Path

import pytest
from e2e.world import put_program
from hypothesis import given
from hypothesis import strategies as st
from job_runs import FULL, HOSTILE, NIGHT_S, UNPRINTABLE, Remembered, Tags, part, run_of

import pscp.jobs
from pscp.jobs.reports import page, report, status, timers
from pscp.jobs.reports.outcome import Outcome, rate
from pscp.jobs.reports.timers import Timer
from pscp.jobs.toml.job import Job

DAY_S = 86400.0
NOW = datetime.datetime(2026, 11, 23, 6, 50)  # a Monday


# --- who starts which job


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("pscp-run", {"a", "b"}),
        ("/usr/bin/nice -n 10 /opt/pscp/bin/pscp-run a", {"a"}),
        ("cd / && PATH=/x pscp-run b -q > /dev/null 2>&1; echo a", {"b"}),
        ("pscp-run --config /etc/jobs.toml a b", {"a", "b"}),
        ("pscp-run --config=/etc/jobs.toml", {"a", "b"}),
        ("pscp-run --config /etc/other.toml a", set()),
        ("pscp-run --status", set()),
        ("pscp-run '[ac]*'", {"a"}),
        ("echo not-pscp-run a", set()),
        ("pscp-run 'a", set()),
        ("pscp-run job-of-another-file", set()),
        ("pscp-run --if-running wait 2>/dev/null", {"a", "b"}),
        ("pscp-run a --report json /tmp/b 2>&1", {"a"}),
        ("pscp-run --config ~/nights.toml", set()),
    ],
)
def test_which_jobs_a_command_starts(command: str, started: set[str]) -> None:
    assert timers.started_jobs(command, ["a", "b"], "/etc/jobs.toml") == started


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("pscp-run", set()),
        ("pscp-run a", set()),
        ("pscp-run --config nights.toml a", {"a"}),
        ("pscp-run --config=~/nights.toml", {"a", "b"}),
        ("pscp-run --config $HOME/nights.toml b", {"b"}),
    ],
)
def test_a_line_without_config_starts_no_job_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, started: set[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = os.path.realpath(tmp_path / "nights.toml")
    assert timers.started_jobs(command, ["a", "b"], file, is_default=False) == started


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the PATH; nothing of this machine's crontabs is read."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(timers, "SYSTEM_CRONTABS", (f"{tmp_path}/cron.d/*",))
    for name in ("systemctl", "crontab"):
        put_program(folder / name, ("false",))
    return folder


def test_crontabs_are_known(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "cron.d").mkdir()
    (tmp_path / "cron.d" / "pscp").write_text(
        "MAILTO=root\n\n# 1 1 * * * root pscp-run b\n30 6 * * * root pscp-run b\n\xff\n"
    )
    put_program(programs / "crontab", ("echo", "0 7 * * * pscp-run a\n* * 99 * * pscp-run a\n*/5"))
    found = timers.find(["a", "b", "c"], "/etc/jobs.toml", NOW.timestamp())
    assert found == {
        "a": Timer(NOW.timestamp() + 600, DAY_S, "cron"),
        "b": Timer(NOW.timestamp() + DAY_S - 1200, DAY_S, "cron"),
    }


@pytest.mark.parametrize(
    ("times", "first", "period_s"),
    [
        ("*/20 * * * *", "11-23 07:00", 1200),
        ("  30 1,13 * * *", "11-23 13:30", 12 * 3600),
        ("5 4 * * sun", "11-29 04:05", 7 * DAY_S),
        ("0 0 13 * fri", "11-27 00:00", 7 * DAY_S),  # or the 13th, as crontab(5) has it
        ("@daily", "11-24 00:00", DAY_S),
        ("@reboot", None, 0),
        ("0 0 30 2 *", None, 0),
        ("* * * *", None, 0),
        ("60 * * * *", None, 0),
        ("# * * * * *", None, 0),
    ],
)
def test_times_of_a_crontab(programs: Path, times: str, first: str | None, period_s: float) -> None:
    put_program(programs / "crontab", ("echo", f"{times} pscp-run"))
    found = timers.find(["a"], "/etc/jobs.toml", NOW.timestamp())
    if first is None:
        assert found == {}
    else:
        date = datetime.datetime.fromtimestamp(found["a"].next_s)
        assert (f"{date:%m-%d %H:%M}", found["a"].period_s) == (first, period_s)


@given(st.text(alphabet="0123456789*/,-@ \tabmonxLW#=\x00", max_size=40))
def test_any_line_of_a_crontab_is_read_or_left(line: str) -> None:
    for text in (line, f"{line} pscp-run", f"* * {line} pscp-run", f"* * * * {line} pscp-run"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timers, "_output", lambda *argv, text=text: text)
            patch.setattr(timers, "SYSTEM_CRONTABS", ())
            timers.find(["a"], "/etc/jobs.toml", NOW.timestamp())


def put_systemctl(programs: Path, listed: object, commands: dict[str, str]) -> None:
    (programs / "listed").write_text(json.dumps(listed))
    for unit, command in commands.items():
        shown = f"ExecStart={{ path=/x ; argv[]={command} ; ignore_errors=no }}\n"
        (programs / f"{unit}.service").write_text(shown)
    (programs / "systemctl").write_text(
        f'#!/bin/sh\ncase "$1" in list-timers) cat {programs}/listed;;'
        f" show) cat {programs}/$4;; *) exit 1;; esac\n"
    )


def timer_row(unit: str, next_s: float | None, last_s: float | None) -> dict[str, object]:
    in_us = [each and int(each * 1e6) for each in (next_s, last_s)]
    return {
        "next": in_us[0],
        "last": in_us[1],
        "unit": f"{unit}.timer",
        "activates": f"{unit}.service",
    }


def test_timers_of_systemd_are_known(programs: Path) -> None:
    put_systemctl(
        programs,
        [
            timer_row("off", None, 1e9),
            timer_row("pscp", 2e9, 2e9 - DAY_S),
            timer_row("rot", 1e9, None),
            timer_row("b", 3e9, 0),
        ],
        {"pscp": "/bin/pscp-run a", "rot": "/x a", "b": "/bin/pscp-run", "off": "/bin/pscp-run"},
    )
    found = timers.find(["a", "b"], "/etc/jobs.toml", 1.0)
    assert found == {"a": Timer(2e9, DAY_S, "pscp.timer"), "b": Timer(3e9, None, "b.timer")}


@pytest.mark.parametrize("listed", [{}, [{"next": "soon"}], [7], None, "x"])
def test_a_systemctl_that_says_something_else_is_none(programs: Path, listed: object) -> None:
    put_systemctl(programs, listed, {})
    assert timers.find(["a"], "/etc/jobs.toml", 1.0) == {}


# --- where the jobs stand

JOB = Job("recordings", ("store1:/vault/", "store2:/vault/"))
NOW_S = NIGHT_S + 3600


def behind(past: Remembered, timer: Timer | None = None) -> list[str]:
    known = {} if timer is None else {"recordings": timer}
    return [each.behind for each in status.standings([JOB], past, known, NOW_S, {})]


def test_what_went_well_is_not_behind() -> None:
    run = run_of(part(), part("store2:/vault/", outcome=Outcome.NOTHING))
    past = Remembered([run])
    assert behind(past, Timer(NOW_S + 5, DAY_S, "cron")) == ["", ""]
    [first, _] = status.standings([JOB], past, {}, NOW_S, {})
    assert first.last_success_s == NIGHT_S + 10


def test_what_failed_is_behind_and_says_why() -> None:
    bad = part(outcome=Outcome.FAILED, failures=(FULL,), files_failed=1)
    run = run_of(bad, part("store2:/vault/", outcome=Outcome.UNREACHABLE, message="no route"))
    earlier = run_of(part(), part("store2:/vault/"), started_s=NIGHT_S - DAY_S)
    assert behind(Remembered([run, earlier])) == ["1 file failed: cam/1.rec", "no route"]
    assert behind(Remembered([run]))[1] == "no route; never done"


def test_a_run_that_failed_though_its_copies_did_not_is_behind() -> None:
    parts = part(), part("store2:/vault/")
    run = run_of(*parts, outcome=Outcome.FAILED, message="after-success: exit status 1\nhint")
    assert behind(Remembered([run])) == ["after-success: exit status 1"] * 2
    cut = run_of(part(), part("store2:/vault/", outcome=Outcome.CUT, message="its time is over"))
    assert behind(Remembered([cut])) == ["", "its time is over; never done"]


def test_what_did_not_begin_says_why() -> None:
    """P2d: "not begun; never done", without the reason that the report had."""
    parts = [
        part(to, outcome=Outcome.FAILED, attempts=0, message="not begun") for to in JOB.destinations
    ]
    why = "/nodir: No such file or directory"
    past = Remembered([run_of(*parts, message=f"{why}\nhint")])
    assert behind(past) == [f"not begun: {why}; never done"] * 2
    after = run_of(
        outcome=Outcome.FAILED, message="not run: first, which it depends on, has failed"
    )
    assert behind(Remembered([after]))[1] == f"{after.message}; never done"
    date = datetime.date.fromtimestamp(NIGHT_S - 12 * 3600)
    for kept, said in ((past, f"not begun: {why}"), (Remembered([after]), after.message)):
        marks = cells(page_of(kept, JOB))
        assert marks[-1] == ("bad", f"{date:%a %d %b}: failed ({said})")
        assert marks[-1] == marks[-1 - page.NIGHTS]


def test_files_that_wait_are_counted() -> None:
    past = Remembered([run_of(part(), part("store2:/vault/"), files_waiting=3)])
    assert "  3 files  " in status.table(status.standings([JOB], past, {}, NOW_S, {}))[1]
    assert "files that wait: 3" in page_of(past, JOB)


def test_what_was_skipped_and_deleted_is_told() -> None:
    past = Remembered([run_of(part(files_deleted=3), part("store2:/vault/", files_skipped=2))])
    found = status.standings([JOB], past, {}, NOW_S, {})
    _, first, second = status.table(found)
    assert "  done, 3 deleted  " in first and "  done, 2 skipped  " in second
    told = json.loads(status.as_json(found))
    assert (told[0]["files_deleted"], told[1]["files_skipped"]) == (3, 2)
    assert ", 3 deleted" in page_of(past, JOB) and ", 2 skipped" in page_of(past, JOB)


def test_a_rate_of_a_night_is_that_of_its_busy_seconds() -> None:
    busy = part(bytes_sent=1000, sending_s=10.0, seconds=100.0)
    runs = [run_of(part(seconds=50.0)), run_of(busy), run_of(part(bytes_sent=500, seconds=5.0))]
    [night] = [n for n in page.nights_of(runs, page._night_of(NOW_S)) if n.parts]
    assert rate(night.parts) == 100.0
    assert "(sent at 100 B/s)" in report.copied(busy)
    short = part(bytes_sent=5_700_000, sending_s=5e-5, seconds=5.7)  # all was seen at one look
    assert rate([short]) == 1e6


@pytest.mark.parametrize(("periods", "expected"), [(1.9, ""), (2.1, "not done since 20")])
def test_two_periods_without_a_success_are_behind(periods: float, expected: str) -> None:
    """Also where runs end well at the other destination, or find nothing of a job's to do."""
    run = run_of(part(seconds=0.0, started_s=NOW_S - periods * DAY_S), outcome=Outcome.NOTHING)
    assert behind(Remembered([run]), Timer(NOW_S + 5, DAY_S, "cron"))[0][:17] == expected


def test_the_table_has_a_line_for_each_destination_and_no_name_breaks_it() -> None:
    job = Job(HOSTILE, (HOSTILE, "store1:/vault/"))
    run = run_of(part(HOSTILE, outcome=Outcome.CUT, message=HOSTILE), job=HOSTILE, message=HOSTILE)
    found = status.standings(
        [job], Remembered([run]), {HOSTILE: Timer(1.0, None, HOSTILE)}, NOW_S, {}
    )
    lines = status.table(found)
    assert len(lines) == 3 and not UNPRINTABLE.search("".join(lines))
    assert json.loads(status.as_json(found))[0]["job"] == HOSTILE


# --- the page


def page_of(past: Remembered, *jobs: Job) -> str:
    return page.make(status.standings(jobs, past, {}, NOW_S, {}), past, NOW_S)


def cells(text: str) -> list[tuple[str, str]]:
    return re.findall(r'<li class="([^"]*)" title="([^"]*)"', text)


def test_the_page_is_one_file_without_scripts_and_addresses() -> None:
    text = page_of(Remembered([run_of(part(bytes=5, bytes_sent=5))]), JOB)
    tags = Tags(text)
    assert tags.tags >= {"svg", "ol", "dl"} and "script" not in tags.tags
    assert not tags.addresses and "@import" not in text
    assert set(re.findall(r"\burl\(|https?://[^\s\"'<]+", text)) <= {
        "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink",
    }  # fmt: skip


def test_no_name_acts_on_the_page() -> None:
    bad = part(HOSTILE, outcome=Outcome.FAILED, bytes=1, message=HOSTILE, failures=(FULL,))
    run = run_of(bad, job=HOSTILE, message=HOSTILE)
    text = page_of(Remembered([run]), Job(HOSTILE, (HOSTILE,)))
    assert "script" not in Tags(text).tags and not UNPRINTABLE.search(text) and text.encode()


def test_each_night_has_a_cell_with_its_outcome() -> None:
    runs = [
        run_of(part(), started_s=NIGHT_S),
        run_of(part(outcome=Outcome.UNREACHABLE), started_s=NIGHT_S - DAY_S),
        run_of(part(), started_s=NIGHT_S - 40 * DAY_S),
        run_of(part(), started_s=NIGHT_S + 3 * DAY_S),  # a clock was set back
    ]
    found = cells(page_of(Remembered(runs), Job("recordings", ("store1:/vault/",))))
    assert [kind for kind, _ in found] == ["none"] * 26 + ["bad", "good"]
    date = datetime.date.fromtimestamp(NIGHT_S - 12 * 3600)
    assert found[-1][1] == f"{date:%a %d %b}: done"


def test_a_night_that_failed_at_first_is_marked() -> None:
    outcomes = [Outcome.NOTHING, Outcome.LOCKED, Outcome.DONE, Outcome.FAILED]
    runs = [run_of(part(outcome=o), started_s=NIGHT_S - n) for n, o in enumerate(outcomes)]
    found = cells(page_of(Remembered(runs), Job("recordings", ("store1:/vault/",))))
    assert found[-1][0] == "good marred" and found[-1][1].endswith("done, 1 of 4 runs failed")


def test_a_page_without_a_history_is_one() -> None:
    text = page_of(Remembered(), JOB, Job("other", ()))
    assert "Nothing was copied." in text and "None in these nights." in text


def luminance(colour: str) -> float:
    """WCAG 2.1's relative luminance of #rgb or #rrggbb."""
    digits = colour[1:] if len(colour) == 7 else "".join(each * 2 for each in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_texts_have_contrast_in_light_and_dark() -> None:
    base = (Path(pscp.jobs.__file__).parent / "templates" / "report.html").read_text()
    themes = [
        dict(re.findall(r"--([\w-]+): (#\w+)", block))
        for block in re.findall(r":root \{(.*?)\}", base, re.DOTALL)
    ]
    assert len(themes) == 2 and themes[0].keys() == themes[1].keys()
    pairs = [
        ("paper", "ink"),
        ("paper", "dim"),
        *((n, f"{n}-ink") for n in ("good", "bad", "cut", "idle")),
    ]
    for theme in themes:
        for back, ink in pairs:
            dark, bright = sorted((luminance(theme[back]), luminance(theme[ink])))
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (back, ink, theme)
