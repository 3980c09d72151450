"""pscp.jobs: which files a job leaves for the next run, which sources it finds, and its limits.

Not here: a whole run of a job (../e2e/test_jobs.py).
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pscp.ground import errors
from pscp.jobs import sources
from pscp.jobs.reports.outcome import CommandRun
from pscp.jobs.toml.job import Job, Span
from pscp.options.options import Options
from pscp.transfer.walk.selection import Settled

HOUR_S, DAY_MIN = 3600.0, 24 * 60
times = st.times().map("{:%H:%M}".format)


class Machine:
    """Clocks: `wall` may be set, `up_s` begins with each boot."""

    def __init__(self) -> None:
        self.wall_s, self.up_s, self.boots = 1_800_000_000.0, 50_000.0, 0
        self.kept: object = None

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.up_s += seconds

    def reboots(self, up_s: float) -> None:
        self.boots += 1
        self.wall_s += 30.0
        self.up_s = up_s

    def looks(self, *files: tuple[str, int, float], min_age_s: float = 0.0,
              settled_for_s: float = 0.0, is_whole: bool = True) -> set[str]:  # fmt: skip
        """One run's look at files of (name, size, mtime); returns those that are ready."""
        look = Settled(
            min_age_s, settled_for_s, self.kept,
            wall=lambda: self.wall_s, steady=lambda: self.up_s, boot=lambda: str(self.boots),
        )  # fmt: skip
        ready = {n for n, size, mtime in files if look.is_ready(n, size, int(mtime * 1e9), 7)}
        assert look.waiting == len(files) - len(ready)
        self.kept = json.loads(json.dumps(look.state(is_whole=is_whole)))
        return ready


def test_what_was_not_looked_at_in_a_cut_run_is_still_known() -> None:
    machine = Machine()
    file = "a", 10, machine.wall_s
    machine.looks(file, settled_for_s=60)
    machine.passes(60)
    machine.looks(settled_for_s=60, is_whole=False)
    assert machine.looks(file, settled_for_s=60) == {"a"}
    machine.looks(settled_for_s=60)
    assert machine.looks(file, settled_for_s=60) == set()


def test_a_clock_that_is_set_forth_makes_no_growing_file_old() -> None:
    machine = Machine()
    machine.looks(min_age_s=600)
    growing = "a", 10, machine.wall_s  # written just before
    machine.wall_s += HOUR_S
    machine.passes(1)
    assert machine.looks(growing, min_age_s=600) == set()
    machine.passes(300)
    grown = "a", 11, machine.wall_s
    assert machine.looks(grown, min_age_s=600) == set()
    machine.passes(599)
    assert machine.looks(grown, min_age_s=600) == set()
    machine.passes(1)
    assert machine.looks(grown, min_age_s=600) == {"a"}


def test_a_clock_that_is_set_back_holds_no_finished_file_for_ever() -> None:
    machine = Machine()
    finished = "a", 10, machine.wall_s
    machine.passes(HOUR_S)
    machine.wall_s -= 30 * 24 * HOUR_S
    assert machine.looks(finished, min_age_s=600) == set()
    machine.passes(599)
    assert machine.looks(finished, min_age_s=600) == set()
    machine.passes(1)
    assert machine.looks(finished, min_age_s=600) == {"a"}


def test_a_reboot_counts_for_no_more_than_the_time_since() -> None:
    machine = Machine()
    file = "a", 10, machine.wall_s
    machine.looks(file, settled_for_s=60)
    machine.reboots(up_s=20)
    assert machine.looks(file, settled_for_s=60) == set()
    machine.reboots(up_s=39)
    assert machine.looks(file, settled_for_s=60) == set()
    machine.reboots(up_s=1)
    assert machine.looks(file, settled_for_s=60) == {"a"}


def test_another_machine_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    file = "a", 10, machine.wall_s
    machine.looks(file, settled_for_s=60)
    assert isinstance(machine.kept, dict)
    machine.kept["host"] = "another"
    machine.reboots(up_s=1_000_000)
    assert machine.looks(file, settled_for_s=60) == set()


