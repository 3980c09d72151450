"""Whether the hosts of one end see the same files: found out before the first byte, since lanes to
all of them write into one part, and locks at the destination keep out what comes late.

At a destination the first host makes a file, holds it locked, writes it anew and removes it; each
time the others must see that at once. Of sources all hosts must say the same.

Not here: the hosts' connections (far_hosts.py), what an agent does (../endpoint/writing/seen.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pscp.connect.agent_program import copy_modules
from pscp.connect.bootstrap import RemoteAgent, shaped
from pscp.connect.connections import Connections
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading import source
from pscp.endpoint.reading.paths import part_name, to_text
from pscp.endpoint.writing import seen
from pscp.endpoint.writing.fence import fence_name
from pscp.ground import errors
from pscp.transfer.far_hosts import FarHosts
from pscp.transfer.pieces import answers
from pscp.transfer.terms.copy_terms import CopyRequest

_SOURCES_MOST = 64  # that are compared
_TRIES = 3  # for sources in which something is just being made
_TEXTS = "made", "and written anew"  # what the file has, one after the other
_FIRST = "<first>"  # stands for the first host's name
_MOUNT = "mount it so that all hosts see each other's changes and locks at once: docs/many-hosts.md"
_ONE = "name one of the hosts alone, or mount the file system on all"


def check_hosts(
    request: CopyRequest,
    agents: list[RemoteAgent],
    tops: Sequence[source.Top],
    token: str,
    nonce: str,
) -> None:
    """Make sure that the hosts of each end see the same files. Raises CopyError, ConnectError.

    A host that is lost meanwhile is left out: its connection is closed and leaves the list.
    """
    if request.options.transfer_test:  # nothing is written
        return
    sources = request.connections, agents
    if request.is_push:
        _check(*sources, lambda asking: check_sink(asking, request, token + nonce))
        if request.far_source is None:
            return
        sources = request.far_source.connections, request.far_source.agents
    paths = [top.path for top in tops][:_SOURCES_MOST]
    own = _check(*sources, lambda asking: check_sources(asking, paths))
    sources[0].admission = AdmissionByAnswer(seen.Sources(paths), own)


def admit_by_fence(connections: Connections, root: str, token: str) -> None:
    """From now on let a host give further lanes only if it sees the copy's fence."""
    connections.admission = AdmissionByAnswer(seen.Look(root, to_text(fence_name(token))))


@dataclass(frozen=True)
class AdmissionByAnswer:
    """Admits a host to a copy if its answer to a request shows that it sees the copy's files."""

    request: requests.Request
    sources: object = None  # what the first host answered; None: any answer but null will do

    def ask(self, far: RemoteAgent) -> None:
        """Ask the host of this connection; others may be asked before it answers."""
        far.ask_early(requests.Learn(copy_modules(["seen"])))
        far.ask_early(self.request)

    def check(self, far: RemoteAgent) -> None:
        """Raise CopyError where the host, which was asked, does not see the files."""
        with shaped():
            its = _answer(self.request, far.early_answer())
            is_admitted = has_any(its, self.sources) if self.sources else its is not None
        if not is_admitted:
            raise errors.CopyError("it does not see this copy's files any more")


class Asked(Protocol):
    """Asks several hosts whether they see one place: the first shows it, the others look."""

    def first(self, request: requests.Request, /) -> object:
        """Return the first one's answer. Raises DestinationError for a failure."""

    def others(self, request: requests.Request, /) -> list[tuple[str, object]]:
        """Return the others' names and answers, or failures' data."""

    def name(self) -> str:
        """Return the first one's name."""


class _Lost(Exception):
    """Raised where a host is lost while it is asked."""


class _Asking:
    """The hosts that are asked: the first shows, the others look."""

    def __init__(self, hosts: FarHosts, agents: list[RemoteAgent]) -> None:
        self._hosts, self._agents = hosts, agents

    def learn(self, far: RemoteAgent) -> None:
        self._of(far, lambda far: far.ask_early(requests.Learn(copy_modules(["seen"]))))

    def first(self, request: requests.Request) -> object:
        return self._of(self._agents[0], lambda far: _answer(request, far.ask(request)))

    def others(self, request: requests.Request) -> list[tuple[str, object]]:
        """Return each other host's name and answer."""
        others = self._agents[1:]
        for far in others:
            self._of(far, lambda far: far.ask_early(request))
        return [
            (self.name(far), self._of(far, lambda far: far.early_answer()[0])) for far in others
        ]

    def name(self, far: RemoteAgent | None = None) -> str:
        return self._hosts.place_of(far or self._agents[0]).login

    def _of(self, far: RemoteAgent, ask: Callable[[RemoteAgent], object]) -> object:
        try:
            return ask(far)
        except errors.ConnectError as error:
            self._hosts.leave_out(far, error.message)
            self._agents.remove(far)
            far.close()
            raise _Lost from error


