"""The context variables of who makes a call, where its threads log and call functions.

Not here: that each thread is made for that (../test_house.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import pscp
from e2e.ways import Way

MIB = 1024 * 1024
WHO = contextvars.ContextVar("WHO", default="nobody")


class Seen(logging.Handler):
    """Which contexts what was called in, by the name of that; of records, by their thread."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, set[str]] = {}

    def see(self, name: str) -> None:
        self.by_name.setdefault(name, set()).add(WHO.get())

    def emit(self, record: logging.LogRecord) -> None:
        self.see(f"record of {record.threadName}: {record.getMessage()[:20]}")

    def select(self, path: str, size: int, mtime_ns: int, inode: int) -> bool:
        self.see("select")
        return True

    def kbit_s(self) -> int | None:
        self.see("kbit_s")
        return None

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "on_file": lambda *event: self.see("on_file"),
            "progress": lambda *now: self.see("progress"),
            "terms": pscp.JobTerms(select=self.select, kbit_s=self.kbit_s),
        }

    def check(self) -> None:
        assert self.by_name.keys() >= {"on_file", "progress", "select", "kbit_s"}
        assert any(name.startswith("record of lane ") for name in self.by_name), self.by_name
        assert {name: who for name, who in self.by_name.items() if who != {"me"}} == {}


@pytest.fixture
def seen() -> Iterator[Seen]:
    logger, handler = logging.getLogger("pscp"), Seen()
    level, before = logger.level, WHO.set("me")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.setLevel(level)
    logger.removeHandler(handler)
    WHO.reset(before)


def places(way: Way) -> tuple[str, str]:
    (way.source / "big").write_bytes(b"x" * 3 * MIB)
    for name in "abc":
        (way.source / name).write_bytes(b"y")
    (way.source / "gone").symlink_to("nowhere")  # one that fails is told, too
    [source], destination = way.locations(["."], "")
    return source, destination


def common(way: Way) -> dict[str, Any]:
    return {
        "config_file": way.server.ssh_config, "batch": True, "recursive": True, "connections": 2,
        "raises": False, "remote": way.remote, "plane": way.plane,
    }  # fmt: skip


def test_of_a_copy_with_asyncio(push: Way, seen: Seen) -> None:
    source, destination = places(push)
    WHO.set("nobody")

    async def copy() -> None:
        WHO.set("me")
        await pscp.aio.copy(source, destination, **seen.fields, **common(push))

    asyncio.run(copy())
    seen.check()


def test_of_a_fan_out(push: Way, seen: Seen) -> None:
    source, destination = places(push)
    pscp.fan_out(
        source, [f"{destination}/one/", f"{destination}/two/"], **seen.fields, **common(push)
    )
    seen.check()


def test_of_a_command(push: Way, seen: Seen) -> None:
    host, config = push.server.host, push.server.ssh_config
    with pscp.Session(host, config_file=config, batch=True) as session:
        with session.pipe_from("echo a") as file:
            assert file.read() == b"a\n"
        assert session.run("true", timeout=50).status == 0
    assert seen.by_name and {name: who for name, who in seen.by_name.items() if who != {"me"}} == {}
