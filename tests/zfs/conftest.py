"""Fixtures of the ZFS tests: two ends with real pools, and a pair of datasets for each test.

Not here: the daemons (fuse.py), the link (standin.py). Read next: fuse.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol, Unpack

import pytest
from conftest import MakeServer, command_line, shared, started_processes
from e2e.world import World, make_world, put_program
from faults.conftest import until
from servers.private import PrivateServer

from pscp.options.option_fields import ReplicateFields
from pscp.progress.progress import Counters, Notes
from pscp.zfs.link import Link
from pscp.zfs.replicate import Connect, Replicated, replicate
from zfs.fuse import Daemon
from zfs.standin import Standin

_numbers = itertools.count()


class Kept(Notes):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def line(self, text: str) -> None:
        self.lines.append(text)


class Pool(Protocol):
    """A pool, and the command that speaks to its ZFS."""

    pool: str

    @property
    def zfs(self) -> tuple[str, ...]: ...

    def do(self, *words: str) -> str: ...

    def destroy(self, *words: str) -> None: ...

    def exists(self, name: str) -> bool: ...

    def write(self, dataset: str, name: str, count: int) -> None: ...

    def folder(self, dataset: str) -> Path: ...

    def guids(self, dataset: str) -> dict[str, str]: ...

    def contents(self, snapshot: str) -> object: ...


@dataclasses.dataclass
class Ends:
    """A source and a destination; `pull` has the far end send, else it receives."""

    sender: Pool
    receiver: Pool
    source: str
    dest: str
    is_push: bool = True
    host: str = "host"
    over_ssh: ReplicateFields | None = None  # else the plain link

    def __post_init__(self) -> None:
        self.link = Standin()
        self.told = Kept()
        self.seconds: Iterator[int] = itertools.count(1_000_000_000)
        self._compared: set[tuple[str, str]] = set()  # snapshots, and when each came to be

    def replicate(
        self, *, connect: Connect | None = None,
        progress: Callable[[Counters], object] | None = None, raises: bool = False,
        **chosen: Unpack[ReplicateFields],
    ) -> Replicated:  # fmt: skip
        near, far = (self.sender, self.receiver) if self.is_push else (self.receiver, self.sender)
        chosen = {
            "zfs_command": shlex.join(near.zfs), "far_zfs_command": shlex.join(far.zfs),
            **(self.over_ssh or {}), **chosen,
        }  # fmt: skip
        if connect is None:
            connect = Link if self.over_ssh else self._connect
        return replicate(
            *self.places,
            reporter=self.told,
            connect=connect,
            progress=progress,
            raises=raises,
            **chosen,
        )

    def night(self, prefix: str = "night", **chosen: Unpack[ReplicateFields]) -> Replicated:
        """A replication that takes PREFIX-{time}, by a clock that is a second on each time."""
        at_s = next(self.seconds)
        clock = SimpleNamespace(time=lambda: at_s, gmtime=time.gmtime, strftime=time.strftime)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pscp.zfs.settings.time", clock)
            chosen["snapshot_name"] = f"{prefix}-{{time}}"
            return self.replicate(**chosen)

    @property
    def places(self) -> tuple[str, str]:
        """As they are typed."""
        if self.is_push:
            return self.source, f"{self.host}:{self.dest}"
        return f"{self.host}:{self.source}", self.dest

    def _connect(self, *_: object) -> Standin:
        self.link.closed = False
        return self.link

    # --- the source changes

    def create(self, *below: str) -> None:
        for each in below:
            self.sender.do("create", f"{self.source}{each}")

    def write(self, name: str, count: int = 20_000, below: str = "") -> None:
        self.sender.write(f"{self.source}{below}", name, count)

    def snapshot(self, name: str, *flags: str, below: str = "") -> None:
        self.sender.do("snapshot", *flags, f"{self.source}{below}@{name}")

    def grow(self, *names: str) -> None:
        """A file and a snapshot for each name."""
        for name in names:
            self.write(name)
            self.snapshot(name)

    # --- what must hold

    def received(self, below: str = "") -> list[str]:
        """The destination's snapshots; each is the source's of that name in GUID, the last one also
        in contents.

        What was compared and is there still is not compared again: none changes.
        """
        source, dest = f"{self.source}{below}", f"{self.dest}{below}"
        there, here = self.receiver.guids(dest), self.sender.guids(source)
        assert there.items() <= here.items()
        if there:
            self._compare(list(there)[-1], source, dest)
        return list(there)

    def _compare(self, name: str, source: str, dest: str) -> None:
        of = ("get", "-Hp", "-o", "value", "createtxg", f"{dest}@{name}")
        born = f"{dest}@{name}", self.receiver.do(*of)
        if born not in self._compared:
            here, there = (f"{dataset}@{name}" for dataset in (source, dest))
            assert self.sender.contents(here) == self.receiver.contents(there)
            self._compared.add(born)

    def compare_all(self) -> None:
        """The contents of every snapshot that the destination has."""
        for name in self.receiver.guids(self.dest):
            self._compare(name, self.source, self.dest)


@pytest.fixture(scope="session")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    """Two ends, each a zfs-fuse with a pool."""
    folder: Path = tmp_path_factory.mktemp("pools")
    with (
        shared(lambda: Daemon(folder, "tank")) as one,
        shared(lambda: Daemon(folder, "vault")) as two,
    ):
        yield one, two


def make_ends(daemons: tuple[Daemon, Daemon], is_push: bool) -> Iterator[Ends]:
    one, two = daemons
    number = next(_numbers)
    ends = Ends(one, two, f"tank/t{number}", f"vault/t{number}", is_push)
    one.do("create", ends.source)
    yield ends
    for pool, dataset in ((one, ends.source), (two, ends.dest)):
        with contextlib.suppress(RuntimeError):  # a killed zfs send of zfs-fuse leaves holds behind
            pool.do("destroy", "-r", dataset)


@pytest.fixture(params=["push", "pull"])
def ends(request: pytest.FixtureRequest, daemons: tuple[Daemon, Daemon]) -> Iterator[Ends]:
    """Each direction."""
    yield from make_ends(daemons, request.param == "push")


@pytest.fixture(params=["push", "pull"])
def far(
    request: pytest.FixtureRequest, daemons: tuple[Daemon, Daemon], sshd: PrivateServer
) -> Iterator[Ends]:
    """Each direction, over pscp's own connections to a real sshd."""
    for ends in make_ends(daemons, request.param == "push"):
        ends.host = sshd.host
        ends.over_ssh = {"config_file": sshd.ssh_config, "connections": 2, "batch": True}
        yield ends
        end_agents()


