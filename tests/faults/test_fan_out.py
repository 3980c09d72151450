"""One source to several destinations, some of which fail, stand still, or come late.

Not here: destinations that are all well (../e2e/test_fan_out.py).
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fan_out_world import MIB, Hosts
from programs import small_disk
from servers.private import PrivateServer

import pscp
from faults.conftest import PEAK, PROGRAM, Calling, until
from pscp.endpoint.reading import files
from pscp.options.option_fields import OptionFields

BIG_BYTES = 24 * MIB
HELD_BYTES = 8 * MIB
LIMIT_KIB = 120 * 1024


@pytest.fixture
def hosts(tmp_path: Path, sshd: PrivateServer) -> Hosts:
    return Hosts(tmp_path, sshd)


class Running(Calling):
    """A fan-out in a thread of its own."""

    def __init__(self, hosts: Hosts, *to: str) -> None:
        self.copied = set[str]()  # destinations that have a file
        fields: OptionFields = {
            "connections": 1, "batch": True, "chunk_bytes": MIB, "recursive": True,
            "config_file": str(hosts.ssh_config),
        }  # fmt: skip
        super().__init__(
            lambda: pscp.fan_out(
                f"{hosts.source}/.", to, on_file=self._note, raises=False, **fields
            )
        )

    def _note(self, destination: str, event: pscp.FileEvent) -> None:
        if event.outcome == "copied":
            self.copied.add(destination)


def failure(delivery: pscp.Delivery) -> str:
    """The one file that failed."""
    assert delivery.result is not None and delivery.exit_code == 1
    [found] = delivery.result.failures
    return found.error


def test_dead_ones_and_closed_ones_hold_nobody_up(hosts: Hosts) -> None:
    data = hosts.fill("big", BIG_BYTES)
    to = [hosts.dead("dead"), hosts.good("a"), hosts.closed("closed"), hosts.good("b")]
    dead, a, closed, b = Running(hosts, *to).ended()
    assert isinstance(dead.error, pscp.Unreachable) and dead.exit_code == 3
    assert isinstance(closed.error, pscp.AuthenticationError) and closed.exit_code == 3
    assert a.ok and b.ok
    assert (hosts.at("a") / "big").read_bytes() == (hosts.at("b") / "big").read_bytes() == data


def test_one_that_is_stopped_holds_nobody_up(hosts: Hosts) -> None:
    data = hosts.fill("big", BIG_BYTES)
    stopped, a = hosts.still("stopped", HELD_BYTES), hosts.good("a")
    running = Running(hosts, stopped, a)
    hosts.wait_until_stands("stopped")
    hosts.stop("stopped")
    try:
        until(lambda: a in running.copied, "the other has it")
        assert (hosts.at("a") / "big").read_bytes() == data
        assert not (hosts.at("stopped") / "big").exists()
    finally:
        hosts.wake("stopped")
    found = running.ended()
    assert all(each.ok for each in found)
    assert (hosts.at("stopped") / "big").read_bytes() == data
    assert sum(each.bytes_read for each in found) == BIG_BYTES  # hashed, once


def test_a_full_one_fails_alone(hosts: Hosts) -> None:
    data = hosts.fill("big", BIG_BYTES)
    place = hosts.good("full")
    with small_disk(hosts.at("full"), f"size={8 * MIB}"):
        full, a = Running(hosts, place, hosts.good("a")).ended()
        assert failure(full) == "SystemFailure" and a.ok
        assert not [*hosts.at("full").iterdir()]
    assert (hosts.at("a") / "big").read_bytes() == data


@pytest.mark.parametrize("place", [0, BIG_BYTES - 100], ids=["sent", "not sent"])
def test_a_source_that_changes_is_found_out_by_all_that_still_read_it(
    hosts: Hosts, place: int
) -> None:
    data = hosts.fill("big", BIG_BYTES)
    first, a = hosts.still("first", HELD_BYTES), hosts.good("a")
    second = hosts.still("second", HELD_BYTES)
    running = Running(hosts, first, a, second)
    hosts.wait_until_stands("first", "second")
    until(lambda: a in running.copied, "one has it")
    with open(hosts.source / "big", "r+b") as file:
        file.seek(place)
        file.write(b"other")
    hosts.go("first")
    hosts.go("second")
    found = running.ended()
    assert found[1].ok
    assert [failure(found[0]), failure(found[2])] == ["SourceChanged"] * 2
    assert (hosts.at("a") / "big").read_bytes() == data
    assert not [*hosts.at("first").iterdir(), *hosts.at("second").iterdir()]


def write_unseen(path: Path, offset: int, data: bytes) -> None:
    """Write into a file and set its time back, before any thread of this process looks."""
    libc = ctypes.PyDLL(None)  # its calls keep Python's lock
    known, before_s = path.stat(), sys.getswitchinterval()
    times = (divmod(ns, 10**9) for ns in (known.st_atime_ns, known.st_mtime_ns))
    spec = (ctypes.c_long * 4)(*itertools.chain(*times))
    with open(path, "r+b") as file:
        sys.setswitchinterval(60.0)
        written = libc.pwrite(file.fileno(), data, len(data), ctypes.c_long(offset))
        is_set = libc.futimens(file.fileno(), spec) == 0
        sys.setswitchinterval(before_s)
    assert written == len(data) and is_set and path.stat().st_mtime_ns == known.st_mtime_ns


def test_a_change_that_times_hide_is_found_by_the_hash_and_read_anew(hosts: Hosts) -> None:
    """The hashes that another copy has left are of bytes that are no longer there."""
    hosts.fill("big", BIG_BYTES)
    held, a = hosts.still("held", HELD_BYTES), hosts.good("a")
    running = Running(hosts, held, a, hosts.dead("dead"))  # which never takes the hashes
    hosts.wait_until_stands("held")
    until(lambda: a in running.copied, "one has it")
    path = hosts.source / "big"
    write_unseen(path, BIG_BYTES - 100, b"other")
    hosts.go("held")
    late, *_ = running.ended()
    assert late.ok, late
    assert late.result is not None and late.result.chunks_resent == 1
    assert (hosts.at("held") / "big").read_bytes() == path.read_bytes()


def test_a_disk_that_fails_once_its_file_was_hashed(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages are read while a frame is under way."""

    def fail(*given: Any, **named: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    hosts.fill("big", BIG_BYTES)
    held, a = hosts.still("held", HELD_BYTES), hosts.good("a")
    running = Running(hosts, held, a)
    hosts.wait_until_stands("held")
    until(lambda: a in running.copied, "one has it")
    monkeypatch.setattr(os, "splice", fail)
    monkeypatch.setattr(files, "read_at", fail)
    hosts.go("held")
    late, other = running.ended()
    assert failure(late) == "SystemFailure" and other.ok
    assert late.result is not None and late.result.connections_lost == 0


# --- the command


def argv(hosts: Hosts, *to: str) -> list[str]:
    words = ["-F", str(hosts.ssh_config), "-B", "-c", "1", "--chunk-size", "1M"]
    how = ["--fan-out", "--progress", "json", "--log-file", str(hosts.folder / "log")]
    return [sys.executable, "-c", PROGRAM, *words, *how, f"{hosts.source}/big", *to]


def start(hosts: Hosts, *to: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv(hosts, *to),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )


def ends(out: bytes) -> dict[str, dict[str, Any]]:
    """The last event of each destination."""
    events = map(json.loads, out.splitlines())
    return {each["destination"]: each for each in events if each["event"] == "end"}


def test_killed_the_same_command_goes_on(hosts: Hosts) -> None:
    data = hosts.fill("big", BIG_BYTES)
    to = [hosts.still("a", 10 * MIB), hosts.still("b", 18 * MIB)]
    process = start(hosts, *to)
    hosts.wait_until_stands("a", "b")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=200)
    hosts.go("a")
    hosts.go("b")
    process = start(hosts, *to)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    last = ends(out)
    for name, place, least in zip("ab", to, (2 * MIB, 10 * MIB), strict=True):
        assert (hosts.at(name) / "big").read_bytes() == data
        assert last[place]["bytes_resumed"] >= least
        assert last[place]["bytes_sent"] + last[place]["bytes_resumed"] == BIG_BYTES
        assert [each.name for each in hosts.at(name).iterdir()] == ["big"]


def test_interrupted_all_end_soon(hosts: Hosts) -> None:
    hosts.fill("big", BIG_BYTES)
    to = [hosts.still("a", HELD_BYTES), hosts.good("b"), hosts.still("c", HELD_BYTES)]
    process = start(hosts, *to)
    hosts.wait_until_stands("a", "c")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert b"interrupted; what has landed is kept" in err and b"Traceback" not in err
    # Not by force, after some seconds.
    assert "ended: interrupted" in (hosts.folder / "log").read_text()


def test_memory_stays_bounded_with_a_slow_and_a_fast_one(hosts: Hosts, tmp_path: Path) -> None:
    """The fast one is done with all of it before the slow one goes on."""
    size = 96 * MIB
    hosts.fill("big", size)
    to = [hosts.still("slow", HELD_BYTES), hosts.good("fast")]
    process = start(hosts, *to, **{PEAK: str(tmp_path / "peak")})
    until(lambda: (hosts.at("fast") / "big").exists(), "the fast one has it")
    hosts.wait_until_stands("slow")
    hosts.go("slow")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert sum(each["bytes_read"] for each in ends(out).values()) == size
    assert int((tmp_path / "peak").read_text()) < LIMIT_KIB
