"""Streams over a real sshd: pscp-pipe, pscp - HOST:FILE, Session.pipe_to(), pipe_from() and run().

Not here: connections that die (../faults/test_streams_lost.py), the order (../unit/test_stream.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import forked
import pytest
from conftest import QUICK_LOGINS, MakeServer, far_environment, require_sshd, shared
from faults.conftest import until
from servers.private import PrivateServer, SshdServer

import pscp
from e2e.conftest import SshdThat
from e2e.ways import PIPE, PSCP
from pscp.endpoint.reading.paths import PART_SUFFIX
from pscp.endpoint.streams import stream_server
from pscp.ground.errors import CommandFailed, CopyError
from pscp.ground.processes import descendants
from pscp.ground.values import MIB
from pscp.transports import socket_options

ENDED_S = 30.0  # for what takes a moment
STILL_S = 1.0  # nothing moved for so long: it stands still
NO_ROOM = b"pscp-pipe: the output cannot be written: No space left on device\n"
GO = "while ! test -e go; do sleep 0.02; done"


@dataclass(frozen=True)
class World:
    """A far end with a folder for temporary files of its own, and a folder for this test."""

    server: PrivateServer
    home: Path
    tmp: Path

    def there(self, command: str) -> str:
        return f"cd {self.home}; {command}"

    def argv(self, *words: str, program: tuple[str, ...] = PIPE) -> list[str]:
        return [*program, "-F", self.server.ssh_config, "-B", "-c", "2", *words]

    def start(self, *words: str, **popen: Any) -> subprocess.Popen[bytes]:
        popen = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **popen}
        argv = self.argv(*words, program=popen.pop("program", PIPE))
        return forked.start(argv, stderr=subprocess.PIPE, bufsize=0, **popen)

    def run(
        self, *words: str, data: bytes | None = b"", **popen: Any
    ) -> subprocess.CompletedProcess[bytes]:
        with self.start(*words, **popen) as process:
            try:
                out, err = process.communicate(data, ENDED_S)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out or b"", err)

    def push(self, command: str, *words: str, **run: Any) -> subprocess.CompletedProcess[bytes]:
        return self.run(*words, self.server.host, self.there(command), **run)

    def pull(self, command: str, *words: str, **run: Any) -> subprocess.CompletedProcess[bytes]:
        return self.run("--from", *words, self.server.host, self.there(command), **run)

    def read(self, name: str) -> bytes:
        return (self.home / name).read_bytes()

    def has(self, name: str) -> bool:
        return (self.home / name).exists()

    @property
    def parts(self) -> list[str]:
        return [name for name in os.listdir(self.home) if name.endswith(PART_SUFFIX.decode())]


@pytest.fixture(scope="module")
def far(
    far_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PrivateServer, Path]]:
    require_sshd()
    tmp = tmp_path_factory.mktemp("t")
    environment = far_environment(far_home, tmp_path_factory.mktemp("far-bin"), sys.executable)
    environment["TMPDIR"] = str(tmp)
    with shared(lambda: SshdServer(QUICK_LOGINS, environment=environment)) as server:
        yield server, tmp


@pytest.fixture
def world(far: tuple[PrivateServer, Path], tmp_path: Path) -> Iterator[World]:
    """Afterwards nothing of a stream may be left at the far end."""
    server, tmp = far
    before = set(os.listdir(tmp))
    yield World(server, tmp_path, tmp)
    until(lambda: set(os.listdir(tmp)) <= before, f"{tmp} is empty: {os.listdir(tmp)}")


@pytest.fixture
def session(world: World, request: pytest.FixtureRequest) -> Iterator[pscp.Session]:
    config, lanes = world.server.ssh_config, getattr(request, "param", 2)
    with pscp.Session(world.server.host, config_file=config, connections=lanes, batch=True) as made:
        yield made


def bytes_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


# --- the bytes


SIZES = [0, 1, MIB - 1, MIB, MIB + 1, 5 * MIB + 3]


def test_every_size_arrives(world: World, session: pscp.Session) -> None:
    for size in SIZES:
        data = bytes_of(size)
        with session.pipe_to(["tee", str(world.home / "there")]) as file:
            file.write(data)
        assert world.read("there") == data
        with session.pipe_from(["cat", str(world.home / "there")]) as file:
            assert file.read() == data


def test_a_large_stream_to_a_command(world: World) -> None:
    data = bytes_of(40 * MIB + 7)
    done = world.push("sha256sum", "--window", "2M", "-c", "4", data=data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


# --- the command's own words


@pytest.mark.parametrize(
    ("command", "status"), [("true", 0), ("exit 255", 255), ("kill -9 $$", 137)]
)
def test_the_exit_status_is_the_commands(world: World, command: str, status: int) -> None:
    pushed = world.push(f"cat > /dev/null; {command}", data=b"x" * 3 * MIB)
    assert (pushed.returncode, pushed.stderr) == (status, b"")
    pulled = world.pull(f"echo out; {command}")
    assert (pulled.returncode, pulled.stdout, pulled.stderr) == (status, b"out\n", b"")


def test_what_it_says_comes_through(world: World) -> None:
    odd = bytes(range(256)) * 4 + "grüße\n".encode() + bytes_of(2 * MIB)
    done = world.push("tee odd; cat odd odd >&2; exit 4", data=odd)
    assert (done.returncode, done.stdout, done.stderr) == (4, odd, odd + odd)
    done = world.pull("cat odd; cat odd odd >&2; exit 4")
    assert (done.returncode, done.stdout, done.stderr) == (4, odd, odd + odd)


def test_what_it_says_last_waits_for_who_reads_late(world: World) -> None:
    process = world.start(
        world.server.host, world.there("echo $$ > pid; head -c 300000 /dev/zero >&2; exit 5"),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: world.has("pid") and world.read("pid"), "it has begun")
    time.sleep(2.5)  # longer than anybody waits for a command's child that is silent
    _, err = process.communicate(timeout=ENDED_S)
    assert (process.returncode, len(err)) == (5, 300_000)


def test_a_child_that_stays_does_not_hold_it_up(world: World) -> None:
    """As with ssh, where a command leaves something behind that keeps its output open."""
    done = world.push("cat > x; sleep 60 & echo $! > pid; echo said", data=b"data")
    os.kill(int(world.read("pid")), signal.SIGKILL)
    assert (done.returncode, done.stdout) == (0, b"said\n")


# --- one end has had enough


@pytest.mark.parametrize(
    ("command", "status"), [("head -c 5", 0), ("head -c 5; exec <&-; sleep 0.5; exit 6", 6)]
)
def test_a_command_that_reads_no_more(world: World, command: str, status: int) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as yes:
        assert yes.stdout is not None
        done = world.push(command, data=None, stdin=yes.stdout)
        yes.stdout.close()
    assert (done.returncode, done.stdout, done.stderr) == (status, b"y\ny\ny", b"")


def test_a_reader_here_that_goes_away(world: World) -> None:
    process = world.start("--from", world.server.host, "yes")
    assert process.stdin and process.stdout and process.stderr
    assert process.stdout.read(4) == b"y\ny\n"
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b""  # as ssh
    assert process.wait(ENDED_S) == 255
    process.stderr.close()


def test_an_output_here_without_room(world: World) -> None:
    with open("/dev/full", "wb") as full:
        done = world.pull("yes | head -c 3000000", stdout=full)
    assert (done.returncode, done.stderr) == (255, NO_ROOM)


@pytest.mark.parametrize("of_command", ["cat", "yes"], ids=["push", "endless"])
def test_what_a_command_says_that_is_not_taken(world: World, of_command: str) -> None:
    """N14: it was dropped, with exit code 0. ssh ends with 255, and without a word for a reader
    that has gone.
    """
    data = bytes(3_000_000) if of_command == "cat" else b""
    with open("/dev/full", "wb") as full:
        done = world.push(of_command, data=data, stdout=full)
    assert (done.returncode, done.stderr) == (255, NO_ROOM)
    read_end, gone = os.pipe()
    os.close(read_end)
    done = world.push(of_command, data=data, stdout=gone)
    os.close(gone)
    assert (done.returncode, done.stderr) == (255, b"")


def test_a_standard_output_that_is_closed_takes_nothing(world: World) -> None:
    """N14: what the command says goes into no other file that has got the number 1."""
    program = ("sh", "-c", 'exec "$0" "$@" >&-', *PIPE)
    done = world.push("cat", data=b"said", program=program)
    assert done.returncode == 255
    assert done.stderr == b"pscp-pipe: the output cannot be written: it is closed\n"
    assert world.push("cat > got", data=b"said", program=program).returncode == 0
    assert world.read("got") == b"said"


def test_errors_that_are_not_taken(world: World) -> None:
    """N14: the command goes on, as with ssh, and it shows in the exit status."""
    with open("/dev/full", "wb") as full:
        argv = world.argv(world.server.host, world.there("echo no >&2; cat > got"))
        done = subprocess.run(argv, input=b"said", stderr=full, timeout=ENDED_S)
    assert done.returncode == 255
    assert world.read("got") == b"said"


def test_a_command_that_is_not_there(world: World, session: pscp.Session) -> None:
    done = world.push("nosuch-command", data=b"x")
    assert done.returncode == 127
    assert b"nosuch-command: " in done.stderr and b"not found" in done.stderr
    for pipe in (session.pipe_to, session.pipe_from):
        with pytest.raises(CommandFailed, match="nosuch-command: No such file") as raised:  # noqa: SIM117
            with pipe(["nosuch-command", "word"]):
                pass
        assert raised.value.status == 127
    missing = session.run(["nosuch-command", "word"])
    assert (missing.status, missing.out) == (127, b"")
    assert missing.err == b"nosuch-command: No such file or directory"
    assert session.run(["/"]).status == 126  # a folder
    assert session.run(["echo", "a b", "$HOME"]).out == b"a b $HOME\n"


# --- what is cut short is never taken for the end

CLEAN = "cat > x; touch clean"


def assert_cut(world: World, done: subprocess.CompletedProcess[bytes], said: bytes) -> None:
    assert done.returncode == 255
    assert said in done.stderr
    assert b"Traceback" not in done.stderr
    assert not world.has("clean")


@pytest.mark.parametrize(
    ("producer", "how"),
    [
        ("exit 7", b"exit status 7"),
        ("head -c 5000000 /dev/zero; exit 7", b"exit status 7"),
        ("head -c 3000000 /dev/zero; kill -9 $$", b"signal 9"),
    ],
)
def test_a_producer_that_fails(world: World, producer: str, how: bytes) -> None:
    done = world.push(CLEAN, "--producer", producer, data=None)
    assert_cut(world, done, b"the producer failed (%s); the command was ended" % how)


def test_a_producer_that_ends_well(world: World) -> None:
    done = world.push(CLEAN, "--producer", "echo data; echo said >&2")
    assert (done.returncode, done.stderr) == (0, b"said\n")
    assert world.has("clean") and world.read("x") == b"data\n"


def test_input_that_cannot_be_read(world: World) -> None:
    with open(world.home / "for writing alone", "wb") as file:
        done = world.push(CLEAN, data=None, stdin=file)
    assert_cut(world, done, b"the input cannot be read: Bad file descriptor")


def test_what_does_not_heed_the_signal_is_killed_before_its_input_ends(world: World) -> None:
    """The command's own shell ends at once; what it started ignores SIGTERM, and reads on."""
    command = "(trap '' TERM; cat > x; touch clean) <&0 & wait"
    done = world.push(command, "--producer", "head -c 5000000 /dev/zero; exit 7")
    assert_cut(world, done, b"the producer failed")
    until(lambda: not descendants(world.server.pid), "all of it has ended")
    assert not world.has("clean")


