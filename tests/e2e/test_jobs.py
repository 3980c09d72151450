"""Jobs, run against a real sshd: what is at the destinations, at the source and in the history.

Not here: the command (test_run_jobs.py), order, pauses, locks, history (../unit/test_job_runs.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import held_lanes
import pytest
from conftest import MakeServer, until
from programs import small_disk
from servers.private import PrivateServer

import pscp
from e2e.conftest import ShellThat
from e2e.test_copy_sftp import without_python
from pscp.cli import earlier_runs
from pscp.ground import errors
from pscp.jobs import runner
from pscp.jobs.reports.history import History, history_of
from pscp.jobs.reports.lock import locked, state_path
from pscp.jobs.reports.notifications import Teller
from pscp.jobs.reports.outcome import JobRun, Outcome
from pscp.jobs.reports.status import why_of
from pscp.jobs.toml.job import Job
from pscp.options.options import Options
from pscp.progress.progress import Counters, Failure, Result
from pscp.transfer.lanes import lane_context
from pscp.zfs.settings import Settings

MIB = 1024 * 1024


class Told(Teller):
    """Keeps what it is told, and calls a function of what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.runs: list[JobRun] = []
        self.when: Callable[[str], object] = lambda text: None
        self.landed: Callable[[dict[str, int]], object] = lambda bytes_done: None
        self._bytes_done: dict[str, int] = {}

    def begins(self, job: Job) -> None:
        pass

    def ended(self, job: Job, run: JobRun) -> None:
        self.runs.append(run)

    def goes_on(self, job: str, destination: str, counters: Counters) -> None:
        self._bytes_done[destination] = counters.bytes_done
        self.landed(dict(self._bytes_done))

    def says(self, job: str, text: str) -> None:
        self.said.append(text)
        self.when(text)

    def warns(self, job: str, text: str) -> None:
        self.says(job, text)


@dataclasses.dataclass
class Place:
    """Files here, folders `one` and `two` there, and jobs from here to there."""

    home: Path
    server: PrivateServer
    told: Told = dataclasses.field(default_factory=Told)

    @property
    def config(self) -> str:
        return str(self.home / "jobs.toml")

    @property
    def history(self) -> History:
        return history_of(self.config, pytest.fail)

    def there(self, number: int) -> Path:
        return self.home / ("one", "two")[number]

    def destination(self, number: int = 0) -> str:
        return f"{self.server.host}:{self.there(number)}/"

    def fill(self, *names: str, size: int = 1000) -> None:
        for name in names:
            (self.home / "here" / name).write_bytes(os.urandom(size))

    def job(self, name: str = "job", *, ends: int = 1, **fields: Any) -> Job:
        options = {
            "config_file": self.server.ssh_config, "batch": True, "connections": 1,
            "recursive": True, **fields.pop("options", {}),
        }  # fmt: skip
        fields = {
            "sources": (f"{self.home}/here/*",),
            "destinations": tuple(self.destination(n) for n in range(ends)), **fields,
        }  # fmt: skip
        return Job(name, options=Options(**options), **fields)

    def run(self, *jobs: Job, **more: Any) -> list[JobRun]:
        return runner.run(jobs, self.history, self.config, self.told, **more)

    def run_one(self, job: Job, **more: Any) -> JobRun:
        [run] = self.run(job, **more)
        return run

    def arrived(self, number: int = 0) -> set[str]:
        """Files that are there as here. Fails for one that is another."""
        found = set()
        for path in self.there(number).iterdir():
            if not path.name.endswith((".pscp-part", ".pscp-run")):
                here = self.home / "here" / path.name
                assert not here.exists() or here.read_bytes() == path.read_bytes()
                found.add(path.name)
        return found


@pytest.fixture
def place(sshd: PrivateServer, tmp_path: Path, own_state: Path) -> Place:
    for name in ("here", "one", "two"):
        (tmp_path / name).mkdir()
    return Place(tmp_path, sshd)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pscp.jobs.attempts.pauses", lambda: iter(lambda: 0.05, None))


