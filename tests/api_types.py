"""What a type checker accepts and refuses of the Python API. Read by mypy; never run.

Each call below that has an `ignore` is one that mypy must refuse for just that reason: where it
accepts the call, it complains that there is nothing to ignore (warn_unused_ignores).

Not here: that the types are those of Options (unit/test_option_fields.py).
"""

from __future__ import annotations

import pathlib
from typing import IO, Unpack, assert_type

import asyncssh

import pscp
from pscp.options.option_fields import OptionFields
from pscp.stream.stream import Ran
from pscp.zfs.replicate import Replicated


def copies(client: asyncssh.SSHClientConnection, session: pscp.Session) -> None:
    assert_type(pscp.copy("a", "host:b", recursive=True, connections=8), pscp.Result)
    pscp.copy("a", "host:b", connections=None, progress=lambda now: print(now.bytes_done))
    pscp.copy("a", "host:b", recursve=True)  # type: ignore[call-arg]
    pscp.copy("a", "host:b", connections="8")  # type: ignore[arg-type]
    pscp.copy("a", "host:b", progress="json")  # type: ignore[arg-type]
    pscp.copy("a", "host:b", transport=client)  # type: ignore[arg-type]
    pscp.Session("host", transport=client, batch=True)
    pscp.Session("host", transport="asyncssh")
    pscp.Session("host", ciper="aes128-ctr")  # type: ignore[call-arg]
    assert_type(session.copy("a", "host:b", strong=True), pscp.Result)
    session.copy("a", "host:b", stong=True)  # type: ignore[call-arg]


def locations(session: pscp.Session) -> None:
    path = pathlib.Path("a")
    pscp.copy(path, "host:b", config_file=path, identities=(path, "key"))
    pscp.copy("a", "host:b", verify="maybe")  # type: ignore[arg-type]
    pscp.Options(identities=[path, "key"], manifest=path, verify="none")
    pscp.Options(identities="key", bind="192.0.2.1", ssh_options="Port=22", link_dest=path)
    pscp.Options(connections="auto")  # type: ignore[arg-type]
    pscp.Options(verify="maybe")  # type: ignore[arg-type]
    pscp.Options(verfy="none")  # type: ignore[call-arg]
    pscp.copy([path, "b"], "host:")
    pscp.copy(pathlib.Path().glob("*"), "host:")
    pscp.fan_out("a", "host:b")
    pscp.fan_out({path, path}, (f"{name}:" for name in "ab"))
    pscp.copy([b"a"], "host:b")  # type: ignore[list-item]
    session.copy("host:b", path, on_file=lambda event: print(event.path, event.outcome))
    pscp.clean(path)
    pscp.copy(b"a", "host:b")  # type: ignore[arg-type]
    session.run(b"true")  # type: ignore[arg-type]


def of_file(event: pscp.FileEvent) -> None:
    assert_type(event.outcome, pscp.Outcome)


def of_manifest(found: pscp.Difference) -> None:
    assert_type(found.what, pscp.What)


def failures(files: pscp.FilesFailed, places: pscp.FanOutFailed) -> None:
    assert_type(files.result, pscp.Result)
    assert_type(places.result, tuple[pscp.Delivery, ...])


def names() -> None:
    assert_type(pscp.__version__, str)
    error = pscp.AuthenticationError("message")
    assert_type(error.retry, bool)
    pscp.AuthenticationErr  # type: ignore[attr-defined]  # noqa: B018


async def asynchronous(session: pscp.aio.Session) -> None:
    assert_type(await pscp.aio.copy("a", "host:b", recursive=True), pscp.Result)
    await pscp.aio.copy("a", "host:b", recursve=True)  # type: ignore[call-arg]
    async with session.copying("a", "host:b") as copying:
        async for now in copying:
            assert_type(now, pscp.Counters)
    assert_type(copying.result, pscp.Result)
    assert_type(await session.run("true"), Ran)


def streams(session: pscp.Session) -> None:
    with session.pipe_to("cat", window_bytes=1 << 22) as file:
        assert_type(file, IO[bytes])
    session.pipe_to("cat", window=1)  # type: ignore[call-arg]
    session.pipe_from(["cat"], connections=2)
    session.pipe_from(["cat"], connection=2)  # type: ignore[call-arg]
    assert_type(session.run(["true"], channels=1), Ran)
    session.run(["true"], chanels=1)  # type: ignore[call-arg]


def others() -> None:
    assert_type(pscp.measure("host", save=True, connections=4), pscp.Measurement)
    pscp.measure("host", sav=True)  # type: ignore[call-arg]
    assert_type(pscp.clean("host:folder", remove=True, batch=True), pscp.Cleaned)
    pscp.clean("host:folder", yes=True)  # type: ignore[call-arg]
    found = pscp.replicate("tank/data", "host:vault/data", recursive=True, raw=True, port=22)
    assert_type(found, Replicated)
    pscp.replicate("tank/data", "host:vault/data", keep_last=3, prune="dest")
    pscp.replicate("tank/data", "host:vault/data", prune="dst")  # type: ignore[arg-type]
    pscp.replicate("tank/data", "host:vault/data", keeplast=3)  # type: ignore[call-arg]


def passed_on(**fields: Unpack[OptionFields]) -> None:
    """A program's own function may take the same keywords."""
    pscp.copy("a", "host:b", **fields)
