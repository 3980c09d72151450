"""The ways of a copy, {openssh, asyncssh, paramiko} x {agent, sftp} x {push, pull}: which are run.

A module with EVERY_WAY = True has its tests run over all of them, but for what a test's marks say.
Without --all-ways they run over what is USUAL in their folder, and each once over one of the
other ways: which one is told by its name, so it is the same in every run, and all ways are taken.

Not here: the fixtures named `way` (e2e/conftest.py, faults/conftest.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

import pytest

TRANSPORTS = ("openssh", "asyncssh", "paramiko")
REMOTES = ("agent", "sftp")
DIRECTIONS = ("push", "pull")
# name: what it is for, as `pytest --markers` says it
MARKS = {
    "needs_agent": "needs_agent(DIRECTION..., reason=WHY): not over SFTP",
    "needs_openssh": "needs_openssh(reason=WHY): not over asyncssh and paramiko",
}


class Combination(NamedTuple):
    direction: str
    transport: str
    remote: str

    @property
    def name(self) -> str:
        """What goes without saying is left out: push, pull-sftp, push-paramiko-sftp."""
        words = [self.direction, self.transport, self.remote]
        return "-".join(word for word in words if word not in ("openssh", "agent"))


# By folder, what is run of every test: (transport, remote).
USUAL = {
    "e2e": [("openssh", "agent"), ("openssh", "sftp")],
    "faults": [("openssh", "agent")],
}
ALL = [Combination(d, t, r) for t in TRANSPORTS for r in REMOTES for d in DIRECTIONS]


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


def left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Of each test, whatever its other parameters, the unusual ways but one."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        way = callspec.params.get("way") if callspec is not None else None
        if isinstance(way, Combination) and way[1:] not in USUAL[item.path.parent.name]:
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, group in groups.items():
        del group[zlib.crc32(name.encode()) % len(group)]
    return {item for group in groups.values() for item in group}