def test_files_go_to_all_destinations(place: Place) -> None:
    place.fill("a", "-b", "c\nd", os.fsdecode(b"\xff"))
    run = place.run_one(place.job(ends=2))
    assert (run.outcome, run.exit_code) == (Outcome.DONE, 0)
    assert place.arrived(0) == place.arrived(1) == set(os.listdir(place.home / "here"))
    assert [(p.outcome, p.files, p.bytes) for p in run.destinations] == [
        (Outcome.DONE, 4, 4000)
    ] * 2
    again = place.run_one(place.job(ends=2))
    assert [(p.files, p.files_unchanged) for p in again.destinations] == [(0, 4)] * 2
    kept = place.history.runs()
    assert [dataclasses.replace(each, commands=()) for each in (again, run)] == kept
    assert place.told.runs == [run, again]


def test_what_a_job_skips_and_deletes_is_counted(place: Place) -> None:
    place.fill("a", "b")
    place.run_one(place.job())
    (place.home / "here" / "a").unlink()
    options = {"delete": True, "ignore_existing": True}
    run = place.run_one(place.job(sources=(f"{place.home}/here/.",), options=options))
    [part] = run.destinations
    assert (part.files, part.files_skipped, part.files_deleted) == (0, 1, 1)


def test_nothing_to_do_is_no_error_and_asks_nobody(place: Place) -> None:
    job = place.job(destinations=("no-such-host.invalid:x",))
    run = place.run_one(job)
    assert (run.outcome, run.exit_code) == (Outcome.NOTHING, 7)
    assert place.history.last_success("job", "no-such-host.invalid:x") is not None


def test_a_missing_source_fails_for_itself_alone(place: Place) -> None:
    place.fill("a")
    sources = (f"{place.home}/here/a", f"{place.home}/here/gone")
    said = place.home / "said"
    run = place.run_one(place.job(sources=sources, after_failure=f'echo "$PSCP_MESSAGE" > {said}'))
    assert (run.outcome, run.exit_code, place.arrived()) == (Outcome.FAILED, 1, {"a"})
    assert said.read_text().startswith(f"{place.destination()}: 1 file failed; no such file")
    assert said.read_text().endswith("/gone\n")
    [failure] = run.destinations[0].failures
    assert failure.path.endswith("/gone")


def test_young_files_wait_for_the_next_run(place: Place) -> None:
    place.fill("old", "young", "tree")
    (place.home / "here" / "folder").mkdir()
    place.fill("folder/old", "folder/young")
    for name in ("old", "folder/old", "tree"):
        os.utime(place.home / "here" / name, (10**9, 10**9))
    run = place.run_one(place.job(min_age_s=3600))
    assert (run.outcome, run.files_waiting) == (Outcome.DONE, 2)
    assert sorted(os.listdir(place.there(0))) == ["folder", "old", "tree"]
    assert os.listdir(place.there(0) / "folder") == ["old"]
    alone = place.run_one(place.job(sources=(f"{place.home}/here/young",), min_age_s=3600))
    assert (alone.outcome, alone.files_waiting) == (Outcome.NOTHING, 1)


def test_commands_are_run_before_and_after(place: Place) -> None:
    place.fill("a")
    said = place.home / "said"
    tell = f'echo "$PSCP_JOB $PSCP_OUTCOME $PSCP_FILES $PSCP_BYTES" >> {said}'
    job = place.job(before=f"echo before > {said}", after_success=tell, after_failure="false")
    run = place.run_one(job)
    assert run.outcome == Outcome.DONE
    assert said.read_text() == "before\njob done 1 1000\n"
    assert [each.name for each in run.commands] == ["before", "after-success"]


def test_where_before_fails_nothing_is_copied(place: Place) -> None:
    place.fill("a")
    said = place.home / "said"
    job = place.job(
        before=("sh", "-c", "echo no disk; exit 3"), after_success="false",
        after_failure=f'echo "$PSCP_OUTCOME: $PSCP_MESSAGE" > {said}; exit 4',
    )  # fmt: skip
    run = place.run_one(job)
    assert run.outcome == Outcome.FAILED and place.arrived() == set()
    assert run.message.startswith("before (sh): exit status 3") and "after-failure (" in run.message
    assert [each.output for each in run.commands] == ["no disk\n", ""]
    assert said.read_text().startswith("failed: before (sh): exit status 3")


