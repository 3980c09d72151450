"""A small world for what docs and examples show: a folder here, a home at `host`, and a PATH.

Everything runs exactly as it is written there, for a host called `host`. On the PATH lie `pscp`,
`python3` and an `ssh` that knows how to reach `host`.

Not here: what must have come of it (test_docs.py, test_examples.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import forked
from programs import script

from e2e.ways import COMMAND_S, Ran, run

ROOT = Path(__file__).parents[2]
BIG_BYTES = 9 * 1024 * 1024 + 1  # three chunks, the last of one byte


class Server(Protocol):
    """Where `host` is."""

    @property
    def host(self) -> str: ...

    @property
    def ssh_config(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class World:
    """`here` is the working folder, `there` the home folder at `host`."""

    here: Path
    there: Path
    programs: Path  # first on the PATH

    def run(self, *argv: str) -> Ran:
        """Runs a program in `here`."""
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        return run(argv, timeout=COMMAND_S, cwd=self.here, env=environment)

    def shell(self, script: str) -> Ran:
        """Runs lines of shell, and stops at the first that fails."""
        return self.run("bash", "-eu", "-c", script)

    def python(self, text: str) -> Ran:
        return self.run("python3", "-c", text)

    def block(self, language: str, text: str) -> Ran:
        """Runs a block of the docs, of a language of scripts/docs."""
        if language == "python":
            return self.python(text)
        if language == "crontab":
            text = re.sub(r"^(\S+\s+){5}", "", text, flags=re.MULTILINE)
        return self.shell(text)

    def example(self, name: str, *arguments: str) -> Ran:
        return self.run("python3", str(ROOT / "examples" / name), *arguments)


@contextlib.contextmanager
def make_world(here: Path, far_home: Path, server: Server) -> Iterator[World]:
    """Files to copy at both ends. The far home, which tests share, is emptied before and after."""
    empty(far_home)  # a test's login shell may have written its settings there
    world = World(here / "here", far_home, here / "programs")
    fill_here(world.here)
    fill_there(world.there)
    world.programs.mkdir()
    (here / "ssh_config").write_text(
        Path(server.ssh_config)
        .read_text()
        .replace(f"Host {server.host}\n", "Host host dm1 dm2 dm3\n")
    )
    ssh = (shutil.which("ssh") or "ssh", "-F", str(here / "ssh_config"))
    python = (sys.executable,)
    # PostgreSQL is not needed to see what becomes of its output, and of its failure.
    dump = ("sh", "-c", 'echo "dumped $2"; [ "$2" != bad ]', "pg_dump")
    made = (
        ("pg_dump", dump), ("ssh", ssh), ("sudo", ("env",)), ("python3", python),
        *((name, installed(name)) for name in ("pscp", "pscp-pipe", "pscp-verify", "pscp-zfs")),
    )  # fmt: skip
    for name, argv in made:
        put_program(world.programs / name, argv)
    try:
        yield world
    finally:
        empty(far_home)


def installed(name: str) -> tuple[str, ...]:
    """Return what the installed command of that name runs."""
    start = name.replace("-", "_")
    return sys.executable, "-c", f"from pscp.cli.start import {start}; {start}()"


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@functools.cache
def big_file() -> bytes:
    return os.urandom(BIG_BYTES)


def fill_here(here: Path) -> None:
    (here / "data" / "photos").mkdir(parents=True)
    (here / "data" / "report.txt").write_text("a report")
    (here / "data" / "half-done.tmp").write_text("scratch")
    (here / "data" / "photos" / "1.jpg").write_bytes(os.urandom(200_000))
    (here / "data" / "report.txt").chmod(0o640)
    (here / "big.iso").write_bytes(big_file())
    shutil.make_archive(str(here / "data"), "tar", here, "data")
    for name in ("a.txt", "b.txt"):
        (here / name).write_text(name)


def fill_there(there: Path) -> None:
    for folder in ("backup", "logs"):
        (there / folder).mkdir()
    for name in ("day-1.log", "day-1.gz", "day-2.gz"):
        (there / "logs" / name).write_text(f"{name} there")


def change(folder: Path, night: int) -> None:
    """What happens to a folder between two nights: files grow, change and come."""
    (folder / "new").mkdir(exist_ok=True)
    (folder / "new" / f"{night}.bin").write_bytes(os.urandom(1000))
    (folder / "report.txt").write_text(f"report {night}")
    with open(folder / "photos" / "1.jpg", "ab") as file:
        file.write(os.urandom(1000))


def put_program(path: Path, argv: Sequence[str]) -> None:
    words = forked.words(argv) if argv[0] == sys.executable else argv
    script(path, f'exec {shlex.join(words)} "$@"')
