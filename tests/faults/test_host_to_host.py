"""A copy whose source and destination are both remote: all goes through this machine.

Connection 0 is the sink's, connection 1 the source's.

Not here: what a lane does with what its near end gives it (test_lanes_lost.py,
../core/test_damage.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from compare import assert_same_tree
from e2e.ways import Notes
from programs import script
from servers.private import PrivateServer

import pscp
from faults.conftest import MIB, PATIENCE_S, Calling, Way, fill, until
from faults.hostile_channel import HostileChannel
from pscp.connect import bootstrap, openers
from pscp.endpoint.frames import wire
from pscp.endpoint.reading.tree import FILE
from pscp.ground.errors import ProtocolError
from pscp.ground.locations import Location
from pscp.transfer import pools
from pscp.transfer.lanes import lane_context, relay
from pscp.transfer.pieces.plan import PlannedEntry
from pscp.transfer.walk.lookups import DestinationLookup
from pscp.transports import Channel, open_channel

pytestmark = pytest.mark.needs_ssh(reason="direct lanes lead to the sink alone")

SINK, SOURCE = ("to", 0), ("from", 1)  # where DATA frames go, and over which connection


def through_here(way: Way, **fields: Any) -> pscp.Result:
    """Copy the way's source, at its server, to its destination, at its server."""
    far = f"{way.server.host}:"
    chosen: dict[str, Any] = {
        "config_file": way.server.ssh_config, "remote": way.remote, "batch": True,
        "recursive": True, "connections": 1, **fields,
    }  # fmt: skip
    to = f"{far}{way.destination}"
    return pscp.copy(f"{far}{way.source}/.", to, raises=False, **chosen)


