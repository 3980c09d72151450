"""A command line that is run in this process, over connections that are open already.

It is read, shown and judged by the command's own main(); only its copy goes over a session in place
of a login of its own, which is ten times what all else of it takes. What it is no copy for, or what
asks for other connections, is not run so.

Not here: how a command itself begins, logs in and ends (test_copy_ssh.py and others of `own`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import shared
from servers.private import PrivateServer

import pscp
from pscp.calls import api, verifying
from pscp.calls.call_arguments import host_of
from pscp.cli import copy as cli
from pscp.cli import verify
from pscp.ground.errors import PscpError
from pscp.ground.locations import Location
from pscp.options.connection_options import ConnectionOptions
from pscp.options.options import Options

SHOWN = {"quiet", "verbose", "itemize", "debug", "progress", "stats", "syslog"}
OF_A_LOGIN = {each.name for each in dataclasses.fields(ConnectionOptions)} - SHOWN | {"verify"}


def connected(server: PrivateServer, folder: Path, **fields: Any) -> pscp.Session:
    """Return a session that has logged in: no copy will. For that it copies a file here."""
    (folder / "file").touch()
    session = pscp.Session(
        server.host, config_file=server.ssh_config, batch=True, connections=1, **fields
    )
    try:
        session.copy(str(folder / "file"), f"{server.host}:{folder}/copy")
    except BaseException:
        session.close()
        raise
    return session


def goes_over(session: pscp.Session, words: Sequence[str]) -> bool:
    """Is it a copy, from or to the host of the session, that needs no other connection?"""
    command = _read(cli.parse, words)
    if not isinstance(command, cli.Command):
        return False
    ends = [*command.sources, command.destination]
    is_one = command.sources[0].is_remote != command.destination.is_remote
    return is_one and _is_for(session, ends, command.options)


def verifies_over(session: pscp.Session, words: Sequence[str]) -> bool:
    """As goes_over(), of pscp-verify."""
    command = _read(verify.parse, words)
    return (
        isinstance(command, verify.Command)
        and command.root.is_remote
        and _is_for(session, [command.root], command.options)
    )


def run_over(session: pscp.Session, words: Sequence[str]) -> tuple[int, str, str]:
    """Run the command; returns its exit status, and what it wrote."""

    def copy(sources: Any, destination: Any, *, options: Options, **others: Any) -> pscp.Result:
        shown, terms = (others["reporter"], None, None), others["terms"]
        with _open_again(session):
            return session._copy(
                sources, destination, options, shown, keep_digests=False, terms=terms
            )

    with pytest.MonkeyPatch.context() as patch, _written(patch) as written, _limits():
        patch.setattr(api, "copy", copy)
        code = cli.main(list(words))
    out, err = written
    return code, out, err


def verify_over(session: pscp.Session, words: Sequence[str]) -> tuple[int, str, str]:
    """As run_over(), of pscp-verify."""
    connections = contextlib.nullcontext(session.connections)

    def compared(*given: Any, **others: Any) -> pscp.Verified:
        with _open_again(session):
            return verifying.verify(*given, **others)

    with pytest.MonkeyPatch.context() as patch, _written(patch) as written, _limits():
        patch.setattr(verifying, "OneHost", lambda where: connections)
        patch.setattr(verify, "verify", compared)
        code = verify.main(list(words))
    out, err = written
    return code, out, err


@contextlib.contextmanager
def _open_again(session: pscp.Session) -> Iterator[None]:
    """Have a connection after an error as well, which ends what there was."""
    try:
        yield
    except PscpError:
        with shared(lambda: contextlib.nullcontext(_logged_in(session))):
            raise


def _logged_in(session: pscp.Session) -> pscp.Result:
    return session.copy(__file__, f"{session.host.text}copy", dry_run=True)


def _read(parse: Callable[[Sequence[str]], object], words: Sequence[str]) -> object:
    """What they say, if they can be run here; signals are for the main thread."""
    with contextlib.suppress(PscpError):
        if threading.current_thread() is threading.main_thread():
            return parse(words)
    return None


def _is_for(session: pscp.Session, ends: Sequence[Location], options: Options) -> bool:
    hosts = {host_of(end) for end in ends if end.is_remote}
    return hosts == {host_of(session.host)} and all(
        getattr(options, name) == getattr(session.options, name) for name in OF_A_LOGIN
    )


@contextlib.contextmanager
def _written(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Have what is written to standard output and error, when the block is over."""
    found: list[str] = []
    with contextlib.ExitStack() as stack:
        patch.setattr(sys, "stdin", stack.enter_context(open(os.devnull)))
        raws = [stack.enter_context(tempfile.TemporaryFile()) for _ in "oe"]
        for raw, name in zip(raws, ("stdout", "stderr"), strict=True):
            its: Any = {"buffering": 1, "errors": "backslashreplace"} if name == "stderr" else {}
            file = stack.enter_context(open(raw.fileno(), "w", closefd=False, **its))
            patch.setattr(sys, name, file)
        yield found
        for raw, text in zip(raws, (sys.stdout, sys.stderr), strict=True):
            text.flush()
            raw.seek(0)
            found.append(os.fsdecode(raw.read()))


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """A command may have more descriptors than the tests."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
