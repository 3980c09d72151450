"""Fixtures of the end-to-end tests: both directions, and ends without root's powers.

Not here: the servers themselves (../conftest.py). Read next: ways.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matrix
import pytest
from conftest import PATIENCE_S, QUICK_LOGINS, MakeFar, require_sshd, shared, unavailable
from forked import POWERLESS
from programs import script
from servers.private import PrivateServer, SshdServer

import pscp
from e2e.kept_command import connected
from e2e.ways import Way
from pscp.connect import greeting
from pscp.transfer import lane_pool

ShellThat = Callable[[str], str]
SshdThat = Callable[[str], PrivateServer]
WriteConfig = Callable[..., str]
Kept = Callable[[str, str, str], pscp.Session]


@pytest.fixture(scope="package")
def kept(sshd: PrivateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """kept(transport, remote, plane): a session that is connected: no copy logs in.

    On a busy machine as well: a connection in the place of one that was given up, since its lane
    took three seconds to end, would be taken for something that the test has left behind.
    """
    here = tmp_path_factory.mktemp("warm")

    def warm(transport: Any, remote: Any, plane: Any) -> pscp.Session:
        return connected(sshd, here, transport=transport, remote=remote, plane=plane)

    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_pool, "_END_S", PATIENCE_S)
        patch.setattr(greeting, "_SILENT_S", PATIENCE_S)

        @functools.cache
        def session_of(transport: Any, remote: str, plane: str) -> pscp.Session:
            opened = shared(lambda: warm(transport, remote, plane))
            return stack.enter_context(opened)

        yield session_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    matrix.parametrize(metafunc)


@pytest.fixture
def way(request: pytest.FixtureRequest, sshd: PrivateServer, kept: Kept, tmp_path: Path) -> Way:
    """Each direction, over connections that are open already where the API is used."""
    combination: matrix.Combination = request.param
    transport, remote, plane = combination.opened_by, combination.remote, combination.plane
    source, destination = tmp_path / "source", tmp_path / "destination"
    source.mkdir()
    destination.mkdir()
    session = kept(transport, remote, plane)
    return Way(
        combination.direction == "push",
        sshd,
        source,
        destination,
        session,
        session,
        remote=remote,
        transport=transport,
        plane=plane,
    )


@pytest.fixture
def push(sshd: PrivateServer, kept: Kept, tmp_path: Path) -> Way:
    """One direction, for what does not depend on it; API's copies have connections of their own."""
    source, destination = tmp_path / "source", tmp_path / "destination"
    source.mkdir()
    destination.mkdir()
    return Way(True, sshd, source, destination, of_commands=kept("auto", "agent", "auto"))


@pytest.fixture
def shell_that(tmp_path: Path) -> ShellThat:
    """shell_that(SCRIPT): a login shell that runs the script first, for make_sshd(shell=...).

    The script may end with an exec of its own; "$@" is what the far end is asked to run.
    """
    numbers = iter(range(100))

    def make(text: str) -> str:
        path = tmp_path / f"shell-{next(numbers)}"
        return str(script(path, f'{text}\nexec /bin/sh "$@"'))

    return make


@pytest.fixture(scope="package")
def sshd_that(make_far: MakeFar, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshdThat]:
    """sshd_that(SCRIPT): an sshd whose login shell runs the script first, for all tests."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def server_of(text: str) -> PrivateServer:
            require_sshd()
            path = tmp_path_factory.mktemp("shell") / "sh"
            shell = str(script(path, f'{text}\nexec /bin/sh "$@"'))
            its = make_far()
            started = shared(lambda: SshdServer(QUICK_LOGINS, environment=its, shell=shell))
            return stack.enter_context(started)

        yield server_of


@pytest.fixture
def config(sshd: PrivateServer, tmp_path: Path) -> WriteConfig:
    """config(name=value, ...): an ssh_config that says this first, then how to get there."""

    def write(*more: str, host: str = "*", **settings: object) -> str:
        lines = [f"Host {host}", *(f"{name} {value}" for name, value in settings.items()), *more]
        path = tmp_path / "ssh_config"
        path.write_text("\n".join([*lines, Path(sshd.ssh_config).read_text()]) + "\n")
        return str(path)

    return write


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A key, which `allowed` lists beside it, and another one, which `others` lists."""
    for name, signers, who in (("key", "allowed", "ada"), ("other", "others", "bob")):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(argv, check=True)
        public = (tmp_path / f"{name}.pub").read_text()
        (tmp_path / signers).write_text(f"{who}@example.org {public}")
    return tmp_path / "key"


@pytest.fixture
def powerless(way: Way, sshd_that: SshdThat) -> Way:
    """Each direction, between ends that may not do what a file's mode forbids."""
    if os.geteuid() != 0:
        return way
    if shutil.which(POWERLESS[0]) is None:
        unavailable(f"{POWERLESS[0]} is not installed, and the tests run as root")
    prefix = " ".join(POWERLESS)
    server = sshd_that(f'exec {prefix} /bin/sh "$@"')
    return dataclasses.replace(way.own, server=server, prefix=POWERLESS)


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on another file system than the tests'."""
    for disk in ("/dev/shm", "/var/tmp", "/run"):
        if os.access(disk, os.W_OK) and os.stat(disk).st_dev != tmp_path.stat().st_dev:
            folder = Path(disk, f"pscp-test-{os.getpid()}")
            folder.mkdir()
            yield folder
            shutil.rmtree(folder)
            return
    pytest.fail("there is no other file system to write to")


@pytest.fixture
def as_other(push: Way, sshd_that: SshdThat, other_disk: Path) -> Way:
    """A push to another user than root."""
    if os.geteuid() != 0:
        unavailable("this is not root, which alone logs in as another user")
    other_disk.chmod(0o755)
    os.chown(other_disk, 65534, 65534)
    server = sshd_that('exec setpriv --reuid=65534 --clear-groups /bin/sh "$@"')
    return dataclasses.replace(push.own, server=server, destination=other_disk)
