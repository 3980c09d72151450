"""The connections of a session, as copies and streams use them: to one host, or to several that see
the same files.

Not here: those to one host (one_host.py), to several (../transfer/far_hosts.py), what a program
calls (../calls/api.py), when a lane connects again (../transfer/lanes/worker.py).
Read next: one_host.py.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pscp.connect.first_login import NOTHING_AHEAD, Ahead, FirstLogin, Worth
from pscp.connect.known.host_memory import PathRecord
from pscp.connect.spare_logins import IdleConnections
from pscp.ground import errors
from pscp.ground.locations import Location
from pscp.options.options import Options
from pscp.transports import Channel

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent


class ConnectionRequest(NamedTuple):
    """The connection that a lane asks for."""

    connection_of: Channel | None  # open one more channel of this one's connection; None: a new one
    congestion: str  # the congestion control of a new connection; "": any
    opened: Callable[[Channel], None]  # gets the channel before its login, to end it from elsewhere


class Admission(Protocol):
    """Finds out whether one of several hosts sees a copy's files, before it gives lanes to it."""

    def ask(self, far: RemoteAgent) -> None:
        """Ask the host of this connection; others may be asked before it answers."""

    def check(self, far: RemoteAgent) -> None:
        """Raise PscpError where the host, which was asked, does not see the files (any more)."""


class Connections(abc.ABC):
    """The connections of one session. The idle ones are for the next copy.

    Several streams of a session may run at once, each with a thread that calls start_logins(),
    check_logins(), take() and give(), and with lanes that call connect() from threads of theirs.
    What has a body here is right for several hosts, which have no lanes beside SSH.
    """

    first: FirstLogin  # of several hosts, that of one

    def __init__(self, host: Location) -> None:
        self.host = host
        # Of several hosts, those that answered, and those that give no lanes.
        self.count, self.left_out = 1, 0
        self.admission: Admission | None = None  # what each of several hosts must show
        self._pid = os.getpid()  # a process that is forked from it gets descriptors, and no threads
        self.keeps = True  # connections outlive a copy; set before the first one
        self.idle = IdleConnections()

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(is_cut=kind is not None)

    @property
    def is_foreign(self) -> bool:
        """Return whether another process has made them: this one was forked from it."""
        return self._pid != os.getpid()

    def check_process(self) -> None:
        """Raise UsageError where they are another process's, which goes on using them."""
        if self.is_foreign:
            message = "this session belongs to another process; open one after the fork"
            raise errors.UsageError(message, "pscp.Session(...) in each process")

    @property
    @abc.abstractmethod
    def has_one_login(self) -> bool:
        """Return whether all lanes of a host are channels of one connection."""

    @abc.abstractmethod
    def check(self, options: Options, is_push: bool) -> list[str]:
        """Refuse what cannot be, before anybody is contacted; return what -v says."""

    @abc.abstractmethod
    def has_bbr(self, options: Options) -> bool:
        """Return whether connections from here may use BBR."""

    def has_early(self) -> bool:
        """Return whether another connection is logging in already."""
        return False

    @abc.abstractmethod
    def close(self, *, is_cut: bool = False) -> None:
        """End every connection; with `is_cut` end logins at once instead of when they are done.

        A lane that comes to connect only afterwards is refused. Those of another process stay.
        """

    @abc.abstractmethod
    def start_logins(self, options: Options, *, is_push: bool, worth: Worth | None) -> None:
        """Have ssh begin to log in, unless there are connections. `worth` None: one."""

    @abc.abstractmethod
    def check_logins(self, options: Options, *, is_push: bool, worth: Worth | None) -> None:
        """While ssh logs in: start anew if its configuration has changed, and send the agent."""

    @abc.abstractmethod
    def take(
        self, options: Options, note: Callable[[str], None], ahead: Ahead = NOTHING_AHEAD
    ) -> list[RemoteAgent]:
        """Return the connections that are open, or first ones, whose login may ask a person.

        Raises ConnectError.
        """

    def admitted(self, agents: list[RemoteAgent]) -> list[RemoteAgent]:
        """Return those of the connections that lead to the copy's files, by `admission`."""
        return agents

    def expect_lanes(self, options: Options, far: RemoteAgent) -> None:
        """Have the far end prepare for the direct lanes that spread() will open, if any will be."""
        return

    def spread(
        self, options: Options, agents: list[RemoteAgent], count: int, note: Callable[[str], None]
    ) -> None:
        """Replace the connections by so many direct lanes, if there are to be any, and can be."""
        return

    def carrier(self, options: Options) -> str:
        """Return what carries the lanes of a copy with these options."""
        return "ssh"

    @abc.abstractmethod
    def connect(self, options: Options, wanted: ConnectionRequest) -> RemoteAgent:
        """Open a further connection, or channel, of a lane. Never prompts. Raises ConnectError."""

    def begin_end(self) -> None:
        """Note that all of a copy has landed. Of several hosts, any may do what is left."""
        return

    def give(self, agents: list[RemoteAgent], note: Callable[[str], None] | None = None) -> None:
        """Keep connections for the next copy: the call that took them has ended.

        With a `note`, what the login printed and -q held back is shown: the copy has failed.
        """
        if note is not None:
            self.first.held.show(note)
        self.idle.give(agents)

    @abc.abstractmethod
    def remember(self, options: Options, is_push: bool, known: PathRecord) -> None:
        """Remember what a copy found best."""