def test_a_command_that_fails_afterwards_does_not_change_what_was_copied(place: Place) -> None:
    place.fill("a")
    run = place.run_one(place.job(after_success="exit 3"))
    assert (run.outcome, run.message) == (Outcome.FAILED, "after-success (exit): exit status 3")
    assert run.destinations[0].outcome == Outcome.DONE and place.arrived() == {"a"}
    assert place.history.runs("job", most=1) == [dataclasses.replace(run, commands=())]


def test_what_depends_on_a_job_waits_for_it(place: Place) -> None:
    place.fill("a")
    bad = place.job("bad", before="false")
    after_bad = place.job("after", depends_on=("bad",))
    nothing = place.job("nothing", sources=(f"{place.home}/one/*",))
    good = place.job("good", depends_on=("nothing",))
    runs = place.run(bad, after_bad, nothing, good)
    assert [run.outcome for run in runs] == [
        Outcome.FAILED, Outcome.FAILED, Outcome.NOTHING, Outcome.DONE,
    ]  # fmt: skip
    assert runs[1].message == "not run: bad, which it depends on, has failed"
    assert place.history.runs("after", most=1) == [runs[1]]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("IdentityFile {home}/open", "Permissions 0644 for .* are too open; .*Permission denied"),
        ("IdentityFile ${{NO_SUCH}}/key", "(?s)NO_SUCH.*set NO_SUCH where"),
        ("StrictHostKeyChecking yes\nUserKnownHostsFile /dev/null", "(?s)known.*Checking=ask"),
    ],
)
def test_what_somebody_has_to_mend_does_not_come_back(
    place: Place, setting: str, said: str
) -> None:
    place.fill("a")
    text = Path(place.server.ssh_config).read_text()
    [key] = re.findall("IdentityFile (.*)", text)
    shutil.copy(key.strip('"'), place.home / "open")
    (place.home / "open").chmod(0o644)
    kept = "\n".join(line for line in text.splitlines() if "IdentityFile" not in line)
    config = place.home / "config"
    config.write_text(f"Host *\n{setting.format(home=place.home)}\n{kept}\n")
    job = place.job(options={"config_file": str(config)}, retry_for_s=600)
    run = place.run_one(job)
    assert (run.outcome, run.exit_code) == (Outcome.MISCONFIGURED, 2), run
    assert re.search(said, run.destinations[0].message), run


def test_what_needs_python_there_is_misconfigured_where_there_is_none(
    place: Place, make_sshd: MakeServer, shell_that: ShellThat
) -> None:
    place.fill("a")
    bare = without_python(make_sshd, shell_that)
    to = (f"{bare.host}:{place.home}/one",)
    for key, value in (("backup", True), ("link-dest", ("../x",))):
        options = {"config_file": bare.ssh_config, key.replace("-", "_"): value}
        run = place.run_one(place.job(options=options, destinations=to))
        assert (run.outcome, run.exit_code) == (Outcome.MISCONFIGURED, 2), run
        why = f"{key} needs the agent: the far end has no python3\nwithout {key} it would"
        assert run.destinations[0].message.startswith(why)


def test_max_duration_cuts_what_runs(place: Place) -> None:
    place.fill("a", size=8 * MIB)
    slowly = {"limit_kbit_s": 100}
    run = place.run_one(place.job(ends=2, max_duration_s=1, options=slowly))
    assert (run.outcome, run.exit_code) == (Outcome.CUT, 5)
    assert "max-duration (1.0 s) is over" in run.message and place.arrived() == set()
    assert [part.outcome for part in run.destinations] == [Outcome.CUT] * 2
    assert place.run_one(place.job(ends=2)).outcome == Outcome.DONE


