"""pscp --clean beside real copies: one that runs keeps its parts, one that was killed leaves none.

Not here: what is listed, and how (../e2e/test_clean.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time

import pytest

import pscp
from faults.conftest import MIB, Way, fill, until

EVERY_WAY = True
pytestmark = pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes")

TWO_DAYS_S = 2 * 24 * 3600


def looks_old(way: Way) -> None:
    """As if what pscp keeps beside the files had been there for two days."""
    for path in way.destination.rglob(".*.pscp-*"):
        with contextlib.suppress(FileNotFoundError):  # an agent that ends may remove its own
            os.utime(path, (time.time() - TWO_DAYS_S,) * 2)


def cleaned(way: Way) -> pscp.Cleaned:
    where = way.locations()[1]
    return pscp.clean(
        where, remove=True, config_file=way.server.ssh_config, batch=True,
        transport=way.transport, remote=way.remote,
    )  # fmt: skip


@pytest.mark.needs_agent("push", reason="SFTP does not tell who has a file open")
def test_the_parts_of_a_copy_that_runs_stay(way: Way) -> None:
    """USERS A14: however old they look."""
    fill(way.source / "big", 12 * MIB)
    running, breaking = way.standing_still()
    until(way.parts, "there is a part")
    looks_old(way)
    found = cleaned(way)
    assert found.ok and not found.found
    assert any(each.path.endswith(".pscp-part") for each in found.held)
    breaking.go()
    running.finished()
    assert (way.destination / "big").read_bytes() == (way.source / "big").read_bytes()


def test_the_parts_of_a_copy_that_was_killed_go(way: Way) -> None:
    """USERS A14, for a command that nobody runs again."""
    fill(way.source / "big", 12 * MIB)
    running, _ = way.standing_still()
    until(way.parts, "there is a part")
    running.kill()
    (way.source / "big").unlink()  # so that the same command would not need its part

    def is_clean() -> bool:  # the far end's agents end a moment after the copy
        looks_old(way)
        assert cleaned(way).ok
        return not list(way.destination.rglob(".*.pscp-*"))

    until(is_clean, "nothing is left")
    assert list(way.destination.iterdir()) == []


@pytest.mark.usefixtures("push")
def test_a_part_beside_a_file_that_is_there_by_now_goes(way: Way) -> None:
    """Though the file counts as unchanged, by its size and time, and no journal knows of it."""
    fill(way.source / "sub" / "big", 12 * MIB)
    running, _ = way.standing_still("-p")
    until(way.parts, "there is a part")
    running.kill()
    shutil.copy2(way.source / "sub" / "big", way.destination / "sub" / "big")
    way.forget()
    again = way.start("-p", "--stats", "-c", "1").ended()
    assert again.code == 0 and re.search("unchanged by size and time +1", again.err), again.err
    assert not list(way.destination.rglob(".*.pscp-*"))
