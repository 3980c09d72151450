"""A night: files that arrive, two servers that take them, and pscp-run, started again and again.

Whatever happens to a run, run() compares what it tells (exit code, history, report, metrics, its
commands) with what is seen to have become of the files. What happens is the caller's:
faults/test_night.py, soak_night.py.

Read next: watched_run.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import watched_run
from faults.conftest import Breaking, until
from programs import small_disk
from prometheus_client.parser import text_string_to_metric_families
from servers.private import SshdServer, find_sshd, wait_for_file

from pscp.ground.processes import descendants, send
from pscp.jobs.reports.history import History, history_of
from pscp.jobs.reports.outcome import JobRun, Outcome

ENDS = ("one", "two")
GOOD = (Outcome.DONE, Outcome.NOTHING)
KILLED, LOCKED = -signal.SIGKILL, 6
SMALL_BYTES, BIG_BYTES, PIECE_BYTES = 20_000, 3 << 20, 16
ROOM_MIB = 2048  # of the second destination's file system, at most
GROW_ON = 5  # files, from one run to the next
LAST_RUNS = 5
LOOP_S = 0.05
SETTLED_S = 1.0  # as below
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import watched_run
watched_run.main()
"""
JOBS = """\
[defaults]
config = "{home}/ssh_config"
connections = 1
chunk-size = "256K"
[host.one]
program = "{home}/link-one/ssh"
[host.two]
program = "{home}/link-two/ssh"
[job.night]
sources = ["here/*.rec"]
destinations = ["one:{home}/one/vault/", "two:{home}/two/vault/"]
min-age = "1s"
settled-for = "1s"
retry-for = "{retry_for}"
after = "remove"
after-success = 'echo "$PSCP_RUN $PSCP_OUTCOME" >> {home}/story'
after-failure = 'echo "$PSCP_RUN $PSCP_OUTCOME" >> {home}/story'
report = {{ json = "report.json", html = "report.html" }}
metrics = "metrics/"
"""


