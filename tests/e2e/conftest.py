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
    here = tmp_path_factory.mktemp("warm")
    (here / "file").touch()

    def warm() -> pscp.Session:
        session = pscp.Session(sshd.host, config_file=sshd.ssh_config, batch=True, connections=1)
        try:
            session.copy(str(here / "file"), f"{sshd.host}:{here}/copy")
        except BaseException:
            session.close()
            raise
        return session

    with shared(warm) as session:  # type: ignore[arg-type, type-var]
        yield session


@pytest.fixture(params=["push", "pull"])
def way(
    request: pytest.FixtureRequest, sshd: PrivateServer, kept: pscp.Session, tmp_path: Path
) -> Way:
    """Each direction, over connections that are open already where the API is used."""
    source, destination = tmp_path / "source", tmp_path / "destination"
    source.mkdir()
    destination.mkdir()
    return Way(request.param == "push", sshd, source, destination, kept)


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
