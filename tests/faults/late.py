"""Far ends where frames arrive late and system calls wait or fail, run by run of a test.

Not here: what happens there (far_end.py, calls.py), the fixture `far` (conftest.py).
Read next: test_late_runs.py.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare import assert_same_tree
from conftest import keeping
from programs import script
from servers.private import PrivateServer

from faults.conftest import CALLS, MIB, Breaking, Running, Way, until

PROGRAM = Path(__file__).parent / "far_end.py"
# Few and small, so that a run has sent all before it is ended, and the windows hold it.
CHUNKS = ("--chunk-size", "1M", "-c", "1")


class Plan:
    """What happens at the far end, or to the command itself, from now on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frames: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        folder.mkdir()
        self._write()

    def _write(self) -> None:
        for name, rules in (("frames", self._frames), ("calls", self._calls)):
            (self._folder / f"{name}.json").write_text(json.dumps(rules))

    def frame(self, do: str, type_: int, **fields: Any) -> Plan:
        """A rule for frames to the far end; by default for the first one on connection 0."""
        rule = {
            "do": do, "way": "to", "connections": [0], "type": type_, "after": 0, "contains": "",
            "at": -1, "bit": 0, "always": False,
        }  # fmt: skip
        self._frames.append({**rule, **fields})
        self._write()
        return self

    def hold(self, type_: int, **fields: Any) -> Plan:
        """This frame, and what comes after it, comes late."""
        return self.frame("hold", type_, **fields)

    def call(self, name: str, **fields: Any) -> Plan:
        """A rule for a system call; by default it waits, at the end of the first connection."""
        rule = {"call": name, "connections": [0], "contains": "", "errno": None}
        self._calls.append({**rule, **fields})
        self._write()
        return self

    @property
    def environment(self) -> dict[str, str]:
        """Of a command whose own calls these rules are for."""
        return {**os.environ, CALLS: str(self._folder)}

    def until_held(self, connection: int = 0) -> None:
        until((self._folder / f"held-{connection}").exists, "a frame is held")

    def until_waiting(self, connection: int = 0) -> None:
        until((self._folder / f"waiting-{connection}").exists, "a system call waits")

    def go(self) -> None:
        """What was late comes now."""
        (self._folder / "go").touch()

    def come(self) -> None:
        """What was late comes now, and after that nothing any more."""
        self.go()
        self.until_ended()

    def until_ended(self) -> None:
        """Nothing comes any more."""
        until(lambda: self._count("ended") == self._count("connection"), "the agents end")

    def _count(self, what: str) -> int:
        return len(list(self._folder.glob(f"{what}-*")))


class FarEnds:
    """A server of its own for a way, whose agents do as the latest plan says."""

    def __init__(self, way: Way, make_sshd: Callable[..., PrivateServer]) -> None:
        self._folder = way.home / "far"
        self._folder.mkdir()
        self._plans: list[Plan] = []
        now = shlex.quote(str(self._folder / "now"))
        words = shlex.join([sys.executable, "-I", "-S", str(PROGRAM)])
        kept = f"exec {sys.executable} -I -S -c {shlex.quote(keeping())}"
        agent = script(self._folder / "agent", f'shift 3 && {kept} "$@"')
        exact = f'exec {words} "$(readlink {now})" {agent} "$@"'
        python = script(self._folder / "python3", exact)
        self.plan()
        object.__setattr__(way, "server", make_sshd(python=str(python)))

    def plan(self) -> Plan:
        """A new plan: the connections of the next run follow it, and are counted from 0 again."""
        folder = self._folder / str(len(self._plans))
        self._plans.append(Plan(folder))
        (self._folder / "next").symlink_to(folder)
        (self._folder / "next").replace(self._folder / "now")
        return self._plans[-1]

    def close(self) -> None:
        """Nothing waits for ever."""
        for plan in self._plans:
            plan.go()


def in_the_middle(way: Way, *words: str, **popen: Any) -> tuple[Running, Breaking]:
    """A run of which two chunks have landed and the others have not been sent."""
    before = chunks_noted(way)
    breaking = way.breaking().rule("block", after=2 * MIB)
    running = way.start(*CHUNKS, *words, breaking=breaking, **popen)
    until(lambda: breaking.blocked, "the run stands still")
    until(lambda: chunks_noted(way) == before + 2, "what it has sent has landed")
    return running, breaking


def chunks_noted(way: Way) -> int:
    """How often the journals of all runs so far say that a chunk has landed."""
    return sum(path.read_bytes().count(b'["chunk"') for path in way.journals)


def assert_copied(way: Way, **facts: bool) -> None:
    """The destination is what the source is, and nothing else lies there or in the journals."""
    assert_same_tree(way.source, way.destination, **facts)
    assert not way.journals
