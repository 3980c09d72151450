"""A program ends its own calls: Session.cancel(), close(), an exception in `progress` or `on_file`.

The end comes at awkward moments, is soon, keeps what had landed, and leaves the session usable;
that no thread, descriptor or process is left every test sees (../conftest.py).
Not here: the same from asyncio (../e2e/test_aio.py), signals (test_signals.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree
from programs import ASKED, script

import pscp
from faults.conftest import MIB, Breaking, Calling, Way, fill, until
from pscp.endpoint.frames import wire
from pscp.progress.callbacks import FileEvent
from pscp.progress.progress import Counters, Reporter

EVERY_WAY = True
BIG_BYTES = 24 * MIB
SOON_S = 20.0  # on a busy machine; what it must not wait for takes 30 s and more


def over_ssh_alone(test: Any) -> Any:
    """With a program in the place of ssh."""
    for mark in (pytest.mark.needs_openssh, pytest.mark.needs_agent, pytest.mark.needs_ssh):
        test = mark(reason="ssh is replaced by -S")(test)
    return test


class Mine(Exception):
    """What a program's own function raises."""


def session_of(way: Way, breaking: Breaking | None = None, **fields: Any) -> pscp.Session:
    if breaking is not None:
        fields["program"] = breaking.program
    return pscp.Session(
        way.server.host, config_file=way.server.ssh_config, batch=True, recursive=True,
        transport=way.transport, remote=way.remote, plane=way.plane,
        **{"connections": 2, **fields},
    )  # fmt: skip


def copy_in(session: pscp.Session, way: Way, **given: Any) -> Callable[[], pscp.Result]:
    return lambda: session.copy(*way.locations(), **given)


# --- while it copies


@pytest.mark.needs_ssh(reason="its lanes are slowed down by -l alike")
@pytest.mark.parametrize("how", ["cancel", "close"])
def test_what_had_landed_is_kept(way: Way, how: str) -> None:
    """Over each transport. A second cancel() changes nothing, nor does one after the end."""
    fill(way.source / "big", BIG_BYTES)
    landed = threading.Event()

    def watch(now: Counters) -> None:
        if now.bytes_done >= 2 * MIB:
            landed.set()

    with session_of(way, limit_kbit_s=40_000) as session:
        copying = Calling(copy_in(session, way, progress=watch))
        assert landed.wait(60)
        getattr(session, how)()
        session.cancel()
        assert isinstance(copying.ended(SOON_S), pscp.Cancelled)
        session.cancel()
        assert not way.arrived()
        if how == "close":
            with pytest.raises(pscp.UsageError, match="closed"):
                session.copy(*way.locations())
            return
        result = session.copy(*way.locations(), limit_kbit_s=None)
    assert result.ok and result.bytes_resumed >= 2 * MIB
    assert_same_tree(way.source, way.destination)


@pytest.mark.usefixtures("push")
@pytest.mark.needs_ssh(reason="as above")
def test_an_exception_of_progress_ends_only_its_copy(way: Way) -> None:
    """A9. Another one over the same session goes on."""
    for name in ("mine", "other"):
        fill(way.source / name, BIG_BYTES)

    def fail(now: Counters) -> None:
        if now.bytes_done >= MIB:
            raise Mine

    with session_of(way, connections=1) as session:
        other = Calling(lambda: session.copy(*way.locations("other")))
        with pytest.raises(Mine):
            session.copy(*way.locations("mine"), progress=fail, limit_kbit_s=20_000)
        until(lambda: not isinstance(other.found, type(None)), "the other copy has ended")
        assert isinstance(other.ended(SOON_S), pscp.Result), other.found
    assert [*way.arrived()] == ["other"]
    assert way.arrived_bytes() == BIG_BYTES


def test_an_exception_of_on_file_ends_the_copy(way: Way) -> None:
    for name in ("a", "b"):
        fill(way.source / name, MIB)
    told: list[FileEvent] = []

    def fail(event: Any) -> None:
        told.append(event)
        raise Mine

    with session_of(way) as session, pytest.raises(Mine):
        session.copy(*way.locations(), on_file=fail)
    assert len(told) == 1 and told[0].outcome == "copied"
    assert told[0].path in way.arrived()


