"""Fixtures of the fault tests: each direction in a world of its own, and connections that break.

Not here: servers and the check for leaks (../conftest.py), how a connection breaks (relay.py).
Read next: test_killed.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Unpack

import forked
import matrix
import pytest
from conftest import PATIENCE_S as PATIENCE_S
from conftest import until as until
from programs import ASKED, script
from servers.private import PrivateServer

import pscp
from faults.interposed import FOLDER, interposed, relay_argv
from pscp.calls.api import Progress
from pscp.endpoint.frames import wire
from pscp.options.option_fields import OptionFields
from pscp.transfer.lanes import worker

HERE = Path(__file__).parent
DASK = "faults.dask_programs"  # what the programs of a cluster load, in 2 CPU-s
# A scheduler that is there may be late with its answer on a busy machine.
PATIENT = f"from pscp.cluster import clusters\nclusters._START_S = {PATIENCE_S}\n"
MIB = 1024 * 1024
# In a command's environment: where the rules for its calls are (calls.py); its copy's token; where
# it tells its peak memory.
CALLS, TOKEN, PEAK = "PSCP_TEST_CALLS", "PSCP_TEST_TOKEN", "PSCP_TEST_PEAK"
# A shell that starts a process of its own, says its number, and becomes a program.
BY_EXEC = ("sh", "-c", 'sleep 1000 >/dev/null 2>&1 & echo $!; exec "$@"', "sh")
# Leaves its peak memory behind, as the kernel counts it for this very program (proc(5)).
PROGRAM = f"""
import os, sys
from pscp.cli.start import listen
listen("pscp")
sys.path.append({str(HERE.parent)!r})
if "{FOLDER}" in os.environ:
    from faults.interposed import interpose
    interpose(os.environ["{FOLDER}"])
if "{CALLS}" in os.environ:
    from faults import calls
    calls.interpose(os.environ["{CALLS}"], 0)
from pscp.cli.copy import main
if "{TOKEN}" in os.environ:
    from pscp.transfer import copy
    copy.token_of_request = lambda request: os.environ["{TOKEN}"]
code = main()
if "{PEAK}" in os.environ:
    with open("/proc/self/status") as lines, open(os.environ["{PEAK}"], "w") as peak:
        peak.write(next(line for line in lines if line.startswith("VmHWM")).split()[1])