@pytest.mark.parametrize("name", ["after_success", "after_failure"])
def test_max_duration_ends_what_follows(place: Place, name: str) -> None:
    before = {"after_failure": "exit 1"}.get(name)
    fields: dict[str, Any] = {"before": before, name: "exec sleep 1000", "max_duration_s": 1}
    run = place.run_one(place.job(**fields))
    assert run.outcome == Outcome.FAILED
    assert run.message.endswith(f"{name.replace('_', '-')}: max-duration (1.0 s) is over")


def test_a_signal_in_the_midst_of_copies_and_the_next_run_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.fill("a")
    place.fill("b", size=8 * MIB)
    options = {"limit_kbit_s": held_lanes.LIMIT_KBIT_S, "chunk_bytes": MIB}
    monkeypatch.setattr(lane_context.RateLimiter, "wait", held_lanes.stand_after(4 * MIB))

    def end(bytes_done: dict[str, int]) -> None:
        if len(bytes_done) == 2 and min(bytes_done.values()) >= 2 * MIB:
            place.told.landed = lambda bytes_done: None
            os.kill(os.getpid(), signal.SIGTERM)

    place.told.landed = end
    with pytest.raises(errors.Terminated):
        place.run(place.job(ends=2, options=options), place.job("never", before="touch never"))
    [run] = place.told.runs
    assert (run.outcome, run.exit_code, place.arrived()) == (Outcome.CUT, 5, {"a"})
    assert all(part.files == 1 and part.bytes >= 2 * MIB for part in run.destinations)
    assert place.history.runs("job", most=1) == [run]
    again = place.run_one(place.job(ends=2, options={"chunk_bytes": MIB}))
    assert again.outcome == Outcome.DONE and place.arrived(0) == place.arrived(1) == {"a", "b"}
    assert all(part.bytes_sent <= 6 * MIB for part in again.destinations)


# --- other processes

PROGRAM = """
import pickle, sys
from pscp.ground.errors import PscpError
from pscp.jobs import runner
from pscp.jobs.reports.history import history_of
from pscp.jobs.reports.notifications import Teller
from pscp.jobs.reports.outcome import exit_code
config, job = sys.argv[1], pickle.loads(bytes.fromhex(sys.argv[2]))
history = history_of(config)
try:
    runs = runner.run([job], history, config, Teller(history, lambda text: None))
except PscpError as error:
    sys.exit(error.exit_code)
sys.exit(exit_code(runs))
"""


def start(place: Place, job: Job) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", PROGRAM, place.config, pickle.dumps(job).hex()]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def waiting(place: Place, **fields: Any) -> tuple[Job, Path]:
    """A job whose `before` waits until it is ended, and a file that is there then."""
    begun = place.home / "begun"
    return place.job(before=f"touch {begun}; exec sleep 1000", **fields), begun


@pytest.mark.parametrize(("if_running", "code"), [("fail", 6), ("skip", 0)])
def test_a_second_run_is_told_of_the_first(place: Place, if_running: str, code: int) -> None:
    place.fill("a")
    job, begun = waiting(place)
    with start(place, job) as first:
        until(begun.exists)
        second = place.run_one(place.job(if_running=if_running))
        after = place.run(dataclasses.replace(place.job("after"), depends_on=("job",)))
        first.send_signal(signal.SIGTERM)
        first.communicate()
    assert (second.outcome, second.exit_code) == (Outcome.LOCKED, code)
    assert f"(process {first.pid}, since " in second.message
    assert after[0].outcome == Outcome.DONE  # the other job was not asked for
    assert [run.job for run in place.history.runs()] == ["after", "job"]


