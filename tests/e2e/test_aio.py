"""pscp.aio: what a program with asyncio calls. A task that is cancelled ends its copy, tidily.

Not here: at which moments a call can be ended (../faults/test_cancel.py).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from compare import assert_same_tree

import pscp
from e2e.ways import Way
from pscp.progress.callbacks import FileEvent

MIB = 1024 * 1024
SLOW = 8 * 8 * 1024  # kbit/s: 8 MiB/s


def fields(way: Way) -> Any:
    return {
        "config_file": way.server.ssh_config, "batch": True, "recursive": True, "connections": 1,
    }  # fmt: skip


def filled(way: Way, size: int = MIB) -> tuple[str, str]:
    (way.source / "big").write_bytes(b"x" * size)
    (way.source / "small").write_bytes(b"y")
    [source], destination = way.locations(["."], "")
    return source, destination


async def begun(copying: pscp.aio.Copying) -> None:
    async for now in copying:
        if now.bytes_done >= MIB:
            return


def test_a_copy_and_its_progress(push: Way) -> None:
    seen: list[FileEvent] = []

    async def copy() -> tuple[pscp.Result, list[int]]:
        places = filled(push)
        async with pscp.aio.copying(*places, on_file=seen.append, **fields(push)) as copying:
            done = [now.bytes_done async for now in copying]
        again = await pscp.aio.copy(*places, **fields(push))
        assert again.files_resumed == 2
        return copying.result, done

    result, done = asyncio.run(copy())
    assert result.ok and done[-1] == result.bytes == MIB + 1 and done == sorted(done)
    assert {event.path: event.outcome for event in seen} == {"big": "copied", "small": "copied"}
    assert_same_tree(push.source, push.destination)


def test_a2_a_copy_that_has_not_begun_or_not_ended(push: Way) -> None:
    """Who forgot `async with` waited for ever."""

    async def copy() -> None:
        copying = pscp.aio.copying(*filled(push), **fields(push))
        with pytest.raises(RuntimeError, match="has not begun: use it with `async with`"):
            async for _ in copying:
                pass
        with pytest.raises(RuntimeError, match="has not begun"):
            copying.result  # noqa: B018
        async with copying:
            with pytest.raises(RuntimeError, match="has not ended: its result is there after"):
                copying.result  # noqa: B018
        assert copying.result.ok

    asyncio.run(asyncio.wait_for(copy(), 60))


def test_an_error_is_raised_where_the_copy_is_awaited(push: Way) -> None:
    async def copy() -> None:
        with pytest.raises(pscp.UsageError, match="did you mean recursive"):
            await pscp.aio.copy("a", "host:", recurive=True)  # type: ignore[call-arg]
        places = filled(push)
        with pytest.raises(pscp.ConnectError):
            async with pscp.aio.copying(*places, **{**fields(push), "port": 1}) as copying:
                assert {now.bytes_done async for now in copying} <= {0}
        with pytest.raises(pscp.ConnectError):
            _ = copying.result

    asyncio.run(copy())


@pytest.mark.parametrize("how", ["copying", "session"])
def test_a_cancelled_task_has_ended_its_copy(push: Way, how: str) -> None:
    """However often it is cancelled; the next call goes on from what had landed."""

    async def copy() -> pscp.Result:
        places = filled(push, 24 * MIB)
        async with pscp.aio.Session(push.server.host, **fields(push)) as session:
            copying = pscp.aio.copying(*places, limit_kbit_s=SLOW, **fields(push))
            if how == "session":
                copying = session.copying(*places, limit_kbit_s=SLOW)
            has_begun = asyncio.Event()

            async def work() -> None:
                async with copying:
                    await begun(copying)
                    has_begun.set()

            task = asyncio.create_task(work())
            await has_begun.wait()
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
            assert task.cancelled()
            with pytest.raises(pscp.Cancelled):
                _ = copying.result
            assert not list(push.destination.glob("big"))
            return await session.copy(*places)

    result = asyncio.run(copy())
    assert result.ok and result.bytes_resumed >= MIB
    assert_same_tree(push.source, push.destination)


def test_a_session_runs_commands_at_once_and_one_may_be_cancelled(push: Way) -> None:
    async def run() -> None:
        async with pscp.aio.Session(push.server.host, **fields(push)) as session:
            waiting = asyncio.create_task(
                session.run(["sh", "-c", f"touch {push.destination}/began; sleep 1000"])
            )
            while not (push.destination / "began").exists():
                ran = await session.run("echo $((6 * 7))")
                assert ran.out == b"42\n"
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await session.run(["true"])).status == 0
        with pytest.raises(pscp.UsageError, match="closed"):
            await session.run("true")

    asyncio.run(run())


def test_over_a_connection_of_this_event_loop(push: Way) -> None:
    """Which a blocking call would keep from running."""
    folder = Path(push.server.ssh_config).parent

    async def copy() -> pscp.Result:
        places = filled(push)
        async with (
            asyncssh.connect(
                "127.0.0.1", push.server.port, username=push.server.user, config=None,
                client_keys=[str(folder / "user_key")], known_hosts=None,
            ) as connection,
            pscp.aio.Session(transport=connection, recursive=True, connections=1) as session,
        ):  # fmt: skip
            return await session.copy(*places)

    assert asyncio.run(copy()).ok
    assert_same_tree(push.source, push.destination)


def test_a_callback_that_runs_out_of_its_iterator_ends_the_call(push: Way) -> None:
    """U3: no future takes a StopIteration, and the task waited for ever."""
    names = iter(["big"])
    places = filled(push)
    copying = pscp.aio.copy(*places, on_file=lambda event: next(names), **fields(push))
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(copying, 60))
