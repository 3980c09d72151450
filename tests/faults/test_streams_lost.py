"""Streams whose connections, agents or client die: all bytes arrive, or the command sees no end.

Not here: streams that nothing happens to, and signals (../e2e/test_streams.py), a lane that is lost
or damaged at each of its frames (../core/test_stream.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import forked
import pytest

import pscp
from faults.conftest import MIB, PATIENCE_S, Breaking, Way, until
from pscp.connect import agent_program
from pscp.endpoint.frames import wire
from pscp.ground.errors import ConnectError, ProtocolError, PscpError
from pscp.ground.processes import descendants
from pscp.stream import stream
from pscp.transfer import logins

BIG_BYTES = 24 * MIB + 7
SHORT = (b"GRACE_S = 60.0", b"GRACE_S = 1.0")  # how long a far end waits for lanes to come again
everyone = list(range(200))
CLEAN = "echo $$ $PPID > pids; cat > x; touch clean"


def content(size: int = BIG_BYTES) -> bytes:
    return random.Random(size).randbytes(size)


def with_short_grace() -> str:
    """What is sent to the far end for a stream, with less patience."""
    with pytest.MonkeyPatch.context() as patch:
        text = agent_program._text
        patch.setattr(agent_program, "_text", lambda module: text(module).replace(*SHORT))
        return agent_program.stream_modules.__wrapped__()


# The command, with less patience at the far end as well.
PROGRAM = f"""
import sys
from pscp.connect import agent_program
text = agent_program._text
agent_program._text = lambda module: text(module).replace({SHORT[0]!r}, {SHORT[1]!r})
from pscp.cli.pipe import main
sys.exit(main())
"""


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    short = with_short_grace()
    assert short != agent_program.stream_modules()
    monkeypatch.setattr(stream, "stream_modules", lambda: short)


def there(way: Way, command: str) -> str:
    return f"cd {way.destination}; {command}"


def session(way: Way, connections: int, breaking: Breaking) -> pscp.Session:
    return pscp.Session(
        way.server.host, config_file=way.server.ssh_config, batch=True, program=breaking.program,
        connections=connections, window_bytes=8 * MIB,
    )  # fmt: skip


# --- damage


def test_a_wrong_bit_every_time(way: Way) -> None:
    """Then it is no accident; the command sees no end."""
    breaking = way.breaking().rule("flip", always=True)
    with session(way, 1, breaking) as one, pytest.raises(PscpError, match="damaged again"):
        if way.is_push:
            with one.pipe_to(there(way, CLEAN)) as file:
                file.write(content())
        else:
            (way.source / "data").write_bytes(content())
            with one.pipe_from(f"cat {way.source}/data") as file:
                file.read()
    assert not (way.destination / "clean").exists()


# --- no connection comes any more, or no client


def test_the_connections_are_lost_for_good(
    way: Way, quick_retries: None, short_grace: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the second may come when the far end has given up already: it says so."""
    monkeypatch.setattr(logins, "_ATTEMPTS_ALONE", 3)
    breaking = way.breaking().rule("kill", connections=[0, 1], after=2 * MIB)
    breaking.rule("refuse", connections=everyone[2:])
    with session(way, 2, breaking) as one, pytest.raises(PscpError) as lost:
        if way.is_push:
            with one.pipe_to(there(way, CLEAN)) as file:
                while True:
                    file.write(bytes(MIB))
        else:
            with one.pipe_from(there(way, "echo $$ $PPID > pids; yes")) as file:
                while file.read(MIB):
                    pass
    is_gone = lost.value.message == wire.STREAM_GONE
    assert is_gone or isinstance(lost.value, ConnectError | ProtocolError)
    assert_command_ends(way)


def assert_command_ends(way: Way) -> None:
    """And everything else at the far end, without the command having seen a clean end."""
    assert (way.destination / "pids").exists()
    until(lambda: not descendants(way.server.pid), "all agents end")
    pid = int((way.destination / "pids").read_text().split()[0])
    until(lambda: not is_living(pid), "the command ends")
    assert not (way.destination / "clean").exists()