def test_a_signal_ends_a_run_that_waits_and_nobody_is_told_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was recorded as cut, while the run that it waited for went on."""

    def locked_late(*args: Any, **more: Any) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return locked(*args, **more)

    monkeypatch.setattr(runner, "locked", locked_late)
    history, report = history_of(place.config, pytest.fail), place.home / "report"
    files: dict[str, Any] = {"metrics": f"{place.home}/metrics", "report": (("text", str(report)),)}
    with locked(state_path(place.config, "job")), pytest.raises(errors.Terminated):
        teller = Teller(history, place.told.said.append)
        runner.run([place.job(if_running="wait", **files)], history, place.config, teller)
    assert history.runs() == [] and not {"report", "metrics"} & {*os.listdir(place.home)}
    assert place.told.said[1] == "  interrupted while it waited for another run of this job"


@pytest.mark.parametrize(("kind", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_cuts_a_run_and_what_follows_is_run(
    place: Place, kind: signal.Signals, code: int
) -> None:
    place.fill("a")
    said = place.home / "said"
    job, begun = waiting(place, after_failure=f"echo $PSCP_OUTCOME > {said}")
    with start(place, job) as process:
        until(begun.exists)
        process.send_signal(kind)
        process.communicate()
    assert process.returncode == code
    assert said.read_text() == "cut\n"
    [last] = place.history.runs("job", most=1)
    assert last is not None and last.outcome == Outcome.CUT and place.arrived() == set()


def test_a_signal_that_comes_with_the_lock_begins_no_copy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked_late(*args: Any, **more: Any) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return locked(*args, **more)

    place.fill("a")
    monkeypatch.setattr(runner, "locked", locked_late)
    with pytest.raises(errors.Terminated):
        place.run(place.job())
    [run] = place.told.runs
    assert run.outcome == Outcome.CUT and place.arrived() == set()


def journaled_chunks(home: Path) -> int:
    journals = (home / "pscp").glob("*.journal")
    return sum(path.read_text().count('["chunk"') for path in journals)


def test_jobs_of_datasets_are_replicated(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What replicate() does is tested elsewhere; here, what a job makes of what it says."""
    from pscp.zfs.replicate import Replicated

    asked: list[tuple[str, str, bool]] = []

    def replicate(dataset: str, to: str, **given: Any) -> Replicated:
        asked.append((dataset, to, given["settings"].recursive))
        if to.startswith("down"):
            raise errors.Unreachable("down")
        return Replicated(files=2, bytes=10, bytes_sent=12, connections=3)

    monkeypatch.setattr("pscp.zfs.replicate.replicate", replicate)
    job = Job(
        "zfs", ("up:tank/", "down:tank/"), datasets=("pool/a", "pool/b"),
        settings=Settings(recursive=True),
    )  # fmt: skip
    run = place.run_one(job)
    assert sorted(asked) == [
        ("pool/a", "down:tank/a", True), ("pool/a", "up:tank/a", True),
        ("pool/b", "up:tank/b", True),
    ]  # fmt: skip
    assert run.outcome == Outcome.UNREACHABLE
    assert [(p.outcome, p.files, p.bytes, p.connections) for p in run.destinations] == [
        (Outcome.DONE, 4, 20, 3), (Outcome.UNREACHABLE, 0, 0, 0),
    ]  # fmt: skip


def test_a_dataset_that_failed_is_called_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from pscp.zfs.replicate import Replicated

    failed = Replicated(failures=(Failure("pool/a", "NoSnapshot", "it has no snapshot"),))
    monkeypatch.setattr("pscp.zfs.replicate.replicate", lambda *_, progress, **__: failed)
    run = place.run_one(Job("zfs", ("up:tank/",), datasets=("pool/a",)))
    [part] = run.destinations
    assert (part.outcome, part.message) == (Outcome.FAILED, "1 dataset failed")
    assert why_of(run, part) == "1 dataset failed: pool/a"


# --- what becomes of the sources


def test_a_source_is_removed_once_every_destination_has_it(place: Place) -> None:
    place.fill("a", "b")
    missing = f"{place.server.host}:{place.home}/no/three/"
    job = place.job(destinations=(missing, place.destination()), after="remove")
    run = place.run_one(job)
    assert (run.outcome, run.files_removed) == (Outcome.FAILED, 0)
    assert [part.outcome for part in run.destinations] == [Outcome.FAILED, Outcome.DONE]
    assert place.arrived() == {"a", "b"} == set(os.listdir(place.home / "here"))
    (place.home / "no" / "three").mkdir(parents=True)
    run = place.run_one(job)
    assert (run.outcome, run.files_removed) == (Outcome.DONE, 2)
    assert os.listdir(place.home / "here") == []
    assert set(os.listdir(place.home / "no" / "three")) == {"a", "b"}


