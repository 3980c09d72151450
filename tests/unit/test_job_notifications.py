"""Pings, systemd and the journal: what they get, and that none of them changes a run.

Not here: what the reports say (test_job_reports.py).
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from job_runs import FULL, HOSTILE, Remembered, part, run_of

from pscp.jobs.reports import notifications, systemd
from pscp.jobs.reports.outcome import CommandRun, JobRun, Outcome
from pscp.jobs.toml.job import Job
from pscp.progress.progress import LiveCounters

TICK_S = 0.05


class Monitor(http.server.ThreadingHTTPServer):
    """Keeps what is posted to it; answers as `status` says, once `answers` is set."""

    daemon_threads = True
    status, location = 200, ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Posts)
        self.posts: list[tuple[str, str]] = []
        self.heard = threading.Semaphore(0)
        self.answers = threading.Event()
        self.answers.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/check?rid=1"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # it hung up


class Posts(http.server.BaseHTTPRequestHandler):
    server: Monitor

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.server.posts.append((self.path, body))
        self.server.heard.release()
        self.server.answers.wait()
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    do_GET = do_POST  # what a redirected POST becomes

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    with Monitor() as server:
        thread = threading.Thread(target=server.serve_forever, args=(TICK_S,))
        thread.start()
        try:
            yield server
        finally:
            server.answers.set()
            server.shutdown()
            thread.join()


# --- pings


def test_a_ping_at_the_start_and_one_at_each_end(monitor: Monitor) -> None:
    for code, suffix in ((0, ""), (5, "/5")):
        pings = notifications.Pings(monitor.url)
        assert pings.end(code, f"ended with {code}: \udcff") == ""
        assert monitor.posts[-2:] == [
            ("/check/start?rid=1", ""),
            (f"/check{suffix}?rid=1", f"ended with {code}: \\udcff"),
        ]


def test_no_start_comes_after_the_end(monitor: Monitor) -> None:
    monitor.answers.clear()
    pings = notifications.Pings(monitor.url)
    monitor.heard.acquire()
    ends = threading.Thread(target=pings.end, args=(0, ""))
    ends.start()
    assert not monitor.heard.acquire(timeout=TICK_S), "it waits for the answer to the start"
    monitor.answers.set()
    ends.join()
    assert [path for path, _ in monitor.posts] == ["/check/start?rid=1", "/check?rid=1"]


NEVER_ANSWERED = f"""
import sys
from pscp.jobs.reports import notifications as ping
ping.PATIENCE_S, ping._ANSWER_S = {TICK_S}, 1e6
pings = ping.Pings(sys.argv[1])
print(pings.end(1, "failed"))
"""


def test_a_server_that_never_answers_keeps_no_run_from_ending(monitor: Monitor) -> None:
    monitor.answers.clear()
    command = [sys.executable, "-c", NEVER_ANSWERED, monitor.url]
    assert subprocess.run(command, capture_output=True).stdout == b"no answer in time\n"


def test_a_server_that_answers_too_late_is_told_of(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "_ANSWER_S", TICK_S)
    monitor.answers.clear()
    pings = notifications.Pings(monitor.url)
    assert "timed out" in pings.end(1, "failed")
    until(lambda: len(monitor.posts) == 4, "it has all that was sent to it")


def test_a_server_that_fails_is_asked_twice_and_then_told_of(monitor: Monitor) -> None:
    monitor.status = 500
    assert "Internal Server Error" in notifications.Pings(monitor.url).end(0, "")
    assert len(monitor.posts) == 4


def test_no_server_is_told_of() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        assert "refused" in notifications.Pings(url).end(0, "")


@pytest.mark.parametrize("location", ["ftp://127.0.0.1:1/x", "file:///etc/passwd", "/check?rid=1"])
def test_no_answer_leads_elsewhere_than_to_http(monitor: Monitor, location: str) -> None:
    monitor.status, monitor.location = 302, location
    why = notifications.Pings(monitor.url).end(0, "")
    assert why and "\n" not in why  # urllib has three lines for a loop


def test_a_long_report_is_cut(monitor: Monitor) -> None:
    notifications.Pings(monitor.url).end(1, "x" * 100_000)
    assert len(monitor.posts[1][1]) == 10_000


# --- the service manager


@contextlib.contextmanager
def listening(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.setblocking(False)
        yield receiver


def heard(receiver: socket.socket) -> list[bytes]:
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(receiver.recv(1_000_000))
    return found


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with listening(path) as receiver:
        yield receiver


def test_an_abstract_socket_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"pscp-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    with listening(f"\0{name}") as receiver:
        systemd.notify("READY=1")
        assert heard(receiver) == [b"READY=1"]


@pytest.mark.parametrize("address", ["", "vsock:2:1", "/nowhere/notify"])
def test_nobody_listens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    systemd.notify("READY=1")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_watchdog_is_told_while_work_goes_on_and_only_then(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    clock = Clock()
    dog = systemd.Watchdog(clock)
    told_at = []
    for tenth in range(400):  # of a second; after 20 s nothing changes any more
        clock.now_s = tenth / 10
        dog.see("copy", min(tenth, 200))
        dog.see("stands still", 0)
        told_at += [clock.now_s] * len(heard(manager))
    assert told_at == [5.0, 10.0, 15.0, 20.0]
    clock.now_s = 100.0
    dog.see("copy", 201)
    assert heard(manager) == [b"WATCHDOG=1"], "it goes on after all"


@pytest.mark.parametrize(
    ("usec", "pid"), [("", ""), ("soon", ""), ("1", "1"), ("-1", ""), ("0", "")]
)
def test_no_watchdog_is_told_where_none_waits(
    usec: str, pid: str, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid)
    clock = Clock()
    dog = systemd.Watchdog(clock)
    clock.now_s = 10.0
    dog.see("copy", 1)
    assert heard(manager) == []


# --- the journal


def fields_of(record: bytes) -> dict[str, str]:
    """Reads a record as journald does, with fields of either form."""
    found = {}
    while record:
        name, _, record = record.partition(b"\n")
        if b"=" in name:
            name, _, data = name.partition(b"=")
        else:
            [size] = struct.unpack("<Q", record[:8])
            data, record = record[8 : 8 + size], record[9 + size :]
        assert name.decode() not in found
        found[name.decode()] = data.decode()
    return found


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where systemd starts the program."""
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    monkeypatch.setattr(systemd, "JOURNAL", str(tmp_path / "journal"))
    with listening(systemd.JOURNAL) as receiver:
        yield receiver