@pytest.mark.parametrize(
    "known",
    [
        None, 7, [], {"at_s": 1}, {"host": "a", "boot": "0", "at_s": "x"},
        {"host": "a", "boot": "0", "at_s": 1.0, "before_s": None},
        {"host": os.uname().nodename, "boot": "an earlier one", "at_s": math.nan},
    ],
)  # fmt: skip
def test_a_state_that_makes_no_sense_is_none(known: object) -> None:
    machine = Machine()
    machine.kept = known
    assert machine.looks(("a", 1, 0.0), min_age_s=60) == {"a"}
    machine.looks(("a", 1, 0.0), settled_for_s=60)
    machine.passes(60)
    assert machine.looks(("a", 1, 0.0), settled_for_s=60) == {"a"}


@given(st.lists(st.tuples(st.sampled_from(["pass", "set", "boot", "grow", "look"]),
                          st.floats(-1e5, 1e5)), max_size=30))  # fmt: skip
def test_whatever_clocks_do_a_file_that_settles_was_unchanged_so_long(
    events: list[tuple[str, float]],
) -> None:
    machine, size, same_s = Machine(), 1, 0.0
    for what, value in events:
        if what == "pass":
            machine.passes(abs(value) / 100)
            same_s += abs(value) / 100
        elif what == "set":
            machine.wall_s += value
        elif what == "boot":
            machine.reboots(up_s=10.0)
            same_s += 30.0
        elif what == "grow":
            size, same_s = size + 1, 0.0
        elif machine.looks(("a", size, machine.wall_s - value), settled_for_s=300):
            assert same_s >= 300
    looks = ("a", size, machine.wall_s - 1e6)
    machine.looks(looks, settled_for_s=300)
    machine.passes(301)
    assert machine.looks(looks, settled_for_s=300)


def test_asked_twice_in_a_run_the_answer_is_the_same() -> None:
    """Destinations are asked one after the other, and a retry comes later."""
    machine = Machine()
    settled = Settled(600, 0, wall=lambda: machine.wall_s, steady=lambda: machine.up_s)
    assert not settled.is_ready("a", 1, int((machine.wall_s - 500) * 1e9), 7)
    machine.passes(200)
    assert not settled.is_ready("a", 1, int((machine.wall_s - 700) * 1e9), 7)
    settled.left("b")
    assert settled.waiting == 2


def test_a_path_of_this_machine_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "young").touch()
    (tmp_path / "old").touch()
    os.utime(tmp_path / "old", (1, 1))
    settled = Settled(600)
    ready = {n for n in ("young", "old", "none", ".") if settled.is_ready_at(f"{tmp_path}/{n}")}
    assert (ready, settled.waiting) == ({"old", "none", "."}, 1)


# --- limits


def limit_of(job: Job, at: time.struct_time) -> int | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "strftime", lambda form, format=time.strftime: format(form, at))
        return job.limit_now()


@given(times, times | st.just("24:00"), times)
@example("22:00", "06:00", "03:00")
@example("08:00", "24:00", "23:59")
def test_a_span_holds_from_its_begin_until_before_its_end(begin: str, end: str, at: str) -> None:
    """By minutes on a clock's face; from a time to the same it holds all day."""
    first, last, now = (int(text[:2]) * 60 + int(text[3:]) for text in (begin, end, at))
    length_min = (last - first) % DAY_MIN or DAY_MIN
    assert Span(begin, end, 1).covers(at) == ((now - first) % DAY_MIN < length_min)


def test_the_first_span_wins_and_outside_the_option_holds() -> None:
    spans = (Span("01:00", "02:00", 10), Span("01:30", "03:00", None), Span("00:00", "12:00", 30))
    job = Job("j", (), limit=spans, options=Options(limit_kbit_s=5))
    times = (time.struct_time((2026, 1, 1, *divmod(minute, 60), 0, 0, 0, 0))
             for minute in (60, 119, 120, 179, 180, 800))  # fmt: skip
    assert [limit_of(job, each) for each in times] == [10, 10, None, None, 30, 5]