def is_living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def start(way: Way, *words: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", PROGRAM, "-F", way.server.ssh_config, "-B", "-c", "2", *words]
    pipe = subprocess.PIPE
    return forked.start(argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)


def started(way: Way, command: str = CLEAN) -> subprocess.Popen[bytes]:
    """A stream of which some MiB have arrived, and that goes on for ever."""
    if way.is_push:
        process = start(way, way.server.host, there(way, command))
        assert process.stdin
        process.stdin.write(bytes(4 * MIB))
        path = way.destination / "x"

        def has_arrived() -> bool:
            return path.exists() and path.stat().st_size == 4 * MIB

        until(lambda: has_arrived() or process.poll() is not None, "some has arrived")
        assert has_arrived(), closed(process)
        return process
    process = start(way, "--from", way.server.host, there(way, "echo $$ $PPID > pids; yes"))
    assert process.stdout
    left = 4 * MIB
    while left and (data := process.stdout.read(left)):
        left -= len(data)
    assert not left, closed(process)
    return process


def closed(process: subprocess.Popen[bytes]) -> str:
    """What it said."""
    assert process.stdin and process.stdout and process.stderr
    with process.stdin, process.stdout, process.stderr:
        while process.stdout.read(MIB):  # what comes of a pull
            pass
        process.wait(PATIENCE_S)
        return process.stderr.read().decode()


def test_the_client_is_killed(way: Way) -> None:
    process = started(way)
    process.kill()
    closed(process)
    assert_command_ends(way)


def writing_a_file(push: Way) -> subprocess.Popen[bytes]:
    """`pscp - host:file`, once a part is written; there was such a file before."""
    (push.destination / "file").write_bytes(b"before")
    argv = PROGRAM.replace("pscp.cli.pipe", "pscp.cli.copy")
    words = ["-F", push.server.ssh_config, "-B", "-", f"{push.server.host}:{push.destination}/file"]
    process = subprocess.Popen(
        [sys.executable, "-c", argv, *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin
    process.stdin.write(bytes(4 * MIB))
    process.stdin.flush()
    until(push.parts, "a part is written")
    return process


def test_the_client_is_killed_while_it_writes_a_file(push: Way) -> None:
    """No part of it is left."""
    process = writing_a_file(push)
    assert process.stdin and process.stderr
    process.kill()
    process.wait()
    process.stdin.close()
    process.stderr.close()
    until(lambda: not descendants(push.server.pid), "all agents end")
    assert not push.parts()
    assert (push.destination / "file").read_bytes() == b"before"


# --- the agent that has the command


@pytest.mark.parametrize("command", [CLEAN, f"trap '' TERM; {CLEAN}"], ids=["heeds", "heeds not"])
def test_the_agent_with_the_command_is_killed(way: Way, command: str) -> None:
    """Its input would end with the agent: so it is ended before, by another process, whether or not
    it heeds a signal. What came of a pull is not taken for all of it.
    """
    process = started(way, command)
    agent, folder = gatherer(way)
    assert folder.exists()
    assert int((way.destination / "pids").read_text().split()[1]) == agent
    os.kill(agent, signal.SIGKILL)
    said = closed(process)
    assert process.returncode == 255
    assert "the far end of the stream is gone" in said
    assert "Traceback" not in said
    assert_command_ends(way)
    if way.is_push:  # who ends the command's input removes it; a pull has nobody who would
        until(lambda: not folder.exists(), "the socket's folder is removed")


def gatherer(way: Way) -> tuple[int, Path]:
    """The agent that has the stream, and its socket's folder."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    paths = {f"socket:[{line[6]}]": line[7] for line in lines if line[-1].endswith("/lanes")}
    for process in descendants(way.server.pid):
        with contextlib.suppress(FileNotFoundError):  # one of sshd's that has just ended
            for fd in Path(f"/proc/{process.pid}/fd").iterdir():
                if (link := os.readlink(fd)) in paths:
                    return process.pid, Path(paths[link]).parent
    raise AssertionError("nobody listens for lanes")


def test_the_agent_is_killed_while_it_writes_a_file(push: Way) -> None:
    process = writing_a_file(push)
    assert process.stdin and process.stderr
    agent, folder = gatherer(push)
    os.kill(agent, signal.SIGKILL)
    assert process.wait(PATIENCE_S) != 0
    process.stdin.close()
    process.stderr.close()
    until(lambda: not (push.parts() or folder.exists()), "what it left is removed")
    assert (push.destination / "file").read_bytes() == b"before"
