"""pscp.jobs: the order of jobs, pauses and attempts, locks, the history, and exit codes.

Not here: a whole run of a job (../e2e/test_jobs.py), its files (test_job_files.py).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.calls.deliveries import Delivery, side_by_side
from pscp.ground import errors, state, stops
from pscp.ground.counters import Counters
from pscp.jobs.attempts import MAX_PAUSE_S, Attempts, pauses
from pscp.jobs.commands import program_of, run_command
from pscp.jobs.reports.history import KILLED, VERSION, History
from pscp.jobs.reports.lock import locked, state_path
from pscp.jobs.reports.outcome import DestinationRun, JobRun, Outcome, exit_code
from pscp.jobs.runner import ordered
from pscp.jobs.toml.job import Job
from pscp.progress.progress import Failure, Result, WorkerTotals

# --- order


def jobs_of(**depends_on: list[str]) -> dict[str, Job]:
    return {name: Job(name, ("h:",), depends_on=tuple(on)) for name, on in depends_on.items()}


@given(st.data(), st.lists(st.sampled_from("abcdef"), max_size=4))
def test_each_job_comes_once_after_those_it_depends_on(
    data: st.DataObject, asked: list[str]
) -> None:
    graph = {name: data.draw(st.lists(st.sampled_from("abcdef"[:at]), max_size=3)) if at else []
             for at, name in enumerate("abcdef")}  # fmt: skip
    found = [job.name for job in ordered(jobs_of(**graph), asked)]
    assert len(set(found)) == len(found) and set(asked) <= set(found)
    for place, name in enumerate(found):
        assert set(graph[name]) <= set(found[:place])


def test_without_dependencies_the_order_is_the_one_asked_for() -> None:
    jobs = jobs_of(a=[], b=["c"], c=[])
    assert [job.name for job in ordered(jobs, ["b", "a"])] == ["c", "b", "a"]


# --- attempts


@given(st.floats(0, 1), st.integers(1, 40))
def test_pauses_grow_to_five_minutes_with_jitter(drawn: float, most: int) -> None:
    for number, pause_s in enumerate(itertools.islice(pauses(lambda: drawn), most)):
        whole_s = min(2.0**number, MAX_PAUSE_S)
        assert 0.75 * whole_s <= pause_s <= whole_s


LOST = errors.ConnectionLost("lost")


def ended(error: errors.PscpError | None = None, *failures: Failure, **counted: Any) -> Delivery:
    unlisted = max(0, counted.get("files_failed", 0) - len(failures))
    result = Result(failures=failures, failures_unlisted=unlisted) if error is None else None
    return Delivery("h:", result, error, 1.0, Counters(**counted))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_may_succeed_later_is_tried_for_so_long() -> None:
    clock = Clock()
    attempts = Attempts("h:", 60, steady=clock)
    waited_s = 0.0
    while (pause_s := attempts.add(ended(LOST))) is not None:
        waited_s += pause_s
        clock.now_s += pause_s
    assert waited_s == pytest.approx(60)  # the last attempt is made when the time is over
    assert attempts.run.attempts > 5
    assert attempts.run.outcome == Outcome.UNREACHABLE


def test_what_brings_the_copy_on_begins_the_time_anew() -> None:
    clock = Clock()
    attempts = Attempts("h:", 60, steady=clock)
    for _ in range(10):
        clock.now_s += 50
        pause_s = attempts.add(ended(LOST, bytes_done=1000))
        assert pause_s is not None and pause_s <= 1
    clock.now_s += 61
    assert attempts.add(ended(LOST)) is None


def test_a_file_that_keeps_growing_does_not_begin_the_time_anew() -> None:
    """Its bytes land each time, and are thrown away."""
    clock = Clock()
    attempts = Attempts("h:", 60, steady=clock)
    grows = Failure("f", "SourceChanged", "it changed")
    assert attempts.add(ended(None, grows, bytes_done=1000)) is not None
    clock.now_s += 61
    assert attempts.add(ended(None, grows, bytes_done=1000)) is None
    assert attempts.run.failures == (grows,) and attempts.run.outcome == Outcome.FAILED


def test_what_is_about_no_file_is_not_counted_as_one() -> None:
    whole, file = Failure("", "FileError", "nothing was removed"), Failure("f", "FileError", "no")
    for failures, failed, message in (
        ((whole,), 0, "nothing was removed"),
        ((whole, file), 1, "1 file failed"),
    ):
        attempts = Attempts("h:", 0)
        attempts.add(ended(None, *failures))
        run = attempts.run
        assert (run.outcome, run.files_failed, run.message) == (Outcome.FAILED, failed, message)


def test_what_was_linked_is_unchanged_in_the_next_attempt() -> None:
    attempts = Attempts("h:", 60)
    attempts.add(ended(LOST, files_done=1, files_linked=3))
    attempts.add(ended(files_unchanged=5))
    run = attempts.run
    assert (run.files, run.files_linked, run.files_unchanged) == (1, 3, 1)


def test_files_that_a_result_has_no_room_for_are_counted() -> None:
    attempts = Attempts("h:", 0, left=lambda path: None)
    attempts.add(ended(None, Failure("f", "SourceChanged", "it changed"), files_failed=70_000))
    assert (attempts.run.outcome, attempts.run.message) == (Outcome.FAILED, "69999 files failed")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.AuthenticationError("no"), Outcome.MISCONFIGURED),
        (errors.AuthenticationError("gone", errors.RUN_AGAIN), Outcome.UNREACHABLE),
        (errors.NoAgent("it said: not here"), Outcome.MISCONFIGURED),
        (errors.ConnectionFull("no more"), Outcome.UNREACHABLE),
        (errors.DestinationError("no folder"), Outcome.FAILED),
        (errors.UsageError("twice"), Outcome.MISCONFIGURED),
        (errors.Cancelled("max-duration"), Outcome.CUT),
    ],
)
def test_what_cannot_succeed_later_is_not_tried_again(
    error: errors.PscpError, outcome: Outcome
) -> None:
    attempts = Attempts("h:", 60)
    assert attempts.add(ended(error)) is None
    said = error.text.replace("--ch", "ch") if outcome != Outcome.CUT else error.message
    assert (attempts.run.outcome, attempts.run.message) == (outcome, said)
    assert Attempts("h:", 0).add(ended(LOST)) is None


@pytest.mark.parametrize("counted", [{}, {"bytes_sent": 1}, {"lanes_wanted": 1}])
def test_what_is_cut_before_any_attempt_connected_is_unreachable(counted: dict[str, int]) -> None:
    """A host that hangs was "cut", since max-duration came while it was tried once more."""
    attempts, cut = Attempts("h:", 60), errors.Cancelled("max-duration is over")
    attempts.add(ended(errors.Unreachable("no banner", "wait"), **counted))
    attempts.add(ended(cut))
    told = (Outcome.CUT, cut.message) if counted else (Outcome.UNREACHABLE, "no banner\nwait")
    assert (attempts.run.outcome, attempts.run.message, attempts.run.attempts) == (*told, 2)
    first = Attempts("h:", 60)
    first.add(ended(cut))
    assert first.run.outcome == Outcome.CUT


def test_a_job_is_told_of_its_own_key_and_not_of_an_option() -> None:
    """P2e: "--retry-for 30m" was advised in a job that has retry-for."""
    for retry_for_s, advice in ((60, "try again"), (0, 'try again; retry-for = "30m" keeps ')):
        attempts = Attempts("h:", retry_for_s)
        attempts.add(ended(LOST))
        assert attempts.run.message.startswith(f"lost\n{advice}")
        assert "--retry-for" not in attempts.run.message
    attempts.add(ended(None, Failure("", "FileError", "more than --max-delete 5", "--dry-run")))
    assert attempts.run.message == "more than max-delete 5"
    [failure] = attempts.run.failures
    assert (failure.message, failure.hint) == ("more than max-delete 5", "--dry-run"), "no key"
    attempts.add(ended(errors.Interrupted("interrupted", "the next run goes on from here")))
    assert attempts.run.message == "interrupted"  # the report says the rest once


def test_attempts_are_added_up() -> None:
    attempts = Attempts("h:", 60)
    attempts.add(ended(LOST, files_done=3, bytes_done=30, bytes_sent=40, connections_lost=1))
    one, other = WorkerTotals("a (1)", 8, 1.5, 2, 1, 4, 1), WorkerTotals("b (2)", 7, 1.0, 1)
    attempts.add(ended(LOST, files_deleted=2, files_skipped=5, workers=(other, one)))
    more = {"files_deleted": 1, "files_skipped": 6, "workers": (replace(one, connections=3),)}
    attempts.add(ended(None, files_done=2, bytes_done=20, bytes_sent=20, files_resumed=4, **more))
    run = attempts.run
    assert (run.files_deleted, run.files_skipped) == (3, 6)
    assert (run.outcome, run.files, run.files_unchanged) == (Outcome.DONE, 5, 1)
    assert (run.bytes, run.bytes_sent, run.connections_lost, run.attempts) == (50, 60, 1, 3)
    assert run.workers == (WorkerTotals("a (1)", 16, 3.0, 4, 2, 4, 2), other)


def test_only_the_seconds_in_which_bytes_move_are_those_of_a_rate() -> None:
    """P2c: 108 MB/s became 10.8, since a host was away for a while."""
    clock = Clock()
    attempts = Attempts("h:", 600, steady=clock)

    def look(after_s: float, bytes_sent: int, lanes: int = 1, total: int = 1100) -> None:
        clock.now_s += after_s
        now = Counters(bytes_sent=bytes_sent, bytes_done=bytes_sent, bytes_total=total)
        attempts.look(replace(now, lanes_alive=lanes))

    look(0.1, 0, lanes=0)
    look(30.0, 0)  # it logs in
    for number in range(1, 11):
        look(1.0, number * 100)
    look(0.5, 1000, lanes=0)
    look(300.0, 1000)  # the host is away
    look(20.0, 1100)  # a slow limit
    look(40.0, 1100)  # nothing more is to be sent
    attempts.add(ended(LOST, bytes_sent=1100))
    look(100.0, 0, total=50)  # a pause
    look(1.0, 50, total=50)
    attempts.add(ended(None, bytes_sent=50))
    assert attempts.run.sending_s == pytest.approx(10 + 0.5 + 20 + 1)
    assert attempts.run.seconds > 400 and attempts.run.bytes_per_s == pytest.approx(1150 / 31.5)


def test_a_file_that_changed_may_be_left_for_the_next_run() -> None:
    left: list[str] = []
    attempts = Attempts("h:", 0, left.append)
    changed, other = (Failure(n, e, "why") for n, e in (("f", "SourceChanged"), ("g", "FileError")))
    attempts.add(ended(None, changed, other))
    run = attempts.run
    assert (run.failures, run.outcome) == ((other,), Outcome.FAILED)
    attempts.add(ended(None, changed))
    run = attempts.run
    assert (run.failures, run.outcome) == ((), Outcome.DONE)
    assert left == ["f", "f"]


# --- side by side


def test_nobody_waits_for_a_slow_destination() -> None:
    """The third attempt at one is over before the first at the other."""
    over, seen = threading.Event(), list[str]()

    def deliver(destination: str, progress: object) -> Result:
        if destination == "slow":
            assert over.wait(60)
        elif seen.count("failing") < 2:
            raise LOST
        else:
            over.set()
        return Result()

    def again(delivery: Delivery) -> float | None:
        seen.append(delivery.destination)
        return 0.0 if delivery.error else None

    side_by_side(["slow", "failing"], deliver, again)
    assert sorted(seen) == ["failing"] * 3 + ["slow"]


@pytest.mark.parametrize("most", [1, 2])
def test_so_many_at_once_and_who_pauses_is_none_of_them(most: int) -> None:
    all_run, one_more = threading.Barrier(most), threading.Barrier(most + 1)
    left, done = ["0"], list[str]()

    def deliver(destination: str, progress: object) -> Result:
        with pytest.raises(threading.BrokenBarrierError):
            one_more.wait(0.05)  # nobody comes
        if all_run.wait(60) == 0:
            one_more.reset()
        if destination in left:
            left.remove(destination)
            raise LOST
        return Result()

    def again(delivery: Delivery) -> float | None:
        if delivery.error is not None:
            return 0.05
        done.append(delivery.destination)
        return None

    side_by_side([str(n) for n in range(5)], deliver, again, max_hosts=most)
    assert sorted(done) == list("01234") and "0" in done[-most:]


def test_a_stop_ends_what_runs_what_waits_and_what_pauses() -> None:
    stop, told = stops.Stop(), list[tuple[str, type | None]]()
    begun = threading.Barrier(3)

    def deliver(destination: str, progress: object) -> Result:
        if destination == "pauses":
            raise LOST
        begun.wait(60)
        stops.pause(1000)
        raise AssertionError("not stopped")

    def again(delivery: Delivery) -> float | None:
        told.append((delivery.destination, type(delivery.error)))
        if delivery.destination != "pauses":
            return None
        threading.Thread(target=begun.wait, args=(60,)).start()
        return 1000.0

    def cut() -> None:
        begun.wait(60)
        stop.stop(errors.Cancelled("cut"))

    begun = threading.Barrier(3)
    threading.Thread(target=cut).start()
    with pytest.raises(errors.Cancelled), stop.here():
        side_by_side(["pauses", "runs"], deliver, again)
    assert sorted(told, key=str) == [
        ("pauses", errors.ConnectionLost), ("runs", errors.Cancelled),
    ]  # fmt: skip


def test_a_bug_in_one_line_ends_all_and_is_raised() -> None:
    begun = threading.Barrier(2)

    def deliver(destination: str, progress: object) -> Result:
        begun.wait(60)
        if destination == "bug":
            raise ZeroDivisionError
        stops.pause(1000)
        raise AssertionError("not stopped")

    with pytest.raises(ZeroDivisionError):
        side_by_side(["bug", "good"], deliver)


# --- commands


def test_a_command_is_waited_for_but_not_what_it_leaves_behind(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    ran = run_command("before", f"sleep 1000 & echo $! > {pid}; echo $NAME", {"NAME": "a b"})
    os.kill(int(pid.read_text()), 9)
    assert (ran.ok, ran.how, ran.output) == (True, "exit status 0", "a b\n")


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("mountpoint -q /srv", "mountpoint"),
        ("PASSWORD=secret /bin/dump x=y", "/bin/dump"),
        ("A=1", "sh"),
        ("echo begins; false", "sh"),
        (("a b", "c"), "a b"),
    ],
)
def test_a_command_is_told_by_its_program(command: str | tuple[str, ...], program: str) -> None:
    assert program_of(command) == program


def test_the_end_of_a_commands_output_is_kept() -> None:
    ran = run_command("before", ("seq", "100000"), {})
    assert ran.output.endswith("99999\n100000\n") and len(ran.output) <= 16 * 1024


def test_a_command_is_ended_with_all_below_it() -> None:
    stop = stops.Stop()
    threading.Timer(0.1, stop.stop, (errors.Cancelled("cut"),)).start()
    with pytest.raises(errors.Cancelled), stop.here():
        run_command("before", "sleep 1000; true", {})


def test_a_command_runs_where_there_is_no_room_for_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", no_room)
    assert run_command("before", f"echo said; touch {tmp_path}/ran", {}).output == ""
    assert (tmp_path / "ran").exists()


# --- locks

HOLDER = """
import sys, time
from pscp.jobs.reports.lock import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def held_elsewhere(path: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", HOLDER, path]
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_run_is_told_who_has_the_lock_and_a_crash_leaves_none(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = state_path("/etc/jobs.toml", "job")
    with held_elsewhere(path) as process:
        with (
            pytest.raises(errors.CopyRunning, match=rf"\(process {process.pid}, since "),
            locked(path),
        ):
            raise AssertionError("locked twice")
        assert state.holder(f"{path}.lock")
        real = os.fstat

        def of_another_disk(fd: int) -> os.stat_result:
            mode, inode, device, *rest = real(fd)
            return os.stat_result((mode, inode, device + 1, *rest))

        monkeypatch.setattr(os, "fstat", of_another_disk)
        assert state.holder(f"{path}.lock") == "", "another file of the same inode number"
        monkeypatch.undo()
        process.kill()
    with locked(path):
        pass


def test_to_wait_for_the_lock(own_state: Path) -> None:
    path = state_path("/etc/jobs.toml", "job")
    with held_elsewhere(path) as process:
        assert process.stdin is not None
        threading.Timer(0.1, process.stdin.close).start()
        with locked(path, waits=True):
            pass


def test_jobs_of_one_name_in_two_files_are_two(own_state: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").touch()
    (tmp_path / "link").symlink_to("jobs.toml")
    paths = [state_path(f"{tmp_path}/{name}", "job") for name in ("jobs.toml", "other.toml")]
    assert paths[0] != paths[1]
    assert state_path(f"{tmp_path}/link", "job") == paths[0]
    assert state_path(f"{tmp_path}/link", "../job") != state_path(f"{tmp_path}/link", ".._job")
    with locked(paths[0]), locked(paths[1]):
        pass


def test_no_folder_for_the_lock_is_told(own_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc")
    with pytest.raises(errors.CopyError, match=r"^/proc/.*: "), locked(state_path("x", "job")):
        pass


# --- the history


def part(destination: str = "h:", outcome: Outcome = Outcome.DONE, at: float = 100.0,
         **more: object) -> DestinationRun:  # fmt: skip
    return DestinationRun(destination, outcome, at, 2.0, **more)  # type: ignore[arg-type]


def job_run(number: int, *parts: DestinationRun, job: str = "j", at: float = 100.0,
            outcome: Outcome = Outcome.DONE, **more: object) -> JobRun:  # fmt: skip
    return JobRun(str(number), job, outcome, at, 2.0, parts, **more)  # type: ignore[arg-type]


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def history(tmp_path: Path, notes: list[str]) -> History:
    return History(str(tmp_path / "below" / "history.sqlite"), notes.append)


def test_a_run_is_read_as_it_was_recorded(history: History, notes: list[str]) -> None:
    failure = Failure("name\n\udcff", "FileError", "why", "hint")
    parts = part(failures=(failure,), bytes=7, verified=False), part("x:\udcff", Outcome.CUT)
    run = job_run(1, *parts, outcome=Outcome.CUT, message="m", files_waiting=3, is_skipped=True)
    history.begin(dataclasses.replace(run, destinations=(), message="under way"))
    history.record(run)
    assert history.runs("j", most=1) == [run]
    assert history.last_success("j", "h:") == 102.0
    assert history.last_success("j", "x:\udcff") is None
    assert notes == []


def test_a_run_that_was_killed_is_closed_by_the_next(history: History) -> None:
    history.begin(job_run(1))
    history.begin(job_run(2, job="other"))
    assert history.runs("j") == []
    history.begin(job_run(3))
    found = history.runs()
    assert [(run.run, run.outcome, run.message) for run in found] == [("1", Outcome.CUT, KILLED)]
    history.record(job_run(3, part()))
    assert [run.run for run in history.runs("j")] == ["3", "1"]
    assert history.runs("other") == []


def test_the_newest_is_the_last_that_came_whatever_its_clock(history: History) -> None:
    for number, at in ((1, 100.0), (2, 5000.0), (3, 50.0)):
        history.record(job_run(number, part(at=at), at=at))
    assert [run.run for run in history.runs()] == ["3", "2", "1"]
    assert [run.run for run in history.runs(since_s=60)] == ["2", "1"]
    assert history.last_success("j", "h:") == 52.0


def test_old_runs_are_forgotten_but_not_the_last_success(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Outcome.FAILED
    history.record(job_run(1, part("h:"), part("i:"), at=100))
    history.record(job_run(2, part("h:"), part("i:", failed), at=200, outcome=failed))
    history.record(job_run(3, part("h:", failed), at=300, outcome=failed))
    history.record(job_run(4, job="other", at=1))
    for number in (5, 6):
        history.record(job_run(number, part("h:", failed), at=2000, outcome=failed))
    monkeypatch.setattr("time.time", lambda: 2001.0)
    history.prune("j", 1000)
    assert [run.run for run in history.runs()] == ["6", "5", "4", "2", "1"]


def test_a_clock_that_is_set_forth_for_one_run_prunes_nothing(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, at in ((1, 100.0), (2, 200.0), (3, 1e9)):
        history.record(job_run(number, at=at))
    monkeypatch.setattr("time.time", lambda: 1e9)
    history.prune("j", 1000)
    assert len(history.runs()) == 3


@pytest.mark.parametrize("where", ["all", "middle"])
def test_a_damaged_history_is_moved_aside(history: History, notes: list[str], where: str) -> None:
    for number in range(20):
        history.record(job_run(number, part(), message="m" * 2000))
    path = Path(history.path)
    damaged = b"x" * 9000 if where == "all" else path.read_bytes()[:8192] + b"\xff" * 20_000
    path.write_bytes(damaged)
    Path(f"{path}-journal").write_bytes(b"stale")
    history.record(job_run(1000))
    assert [run.run for run in history.runs()] == ["1000"]
    assert len(notes) == 1 and "was damaged" in notes[0]
    assert any(each.read_bytes() == damaged for each in path.parent.iterdir())


def test_to_look_at_a_history_makes_none(history: History) -> None:
    assert history.runs() == [] and history.last_success("j", "h:") is None
    assert not Path(history.path).exists()


def test_a_history_of_a_later_version_is_left_alone(history: History, notes: list[str]) -> None:
    history.record(job_run(1))
    database = sqlite3.connect(history.path)
    database.execute(f"pragma user_version = {VERSION + 1}")
    database.close()
    before = Path(history.path).read_bytes()
    history.record(job_run(2))
    assert history.runs() == [] and len(notes) == 2 and f"version {VERSION + 1}" in notes[0]
    assert Path(history.path).read_bytes() == before


def test_two_processes_make_a_history_at_once(history: History) -> None:
    """Both find none, and one of them is the second to make it."""

    def record(number: int) -> None:
        for each in range(10):
            other = History(history.path, pytest.fail)
            other.record(job_run(number * 100 + each, part()))

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history.runs()) == 40


# --- exit codes


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], 0),
        ([Outcome.NOTHING], 7),
        ([Outcome.NOTHING, Outcome.DONE], 0),
        ([Outcome.DONE, Outcome.LOCKED], 6),
        ([Outcome.LOCKED, Outcome.CUT], 5),
        ([Outcome.UNREACHABLE, Outcome.CUT], 3),
        ([Outcome.UNREACHABLE, Outcome.FAILED], 1),
        ([Outcome.MISCONFIGURED, Outcome.FAILED], 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst(outcomes: list[Outcome], code: int) -> None:
    runs = [job_run(number, outcome=each) for number, each in enumerate(outcomes)]
    assert exit_code(runs) == code
    skipped = job_run(9, outcome=Outcome.LOCKED, is_skipped=True)
    assert exit_code([*runs, skipped]) == code
    assert skipped.exit_code == 0