@pytest.mark.parametrize("max_hosts", [None, 1])
@pytest.mark.parametrize("are_twins", [True, False])
def test_what_is_reached_over_sftp_by_two_names_counts_once(
    place: Place, max_hosts: int | None, are_twins: bool
) -> None:
    """Whichever copy is first: what it has is the only copy, so the source stays."""
    place.fill("a", "b")
    if are_twins:
        place.there(1).rmdir()
        place.there(1).symlink_to(place.there(0))
    options = {"remote": "sftp"}
    run = place.run_one(place.job(ends=2, options=options, after="remove", max_hosts=max_hosts))
    left = {each.name for each in (place.home / "here").iterdir()}
    assert place.arrived(0) == place.arrived(1) == {"a", "b"}
    if are_twins:
        assert (run.outcome, run.exit_code, left) == (Outcome.FAILED, 1, {"a", "b"})
        assert "no source was removed" in run.message
        assert [each.outcome for each in run.destinations] == [Outcome.DONE] * 2
    else:
        assert (run.outcome, left) == (Outcome.DONE, set()), run


@pytest.mark.parametrize(("after", "attempts"), [("keep", 2), ("remove", 1)])
def test_a_file_that_changed_is_tried_again_while_all_sources_are_there(
    place: Place, quick_retries: None, monkeypatch: pytest.MonkeyPatch, after: str, attempts: int
) -> None:
    place.fill("a", "b")
    copy, failed = pscp.copy, list[str]()

    def copy_and_fail_once(sources: Any, destination: str, **given: Any) -> Result:
        result = copy(sources, destination, **given)
        if destination == place.destination(1) and not failed:
            failed.append(destination)
            return dataclasses.replace(result, failures=(Failure("a", "SourceChanged", "why"),))
        return result

    monkeypatch.setattr(runner, "copy", copy_and_fail_once)
    run = place.run_one(place.job(ends=2, after=after, retry_for_s=600))
    assert run.destinations[1].attempts == attempts and failed
    assert run.outcome == (Outcome.FAILED if after == "remove" else Outcome.DONE)
    assert place.arrived(0) == place.arrived(1) == {"a", "b"}


def test_a_file_that_changed_before_the_second_destination_had_it_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed at the source, and the run was done."""
    place.fill("a", "b")
    copy = pscp.copy

    def change_before_the_second(sources: Any, destination: str, **given: Any) -> Result:
        if destination == place.destination(1):
            (place.home / "here" / "b").write_text("of today")
        return copy(sources, destination, **given)

    monkeypatch.setattr(runner, "copy", change_before_the_second)
    run = place.run_one(place.job(ends=2, after="remove", max_hosts=1))
    assert (run.outcome, run.files_removed) == (Outcome.FAILED, 1)
    [failure] = run.destinations[1].failures
    assert (failure.path, failure.error) == ("b", "SourceChanged")
    assert os.listdir(place.home / "here") == ["b"]


def test_a_full_disk_for_history_and_state_stops_no_copy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = place.home / "state"
    state.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    notes: list[str] = []
    with small_disk(state, "size=400k"):
        history = history_of(place.config, notes.append)

        def run(job: Job) -> JobRun:
            return runner.run([job], history, place.config, place.told)[0]

        place.fill("a", "b")
        assert run(place.job()).outcome == Outcome.DONE
        with open(state / "filler", "wb", 0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(512))
        place.fill("c")
        settling = run(place.job(settled_for_s=1))
        assert settling.files_waiting == 3
        assert settling.message.endswith("cannot be written: what has settled is not kept")
        assert run(place.job()).outcome == Outcome.DONE
        assert place.arrived() == {"a", "b", "c"}
        assert notes and all("full" in note for note in notes), notes
        assert not list(state.rglob("*.json.*"))  # what could not be written whole


def test_connections_that_persist_do_not_hold_the_lock(place: Place) -> None:
    place.fill("a")
    job = place.job(options={"persist": "60"})
    try:
        assert place.run_one(job).outcome == Outcome.DONE
        with locked(state_path(place.config, "job")):
            pass
    finally:
        earlier_runs.disconnect(None, job.options)