@pytest.mark.parametrize(("kind", "is_push"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal(world: World, kind: signal.Signals, is_push: bool) -> None:
    way = [] if is_push else ["--from"]
    command = f"touch begun; {CLEAN}" if is_push else "touch begun; yes; touch clean"
    process = world.start(*way, world.server.host, world.there(command), stdout=subprocess.DEVNULL)
    assert process.stdin and process.stderr
    if is_push:
        process.stdin.write(bytes(3 * MIB))
    until(lambda: world.has("begun"), "it has begun")
    process.send_signal(kind)
    assert process.wait(ENDED_S) == {signal.SIGINT: 130, signal.SIGTERM: 143}[kind]
    until(lambda: not descendants(world.server.pid), "all of it has ended")
    process.stdin.close()
    said = process.stderr.read().decode()
    process.stderr.close()
    assert said == "pscp-pipe: interrupted\n           the command at the far end was ended\n"
    assert not world.has("clean")


# --- pace


def test_what_a_slow_command_says_arrives_at_once(world: World) -> None:
    process = world.start("--from", world.server.host, world.there(f"echo a; {GO}; echo b"))
    assert process.stdout
    assert process.stdout.read(2) == b"a\n"
    (world.home / "go").touch()
    out, _ = process.communicate(timeout=ENDED_S)
    assert (process.returncode, out) == (0, b"b\n")


WINDOW_BYTES = 4 * MIB
AROUND_BYTES = 4 * MIB  # the pipes of producer and consumer, and a chunk that is on its way


def written_until_it_stands(fd: int, data: memoryview) -> int:
    os.set_blocking(fd, False)
    poll, count = select.poll(), 0
    poll.register(fd, select.POLLOUT)
    while count < len(data) and poll.poll(STILL_S * 1000):
        count += os.write(fd, data[count:])
    os.set_blocking(fd, True)
    return count


def test_a_command_that_does_not_read_holds_the_producer(world: World) -> None:
    data = bytes_of(24 * MIB)
    command = world.there(f"{GO}; cat > x")
    process = world.start("--window", "4M", world.server.host, command)
    assert process.stdin
    taken = written_until_it_stands(process.stdin.fileno(), memoryview(data))
    assert taken <= WINDOW_BYTES + AROUND_BYTES
    (world.home / "go").touch()
    process.communicate(data[taken:], ENDED_S)
    assert process.returncode == 0
    assert world.read("x") == data


def test_a_reader_here_that_does_not_read_holds_the_command(world: World) -> None:
    (world.home / "data").write_bytes(bytes_of(24 * MIB))
    command = f"{sys.executable} said.py"
    (world.home / "said.py").write_text(
        "import os\n"
        "data, count = open('data', 'rb').read(), 0\n"
        "while count < len(data):\n"
        "    count += os.write(1, data[count:count + 65536])\n"
        "    open('count.new', 'w').write(str(count)); os.rename('count.new', 'count')\n"
    )
    process = world.start("--window", "4M", "--from", world.server.host, world.there(command))
    until(lambda: world.has("count"), "it has begun")
    count, since_s = -1, time.monotonic()
    while time.monotonic() - since_s < STILL_S:
        if (now := int(world.read("count"))) != count:
            count, since_s = now, time.monotonic()
        time.sleep(0.01)
    assert count <= WINDOW_BYTES + AROUND_BYTES
    out, _ = process.communicate(timeout=ENDED_S)
    assert (process.returncode, out == world.read("data")) == (0, True)


# --- into and out of a file


def copied(world: World, *words: str, data: bytes | None = b"") -> Any:
    return world.run(*words, data=data, program=PSCP)


def test_a_stream_into_a_file(world: World) -> None:
    """Under its name once it is whole; a mode that was there is kept."""
    file, data = world.home / "a file", bytes_of(5 * MIB)
    file.write_bytes(b"before")
    file.chmod(0o640)
    with world.start("-", f"{world.server.host}:{file}", program=PSCP) as process:
        assert process.stdin
        process.stdin.write(data)
        until(lambda: world.parts, "it is being written")
        assert file.read_bytes() == b"before"
        process.communicate(timeout=ENDED_S)
    assert process.returncode == 0
    assert file.read_bytes() == data
    assert file.stat().st_mode & 0o777 == 0o640
    assert not world.parts


def test_a_reader_of_a_file_that_goes_away(world: World) -> None:
    """It was exit code 255, which is of pscp-pipe alone."""
    (world.home / "big").write_bytes(bytes_of(5 * MIB))
    with world.start(f"{world.server.host}:{world.home}/big", "-", program=PSCP) as process:
        assert process.stdin and process.stdout and process.stderr
        assert len(process.stdout.read(4)) == 4
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(ENDED_S) == 128 + signal.SIGPIPE


def test_another_file_in_the_place_of_its_part(world: World) -> None:
    """U5: it was delivered under the name, exit code 0."""
    with world.start("-", f"{world.server.host}:{world.home}/x", program=PSCP) as process:
        assert process.stdin
        process.stdin.write(b"good")
        until(lambda: world.parts, "it is being written")
        part = world.home / world.parts[0]
        os.rename(part, world.home / "stolen")
        part.write_text("another user's")
        _, err = process.communicate(timeout=ENDED_S)
    assert process.returncode == 1 and b"in the place of its part" in err
    assert not (world.home / "x").exists()


def test_a_new_file(world: World) -> None:
    done = copied(world, "-", f"{world.server.host}:{world.home}/new")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert world.read("new") == b""
    umask = os.umask(0)
    os.umask(umask)
    assert (world.home / "new").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_stream_out_of_a_file(world: World) -> None:
    (world.home / "a file").write_bytes(data := bytes_of(5 * MIB + 1))
    done = copied(world, f"{world.server.host}:{world.home}/a file", "-")
    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")


@pytest.mark.parametrize(
    ("is_push", "name", "said"),
    [
        (True, "", "is a folder: name a file in it"),
        (True, "new/", "is a folder: name a file in it"),
        (True, "nosuch/file", "No such file or directory"),
        (True, "fifo", "is a special file at the destination"),
        (False, "nosuch", "No such file or directory"),
        (False, "", "is a folder, not a file"),
        (False, "fifo", "is a FIFO"),  # nobody writes to it, which is not the end of a stream
    ],
)
def test_what_no_file_can_be_at(world: World, is_push: bool, name: str, said: str) -> None:
    os.mkfifo(world.home / "fifo")
    there = f"{world.server.host}:{world.home}/{name}"
    done = copied(world, *(["-", there] if is_push else [there, "-"]), data=b"x")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith(f"pscp: {world.home}/{name}: {said}")
    assert os.listdir(world.home) == ["fifo"]


def test_a_file_that_becomes_too_large(sshd_that: SshdThat, tmp_path: Path) -> None:
    """An error of the far system ends the stream at once."""
    server = sshd_that("ulimit -f 4096")
    (tmp_path / "tmp").mkdir()
    there = World(server, tmp_path, tmp_path / "tmp")
    with open("/dev/zero", "rb") as zero:
        done = there.run("-", f"{server.host}:{tmp_path}/x", data=None, stdin=zero, program=PSCP)
    assert (done.returncode, done.stderr) == (1, b"pscp: File too large\n")
    assert not there.parts and not there.has("x")


# --- from Python


def test_an_exception_ends_the_command(world: World, session: pscp.Session) -> None:
    with pytest.raises(KeyError, match="mine"), session.pipe_to(world.there(CLEAN)) as file:
        file.write(bytes(3 * MIB))
        raise KeyError("mine")
    assert not world.has("clean")
    with pytest.raises(KeyError, match="mine"), session.pipe_from("yes") as file:
        assert file.read(2) == b"y\n"
        raise KeyError("mine")
    with session.pipe_to(world.there(CLEAN)) as file:
        file.write(b"all of it")
    assert world.has("clean") and world.read("x") == b"all of it"


def test_a_command_that_fails(session: pscp.Session) -> None:
    words = ["sh", "-c", "cat > /dev/null; echo why >&2; exit 9"]
    with pytest.raises(CommandFailed, match="sh -c: exit status 9: why") as failed:  # noqa: SIM117
        with session.pipe_to(words) as file:
            file.write(b"data")
    assert failed.value.status == 9
    said = "echo one >&2; echo; echo two >&2; exit 2"  # as of tar, whose last line says nothing
    with pytest.raises(CommandFailed, match=r"2: two$") as failed, session.pipe_from(said):
        pass
    assert failed.value.err == b"one\ntwo\n" and "`err`" in failed.value.hint
    with pytest.raises(CommandFailed) as failed, session.pipe_to("exit 2"):
        pass
    assert (failed.value.err, failed.value.hint) == (b"", "")
    with pytest.raises(CommandFailed) as failed, session.pipe_from("seq 100000 >&2; exit 2"):
        pass
    assert len(failed.value.err) == 64 * 1024 and failed.value.err.endswith(b"\n100000\n")
    with pytest.raises(CommandFailed) as failed, session.pipe_from("echo a; kill $$") as file:
        assert file.read() == b"a\n"
    assert failed.value.status == 143
    ran = session.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (ran.status, ran.out, ran.err) == (3, b"out\n", b"err\n")


def test_an_output_without_an_end_is_not_kept(
    session: pscp.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4: run() keeps an output in memory. The command is ended, and the session goes on."""
    monkeypatch.setattr("pscp.stream.stream.RUN_MAX_BYTES", MIB)
    with pytest.raises(CopyError, match="cat /dev/zero: its output is longer than"):
        session.run(["cat", "/dev/zero"])
    assert session.run(["head", "-c", str(MIB), "/dev/zero"]).out == bytes(MIB)
    with pytest.raises(CopyError, match="longer than"):
        session.run(["head", "-c", str(MIB + 1), "/dev/zero"])


def endless(file: IO[bytes]) -> None:
    while True:
        file.write(bytes(MIB))


def test_a_command_that_fails_before_all_is_written(session: pscp.Session) -> None:
    """Its exit status says more than that the pipe is broken."""
    with pytest.raises(CommandFailed) as failed, session.pipe_to("exit 8") as file:
        endless(file)
    assert failed.value.status == 8
    with pytest.raises(BrokenPipeError), session.pipe_to("true") as file:
        endless(file)
    with pytest.raises(BrokenPipeError, match="of another"):  # noqa: SIM117
        with session.pipe_to("cat > /dev/null") as file:
            raise BrokenPipeError("of another")


def test_what_is_left_is_dropped(session: pscp.Session) -> None:
    with session.pipe_from(["head", "-c", "9000000", "/dev/zero"]) as file:
        assert file.read(3) == bytes(3)


def test_a_file_that_is_closed_ends_the_command(session: pscp.Session) -> None:
    """As a pipe does; the exit status counts where all of the output was read."""
    for command in ("yes", "echo y; exec sleep 1000"):
        with session.pipe_from(command) as file:
            assert file.read(2) == b"y\n"
            file.close()
    with pytest.raises(CommandFailed) as failed, session.pipe_from("echo y; exit 3") as file:
        assert file.read() == b"y\n"
        file.close()
    assert failed.value.status == 3
    with pytest.raises(CommandFailed), session.pipe_from("echo y; exit 3") as file:
        assert file.read(2) == b"y\n"


def test_a_command_that_is_not_over_in_time_is_ended(world: World, session: pscp.Session) -> None:
    command = world.there("echo out; echo err >&2; sleep 1000; touch late")
    assert session.run("true").status == 0  # the time is not that of a login
    with pytest.raises(pscp.TimedOut, match="not over after 4 s") as late:
        session.run(command, timeout=4)
    assert (late.value.out, late.value.err) == (b"out\n", b"err\n")
    assert session.run("echo out", timeout=1000).out == b"out\n"
    assert session.run("true", timeout=float("inf")).status == 0
    for wrong in (-1, "2", float("nan")):
        with pytest.raises(pscp.UsageError, match="timeout must be a number of seconds"):
            session.run("true", timeout=wrong)  # type: ignore[arg-type]
    with pytest.raises(pscp.UsageError, match=r"no such option: timeout$") as refused:
        session.pipe_from("true", timeout=2).__enter__()  # type: ignore[call-arg]
    assert "timeout_s is for the connection" in refused.value.hint


def test_one_stream_into_another(world: World, session: pscp.Session) -> None:
    """Two at once over one session."""
    (world.home / "data").write_bytes(data := bytes_of(9 * MIB))
    to = world.there("cat > copy")
    for _ in range(2):
        with session.pipe_from(world.there("cat data")) as given, session.pipe_to(to) as taken:
            shutil.copyfileobj(given, taken)
        assert world.read("copy") == data


def held_there(world: World) -> list[tuple[int, int, int]]:
    """Of each agent: its descriptors, its threads, and its children, the dead ones as well."""
    found = []
    for process in descendants(world.server.pid):
        folder = Path(f"/proc/{process.pid}")
        with contextlib.suppress(OSError):
            if (folder / "comm").read_text().strip() in ("sshd", "sh", "bash"):
                continue
            children = (folder / f"task/{process.pid}/children").read_text().split()
            counts = len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))
            found.append((*counts, len(children)))
    return sorted(found)


@pytest.mark.parametrize(("session", "most"), [(1, 0), (2, 10)], indirect=["session"])
def test_streams_and_copies_over_the_same_connections(
    world: World, session: pscp.Session, most: int
) -> None:
    """However many: no login of their own, and no descriptor, thread or child more."""
    (world.home / "data").write_bytes(data := bytes_of(3 * MIB))
    logins = 0
    held: list[tuple[int, int, int]] = []
    for turn in range(4):
        with session.pipe_to(world.there("cat > x")) as file:
            file.write(data)
        with session.pipe_from(world.there("cat x")) as file:
            assert file.read() == data
        with pytest.raises(CommandFailed), session.pipe_to("exit 1"):
            pass
        assert session.run(["true"]).status == 0
        far = f"{world.server.host}:{world.home}"
        assert session.copy(str(world.home / "x"), f"{far}/{turn}").ok
        assert world.read(str(turn)) == data
        # A lane that was ended while it logged in is waited for there so long.
        until(
            lambda: not os.listdir(world.tmp), "no socket is left", stream_server.GRACE_S + ENDED_S
        )
        if turn == 1:
            logins, held = world.server.log.count("Accepted"), held_there(world)
    more = world.server.log.count("Accepted") - logins
    # Of ten streams and copies. On a busy machine the second connection of each may come late, and
    # one with an answer to come is ended, if the other has what it stands for.
    assert more <= most

    # What was still about to end when it was first counted may make it less, never more.
    def is_no_more() -> bool:
        now, before = (map(max, zip(*each, strict=True)) for each in (held_there(world), held))
        return all(count <= most for count, most in zip(now, before, strict=True))

    until(is_no_more, f"{held_there(world)} as before: {held}")


def test_no_login_is_hastened_once_it_is_over(
    session: pscp.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_options, "_LOGIN_MOST_S", 1000.0)  # it is not what ends it
    assert session.run(["true"]).status == 0
    names = [each.name for each in threading.enumerate()]
    until(lambda: "login" not in [each.name for each in threading.enumerate()], f"{names}")


def test_a_long_name_for_temporary_files(
    make_sshd: MakeServer, tmp_path: Path, world: World
) -> None:
    """Longer than a socket's path may be."""
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    server = make_sshd(environment={"TMPDIR": str(folder)})
    done = World(server, tmp_path, world.tmp).push("cat > x", data=b"data")
    assert (done.returncode, done.stderr, world.read("x")) == (0, b"", b"data")
    assert not os.listdir(folder)


# --- wrong use

WRONG: tuple[tuple[int, list[str], str], ...] = (
    # words of pscp-pipe, where 255 is not the command's own status; and those of pscp
    (255, [], "a host and a command are missing"),
    (255, ["HOST"], "a command is missing"),
    (255, ["HOST", "--"], "a command is missing"),
    (255, ["HOST:/path", "cat"], ":/path is not a host alone"),
    (255, ["--from", "--producer", "true", "HOST", "true"], "--producer runs here"),
    (255, ["--window", "1M", "HOST", "cat"], "--window must be"),
    (255, ["--window", "x", "HOST", "cat"], "'x' is not a size"),
    (255, ["--archive", "HOST", "cat"], "archive"),
    (255, ["--remote", "sftp", "HOST", "cat"], "no such option: --remote"),
    (2, ["-", "file"], '"-" goes with HOST:FILE'),
    (2, ["-", "-"], '"-" goes with HOST:FILE'),
    (2, ["HOST:file", "HOST:other", "-"], '"-" goes with HOST:FILE'),
    (2, ["-", "here", "HOST:folder/"], '"-" goes with HOST:FILE'),
    (2, ["--fan-out", "-", "HOST:file"], '"-" goes with HOST:FILE'),
    (2, ["-", "host:"], "name it"),
    (2, ["--dry-run", "-", "HOST:file"], "-n: for files"),
    (2, ["--transfer-test", "-", "HOST:file"], '-t: for files, not for "-"'),
    (2, ["--remote", "sftp", "-", "HOST:file"], '--remote sftp: for files, not for "-"'),
    # T3: they were taken, and did nothing.
    (2, ["--backup", "--backup-dir=b", "-", "HOST:file"], "--backup, --backup-dir: for files"),
    (2, ["--chmod=600", "-", "HOST:file"], "--chmod: for files"),
    (2, ["--remove-source-files", "HOST:file", "-"], "--remove-source-files: for files"),
    (2, ["--cluster=local:2", "-", "HOST:file"], "--cluster: for files"),
)


@pytest.mark.parametrize(("code", "words", "said"), WRONG)
def test_wrong_use(world: World, code: int, words: list[str], said: str) -> None:
    begun = world.server.log.count("Connection from")
    typed = [word.replace("HOST", world.server.host) for word in words]
    done = world.run(*typed, program=PIPE if code == 255 else PSCP)
    err = done.stderr.decode()
    assert done.returncode == code
    assert err.startswith("pscp") and said in err
    assert err.count("\n") <= 2 and (code == 2 or "pscp --help" not in err)
    assert world.server.log.count("Connection from") == begun


@pytest.mark.parametrize("redirection", ["<&-", ">&-"])
def test_a_descriptor_that_is_closed(world: World, redirection: str) -> None:
    """The next thing that is opened would get its number."""
    way = ["--from"] if redirection == ">&-" else []
    argv = world.argv(*way, world.server.host, world.there(CLEAN if not way else "echo a"))
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *argv]
    done = subprocess.run(shell, stderr=subprocess.PIPE, timeout=ENDED_S, check=False)
    assert done.returncode == 255
    assert b"closed" in done.stderr
    assert not world.has("clean")
