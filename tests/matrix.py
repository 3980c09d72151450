"""The ways of a copy, {openssh, asyncssh, paramiko} x {agent, sftp} x {push, pull}: which are run.

Beside these there are the direct planes, tls and plain, over openssh and with an agent.

A module with EVERY_WAY = True has its tests run over all of them, but for what a test's marks say.
Without --all-ways a test of e2e runs over one way of each program: with an agent, which is the same
program in both directions, as SFTP's client that writes, and as the one that reads. A test of
faults runs over one way in each direction, since it is not the same end that is hurt. Of a test
with several sets of parameters this is so for the first set; each other one is run over one of the
ways that are usual. Which one is told by the name, so it is the same in every run, and all ways are
taken, the usual ones most often.

Not here: the fixtures named `way` (e2e/conftest.py, faults/conftest.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

LIBRARIES = "asyncssh", "paramiko"
TRANSPORTS = "openssh", *LIBRARIES
PLANES = ("tls", "plain")
REMOTES = ("agent", "sftp")
DIRECTIONS = ("push", "pull")
# name: what it is for, as `pytest --markers` says it
MARKS = {
    "needs_agent": "needs_agent(DIRECTION..., reason=WHY): not over SFTP",
    "needs_openssh": "needs_openssh(reason=WHY): not over asyncssh and paramiko",
    "needs_ssh": "needs_ssh(reason=WHY): not over a direct plane",
    "differs_by_way": "differs_by_way(reason=WHY): each set of parameters over each kind of way",
}


class Combination(NamedTuple):
    direction: str
    transport: Any  # or the direct plane
    remote: Any

    @property
    def plane(self) -> str:
        return self.transport if self.transport in PLANES else "auto"

    @property
    def opened_by(self) -> str:
        """The transport by name."""
        return "openssh" if self.transport in PLANES else self.transport

    @property
    def name(self) -> str:
        """What goes without saying is left out: push, pull-sftp, push-paramiko-sftp."""
        words = [self.direction, self.transport, self.remote]
        return "-".join(word for word in words if word not in ("openssh", "agent"))


# By folder, (transport, remote); taken so many times as often as another.
USUAL = {"e2e": [("openssh", "agent"), ("openssh", "sftp")], "faults": [("openssh", "agent")]}
OFTEN = 12  # a library takes twice as long to begin, and has tests of its own (conformance/)
ALL = [Combination(d, t, r) for t in TRANSPORTS for r in REMOTES for d in DIRECTIONS]
ALL += [Combination(direction, plane, "agent") for plane in PLANES for direction in DIRECTIONS]


def ways_of(metafunc: pytest.Metafunc) -> list[Combination]:
    """Those over which this test means something."""
    directions = [each for each in DIRECTIONS if each in metafunc.fixturenames] or DIRECTIONS
    found = [each for each in ALL if each.direction in directions]
    if not getattr(metafunc.module, "EVERY_WAY", False):
        return [each for each in found if each[1:] == ("openssh", "agent")]
    if mark := mark_of(metafunc, "needs_agent"):
        without = mark.args or DIRECTIONS
        found = [e for e in found if e.remote == "agent" or e.direction not in without]
    if mark_of(metafunc, "needs_openssh"):
        found = [each for each in found if each.transport == "openssh"]
    if mark_of(metafunc, "needs_ssh"):
        found = [each for each in found if each.plane == "auto"]
    return found


def mark_of(metafunc: pytest.Metafunc, name: str) -> pytest.Mark | None:
    mark: pytest.Mark | None = metafunc.definition.get_closest_marker(name)
    if mark is not None and not mark.kwargs.get("reason"):
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: {name} without a reason")
    return mark


def parametrize(metafunc: pytest.Metafunc, fixture: str = "way") -> None:
    """A test that takes the fixture runs once for each of its ways."""
    if fixture in metafunc.fixturenames:
        ways = ways_of(metafunc)
        metafunc.parametrize(fixture, ways, indirect=True, ids=[each.name for each in ways])


def kind_of(way: Combination, folder: str) -> str:
    """Of the ways of one kind a test of this folder is run over one."""
    if folder == "e2e":
        return way.remote if way.remote == "agent" else f"{way.remote} {way.direction}"
    return way.direction


def left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The ways over which a test, or a further set of its parameters, does not run."""
    groups: dict[str, list[pytest.Item]] = {}  # of each of these one is run
    first: dict[str, str] = {}  # set of parameters of each test
    without = set[pytest.Item]()
    for item in items:
        callspec = getattr(item, "callspec", None)
        way = callspec.params.get("way") if callspec is not None else None
        if callspec is None or not isinstance(way, Combination):
            continue
        test, others = item.nodeid.partition("[")[0], callspec.id.removeprefix(way.name)
        folder = item.path.parent.name
        kind, is_usual = kind_of(way, folder), way[1:] in USUAL[folder]
        if others != first.setdefault(test, others):
            if not is_usual:
                without.add(item)
                continue
            kind = kind if differs_by_way(item) else ""
        group = groups.setdefault(f"{test} {others} {kind}", [])
        group.extend([item] * (OFTEN if is_usual else 1))
    for name, group in groups.items():
        without.update(set(group) - {group[zlib.crc32(name.encode()) % len(group)]})
    return without


def differs_by_way(item: pytest.Item) -> bool:
    return item.get_closest_marker("differs_by_way") is not None