from pscp.ground.signals import leave
leave(code)
"""


class Calling:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.found: object = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.found = self._call()
        except BaseException as error:
            self.found = error

    def ended(self, patience_s: float = PATIENCE_S) -> Any:
        """What it returned or raised."""
        self._thread.join(patience_s)
        assert not self._thread.is_alive(), "it did not end"
        return self.found


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended; `end` is the last event of --progress json."""

    code: int
    out: str
    err: str

    @functools.cached_property
    def end(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        assert event["event"] == "end"
        return event


@dataclasses.dataclass(frozen=True)
class Running:
    """A command that runs, with its output going to files."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def ended(self) -> Ended:
        code = self.process.wait(PATIENCE_S)
        return Ended(code, *(path.read_text(errors="replace") for path in (self.out, self.err)))

    def finished(self) -> Ended:
        """How it ended, which is well."""
        ended = self.ended()
        assert ended.code == 0, f"{ended.out}\n{ended.err}"
        return ended

    def send(self, kind: signal.Signals) -> None:
        self.process.send_signal(kind)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Breaking:
    """A lane's program that breaks by rules (relay.py); `program` is one for -S."""

    def __init__(self, folder: Path, way: str) -> None:
        self.folder, self._way = folder, way
        folder.mkdir()
        self.rules: list[dict[str, Any]] = []
        self.program = str(folder / "ssh")
        relay = shlex.join(relay_argv(str(folder), "agent"))
        script(folder / "ssh", f'{ASKED}exec {relay} ssh "$@"')
        self._write()

    def rule(self, do: str, **fields: Any) -> Breaking:
        """By default: the first connection, where the file's bytes go, DATA frames, at once.

        What changes is the first byte of the block: over SFTP the frame ends with unused zeros.
        """
        rule: dict[str, Any] = {
            "do": do, "way": self._way, "connections": [0], "type": wire.DATA, "after": 0,
            "contains": "", "at": wire.HEADER.size, "bit": 0, "always": False, "gate": "go",
        }  # fmt: skip
        self.rules.append({**rule, **fields})
        self._write()
        return self

    def _write(self) -> None:
        (self.folder / "plan.json").write_text(json.dumps(self.rules))

    @property
    def blocked(self) -> int:
        """How many connections wait for go()."""
        return len(list(self.folder.glob("blocked-*")))

    @property
    def connections(self) -> int:
        """How many were begun."""
        return len(list(self.folder.glob("connection-*")))

    def is_blocked(self, connection: int, gate: str) -> bool:
        """Does this connection wait for go(gate)?"""
        return (self.folder / f"blocked-{connection}-{gate}").exists()

    def go(self, gate: str = "go") -> None:
        (self.folder / gate).touch()


@dataclasses.dataclass(frozen=True)
class Way:
    """One direction: what lies in `source` goes to `destination`. Both are empty folders here."""

    is_push: bool
    server: PrivateServer
    home: Path  # where all of the test's is
    transport: Any = "openssh"
    remote: Any = "agent"
    plane: Any = "auto"

    @property
    def source(self) -> Path:
        return self.home / "source"

    @property
    def destination(self) -> Path:
        return self.home / "destination"

    @property
    def data_goes(self) -> str:
        return "to" if self.is_push else "from"

    def locations(self, name: str = ".") -> tuple[str, str]:
        far = f"{self.server.host}:"
        source, destination = str(self.source / name), str(self.destination)
        if name == ".":
            source = f"{self.source}/."
        return (source, far + destination) if self.is_push else (far + source, destination)

    def breaking(self) -> Breaking:
        number = len(list(self.home.glob("breaking-*")))
        return Breaking(self.home / f"breaking-{number}", self.data_goes)

    @property
    def has_dash_s(self) -> bool:
        """Can `-S` put a program between it and its lanes?"""
        return (self.transport, self.remote, self.plane) == ("openssh", "agent", "auto")

    # --- through the command

    def argv(self, *words: str, name: str = ".") -> list[str]:
        """Over one connection, as through the API, where the words do not say how many."""
        words = words if "-c" in words else ("-c", "1", *words)
        words = ("-F", self.server.ssh_config, "-B", "-r", "--progress", "json", *words)
        words = ("--transport", self.transport, "--remote", self.remote, *words)
        words = ("--plane", self.plane, *words)
        return [sys.executable, "-c", PROGRAM, *words, "--", *self.locations(name)]

    def start(
        self, *words: str, name: str = ".", breaking: Breaking | None = None, first: str = "",
        **popen: Any,
    ) -> Running:  # fmt: skip
        """Start it; `first` are lines of Python that it begins with."""
        number = len(list(self.home.glob("out-*")))
        out, err = self.home / f"out-{number}", self.home / f"err-{number}"
        if breaking is not None and self.has_dash_s:
            words = (*words, "-S", breaking.program)
        elif breaking is not None:
            popen["env"] = {**popen.get("env", os.environ), FOLDER: str(breaking.folder)}
        # The memory of a fork would be that of what it is forked from as well.
        begin = subprocess.Popen if PEAK in popen.get("env", ()) else forked.start
        if "--cluster" in words:
            popen["loads"] = DASK
            first = f"{PATIENT}{first}"
        with open(out, "wb") as to_out, open(err, "wb") as to_err:
            python, option, program, *more = self.argv(*words, name=name)
            argv = [python, option, first + program, *more]
            process = begin(argv, stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err, **popen)
        return Running(process, out, err)

    def run(self, *words: str, **more: Any) -> Ended:
        running = self.start(*words, **more)
        try:
            return running.ended()
        finally:
            running.kill()

    def finish(self, *words: str, **more: Any) -> Ended:
        """Run it, and it ends well."""
        running = self.start(*words, **more)
        try:
            return running.finished()
        finally:
            running.kill()

    def standing_still(
        self, *words: str, name: str = ".", after: int = 6 * MIB
    ) -> tuple[Running, Breaking]:
        """A run over one connection, which stands still after so many bytes."""
        breaking = self.breaking().rule("block", after=after)
        words = ("-c", "1", "--chunk-size", "1M", *words)
        running = self.start(*words, name=name, breaking=breaking)
        until(lambda: breaking.blocked, "the connection stands still")
        return running, breaking

    # --- through the API

    def copy(
        self, name: str = ".", *, breaking: Breaking | None = None,
        progress: Progress | None = None, **fields: Unpack[OptionFields],
    ) -> pscp.Result:  # fmt: skip
        fields = {
            "config_file": self.server.ssh_config, "transport": self.transport,
            "plane": self.plane,
            "remote": self.remote, "recursive": True, "batch": True, "connections": 1, **fields,
        }  # fmt: skip
        source, destination = self.locations(name)
        between = contextlib.nullcontext() if breaking is None else interposed(str(breaking.folder))
        if breaking is not None and self.has_dash_s:
            fields["program"] = breaking.program
        with between:
            return pscp.copy(source, destination, progress=progress, raises=False, **fields)

    # --- what is there

    @property
    def journals(self) -> list[Path]:
        return list((self.home / "state").rglob("*.journal"))

    def forget(self) -> None:
        """Lose the journals."""
        for path in self.journals:
            path.unlink()

    def journaled_bytes(self) -> int:
        """What the journal says has landed of files that have no final name yet."""
        paths: dict[int, str] = {}
        chunks: dict[str, set[tuple[int, int]]] = {}
        for raw in (raw for path in self.journals for raw in path.read_bytes().splitlines(True)):
            if not raw.endswith(b"\n"):
                continue
            kind, number, *rest = json.loads(raw)
            if kind == "file":
                paths[number] = rest[0]
            elif kind == "chunk":
                chunks.setdefault(paths[number], set()).add((rest[0], rest[1]))
            elif kind == "done":
                chunks.pop(paths[number], None)
        return sum(length for found in chunks.values() for _, length in found)

    def arrived(self) -> dict[str, Path]:
        """Files under their final names."""
        found = self.destination.rglob("*")
        return {
            str(path.relative_to(self.destination)): path
            for path in found
            if path.is_file() and not path.name.endswith((".pscp-part", ".pscp-run"))
        }

    def parts(self) -> list[Path]:
        return list(self.destination.rglob("*.pscp-part"))

    def arrived_bytes(self) -> int:
        """Of files under their final names. Fails where one of them is not its source."""
        sizes = []
        for name, path in self.arrived().items():
            assert path.read_bytes() == (self.source / name).read_bytes(), name
            sizes.append(path.stat().st_size)
        return sum(sizes)


@pytest.fixture
def far(way: Way, make_sshd: Callable[..., PrivateServer]) -> Iterator[Any]:
    """The way's far end, where things come late (late.py)."""
    from faults.late import FarEnds

    with contextlib.closing(FarEnds(way, make_sshd)) as ends:
        yield ends


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    matrix.parametrize(metafunc)


@pytest.fixture
def way(request: pytest.FixtureRequest, sshd: PrivateServer, own_home: Path) -> Way:
    """Each direction, over each transport and remote in a module with EVERY_WAY."""
    way: matrix.Combination = request.param
    is_push = way.direction == "push"
    return Way(is_push, sshd, own_home, way.opened_by, way.remote, way.plane)


@pytest.fixture
def push(way: Way) -> Way:
    """For what does not depend on the direction."""
    return way


@pytest.fixture
def pull(way: Way) -> Way:
    return way


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folders of this test's own. Afterwards no temporary file may be left."""
    for name in ("source", "destination", "state", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    yield tmp_path
    # tempfile tries a folder out with a file of its own, which a signal can leave behind.
    found = (tmp_path / "tmp").iterdir()
    left = [path.name for path in found if path.read_bytes() not in (b"", b"blat")]
    assert not left, f"temporary files were left: {left}"


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost connection is tried again after a moment."""
    monkeypatch.setattr(worker, "_PAUSE_S", (0.02, 0.05))


@functools.cache
def pool() -> bytes:
    """Random bytes of a length that no two chunks of one size begin at the same place of."""
    return os.urandom(16 * MIB + 1)


def random_bytes(size: int) -> bytes:
    """Those of a large file are the pool's, from anywhere on, which take a tenth of the time."""
    if size < MIB:
        return os.urandom(size)
    data = pool()[random.randrange(len(pool())) :]
    while len(data) < size:
        data += pool()[: size - len(data)]
    return data[:size]


def fill(path: Path, size: int) -> bytes:
    """A file of random bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = random_bytes(size)
    path.write_bytes(data)
    return data
