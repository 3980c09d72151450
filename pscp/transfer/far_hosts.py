"""The connections to several hosts that see the same files: lanes go to them in turn.

The first host that answers is asked what a copy settles first; the others give lanes alone.
A host that cannot be reached is left out, and what it would have done is done by the others.

Not here: one host's connections (../connect/one_host.py), whether the hosts see the same files
(one_place.py).
Read next: one_place.py.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.connections import Admission, ConnectionRequest, Connections
from pscp.connect.first_login import NOTHING_AHEAD, Ahead, Worth
from pscp.connect.known.host_memory import HostMemory, PathRecord
from pscp.connect.messages import about, named, noting
from pscp.connect.one_host import OneHost
from pscp.ground import errors, stops
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.options.options import Options
from pscp.transports import Channel

_PAUSE_MAX_S = 60  # for which a host that failed gets no lanes while others do
_LOST = 2  # connections that failed one after the other: the host is lost

_log = Log("transfer")


class _Member:
    """One of the hosts. The lock of FarHosts guards what changes."""

    def __init__(self, place: Location) -> None:
        self.place, self.connections = place, OneHost(place)
        self.answered = False  # when the copy began; else it gives no lanes
        self.failed = 0  # connections, one after the other
        self.rests_until_s = 0.0
        self.is_noted = False  # people know that it is lost


class FarHosts(Connections):
    """The connections of a session to several hosts. Any thread may use it, as Connections says."""

    def __init__(self, place: Location) -> None:
        super().__init__(place)
        self._has_begun = False  # changed by the main thread
        self._members = [_Member(each) for each in place.each_host]
        self.first = self._members[0].connections.first
        self._is_ending = False
        self._lock = threading.Lock()  # guards what follows, and the members
        self._turns = itertools.count()
        self._member_of = weakref.WeakKeyDictionary[Channel, _Member]()
        self._admitted = weakref.WeakKeyDictionary[Channel, object]()  # by whose question
        self._note: Callable[[str], None] = lambda text: None  # of the latest copy

    # --- what all of them do

    def check(self, options: Options, is_push: bool) -> list[str]:
        each = [member.connections.check(options, is_push) for member in self._members]
        return list(dict.fromkeys(itertools.chain(*each)))

    def has_bbr(self, options: Options) -> bool:
        return self._members[0].connections.has_bbr(options)

    @property
    def has_one_login(self) -> bool:
        return any(each.connections.has_one_login for each in self._members if each.answered)

    def close(self, *, is_cut: bool = False) -> None:
        if not self.is_foreign:
            self.idle.close(is_cut=is_cut)
        for each in self._members:
            each.connections.close(is_cut=is_cut)

    def start_logins(self, options: Options, *, is_push: bool, worth: Worth | None) -> None:
        """Have ssh begin to log in at each host, once; where one is enough, at the first.

        Not where connections are open.
        """
        if self.idle.keep_only(list):
            return
        for each in self._asked(options):
            each.connections.start_logins(options, is_push=is_push, worth=None)

    def check_logins(self, options: Options, *, is_push: bool, worth: Worth | None) -> None:
        for each in self._asked(options):
            each.connections.check_logins(options, is_push=is_push, worth=None)

    def _asked(self, options: Options) -> list[_Member]:
        """Return the hosts that a copy begins with: not those that did not answer, or left it."""
        those = [each for each in self._members if each.answered or not self._has_begun]
        return those[: 1 if _needs_one(options) else None]

    # --- a copy's first connections

    def take(
        self, options: Options, note: Callable[[str], None], ahead: Ahead = NOTHING_AHEAD
    ) -> list[RemoteAgent]:
        """Return a connection to each host that answers; others begin when there is work for them.

        Where nothing is written, one host is enough. Raises ConnectError where none answers.
        """
        self._note, self._is_ending = note, False
        for idle in self.idle.take(list):  # of the last copy: its host gives it again
            self._member_of[idle.channel].connections.idle.give([idle])
        until_s = time.monotonic() + (options.retry_for_s or 0)
        for attempt in itertools.count():
            found, problems = self._first_ones(options, note)
            pause_s = min(1 << attempt, _PAUSE_MAX_S)
            may_wait = problems and problems[0].retry and time.monotonic() + pause_s <= until_s
            if found or not may_wait:
                break
            stops.pause(pause_s)
        for error in problems if found else problems[1:]:  # else the first is raised
            note(f"{error.message}; left out")
        if not found:
            raise problems[0] if problems else self._none_left()
        self.count, self.left_out = len(found), self.left_out + len(problems)
        self._has_begun = True
        self.first = next(each for each in self._members if each.answered).connections.first
        return found

    def _first_ones(
        self, options: Options, note: Callable[[str], None]
    ) -> tuple[list[RemoteAgent], list[errors.ConnectError]]:
        """Return a connection to each host that answers, and why the others do not."""
        found, problems = list[RemoteAgent](), list[errors.ConnectError]()
        for each in self._members:
            if self._has_begun and not each.answered:  # it has not been checked
                continue
            if found and _needs_one(options):
                break
            try:
                its_note = noting(each.place, note)
                far, *more = each.connections.take(replace(options, retry_for_s=None), its_note)
                each.connections.idle.give(more)  # connect() returns them
            except errors.ConnectError as error:
                named(each.place, error)
                problems.append(error)
            else:
                self._note_member(far.channel, each)
                each.answered = True
                found.append(far)
        return found, problems

    def admitted(self, agents: list[RemoteAgent]) -> list[RemoteAgent]:
        """Return the connections to hosts that see the copy's files, of those that take() returned.

        Raises ConnectionLost where there is none.
        """
        good = self._those(self._those(agents, self._ask), self._check)
        if not good:
            raise self._none_left()
        return good

    def _those(
        self, agents: list[RemoteAgent], step: Callable[[RemoteAgent], None]
    ) -> list[RemoteAgent]:
        """Return those that a step succeeds with; the others are closed, their hosts left out."""
        good = list[RemoteAgent]()
        for far in agents:
            try:
                step(far)
            except errors.PscpError as error:
                self.leave_out(far, error.message)
                far.close()
            else:
                good.append(far)
        return good

    def _ask(self, far: RemoteAgent) -> None:
        """Ask a connection, once for each copy, whether its host sees the copy's files."""
        if (admission := self._admission_of(far)) is not None:
            admission.ask(far)

    def _check(self, far: RemoteAgent) -> None:
        """Take the answer, if it was asked. Raises PscpError where the host does not see them."""
        if (admission := self._admission_of(far)) is not None:
            admission.check(far)
            self._admitted[far.channel] = admission

    def _admission_of(self, far: RemoteAgent) -> Admission | None:
        """Return what a connection's host has still to show for this copy."""
        has_shown = self._admitted.get(far.channel) is self.admission
        return None if has_shown else self.admission

    def begin_end(self) -> None:
        """Note that all has landed: any host may do what is left, also one that connects too late
        to see the fence, and nobody is told of those that fail.
        """
        self._is_ending = True

    def remember(self, options: Options, is_push: bool, known: PathRecord) -> None:
        if self.has_one_login:
            known = known._replace(logins=1)
        HostMemory(self.host, options).remember(is_push, known)

    def place_of(self, far: RemoteAgent) -> Location:
        """Return the host of a connection, with the path as that host has it."""
        return self._member_of[far.channel].place

    def leave_out(self, far: RemoteAgent, why: str) -> None:
        """Have the host of this connection give no lanes to this copy."""
        member = self._member_of[far.channel]
        with self._lock:
            was_in, member.answered = member.answered, False
            self.left_out += was_in
        if was_in:
            self._note(f"{about(member.place, why)}; left out")

    # --- a further connection

    def connect(self, options: Options, wanted: ConnectionRequest) -> RemoteAgent:
        """Open a connection to the host whose turn it is, or to the next one that answers.

        One more channel goes to its connection's host. Raises the first host's ConnectError.
        """
        if wanted.connection_of is not None:
            member = self._member_of[wanted.connection_of]
            return self._connect(member, options, wanted)
        problem: errors.PscpError | None = None
        for member in self._in_turn():
            try:
                return self._connect(member, options, wanted)
            except errors.ConnectError as error:
                named(member.place, error)
                problem = problem or error
                self._failed(member, error)
        raise problem or self._none_left()

    def _none_left(self) -> errors.ConnectError:
        return errors.ConnectionLost(f"no host of {self.host.login} is left")

    def _connect(self, member: _Member, options: Options, wanted: ConnectionRequest) -> RemoteAgent:
        def opened(channel: Channel) -> None:
            self._note_member(channel, member)
            wanted.opened(channel)

        far = member.connections.connect(options, wanted._replace(opened=opened))
        if wanted.connection_of is None:  # its machine may have been started anew since
            try:
                self._ask(far)
                self._check(far)
            except errors.PscpError as error:
                is_left_out = not isinstance(error, errors.ConnectError)
                if not (is_left_out and self._is_ending):
                    far.close()
                    if is_left_out:
                        self.leave_out(far, error.message)
                    raise errors.ConnectionLost(error.message) from None
        with self._lock:
            member.failed, member.rests_until_s = 0, 0.0
        return far

    def _in_turn(self) -> Iterator[_Member]:
        """Yield the hosts, first the one whose turn it is; those that failed come last."""
        with self._lock:
            those = [each for each in self._members if each.answered]
            turn = next(self._turns) % max(len(those), 1)
            now_s = time.monotonic()
            ordered = sorted(
                those[turn:] + those[:turn], key=lambda each: max(each.rests_until_s - now_s, 0.0)
            )
        return iter(ordered)

    def _failed(self, member: _Member, error: errors.ConnectError) -> None:
        """Count a connection that failed, and tell people once that its host is lost."""
        with self._lock:
            member.failed += 1
            member.rests_until_s = time.monotonic() + min(1 << member.failed, _PAUSE_MAX_S)
            is_lost = isinstance(error, errors.Unreachable) or member.failed >= _LOST
            others = [each for each in self._members if each.answered and not each.failed]
            is_news = is_lost and not (member.is_noted or self._is_ending) and bool(others)
            member.is_noted = member.is_noted or is_news
        _log.debug("%s failed: %s", member.place.login, error.message)
        if is_news:
            self._note(f"{error.message}; the other hosts go on")

    def _note_member(self, channel: Channel, member: _Member) -> None:
        with self._lock:
            self._member_of[channel] = member


def _needs_one(options: Options) -> bool:
    """Return whether one host is enough, since nothing is copied."""
    return options.dry_run or options.check


def connections_to(host: Location) -> Connections:
    """Return the connections to one host, or to several that see one place."""
    return FarHosts(host) if host.others else OneHost(host)