def fill_all(way: Way) -> None:
    fill(way.source / "big", 9 * MIB + 7)
    for number in range(200):
        fill(way.source / str(number % 3) / str(number), 100 * number)
    with open(way.source / "holes", "wb") as sparse:
        sparse.truncate(5 * MIB)
        sparse.write(b"x" * 70_000)


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_a_tree(push: Way, remote: str) -> None:
    fill_all(push)
    is_archive = remote == "agent"  # over SFTP links are followed and times are whole seconds
    if is_archive:
        (push.source / "link").symlink_to("big")
        os.link(push.source / "big", push.source / "hard")
    result = through_here(push, remote=remote, archive=is_archive, strong=True)
    assert result.ok, result.failures
    assert_same_tree(push.source, push.destination, times=is_archive)
    assert through_here(push, remote=remote, archive=is_archive, strong=True).bytes_sent == 0


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_a_mirror_of_folders_that_are_the_same(
    push: Way, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_folders_are_compared(partial(through_here, push, remote=remote), push, monkeypatch)


def assert_folders_are_compared(
    copy_again: Callable[..., pscp.Result], way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror looks no file up, but those that differ."""
    looked_up: set[str] = set()
    request = DestinationLookup.request

    def recorded(self: DestinationLookup, items: list[PlannedEntry]) -> object:
        looked_up.update(item.entry.path for item in items if item.entry.kind == FILE)
        return request(self, items)

    monkeypatch.setattr(DestinationLookup, "request", recorded)
    for number in range(20):
        fill(way.source / str(number % 3) / str(number), 100 * number)
    assert copy_again(archive=True).ok
    fill(way.destination / "1" / "more", 10)
    fill(way.source / "2" / "5", 600)
    looked_up.clear()
    result = copy_again(archive=True, delete=True)
    assert (result.files, result.files_unchanged, result.files_deleted) == (1, 19, 1)
    assert looked_up == {"2/5"}
    assert_same_tree(way.source, way.destination)


def test_what_is_missing_or_unreadable_is_a_failure_of_that_file(push: Way) -> None:
    fill(push.source / "there", 10)
    far = f"{push.server.host}:"
    sources = [f"{far}{push.source}/{name}" for name in ("there", "gone")]
    to = f"{far}{push.destination}"
    config = push.server.ssh_config
    result = pscp.copy(sources, to, config_file=config, batch=True, raises=False)
    assert [failure.path for failure in result.failures] == [f"{push.source}/gone"]
    assert (push.destination / "there").read_bytes() == (push.source / "there").read_bytes()


@pytest.mark.parametrize(
    ("do", "goes", "connection", "after"),
    [("kill", *SINK, 4 * MIB), ("kill", *SOURCE, 4 * MIB), ("stop", *SOURCE, 2 * MIB),
     ("flip", *SOURCE, 2 * MIB)],
)  # fmt: skip
def test_either_connection_dies_stands_still_or_has_a_wrong_bit(
    push: Way, quick_retries: None, monkeypatch: pytest.MonkeyPatch,
    do: str, goes: str, connection: int, after: int,
) -> None:  # fmt: skip
    """What is said of the source's names its host."""
    if do == "stop":
        monkeypatch.setattr(bootstrap, "SILENCE_S", 3.0)
    fill_all(push)
    breaking = push.breaking().rule(do, way=goes, connections=[connection], after=after)
    told = Notes()
    fields: dict[str, Any] = {"chunk_bytes": MIB, "itemize": True, "reporter": told}
    result = through_here(push, program=breaking.program, **fields)
    assert result.ok, result.failures
    assert do != "kill" or result.connections_lost == 1
    assert do != "flip" or result.chunks_resent >= 1
    lost = [text for text in told.texts if "connection was lost" in text]
    if (do, goes) == ("kill", "from"):
        assert lost and all(push.server.host in text for text in lost), told.texts
    assert_same_tree(push.source, push.destination)
    assert not push.parts()


def test_a_source_that_cannot_be_reached_leaves_nothing(push: Way) -> None:
    with pytest.raises(pscp.ConnectError):
        pscp.copy(
            "nowhere.invalid:x", f"{push.server.host}:{push.destination}/new",
            config_file=push.server.ssh_config, batch=True,
        )  # fmt: skip
    assert list(push.destination.iterdir()) == []


def test_a_finished_copy_does_not_wait_for_a_login_at_the_source(
    push: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "SILENCE_S", 1000.0)
    # Or the first lane may have all the work in its window, and then no other one connects.
    monkeypatch.setattr(lane_context, "WINDOW_BYTES", 4 * MIB)
    fill_all(push)
    breaking = push.breaking().rule("block", way="to", gate="work")
    breaking.rule("block", way="from", connections=[3], type=wire.REPLY, gate="login")
    fields: dict[str, Any] = {"program": breaking.program, "chunk_bytes": MIB}
    copying = Calling(lambda: through_here(push, connections=2, **fields))
    until(lambda: breaking.is_blocked(0, "work") and breaking.is_blocked(3, "login"))
    breaking.go("work")
    try:
        assert copying.ended(PATIENCE_S / 2).ok
    finally:
        breaking.go("login")


@pytest.mark.parametrize("scenario", ['Answers:["begin", 5, true]', "Chunks:longer"])
def test_a_hostile_source_ends_the_copy(
    push: Way, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(host: Location, *given: Any, **fields: Any) -> Channel:
        if host.host == "hostile":
            return HostileChannel(scenario)
        return open_channel(host, *given, **fields)

    monkeypatch.setattr(openers, "open_channel", opened)
    to, config = f"{push.server.host}:{push.destination}", push.server.ssh_config
    with pytest.raises(ProtocolError):
        pscp.copy(
            "hostile:tree", to, config_file=config, batch=True, remote="agent", recursive=True
        )


def test_the_path_is_that_to_both_hosts(push: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """A near sink's few lanes and small windows would not fill the path to a far source."""
    monkeypatch.setattr(pools, "path_rtt_s", lambda far: 0.015)
    fill(push.source / "file", 10)
    told = Notes()
    result = through_here(push, connections=None, itemize=True, reporter=told)
    assert result.ok
    assert any("a round trip takes 30.0 ms" in text for text in told.texts), told.texts
    remembered = [path.read_text() for path in (push.home / "state").rglob("hosts*")]
    assert not any('"push"' in text for text in remembered), "as if the path were the sink's"


def test_the_host_without_python_is_named(
    push: Way, make_sshd: Callable[..., PrivateServer], tmp_path: Path
) -> None:
    config = tmp_path / "config"
    # As the remote command where there is no python3.
    without = make_sshd(shell=str(script(tmp_path / "shell", "exit 97")))
    text = Path(without.ssh_config).read_text().replace(without.host, "bare", 1)
    config.write_text(f"{text}\n{Path(push.server.ssh_config).read_text()}")
    fill(push.source / "file", 10)
    there = f"{push.server.host}:{push.destination}"
    for froms, to in ((f"bare:{push.source}/file", there), (there, f"bare:{push.destination}")):
        with pytest.raises(pscp.errors.NoPython, match=r"^bare: "):
            pscp.copy(
                froms, to, config_file=str(config), batch=True, remote="agent", recursive=True
            )


def test_what_a_source_over_sftp_loses_is_said(push: Way) -> None:
    fill(push.source / "file", 10)
    told = Notes()
    through_here(push, remote="sftp", archive=True, reporter=told)
    lost = [text for text in told.texts if "not kept" in text]
    assert len(lost) == 2 and sum("hard links become" in text for text in lost) == 1, told.texts
    assert all(text.startswith(f"{push.server.host}: over SFTP") for text in lost)


def test_eight_lanes_log_in_at_the_source_at_once() -> None:
    opening, gate = threading.Semaphore(0), threading.Event()

    class Slow:
        host = Location("there:", "", "there")

        def connect(self, options: pscp.Options, wanted: object) -> str:
            opening.release()
            gate.wait(PATIENCE_S)
            return "connected"

    far = relay.FarSource(cast("Any", Slow()), pscp.Options())
    threads = [threading.Thread(target=far.connect, args=[print]) for _ in range(12)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        assert opening.acquire(timeout=PATIENCE_S)
    assert not opening.acquire(timeout=0.05)
    with pytest.raises(pscp.errors.ConnectionLost):  # a lane that is over does not wait for it
        far.connect(print, lambda: True)
    gate.set()
    for thread in threads:
        thread.join()
    assert all(opening.acquire(timeout=0) for _ in range(4))


def test_a_lane_that_is_over_leaves_the_connection_that_is_there() -> None:
    """An interrupt may come before the lane has asked for it; then nobody else would close it."""
    connections, first = Mock(), Mock()
    connections.take.return_value = [first]
    far = relay.FarSource(connections, pscp.Options())
    far.take(print)
    with pytest.raises(pscp.errors.ConnectionLost):
        far.connect(print, lambda: True)
    far.close(is_cut=True)
    first.close.assert_called_once_with()
