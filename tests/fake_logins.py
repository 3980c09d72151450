"""Channels that log in without ssh, and what opens them: a test says how each login ends.

Not here: a far end that answers (faults/far_end.py).
"""

from __future__ import annotations

import threading
from typing import Any

# Loaded before a test replaces RemoteAgent, of which the agent of a direct lane is a subclass.
import pscp.connect.direct_sockets  # noqa: F401
from pscp.connect import bootstrap
from pscp.connect.known.host_setup import HostSetup
from pscp.connect.logins.prompts import Caller
from pscp.connect.openers import Opener
from pscp.ground.errors import PscpError
from pscp.ground.locations import Location
from pscp.options.options import Options
from pscp.transports import Channel, Control, SshSetup

WAIT_S = 10.0  # for what has to come


class FakeChannel(Channel):
    """A channel whose login succeeds, fails with `error`, or waits for `gate` first."""

    read_fd = write_fd = error_fd = -1
    pid = 1

    def __init__(self, is_sftp: bool = False, shared: Control | None = None) -> None:
        self.kind = "auto" if is_sftp else None
        self.control: Control | None = shared
        self.error: PscpError | None = None
        self.gate: threading.Event | None = None
        self.greeted = threading.Event()  # somebody waits for its login
        self.is_closed = False

    def end(self) -> None:
        self.is_closed = True

    def let_go(self, patience_s: float) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True

    def explain(self, messages: str, /) -> PscpError:
        assert self.error is not None
        return self.error

    def close_data_fds(self) -> None:
        pass


class FakeRemoteAgent:
    """Stands in for bootstrap.RemoteAgent: waits for the login in its constructor."""

    plane = "ssh"

    def __init__(
        self,
        channel: FakeChannel,
        note: object = None,
        patience: object = None,
        facts: Any = None,
        first: Any = None,
    ) -> None:
        self.channel, self.facts = channel, facts or bootstrap.Facts({}, {"sha256": 1.0})
        self.hashes = self.facts.hashes
        if first is not None:
            first.when_let_in(channel)
        channel.greeted.set()
        if channel.gate is not None:
            assert channel.gate.wait(WAIT_S)
        if channel.error is not None:
            raise channel.error
        self.hello: dict[str, Any] = {}
        self.was_kept, self.is_dead = False, False
        self.is_sftp = channel.kind is not None

    def is_closed(self) -> bool:
        return self.is_dead

    def close(self) -> None:
        self.channel.close()


class FakeOpener(Opener):
    """Opens the channels that a test has planned, then channels whose logins succeed."""

    logs_in = True

    def __init__(self, *planned: FakeChannel) -> None:
        self.ssh = SshSetup()  # what ssh's configuration says
        self.planned = list(planned)
        self.opened: list[FakeChannel] = []

    def resolve(self, host: Location, options: Options) -> SshSetup:
        return self.ssh

    def open(
        self, setup: HostSetup, *, is_sftp: bool, may_prompt: bool, shared: Control | None = None
    ) -> FakeChannel:
        channel = self.planned.pop(0) if self.planned else FakeChannel(is_sftp, shared)
        channel.kind = setup.options.verify if is_sftp else None
        self.opened.append(channel)
        return channel


class FakePrompts:
    """The answers to prompts of a session: whether there were any, and whether they were taken."""

    def __init__(self, was_asked: bool = True, is_single_use: bool = False) -> None:
        self.was_asked, self.is_single_use = was_asked, is_single_use
        self.waited_s = 0.0
        self.callers: list[Caller] = []
        self.is_closed = False

    def caller(self, may_ask: bool) -> tuple[Caller, dict[str, str]]:
        self.callers.append(Caller(may_ask))
        return self.callers[-1], {"PSCP_ASK": str(len(self.callers))}

    def busy_until_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self.is_closed = True


def failing(error: PscpError) -> FakeChannel:
    """A channel whose login fails."""
    channel = FakeChannel()
    channel.error = error
    return channel


def held() -> FakeChannel:
    """A channel whose login goes on until its gate is set."""
    channel = FakeChannel()
    channel.gate = threading.Event()
    return channel