class Sshd(SshdServer):
    """An sshd that dies, with all that it has begun, and comes back at the same port."""

    _kept: socket.socket | None = None

    def kill(self) -> None:
        assert self._process is not None
        for pid in (self.pid, *(each.pid for each in descendants(self.pid))):
            send(pid, signal.SIGKILL)
        self._process.wait()
        (self.folder / "pid").unlink()
        # Nobody listens there, and nobody else is given the port.
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", self.port))

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def revive(self) -> None:
        argv = [str(find_sshd()), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        self._process = self._spawn(argv, None, pipes=False)
        assert wait_for_file(self.folder / "pid", self._process), self.log
        self.close_port()

    def close_port(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def close(self) -> None:
        self.close_port()
        super().close()


class Arrivals(threading.Thread):
    """Writes files into a folder. Those that grow do so all the time, until they are finished."""

    def __init__(self, folder: Path, finished: Path) -> None:
        super().__init__(name="arrivals")
        self._folder, self._finished = folder, finished
        self._condition = threading.Condition()  # guards what follows
        self._coming: list[tuple[str, int]] = []  # whole files, and their sizes
        self._growing: dict[str, int] = {}  # and their sizes by now
        self._to_finish = 0
        self._loops = 0
        self._is_over = False
        self.names: set[str] = set()  # all; for the main thread

    def arrive(self, names: Sequence[str]) -> None:
        """Have files come, whole, or growing as some names say."""
        with self._condition:
            for name in names:
                if "grows" in name:
                    self._growing[name] = 0
                else:
                    self._coming.append((name, BIG_BYTES if "big" in name else SMALL_BYTES))
        self.names |= set(names)

    def finish(self, most: int) -> None:
        """Have so many of the files that grow come to their end."""
        with self._condition:
            self._to_finish = max(0, most)

    def grow_again(self, name: str) -> None:
        """Have a file grow that was finished, and finish it."""
        size = (self._folder / name).stat().st_size
        self._end(name, size + PIECE_BYTES)
        self._append(name, size, size + PIECE_BYTES)

    @property
    def growing(self) -> int:
        with self._condition:
            return len(self._growing)

    def wait(self) -> None:
        """Wait until all have arrived that were to, and each that grows has grown once more."""
        with self._condition:
            begun = self._loops
            assert self._condition.wait_for(lambda: self._loops >= begun + 2, 60)

    def run(self) -> None:
        with self._condition:
            while not self._is_over:
                self._write()
                self._loops += 1
                self._condition.notify_all()
                self._condition.wait(LOOP_S)

    def end(self) -> None:
        with self._condition:
            self._is_over = True
        self.join()

    def _write(self) -> None:
        for name, size in self._coming:
            self._end(name, size)
            half = size // 2
            self._append(name, 0, half)
            self._append(name, half, size)
        self._coming.clear()
        for name in list(self._growing):
            size = self._growing[name]
            if self._to_finish > 0:
                self._to_finish -= 1
                self._end(name, size + PIECE_BYTES)
                del self._growing[name]
            else:
                self._growing[name] += PIECE_BYTES
            self._append(name, size, size + PIECE_BYTES)

    def _end(self, name: str, size: int) -> None:
        """Say how long the file will be: before its last bytes, so nobody has it too early."""
        (self._finished / name).write_text(str(size))

    def _append(self, name: str, begin: int, end: int) -> None:
        with open(self._folder / name, "ab") as file:
            assert file.tell() == begin, f"{name!r} was taken before it was finished"
            file.write(watched_run.content(os.fsencode(name), end)[begin:])


@dataclasses.dataclass
class Running:
    """A run that is under way, with what it says going to a file."""

    process: subprocess.Popen[bytes]
    err: Path

    def said(self) -> str:
        return self.err.read_text(errors="replace")

    def until_said(self, text: str) -> None:
        until(lambda: text in self.said() or self.process.poll() is not None, text)
        assert text in self.said()


class Night:
    """A folder `home` with all that there is of the night."""

    def __init__(
        self,
        home: Path,
        make_sshd: Callable[[], Sshd],
        coming: Iterator[Sequence[str]],
        stack: ExitStack,
    ) -> None:
        """`coming`: names of files that come before each run; those with "grows" in them grow."""
        self.home, self._coming = home, coming
        self.begin: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
        for name in ("here", "finished", "one", "two", "metrics"):
            (home / name).mkdir()
        stack.enter_context(small_disk(home / "two", f"size={ROOM_MIB}m"))
        for name in ENDS:
            (home / name / "vault").mkdir()
        self.servers = {name: stack.enter_context(make_sshd()) for name in ENDS}
        self.links = {name: Breaking(home / f"link-{name}", "to") for name in ENDS}
        self._write_ssh_config()
        self.configure()
        self.arrivals = Arrivals(home / "here", home / "finished")
        self.arrivals.start()
        stack.callback(self.arrivals.end)
        self._grow_on = GROW_ON
        self._looked_s = 0.0  # when a run has last looked at the files
        self.codes: list[int] = []  # of all runs that had the lock, the oldest first
        self.uncounted = dict.fromkeys(ENDS, 0)  # files that landed in runs that could not tell
        self._landed = {name: self.there(name) for name in ENDS}
        self._success_s: dict[str, float] = {}
        self._runs = self._removed = 0

    def _write_ssh_config(self) -> None:
        texts = (
            Path(server.ssh_config).read_text().replace(f"Host {server.host}\n", f"Host {name}\n")
            for name, server in self.servers.items()
        )
        (self.home / "ssh_config").write_text("".join(texts))

    def configure(self, retry_for: str = "0s") -> None:
        text = JOBS.format(home=self.home, retry_for=retry_for)
        (self.home / "jobs.toml").write_text(text)

    # --- what happens

    def start(self, step_s: float = 0.0) -> Running:
        self._runs += 1
        err = self.home / f"err-{self._runs}"
        words = ("-v", "--config", str(self.home / "jobs.toml"))
        argv = [sys.executable, "-c", PROGRAM, str(self.home), str(step_s), *words]
        # A process that is forked from one that has loaded pscp has taken over its clock as well.
        begin = subprocess.Popen if step_s else self.begin
        with open(err, "wb") as to_err:
            return Running(begin(argv, stdin=subprocess.DEVNULL, stderr=to_err), err)

    def run(
        self, meanwhile: Callable[[Running], object] = lambda running: None, step_s: float = 0.0
    ) -> JobRun | None:
        """Run the job, and compare what it tells with what is seen; None if it was killed."""
        self.arrivals.arrive(next(self._coming, ()))
        self.arrivals.finish(self.arrivals.growing - self._grow_on)
        self.arrivals.wait()
        growing = self.arrivals.growing
        # What the last run has seen, and was not changed since, has settled.
        until(lambda: time.monotonic() > self._looked_s + SETTLED_S)
        running = self.start(step_s)
        try:
            running.until_said("source")
            self._looked_s = time.monotonic()
            meanwhile(running)
            code = running.process.wait(120)
        finally:
            running.process.kill()
            running.process.wait()
        self.codes.append(code)
        # What was under way to a far end still lands there after a run was killed.
        until(lambda: not any(descendants(each.pid) for each in self.servers.values()))
        landed = {name: self._new(name) for name in ENDS}
        if code == KILLED:
            for name in ENDS:
                self.uncounted[name] += len(landed[name])
            return None
        run = next(iter(self.history.runs("night", most=1)), None)
        assert run is not None and code == run.exit_code, (code, run, running.said())
        assert "Traceback" not in running.said(), running.said()
        assert run.files_waiting >= growing or run.outcome not in GOOD, (run, growing)
        self._check_counts(run, landed)
        self._check_told(run, running)
        return run

    def finish(self) -> None:
        """Run the job until nothing is left here, with nothing in the way."""
        for files in self._coming:
            self.arrivals.arrive(files)
        self._grow_on = 0
        for _ in range(LAST_RUNS):
            run = self.run()
            assert run is not None and run.outcome in GOOD, run
            if not os.listdir(self.home / "here"):
                return
        raise AssertionError(f"left: {os.listdir(self.home / 'here')}")

    def blocked(self, end: str, kind: int, **rule: Any) -> Callable[[], bool]:
        """Have the next frame of a kind to this end wait; return whether it does so by now."""
        link = self.links[end]
        gate = f"gate-{len(link.rules)}-{self._runs}"
        link.rule("block", connections=None, type=kind, gate=gate, **rule)
        return lambda: any(link.folder.glob(f"blocked-*-{gate}"))

    def mend(self, end: str) -> None:
        """From now on nothing stops at this end, and what does goes on."""
        link = self.links[end]
        rules, link.rules[:] = list(link.rules), []
        (link.folder / "plan.json").write_text("[]")
        for rule in rules:
            link.go(rule["gate"])

    # --- what is seen

    @property
    def history(self) -> History:
        def amiss(text: str) -> None:
            raise AssertionError(text)

        return history_of(str(self.home / "jobs.toml"), amiss)

    def there(self, end: str) -> dict[str, os.stat_result]:
        """Files under their names at a destination."""
        with os.scandir(self.home / end / "vault") as found:
            return {each.name: each.stat() for each in found if not is_own(each.name)}

    def _new(self, end: str) -> dict[str, int]:
        """Sizes of the files that have landed since it was asked last."""
        before, self._landed[end] = self._landed[end], self.there(end)
        return {
            name: now.st_size
            for name, now in self._landed[end].items()
            if name not in before or _identity(before[name]) != _identity(now)
        }

    def removed(self) -> list[tuple[str, bool]]:
        """Sources that were removed: the name, and whether they were at both ends by then."""
        if not (self.home / "removed").exists():
            return []
        lines = (self.home / "removed").read_text().splitlines()
        return [(name, is_right) for name, is_right in map(json.loads, lines)]

    def _check_counts(self, run: JobRun, landed: dict[str, dict[str, int]]) -> None:
        for name, part in zip(ENDS, run.destinations, strict=True):
            sizes = landed[name].values()
            if part.outcome in (Outcome.CUT, Outcome.UNREACHABLE):
                assert part.files <= len(sizes), (part, landed[name])
                self.uncounted[name] += len(sizes) - part.files
            else:
                assert part.files == len(sizes), (part, landed[name])
        removed = self.removed()
        assert all(is_right for _, is_right in removed), removed
        assert run.files_removed == len(removed) - self._removed, run
        self._removed = len(removed)

    def _check_told(self, run: JobRun, running: Running) -> None:
        """Does everything else tell what the history tells?"""
        report = json.loads((self.home / "report.json").read_text())
        [told] = report["runs"]
        assert report["exit_code"] == told["exit_code"] == run.exit_code
        assert (told["run"], told["outcome"]) == (run.run, run.outcome)
        assert [each["files"] for each in told["destinations"]] == [
            part.files for part in run.destinations
        ]
        assert run.outcome in (self.home / "report.html").read_text()
        heads = (f"night: {run.outcome}", f"destinations {run.outcome}: ", "not done: ")
        assert any(words in running.said() for words in heads)
        last = (self.home / "story").read_text().splitlines()[-1]
        assert last == f"{run.run} {run.outcome.name.lower()}"
        numbers = self.metrics()
        assert numbers["pscp_job_exit_code", ""] == run.exit_code
        assert numbers["pscp_job_last_run_timestamp_seconds", ""] == run.started_s
        for part in run.destinations:
            if part.outcome in GOOD:
                self._success_s[part.destination] = part.started_s + part.seconds
        success = "pscp_job_last_success_timestamp_seconds"
        assert {to: at for (name, to), at in numbers.items() if name == success} == self._success_s

    def metrics(self) -> dict[tuple[str, str], float]:
        """Numbers by their name and destination, those with further labels left out."""
        text = (self.home / "metrics" / "pscp_night.prom").read_text()
        return {
            (sample.name, sample.labels.get("destination", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "outcome" not in sample.labels
        }

    def check_end(self) -> None:
        """The night is over: every file is at both places, once, and nothing else is anywhere."""
        names = self.arrivals.names
        removed = self.removed()
        assert sorted(name for name, _ in removed) == sorted(names)
        assert os.listdir(self.home / "here") == []
        assert not list((self.home / "state").rglob("*.journal"))
        for end in ENDS:
            assert set(os.listdir(self.home / end / "vault")) == names
            for name in names:
                size = int((self.home / "finished" / name).read_text())
                found = (self.home / end / "vault" / name).read_bytes()
                assert found == watched_run.content(os.fsencode(name), size), name
        runs = self.history.runs()[::-1]
        assert [run.exit_code for run in runs] == [5 if c == KILLED else c for c in self.codes]


def is_own(name: str) -> bool:
    """Is it pscp's own, while a copy is under way?"""
    return name.endswith((".pscp-part", ".pscp-run"))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_ctime_ns


@contextmanager
def full(place: Path) -> Iterator[None]:
    """A file system of small_disk() that has no room left, for a while."""

    def resize(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)

    room = os.statvfs(place)
    resize(str(max(1, room.f_blocks - room.f_bfree) * room.f_frsize))  # 0 would be no limit
    try:
        yield
    finally:
        resize(f"{ROOM_MIB}m")
