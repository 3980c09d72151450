"""Fixtures of the end-to-end tests: both directions, and ends without root's powers.

Not here: the servers themselves (../conftest.py). Read next: ways.py.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import MakeServer, shared, unavailable

import pscp
from e2e.ways import Way
from pscp.servers import PrivateServer

# Root reads and writes everything; without its capabilities a mode holds for it as for anyone.
POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")

ShellThat = Callable[[str], str]


@pytest.fixture(scope="package")
def kept(sshd: PrivateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pscp.Session]:
    """A session with one open connection: what is copied over it takes no login."""
    yield from kept_open(sshd, tmp_path_factory, "agent")


@pytest.fixture(scope="package")
def kept_sftp(
    sshd: PrivateServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pscp.Session]:
    """The same, over SFTP."""
    yield from kept_open(sshd, tmp_path_factory, "sftp")


def kept_open(
    sshd: PrivateServer, tmp_path_factory: pytest.TempPathFactory, remote: str
) -> Iterator[pscp.Session]:
    here = tmp_path_factory.mktemp("warm")
    (here / "file").touch()

    def warm() -> pscp.Session:
        session = pscp.Session(
            sshd.host, config_file=sshd.ssh_config, batch=True, connections=1, remote=remote
        )
        try:
            session.copy(str(here / "file"), f"{sshd.host}:{here}/copy")
        except BaseException:
            session.close()
            raise
        return session

    with shared(warm) as session:  # type: ignore[arg-type, type-var]
        yield session


DIRECTIONS = ["push", "pull"]
OVER_SFTP = ["push-sftp", "pull-sftp"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each direction with an agent; and over SFTP, for a module that says so, but for the tests
    in which the agent's abilities are the point.
    """
    if "way" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("needs_agent")
        without = (mark.args or DIRECTIONS) if mark else ()
        has_sftp = getattr(metafunc.module, "ALSO_OVER_SFTP", False)
        over_sftp = [each for each in OVER_SFTP if each.partition("-")[0] not in without]
        ways = DIRECTIONS + (over_sftp if has_sftp else [])
        metafunc.parametrize("way", ways, indirect=True)


@pytest.fixture
def way(request: pytest.FixtureRequest, sshd: PrivateServer, tmp_path: Path) -> Way:
    """Each direction, over connections that are open already where the API is used."""
    direction, _, sftp = request.param.partition("-")
    source, destination = tmp_path / "source", tmp_path / "destination"
    source.mkdir()
    destination.mkdir()
    session = request.getfixturevalue("kept_sftp" if sftp else "kept")
    remote = "sftp" if sftp else "agent"
    return Way(direction == "push", sshd, source, destination, session, remote=remote)


@pytest.fixture
def push(sshd: PrivateServer, tmp_path: Path) -> Way:
    """One direction, over connections of its own: for what does not depend on the direction."""
    source, destination = tmp_path / "source", tmp_path / "destination"
    source.mkdir()
    destination.mkdir()
    return Way(True, sshd, source, destination)


@pytest.fixture
def shell_that(tmp_path: Path) -> ShellThat:
    """shell_that(SCRIPT): a login shell that runs the script first, for make_sshd(shell=...).

    The script may end with an exec of its own; "$@" is what the far end is asked to run.
    """
    numbers = iter(range(100))

    def make(script: str) -> str:
        path = tmp_path / f"shell-{next(numbers)}"
        path.write_text(f'#!/bin/sh\n{script}\nexec /bin/sh "$@"\n')
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def powerless(way: Way, make_sshd: MakeServer, shell_that: ShellThat) -> Way:
    """Each direction, between ends that may not do what a file's mode forbids."""
    if os.geteuid() != 0:
        return way
    if shutil.which(POWERLESS[0]) is None:
        unavailable(f"{POWERLESS[0]} is not installed, and the tests run as root")
    prefix = " ".join(POWERLESS)
    server = make_sshd(shell=shell_that(f'exec {prefix} /bin/sh "$@"'))
    return dataclasses.replace(way, server=server, session=None, prefix=POWERLESS)