def is_agent(pid: int) -> bool:
    return " -IS -c import sys;" in command_line(pid)


def end_agents() -> None:
    """A far agent that lost its lane amidst a stream waits for others, for up to a minute."""
    for process in started_processes():
        if is_agent(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)


@pytest.fixture
def near_and_far(
    daemons: tuple[Daemon, Daemon], make_sshd: MakeServer, tmp_path: Path, far_home: Path
) -> Iterator[tuple[World, Ends]]:
    """A push; `zfs` on the PATH is this end's here, and the other's at `host`."""
    there = tmp_path / "there"
    there.mkdir()
    put_program(there / "python3", (sys.executable,))
    put_program(there / "doas", ("env",))
    server = make_sshd(environment={"PATH": f"{there}:/usr/local/bin:/usr/bin:/bin"})
    with make_world(tmp_path, far_home, server) as world:
        for ends in make_ends(daemons, True):
            put_zfs(world, ends.sender, ends.receiver)
            yield world, ends
            end_agents()


def until_free(pool: Pool, dataset: str) -> None:
    """Wait until one that was unmounted can be renamed; zfs-fuse does not await the kernel."""

    def is_free() -> bool:
        try:
            pool.do("rename", dataset, f"{dataset}-free")
        except RuntimeError:
            return False
        pool.do("rename", f"{dataset}-free", dataset)
        return True

    until(is_free)


def put_zfs(world: World, near: Pool, far: Pool) -> None:
    """Make these the ends."""
    put_program(world.programs / "zfs", near.zfs)
    put_program(world.programs.parent / "there" / "zfs", far.zfs)


@pytest.fixture
def push(daemons: tuple[Daemon, Daemon]) -> Iterator[Ends]:
    """One direction: for what does not depend on it."""
    yield from make_ends(daemons, True)
