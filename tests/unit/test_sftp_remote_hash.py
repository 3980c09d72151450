"""The hash programs' loop of sh: right digests for any name, and no name is ever run."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable

from pscp.sftp.protocol.event_loop import Loop
from pscp.sftp.protocol.remote_hash import COMMAND, TOOLS, Program
from pscp.sftp.protocol.tasks import Future

ODD = (
    "a b", "new\nline", "tab\t", "back\\slash", "quote'", 'double"', "$(touch EVIL)",
    "`touch EVIL`", "; touch EVIL", "%41", "=x", "*", "-n", "\udcff\udcfe", "e\u0301",
    "trailing\n", "~", "#",
)  # fmt: skip


class Running:
    def __init__(self, argv: list[str]) -> None:
        self.loop = Loop()
        self.program = Program(argv, self.loop)
        self.loop.before_wait = self._before_wait
        self.wait(self.program.ready)

    def _before_wait(self) -> None:
        self.program.flush()
        self.program.check()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.close()

    def wait(self, *promises: Future[Any]) -> None:
        self.loop.run_until(lambda: all(each.done() for each in promises))


@pytest.fixture
def running(login_shell: str) -> Iterator[Running]:
    with Running([login_shell, "-c", COMMAND]) as made:
        yield made


def algorithm_of(running: Running) -> str:
    found = next(iter(running.program.tools), "")
    if not found:
        pytest.skip("no hash program is installed")
    return found


def expected(algorithm: str, data: bytes) -> bytes:
    if algorithm == "sha256":
        return hashlib.sha256(data).digest()
    if algorithm == "blake2b":
        return hashlib.blake2b(data, digest_size=32).digest()
    import xxhash

    return bytes(xxhash.xxh3_128(data).digest())


def test_many_small_files_take_few_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as were asked for while the run before was at work go into one."""
    runs, programs = tmp_path / "runs", tmp_path / "programs"
    programs.mkdir()
    for name in {name for name, _ in TOOLS}:
        if real := shutil.which(name):
            counted = f'#!/bin/sh\necho >>{runs}\nexec {real} "$@"\n'
            (programs / name).write_text(counted)
            (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with Running(["sh", "-c", COMMAND]) as running:
        algorithm, asked = algorithm_of(running), []
        runs.unlink()  # of the trial
        for number in range(100):
            (tmp_path / f"a name {number}").write_bytes(b"%d" % number)
            path = os.fsencode(tmp_path / f"a name {number}")
            asked.append(running.program.of_file(algorithm, path))
            running.program.flush()
        running.wait(*asked)
    found = [each.result() for each in asked]
    assert found == [expected(algorithm, b"%d" % number) for number in range(100)]
    assert len(runs.read_text().splitlines()) == 3  # of 1, 64 and 35


def test_files_of_any_name_are_hashed_and_nothing_is_run(running: Running, tmp_path: Path) -> None:
    algorithm = algorithm_of(running)
    contents = {name: os.urandom(100 + place) for place, name in enumerate(ODD)}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    asked = {
        name: running.program.of_file(algorithm, os.fsencode(tmp_path / name)) for name in contents
    }
    missing = running.program.of_file(algorithm, os.fsencode(tmp_path / "missing"))
    running.wait(*asked.values(), missing)
    assert {name: each.result() for name, each in asked.items()} == {
        name: expected(algorithm, data) for name, data in contents.items()
    }
    assert missing.result() is None
    assert sorted(os.listdir(tmp_path)) == sorted(contents)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 5000), (4096, 904), (512, 1024), (7, 3000), (3, 1)]
)
def test_extents_are_hashed(running: Running, tmp_path: Path, offset: int, length: int) -> None:
    algorithm, data = algorithm_of(running), os.urandom(5000)
    for name in ("plain", "odd 'one'"):
        (tmp_path / name).write_bytes(data)
        path = os.fsencode(tmp_path / name)
        found = running.program.of_extent(algorithm, path, offset, length)
        running.wait(found)
        assert found.result() == expected(algorithm, data[offset : offset + length])


@pytest.mark.parametrize(("tool", "algorithm"), [each for each in TOOLS if each[0] != "sha256"])
def test_each_program_tells_what_we_would(
    tool: str, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But BSD's sha256, which no Linux has."""
    (tmp_path / "bin").mkdir()
    for name in (tool, "sh", "dd", "head", "tail"):
        found = shutil.which(name) or unavailable(f"{name} is not installed")
        (tmp_path / "bin" / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    data = os.urandom(5000)
    (tmp_path / "file").write_bytes(data)
    path = os.fsencode(tmp_path / "file")
    with Running(["/bin/sh", "-c", COMMAND]) as running:
        assert {name: made[1] for name, made in running.program.tools.items()} == {algorithm: tool}
        asked = [running.program.of_file(algorithm, path) for _ in range(2)]
        of_extent = running.program.of_extent(algorithm, path, 512, 1024)
        running.wait(*asked, of_extent)
        assert [each.result() for each in asked] == 2 * [expected(algorithm, data)]
        assert of_extent.result() == expected(algorithm, data[512 : 512 + 1024])


def test_one_that_ends_leaves_nobody_waiting(tmp_path: Path) -> None:
    with Running(["/bin/sh", "-c", COMMAND]) as running:
        algorithm = algorithm_of(running)
        running.program._child.kill()
        found = running.program.of_file(algorithm, b"/etc/passwd")
        running.wait(found)
        assert found.result() is None


def test_one_that_stands_still_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Running(["/bin/sh", "-c", COMMAND]) as running:
        for name, value in (("_SILENT_S", 0.2), ("_END_S", 0.1)):
            monkeypatch.setattr(f"pscp.sftp.protocol.remote_hash.{name}", value)
        os.kill(running.program._child.pid, signal.SIGSTOP)
        found = running.program.of_extent(algorithm_of(running), b"/etc/passwd", 0, 100)
        running.loop.call_later(0.3, lambda: None)  # as a lane's program looks from time to time
        running.wait(found)
        assert found.result() is None


@pytest.mark.parametrize("argv", [["false"], ["cat"], ["/nonexistent-program"]])
def test_what_is_no_such_loop_offers_nothing(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pscp.sftp.protocol.remote_hash._PATIENCE_S", 0.2)
    if shutil.which(argv[0]) is None:
        argv = ["sh", "-c", "exec " + argv[0]]
    with Running(argv) as running:
        assert running.program.tools == {}


def test_the_command_has_no_text_that_a_login_shell_would_change() -> None:
    inner = COMMAND.removeprefix("exec sh -c '").removesuffix("'")
    assert not set(inner) & set("'!\\\n")
    assert subprocess.run(["sh", "-n", "-c", inner], check=False).returncode == 0