def test_the_local_clock_decides_through_a_change_to_summer_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    job = Job("j", (), limit=(Span("02:00", "03:00", 7),), options=Options(limit_kbit_s=9))
    try:
        spring = 1774746000  # 2026-03-29 02:00 CET, which is 03:00 CEST
        autumn = 1792890000 - HOUR_S  # 2026-10-25 02:00 CEST; an hour later it is 02:00 CET
        at = [spring - 1, spring, autumn - 1, autumn, autumn + HOUR_S, autumn + 2 * HOUR_S]
        found = [limit_of(job, time.localtime(each)) for each in at]
        assert found == [9, 9, 9, 7, 7, 9]
    finally:
        monkeypatch.undo()
        time.tzset()


# --- sources


def found(*given: str, keep: list[CommandRun] | None = None, **fields: object) -> list[str]:
    job = Job("j", ("h:",), sources=given, **fields)  # type: ignore[arg-type]
    return [each.text if each.is_remote else each.path for each in
            sources.find(job, (keep if keep is not None else []).append)]  # fmt: skip


def test_patterns_are_sorted_and_each_source_comes_once(tmp_path: Path) -> None:
    for name in ("b.rec", "a.rec", "c[1].rec", "-x.rec", "new\nline.rec", ".hidden.rec", "d.tmp"):
        (tmp_path / name).touch()
    names = ["-x.rec", "a.rec", "b.rec", "c[1].rec", "new\nline.rec"]
    paths = [str(tmp_path / name) for name in names]
    assert found(f"{tmp_path}/*.rec", f"{tmp_path}/a.rec") == paths
    assert found(f"{tmp_path}/c[1].rec") == [f"{tmp_path}/c[1].rec"]
    assert found("host:*.rec") == ["host:*.rec"]


def test_a_file_that_is_named_as_a_pattern_hides_no_others(tmp_path: Path) -> None:
    for name in ("*.rec", "a.rec", "c[1].rec", "c1.rec"):
        (tmp_path / name).touch()
    names = ["*.rec", "a.rec", "c1.rec", "c[1].rec"]
    assert found(f"{tmp_path}/*.rec") == [str(tmp_path / name) for name in names]
    assert found(f"{tmp_path}/c[1].rec") == [f"{tmp_path}/c[1].rec"]


def test_a_pattern_in_a_folder_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    """A disk that is not mounted is no quiet night."""
    with pytest.raises(errors.CopyError, match=f"^{tmp_path}/disk: No such file"):
        found(f"{tmp_path}/disk/*/x*.rec")


def test_a_list_from_a_file(tmp_path: Path) -> None:
    lists = tmp_path / "list"
    lists.write_bytes(b"/a\r\n\n*.rec\nh:/b\n./c:d\n\xff\n")
    assert found(sources_from=str(lists)) == ["/a", "*.rec", "h:/b", "./c:d", "\udcff"]
    lists.write_bytes(b"/a\nb\0/c\0")
    assert found(sources_from=str(lists), options=Options(from0=True)) == ["/a\nb", "/c"]
    with pytest.raises(errors.CopyError, match="no-list: No such file"):
        found(sources_from=f"{tmp_path}/no-list")


def test_a_list_from_a_command() -> None:
    kept: list[CommandRun] = []
    assert found(sources_command=("echo", "$HOME"), keep=kept) == ["$HOME"]  # no shell
    assert [each.how for each in kept] == ["exit status 0"]
    assert found(sources_command=("true",)) == []


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("sh", "-c", "echo /a; echo why >&2; exit 3"), "exit status 3"),
        (("sh", "-c", "echo /a; kill -9 $$"), "ended by signal 9"),
        (("/no/such",), "not started: No such file or directory"),
    ],
)
def test_a_command_that_fails_lists_nothing(command: tuple[str, ...], why: str) -> None:
    kept: list[CommandRun] = []
    with pytest.raises(errors.CopyError, match=f"^sources-command: {why}$"):
        found(sources_command=command, keep=kept)
    assert kept[0].output == ("why\n" if "why" in str(command) else "")
