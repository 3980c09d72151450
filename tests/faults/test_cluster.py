"""Copies whose bytes the workers of a Dask cluster move, to and from a real sshd.

Not here: the fence of a task's tries (../unit/test_tries.py), which clusters there are
(../unit/test_clusters.py).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import forked
import pytest
from compare import assert_same_tree
from conftest import MakeServer, unavailable
from dask_client import DaskClient
from e2e.ways import PSCP, VERIFY
from many_hosts_world import Cluster
from servers import why_no_mounts

from faults.conftest import DASK, MIB, Breaking, Calling, Running, Way, fill, until
from pscp.cluster.tasks import Outcome, outcome_of
from pscp.endpoint.frames import wire
from pscp.ground.processes import descendants

_FOLDER = "DASK_TEMPORARY_DIRECTORY"

# A worker that runs a line of shell first, in a mount namespace of its own (unshare(2), mount(2)).
APART = """
import ctypes, subprocess, sys
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000) == libc.mount(b"none", b"/", None, 0x44000, None) == 0
subprocess.run(sys.argv.pop(1), shell=True, check=True)
from distributed.cli.dask_worker import main
main()
"""


class Workers:
    """A Dask scheduler and its workers, each a process of its own."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.scheduler = self._start("scheduler", "--port", "0", "--no-dashboard")
        told = folder / "scheduler.json"
        until(lambda: told.exists() and told.read_text().endswith("}"), "the scheduler listens")
        self.address = str(json.loads(told.read_text())["address"])
        self.all: list[subprocess.Popen[bytes]] = []

    def _start(self, kind: str, *words: str, before: str = "") -> subprocess.Popen[bytes]:
        program = ["-c", APART, before] if before else ["-m", "distributed.cli.dask_" + kind]
        argv = [sys.executable, *program, *words, "--host", "127.0.0.1"]
        argv += ["--scheduler-file", str(self._folder / "scheduler.json")]
        environ = {**os.environ, "XDG_STATE_HOME": str(self._folder / "state"), _FOLDER: "."}
        with open(self._folder / f"{kind}.log", "ab") as log:
            process = forked.start(
                argv, stdout=log, stderr=log, env=environ, cwd=str(self._folder), loads=DASK
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def start(self, count: int = 1, *, before: str = "") -> None:
        """Start workers with one thread each, and wait until the scheduler has them."""
        words = "--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "60"
        self.all += [self._start("worker", *words, before=before) for _ in range(count)]
        log = self._folder / "scheduler.log"
        until(lambda: log.read_text().count("Register worker") >= len(self.all), "workers come")

    def busy(self) -> list[subprocess.Popen[bytes]]:
        """Those that have connections."""
        return [each for each in self.all if each.poll() is None and any(descendants(each.pid))]


@pytest.fixture
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """A scheduler, for a test that starts workers, and ends what it likes."""
    with contextlib.ExitStack() as stack:
        yield Workers(tmp_path_factory.mktemp("dask"), stack)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Two workers, which all tests share."""
    with contextlib.ExitStack() as stack:
        workers = Workers(tmp_path_factory.mktemp("dask"), stack)
        workers.start(2)
        yield workers


def fill_tree(way: Way, big: int = 24 * MIB) -> None:
    fill(way.source / "big", big)
    for number in range(40):
        fill(way.source / f"d{number % 7}" / f"{number}", 500 + number)


def words(workers: Workers, *more: str) -> list[str]:
    address = ["--cluster", workers.address, "--cluster-insecure"]
    return [*address, "-c", "1", "-a", "--chunk-size", "1M", *more]


def assert_whole(way: Way) -> None:
    assert_same_tree(way.source, way.destination)
    until(lambda: not way.parts(), "no part is left")
    assert not way.journals


@contextlib.contextmanager
def amid(way: Way, workers: Workers, *more: str) -> Iterator[Running]:
    """A copy of which some has landed; it ends well, or the block ends it.

    It takes seven seconds, for who looks late on a busy machine.
    """
    running = way.start(*words(workers, "-l", "30M", *more))
    try:
        process = running.process
        until(
            lambda: way.journaled_bytes() >= 6 * MIB or process.poll() is not None,
            "some has landed",
        )
        assert process.poll() is None, running.err.read_text()
        yield running
    finally:
        running.kill()


@contextlib.contextmanager
def stopped(worker: subprocess.Popen[bytes]) -> Iterator[None]:
    """Have a worker stand still during a block."""
    worker.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGCONT)


def test_all_workers_move_a_tree(way: Way, two: Workers) -> None:
    fill_tree(way, 32 * MIB)
    ended = way.finish(*words(two, "-v", "-l", "60M", "-c", "2"))
    assert_whole(way)
    assert ended.end["bytes_sent"] >= 32 * MIB and ended.end["connections"] == 4
    assert ended.out.count('"text": "worker ') == 2
    workers = ended.end["workers"]
    assert sum(each["bytes"] for each in workers) >= 32 * MIB
    assert [(each["connections"], each["retries"]) for each in workers] == [(2, 0)] * 2
    assert all(each["tasks"] and each["seconds"] for each in workers)
    # Once more: nothing is moved.
    assert way.finish(*words(two, "-v")).end["files_unchanged"] == 41


def test_a_mirror_strong_with_links_and_holes(pull: Way, two: Workers) -> None:
    way = pull
    fill_tree(way)
    os.link(way.source / "big", way.source / "d0" / "other-name")
    (way.source / "link").symlink_to("big")
    with open(way.source / "holes", "wb") as file:
        file.truncate(64 * MIB)
        file.seek(30 * MIB)
        file.write(os.urandom(2 * MIB))
    fill(way.destination / "unwanted", 10)
    fill(way.destination / "d1" / "1", 10)
    ended = way.finish(*words(two, "--strong", "--delete"))
    assert ended.end["files_deleted"] == 1
    assert_whole(way)


def test_to_several_hosts(push: Way, two: Workers, make_sshd: MakeServer, tmp_path: Path) -> None:
    cluster: Any = Cluster(tmp_path, *(make_sshd() for _ in range(3)))
    hosts = dataclasses.replace(push, server=cluster)
    fill_tree(hosts)
    cluster.dead("dm2")
    hosts.finish(*words(two, "-l", "200M"))
    assert_whole(hosts)
    # The coordinator's, and of each worker at most one for all of its tasks.
    first, none, last = cluster.logins()
    assert 2 <= first <= 3 and not none and 2 <= last <= 3


def test_a_worker_is_killed(push: Way, workers: Workers) -> None:
    """Another one does its tasks."""
    workers.start(2)
    fill_tree(push)
    with amid(push, workers) as running:
        workers.busy()[0].kill()
        running.finished()
    assert_whole(push)


DROP = """
import sys
from distributed import Client, Future
with Client(sys.argv[1]) as client:
    keys = [key for keys in client.processing().values() for key in keys]
    client.cancel([Future(keys[0], client)], force=True)
"""


def test_the_scheduler_drops_a_task(push: Way, two: Workers) -> None:
    """It is done again, and no worker is told of that has no name."""
    fill_tree(push)
    with amid(push, two, "-v") as running:
        subprocess.run([sys.executable, "-c", DROP, two.address], check=True)
        ended = running.finished()
    assert "Dask's scheduler has dropped a task; another worker does what it" in ended.out
    assert all(each["worker"] for each in ended.end["workers"])
    assert_whole(push)


def test_a_worker_stands_still_before_the_copy(push: Way, workers: Workers) -> None:
    """Nobody waits for its answer."""
    fill_tree(push)
    workers.start(2)
    source, destination = push.locations()
    with stopped(workers.all[0]):
        ran = Calling(
            lambda: run_program(
                "import pscp\nfrom pscp.cluster import place\nplace._ANSWER_S = 1\n"
                f"pscp.copy({source!r}, {destination!r}, archive=True, batch=True,\n"
                f"          config_file={push.server.ssh_config!r}, connections=1,\n"
                f"          cluster={workers.address!r}, cluster_insecure=True)\n",
            )
        )
        until(lambda: any(push.destination.iterdir()), "the copy has begun")
        workers.all[0].kill()
        assert ran.ended().returncode == 0, ran.found
    assert_whole(push)


def test_a_worker_begins_the_next_task_beside_its_first_one(push: Way, workers: Workers) -> None:
    """Its lanes hold all that they may then, and there is more to do."""
    workers.start(1)
    fill(push.source / "a", 8 * MIB)  # a task
    with open(push.source / "a", "r+b") as file:
        file.write(b"held back")
    fill(push.source / "b", 8 * MIB)
    breaking = push.breaking().rule("block", connections=None, contains="held back")
    running = push.start(*words(workers), breaking=breaking)
    try:
        until(lambda: "b" in push.arrived(), "the other file has landed")
        assert breaking.blocked == 1
        breaking.go()
        running.finished()
    finally:
        breaking.go()
        running.kill()
    assert_whole(push)


class Twice(DaskClient):
    """A client whose first task is done twice: it seems lost when it is about to send, and comes
    back when the copy is over.
    """

    def __init__(self, breaking: Breaking) -> None:
        super().__init__(["one"])
        self._breaking = breaking
        self.threads: list[threading.Thread] = []
        self.late: list[Outcome] = []

    def submit(self, call: Callable[..., bytes], *args: Any, **more: object) -> Any:
        future: Any = concurrent.futures.Future()
        future.status = "pending"

        def lose() -> None:
            self.late.append(outcome_of(call(*args)))

        def do() -> None:
            if not self._breaking.blocked:
                self._start(lose)
                until(lambda: self._breaking.blocked, "the first try is about to send")
                self._breaking.rules.clear()
                self._breaking.rule("block", connections=None, gate="big")
            found = call(*args)
            future.status = "finished"
            future.set_result(found)

        self._start(do)
        return future

    def _start(self, act: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=act))
        self.threads[-1].start()


def test_a_try_that_comes_late_changes_nothing(way: Way) -> None:
    """Dask has given its task to another worker, which has done half of it by then."""
    fill(way.source / "big", 3 * MIB)
    fill(way.source / "folder" / "small", 1000)
    breaking = way.breaking().rule("block", connections=None, type=wire.PACK)
    client: Any = Twice(breaking)
    calling = Calling(
        lambda: way.copy(cluster=client, breaking=breaking, archive=True, connections=1)
    )
    try:
        small = way.destination / "folder" / "small"
        until(small.exists, "the second try has sent the small file")
        inode = small.stat().st_ino
        breaking.go()
        until(lambda: client.late, "the first try ends")
        assert small.stat().st_ino == inode
    finally:
        breaking.go()
        breaking.go("big")
        result = calling.ended()
        for thread in client.threads:
            thread.join()
    [outcome] = client.late
    assert outcome.problem is not None and not outcome.packs
    assert result.ok and [each.retries for each in result.workers] == [1]
    assert_whole(way)


def test_the_coordinator_is_killed_and_the_same_command_goes_on(push: Way, two: Workers) -> None:
    fill_tree(push)
    with amid(push, two) as running:
        running.kill()
        until(lambda: not two.busy(), "their lanes end")
        landed = push.journaled_bytes()
    ended = push.finish(*words(two))
    assert ended.end["bytes_resumed"] >= landed
    assert_whole(push)


def test_an_interrupt_ends_the_lanes_of_all_workers(pull: Way, two: Workers) -> None:
    fill_tree(pull)
    with amid(pull, two) as running:
        running.send(signal.SIGINT)
        assert running.ended().code == 130
        until(lambda: not two.busy(), "their lanes end")
    ended = pull.finish(*words(two))
    assert ended.end["bytes_resumed"] >= 6 * MIB
    assert_whole(pull)


def test_an_interrupt_at_the_terminal_is_for_the_coordinator(push: Way) -> None:
    """Its worker gets the signal as well."""
    fill_tree(push)
    running = push.start(
        "--cluster", "local:1", "-c", "1", "-l", "30M", "-a", "--chunk-size", "1M",
        start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: push.journaled_bytes() >= 6 * MIB, "some has landed")
        os.killpg(running.process.pid, signal.SIGINT)
        ended = running.ended()
    finally:
        running.kill()
    assert ended.code == 130 and "Traceback" not in ended.err, ended.err
    push.finish("-a")
    assert_whole(push)


def test_the_scheduler_is_lost(push: Way, workers: Workers) -> None:
    workers.start(2)
    fill_tree(push)
    with amid(push, workers) as running:
        workers.scheduler.kill()
        ended = running.ended()
    assert ended.code == 3 and "scheduler" in ended.err, ended.err
    assert "Traceback" not in ended.err
    assert push.finish("-a").end["bytes_resumed"] >= 6 * MIB
    assert_whole(push)


def test_workers_may_come_later(push: Way, workers: Workers) -> None:
    fill_tree(push)
    soon = "from pscp.cluster import dispatcher\ndispatcher._PATIENCE_S = 0.1\n"
    running = push.start(*words(workers), first=soon)
    try:
        until(lambda: "no worker" in running.out.read_text(), "it waits")
        workers.start(1)
        running.finished()
    finally:
        running.kill()
    assert_whole(push)


def test_names_that_are_not_utf_8(push: Way, two: Workers) -> None:
    """Dask names a task by its files, and takes no such letters."""
    fill(push.source / os.fsdecode(b"big\xff\x1b"), 9 * MIB)
    push.finish(*words(two))
    assert_whole(push)


def test_paths_of_options_are_of_the_folder_here(push: Way, two: Workers) -> None:
    """The workers have another one."""
    fill_tree(push)
    source, destination = push.locations()
    folder, config = os.path.split(push.server.ssh_config)
    argv = [*PSCP, "-a", "-F", config, "--cluster", two.address, "-c", "1", source, destination]
    ran = run(argv, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert_whole(push)


def run(argv: Sequence[str], **popen: Any) -> subprocess.CompletedProcess[str]:
    """Run a program that has loaded Dask already."""
    return forked.run(argv, loads=DASK, capture_output=True, text=True, timeout=200, **popen)


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-c", text])


def test_a_program_hands_in_its_client(push: Way, two: Workers) -> None:
    fill_tree(push)
    source, destination = push.locations()
    ran = run_program(
        "import pscp\nfrom distributed import Client\n"
        f"with Client({two.address!r}) as client:\n"
        f"    result = pscp.copy({source!r}, {destination!r}, archive=True, cluster=client,\n"
        f"                       batch=True, config_file={push.server.ssh_config!r})\n"
        "    print(result.connections, result.bytes_sent, client.submit(max, 1, 2).result())\n",
    )
    assert ran.returncode == 0, ran.stderr
    lanes, sent, most = map(int, ran.stdout.split())
    assert lanes >= 2 and sent >= 24 * MIB and most == 2
    assert_whole(push)


def test_a_program_that_its_workers_cannot_import(push: Way) -> None:
    (push.source / "small").write_text("text")
    source, destination = push.locations()
    program = push.home / "program.py"
    program.write_text(
        "import pscp\n"
        f"pscp.copy({source!r}, {destination!r}, recursive=True, cluster='local:1',\n"
        f"          batch=True, config_file={push.server.ssh_config!r})\n"
    )
    argv = [sys.executable, str(program)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=200)
    assert ran.stderr.splitlines()[-1].endswith("local:1: its workers cannot be started"), ran
    assert ran.returncode == 1 and not push.arrived()


def test_a_worker_that_is_killed_as_it_begins_is_no_mistake_of_the_command(push: Way) -> None:
    code = "import os, sys\nif '--multiprocessing-fork' in sys.orig_argv: os.kill(os.getpid(), 9)"
    (push.home / "sitecustomize.py").write_text(code)
    config = ("-r", "-F", push.server.ssh_config)
    argv = (sys.executable, "-m", "pscp", *config, "--cluster", "local:1", *push.locations())
    env = {**os.environ, "PYTHONPATH": str(push.home)}
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=200, env=env)
    assert "local:1: its workers cannot be started\n" in ran.stderr, ran
    assert "__main__" not in ran.stderr, "that is for programs"
    assert ran.returncode == 3 and not push.arrived()


def test_workers_hash_for_a_manifest_and_verify_it(pull: Way, two: Workers) -> None:
    fill_tree(pull)
    manifest = pull.home / "manifest"
    pull.finish(*words(two, "--manifest", str(manifest)))
    assert_whole(pull)
    to = str(pull.destination)
    ran = run_verify("--cluster", two.address, str(manifest), to)
    assert ran.returncode == 0 and ran.stderr.startswith("41 files below "), ran.stderr
    fill(pull.destination / "d1" / "1", 10)
    with open(pull.destination / "big", "r+b") as file:
        file.seek(9 * MIB)
        file.write(b"changed")
    (pull.destination / "d0" / "0").unlink()
    ran = run_verify("--cluster", two.address, "--strict", str(manifest), to)
    assert ran.returncode == 1, ran.stderr
    assert [line.partition(": ")[::2] for line in sorted(ran.stdout.splitlines())] == [
        ("big", "has another content in chunk 2 of 6 (4.2 MB each, from 0)"),
        ("d0/0", "missing"),
        ("d1/1", "has another size: 10 bytes, not 501"),
    ]
    ran = run_verify("--cluster", two.address, str(manifest), f"{pull.server.host}:")
    assert ran.returncode == 2 and "files are hashed at their host" in ran.stderr


def run_verify(*words: str) -> subprocess.CompletedProcess[str]:
    return run([*VERIFY, *words])


def test_a_worker_that_does_not_see_the_files_is_refused(way: Way, workers: Workers) -> None:
    if why := why_no_mounts():
        unavailable(why)
    near = way.source if way.is_push else way.destination
    fill_tree(way)
    workers.start(1)
    workers.start(1, before=f"mount -t tmpfs none {near}")
    ended = way.run(*words(workers))
    assert ended.code == 1 and "vm" in ended.err and "all workers" in ended.err, ended
    assert not way.arrived() and not way.parts()


def test_a_worker_that_comes_late_and_does_not_see_the_files(pull: Way, workers: Workers) -> None:
    """It ends its tasks at once, and others do them, however many Dask gives to it."""
    if why := why_no_mounts():
        unavailable(why)
    fill_tree(pull)
    workers.start(1)
    near = pull.destination
    with amid(pull, workers, "-l", "20M") as running:  # which has tasks left for it
        with stopped(workers.all[0]):  # or it may have done all before
            workers.start(1, before=f"mount -t tmpfs none {near}")
        running.finished()
    assert "does not see" in running.out.read_text()
    assert_whole(pull)


def test_who_may_do_a_task_is_lost(push: Way, workers: Workers) -> None:
    """The other worker, which can do nothing, ends the copy; one that comes goes on with it."""
    if why := why_no_mounts():
        unavailable(why)
    fill_tree(push)
    workers.start(1)
    with amid(push, workers, "-l", "20M") as running:  # which has tasks left for it
        with stopped(workers.all[0]):  # or it may have done all before
            workers.start(1, before=f"mount -t tmpfs none {push.source}")
        until(lambda: "does not see" in running.out.read_text(), "it has a task")
        with stopped(workers.all[0]):
            workers.start(1)
            workers.all[0].kill()
        running.finished()
    assert_whole(push)