def test_no_value_begins_another_field(journal: socket.socket) -> None:
    systemd.to_journal(f"a\nPSCP_JOB=other\n{HOSTILE}", 3, {"PSCP_JOB": "x\nPRIORITY=0"})
    [record] = heard(journal)
    fields = fields_of(record)
    assert fields["PRIORITY"] == "3" and fields["PSCP_JOB"] == "x\nPRIORITY=0"
    assert fields["MESSAGE"].startswith("a\nPSCP_JOB=other\n")
    assert fields["SYSLOG_IDENTIFIER"] == "pscp-run"


def test_a_record_that_is_too_long_is_cut(journal: socket.socket) -> None:
    systemd.to_journal("x" * 1_000_000, 3, {})
    assert len(fields_of(heard(journal)[0])["MESSAGE"]) == 48 * 1024


def test_the_journal_has_nothing_of_what_systemd_did_not_start(
    journal: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM")
    told(Job("recordings", ("store1:/vault/",)), run_of(part()))
    assert heard(journal) == []


# --- all of it


def told(job: Job, *runs: JobRun, past: Remembered | None = None, **fields: Any) -> list[str]:
    notes: list[str] = []
    teller = notifications.Teller(past or Remembered(), notes.append, **fields)
    for run in runs:
        if run.outcome is not Outcome.LOCKED:
            teller.begins(job)
        teller.ended(job, run)
    teller.all_ended()
    return notes


BAD = run_of(part(outcome=Outcome.FAILED, failures=(FULL,)))


def test_a_run_is_told_to_all_whom_the_job_names(monitor: Monitor, tmp_path: Path) -> None:
    job = Job(
        "recordings", ("store1:/vault/",), metrics=f"{tmp_path}/", ping=monitor.url,
        report=(("json", f"{tmp_path}/report.json"), ("html", f"{tmp_path}/report.html")),
    )  # fmt: skip
    notes = told(job, BAD, past=Remembered([BAD, run_of(part(), started_s=1000.0)]))
    assert "recordings: failed" in notes[0]
    assert json.loads((tmp_path / "report.json").read_text())["exit_code"] == 1
    assert "No space left" in (tmp_path / "report.html").read_text()
    assert "timestamp_seconds{" in (tmp_path / "pscp_recordings.prom").read_text()
    assert [path for path, _ in monitor.posts] == ["/check/start?rid=1", "/check/1?rid=1"]
    assert "No space left on device (1): cam/1.rec" in monitor.posts[1][1]


def test_a_success_is_quiet(monitor: Monitor, tmp_path: Path) -> None:
    job = Job("recordings", ("store1:/vault/",), ping=monitor.url, metrics=f"{tmp_path}/m")
    assert told(job, run_of(part()), run_of()) == []
    assert [path for path, _ in monitor.posts] == ["/check/start?rid=1", "/check?rid=1"] * 2
    assert told(job, run_of(part(), message="state is not kept"))[1] == "  state is not kept"


def test_nothing_that_cannot_be_told_changes_the_run(tmp_path: Path) -> None:
    job = Job(
        "recordings", ("store1:/vault/",), metrics=f"{tmp_path}/none/m", ping="http://[::1]:1/",
        report=(("text", f"{tmp_path}/none/report"),),
    )  # fmt: skip
    notes = told(job, run_of(part()))
    assert len(notes) == 3 and all(note.startswith("recordings: ") for note in notes)
    why = "No such file or directory; the copies went well"
    assert [note.count(why) for note in notes] == [1, 1, 0]
    assert not any("went well" in note for note in told(job, run_of(part(outcome=Outcome.FAILED))))


def test_metrics_without_a_folder_are_told_where_there_was_something_to_do(tmp_path: Path) -> None:
    """P2j: from cron it was a mail every ten minutes."""
    job = Job("recordings", ("store1:/vault/",), metrics=f"{tmp_path}/none/")
    assert told(job, run_of()) == []
    assert len(told(job, run_of(part()))) == 1


def test_a_monitor_that_is_away_is_named_where_there_was_something_to_do() -> None:
    job = Job("recordings", ("store1:/vault/",), ping="http://[::1]:1/secret")
    assert told(job, run_of()) == []
    [line] = told(job, run_of(part()))
    assert line.startswith("recordings: ping ::1: ") and "secret" not in line


def test_a_hint_is_said_once() -> None:
    hint = "try: pscp --help"
    parts = [
        part(to, outcome=Outcome.FAILED, message=f"failed\n{hint}", failures=(FULL,))
        for to in ("store1:", "store2:")
    ]
    lines = told(Job("recordings", ("store1:", "store2:")), run_of(*parts), run_of(*parts))
    for each in (hint, FULL.hint):
        assert sum(each in line for line in lines) == 1, lines
    assert sum(FULL.message in line for line in lines) == 4


def test_who_watches_is_told_where_a_copy_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_SHOWS_S", 0.0)
    counters = LiveCounters()
    counters.add(bytes_total=4000, bytes_done=1000)
    for is_watched in (False, True):
        notes: list[str] = []
        teller = notifications.Teller(
            Remembered(), notes.append, is_verbose=True, is_watched=is_watched
        )
        teller.goes_on("recordings", "store1:/", counters)
        assert len(notes) == is_watched
    assert notes[0].startswith("recordings: store1:/: 1.0 kB of 4.0 kB")


def test_a_run_that_was_locked_out_leaves_all_to_the_other(
    monitor: Monitor, tmp_path: Path
) -> None:
    job = Job("recordings", ("store1:/vault/",), metrics=f"{tmp_path}/m", ping=monitor.url)
    [line, *_] = told(job, run_of(outcome=Outcome.LOCKED, message="process 7 runs it"))
    assert "recordings: locked" in line
    assert told(job, run_of(outcome=Outcome.LOCKED, is_skipped=True)) == []
    assert monitor.posts == [] and os.listdir(tmp_path) == []


def test_a_run_that_did_not_begin_is_told_of_too(monitor: Monitor) -> None:
    job = Job("recordings", ("store1:/vault/",), ping=monitor.url)
    teller = notifications.Teller(Remembered(), lambda text: None)
    teller.ended(job, run_of(outcome=Outcome.FAILED, message="not run: what it depends on failed"))
    assert [path for path, _ in monitor.posts] == ["/check/start?rid=1", "/check/1?rid=1"]


def test_the_journal_has_a_record_for_each_destination(journal: socket.socket) -> None:
    bad = run_of(part(), part("store2:/", outcome=Outcome.CUT, message="enough"))
    none = run_of(outcome=Outcome.MISCONFIGURED, message="before: no such command")
    job = Job("recordings", ("store1:/vault/", "store2:/"))
    assert "enough" in "".join(told(job, bad, none)), "the report is on stderr too"
    records = [fields_of(each) for each in heard(journal)]
    assert [(r.get("PSCP_DESTINATION"), r["PSCP_OUTCOME"], r["PRIORITY"]) for r in records] == [
        ("store1:/vault/", "done", "6"), ("store2:/", "cut", "3"), (None, "misconfigured", "3"),
    ]  # fmt: skip
    assert all(record["PSCP_JOB"] == "recordings" for record in records)
    assert "no such command" in records[2]["MESSAGE"]


def test_a_journal_that_does_not_listen_changes_nothing(
    journal: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "JOURNAL", "/nowhere")
    assert "recordings: failed" in told(Job("recordings", ("store1:/vault/",)), BAD)[0]


def test_all_runs_together_are_a_report(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    job = Job("recordings", ("store1:/vault/",))
    told(job, run_of(part()), BAD, reports=[("json", str(path))])
    read = json.loads(path.read_text())
    assert [run["outcome"] for run in read["runs"]] == ["done", "failed"] and read["exit_code"] == 1


def test_a_command_that_failed_is_told_with_what_it_said(tmp_path: Path) -> None:
    output = "".join(f"line {n}{HOSTILE}\n" for n in range(20))
    ran = CommandRun("before", ok=False, how="exit status 3", output=output, seconds=1.0)
    well = CommandRun("after-failure", ok=True, how="exit status 0", output="fine", seconds=1.0)
    message = "before: exit status 3; nothing was copied\nrun it by hand"
    run = run_of(outcome=Outcome.FAILED, commands=(ran, well), message=message)
    job = Job("recordings", (), report=(("html", f"{tmp_path}/page"),))
    lines = told(job, run)
    assert lines[1:4] == [*(f"  {each}" for each in message.splitlines()), "  before said:"]
    assert not any("fine" in line for line in lines)
    assert sum("line 1" in line for line in lines) == 5
    assert "exit status 3" in (tmp_path / "page").read_text()


def test_a_copy_that_stands_still_is_told_to_no_watchdog(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2")
    teller = notifications.Teller(Remembered(), lambda text: None)
    counters = LiveCounters()
    for moved, expected in ((0, 1), (0, 0), (5, 1), (0, 0)):
        counters.add(bytes_sent=moved)
        teller.goes_on("recordings", "store1:/vault/", counters)
        assert heard(manager).count(b"WATCHDOG=1") == expected
    teller.says("recordings", "tried again")
    assert b"WATCHDOG=1" in heard(manager)