# --- at awkward moments


MOMENTS: dict[str, dict[str, Any]] = {
    "its first question": {"type": wire.ASK, "way": "to"},
    "the answer": {"type": wire.REPLY, "way": "from"},
    "the first chunk": {"type": wire.DATA, "way": "to"},
    "the ending": {"type": wire.ASK, "way": "to", "contains": '"Release"'},
}


@over_ssh_alone
@pytest.mark.parametrize("moment", MOMENTS)
def test_while_it_waits_for(push: Way, moment: str) -> None:
    fill(push.source / "big", 2 * MIB)
    breaking = push.breaking().rule("block", **MOMENTS[moment])
    with session_of(push, breaking, connections=1) as session:
        copying = Calling(copy_in(session, push))
        until(lambda: breaking.blocked == 1, moment)
        session.cancel()
        assert isinstance(copying.ended(SOON_S), pscp.Cancelled)
        breaking.go()
        assert session.copy(*push.locations()).ok
    assert_same_tree(push.source, push.destination)


@pytest.fixture
def silent(own_home: Path) -> Path:
    """An ssh that never logs in; it says that it was started."""
    return script(own_home / "silent", f"{ASKED}touch {own_home}/started\nexec sleep 1000")


@over_ssh_alone
@pytest.mark.parametrize("login_once", [False, True])
def test_during_the_login(push: Way, silent: Path, login_once: bool) -> None:
    """Of a first connection, and of the one login for all channels."""
    fill(push.source / "file", MIB)
    with session_of(push, program=str(silent), login_once=login_once) as session:
        copying = Calling(copy_in(session, push))
        until((silent.parent / "started").exists, "ssh was started")
        session.cancel()
        assert isinstance(copying.ended(SOON_S), pscp.Cancelled)
        with pytest.raises(Mine):
            session.copy(*push.locations(), progress=raise_mine)
        running = Calling(lambda: session.run("true"))
        waiting = Calling(lambda: session.run("true"))  # for the other one's login
        until(lambda: len(session._calls) == 2, "both have begun")
        session.close()
        assert isinstance(running.ended(SOON_S), pscp.Cancelled)
        assert isinstance(waiting.ended(SOON_S), pscp.Cancelled)


def raise_mine(now: Counters) -> None:
    raise Mine


@over_ssh_alone
def test_between_two_attempts_to_connect(push: Way) -> None:
    """From its own thread, which is told that the host refuses."""
    fill(push.source / "file", MIB)

    class Impatient(Reporter):
        def note(self, text: str) -> None:
            assert "trying again" in text
            session.cancel()

    breaking = push.breaking().rule("refuse", connections=None)
    with session_of(push, breaking, retry_for_s=3600) as session:
        begun_s = time.monotonic()
        with pytest.raises(pscp.Cancelled):
            session.copy(*push.locations(), reporter=Impatient())
        assert time.monotonic() - begun_s < SOON_S


# --- streams


@pytest.mark.needs_agent(reason="streams need it")
def test_streams_end_too(push: Way) -> None:
    """And the command at the far end with them, which sees no end of its input."""
    ended = push.home / "ended"
    clean = ["sh", "-c", f"touch {push.home}/began; cat >/dev/null && touch {ended}"]
    with session_of(push) as session:

        def write() -> None:
            with session.pipe_to(clean) as file:
                file.write(b"x" * MIB)
                until((push.home / "began").exists, "the command runs")
                session.cancel()

        assert isinstance(Calling(write).ended(SOON_S), pscp.Cancelled)

        def read() -> None:
            with session.pipe_from("yes") as file:
                file.read(MIB)
                session.cancel()
                while file.read(MIB):
                    pass

        assert isinstance(Calling(read).ended(SOON_S), pscp.Cancelled)
        waiting = Calling(lambda: session.run(["sh", "-c", f"touch {push.home}/runs; sleep 100"]))
        until((push.home / "runs").exists, "the command runs")
        session.cancel()
        assert isinstance(waiting.ended(SOON_S), pscp.Cancelled)
        assert session.run("echo $((6 * 7))").out == b"42\n"
    assert not ended.exists()