def _check(
    connections: Connections, agents: list[RemoteAgent], check: Callable[[_Asking], object]
) -> object:
    """Check the agents' hosts, anew without one that is lost meanwhile; return what was found."""
    if not isinstance(connections, FarHosts):
        return None
    asking, ignorant = _Asking(connections, agents), [*agents]
    while True:
        try:
            with shaped():
                while ignorant:
                    asking.learn(ignorant.pop(0))
                return check(asking)
        except _Lost as lost:
            if not agents:
                assert isinstance(lost.__cause__, errors.ConnectError)
                raise lost.__cause__ from None


def check_sink(asking: Asked, request: CopyRequest, own: str) -> None:
    """Make sure that all see at once what the first makes at the destination, in a file whose name
    has `own` in it. Raises DestinationError.
    """
    name = to_text(part_name(b"seen", own))
    folder = answers.text(asking.first(seen.Nearest(request.to_path)))
    asking.first(seen.Show(folder, name, ""))  # of a host that was lost
    _compare(asking, folder, name, None)  # a host may keep in mind that there is none
    try:
        for text in _TEXTS:
            shown = asking.first(seen.Show(folder, name, text))
            _compare(asking, folder, name, shown, device=request.options.delete)
    except BaseException:
        with contextlib.suppress(errors.PscpError, _Lost, IndexError):
            asking.first(seen.Show(folder, name, ""))
        raise
    asking.first(seen.Show(folder, name, ""))
    _compare(asking, folder, name, None)


def _compare(asking: Asked, folder: str, name: str, shown: object, *, device: bool = False) -> None:
    """Raise DestinationError where a host sees the file otherwise than the first one showed it."""
    for host, looked in asking.others(seen.Look(folder, name)):
        if why := _difference(shown, looked, device=device):
            problem, hint = why
            asking.first(requests.Ping())  # what it showed ends with it
            message = problem.replace(_FIRST, asking.name())
            raise errors.DestinationError(f"{host}:{folder}: {message}", hint)


def _difference(shown: object, looked: object, *, device: bool) -> tuple[str, str] | None:
    """Return what is wrong and what to do, if anything is."""
    if isinstance(looked, dict):
        return failures.parse_failure(looked)["message"], _MOUNT
    if shown is None:
        return None if looked is None else (f"it still sees what {_FIRST} has removed", _MOUNT)
    if looked is None:
        return f"it does not see what {_FIRST} makes there: they share no file system", _ONE
    user, inode, its_device, text = answers.items(shown)
    its = answers.items(looked)
    if its[0] != user:
        return f"it is user {its[0]} there, and {user} at {_FIRST}", "log in as one user"
    if its[3] != text:
        return f"it sees too late what {_FIRST} writes", _MOUNT
    if not its[4]:
        return f"a lock that {_FIRST} holds is not seen", _MOUNT
    if its[1] != inode:
        return f"a file has another inode number than at {_FIRST}", _MOUNT
    if device and its[2] != its_device:
        return f"it has another device number than at {_FIRST}, and --delete needs the same", _ONE
    return None


def check_sources(asking: Asked, paths: list[str]) -> object:
    """Return what the first one has for sources. Raises CopyError where another host differs."""
    differs, seen_first = "", list[object]()
    for _ in range(_TRIES):
        own = asking.first(seen.Sources(paths))
        seen_first += [own] if own not in seen_first else []
        # What changes meanwhile is told by its inode number.
        is_busy = len(seen_first) > 1
        found = [
            host
            for host, looked in asking.others(seen.Sources(paths))
            if looked != own and not (is_busy and _has_all(looked, own))
        ]
        if not found:
            return own
        differs = found[0]
    what = f"it has other files there than {asking.name()}, or another user"
    raise errors.CopyError(f"{differs}:{paths[0]}: {what}", _ONE)


def _inodes(found: object) -> list[object]:
    """Return the user and the sources' inode numbers of an answer to Sources."""
    user, *sources = answers.items(found)
    return [user, *(answers.items(each)[0] for each in sources)]


def _has_all(its: object, own: object) -> bool:
    return not isinstance(its, dict) and _inodes(its) == _inodes(own)


def has_any(its: object, own: object) -> bool:
    """Return whether any source is the one that it was; others may have been replaced."""
    return any(now == then for now, then in zip(_inodes(its)[1:], _inodes(own)[1:], strict=True))


def _answer(request: requests.Request, answered: tuple[object, bool]) -> object:
    """Return the answer of a RemoteAgent. Raises DestinationError for a failure."""
    answer, is_failed = answered
    return checked(request, answer) if is_failed else answer


def checked(request: requests.Request, answer: object) -> object:
    """Return an answer. Raises DestinationError for a failure's data."""
    if not isinstance(answer, dict):
        return answer
    failure = failures.parse_failure(answer)
    where, what = failure["path"], failure["message"]
    if isinstance(request, seen.Show):
        where, what = request.folder, f"no file can be made and locked there: {what}"
    raise errors.DestinationError(f"{where}: {what}", _MOUNT)
