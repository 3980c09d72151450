"""Calls of one session at once, drawn at random: whether each gets what it asked for.

Copies, streams and commands of several threads share a session's connections, over SSH and the
planes, with an agent and SFTP, and verify differently; some sessions are closed meanwhile, or their
calls cancelled. What a call returns must be true, and when all have ended nothing may be left.

Not here: one copy at a time, and its faults (wild.py).
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare import tree_digest
from servers.private import SshdServer

import pscp
from pscp.ground.processes import descendants
from soak.ends import own_home, sshd

if TYPE_CHECKING:
    from pscp.options.option_fields import OptionFields, SessionFields

CALL_S = 120.0  # a call that takes longer hangs
LEFT_S = 20.0  # for threads and processes to end
DATA = random.Random(1).randbytes(3 << 20)


class Session:
    """One session, its threads, and what was wrong."""

    def __init__(self, draw: random.Random, server: SshdServer, folder: Path) -> None:
        self.draw, self.folder, self.host = draw, folder, server.host
        self.source = folder / "source"
        self.wrong: list[str] = []
        self.is_disturbed = draw.random() < 0.3
        fields: SessionFields = {"config_file": server.ssh_config, "batch": True}
        if draw.random() < 0.2:
            fields["transport"] = draw.choice(["asyncssh", "paramiko"])
        self.session = pscp.Session(server.host, **fields)

    def run(self) -> list[str]:
        """Make the calls, and return what was wrong."""
        seeds = [self.draw.random() for _ in range(self.draw.randrange(2, 5))]
        names = [str(number) for number in range(len(seeds))]
        threads = [
            threading.Thread(target=self._calls, args=(random.Random(seed), name), daemon=True)
            for seed, name in zip(seeds, names, strict=True)
        ]
        for thread in threads:
            thread.start()
        if self.is_disturbed:
            time.sleep(self.draw.random() * 2)
            self.draw.choice([self.session.cancel, self.session.close])()
        for thread in threads:
            thread.join(CALL_S)
            if thread.is_alive():
                self.wrong.append(f"call {thread.name} does not end")
        self.session.close()
        return self.wrong

    def _calls(self, draw: random.Random, name: str) -> None:
        makers: list[Callable[[random.Random, Path], None]] = [
            self._push, self._push, self._pull, self._pipe_to, self._pipe_from, self._run,
        ]  # fmt: skip
        for number in range(2):
            call, to = draw.choice(makers), self.folder / f"{name}-{number}"
            try:
                call(draw, to)
            except pscp.PscpError as error:
                if not self.is_disturbed:
                    self.wrong.append(f"{call.__name__}: {error!r}")
            except AssertionError as error:
                self.wrong.append(f"{call.__name__}: {error}")

    def _of_copy(self, draw: random.Random) -> OptionFields:
        over: Any = draw.choice(["ssh", "ssh", "plain", "sftp"])
        fields: OptionFields = {"connections": draw.choice([1, 2, 4, None]), "recursive": True}
        if over == "sftp":
            fields |= {"remote": "sftp", "verify": draw.choice(["read-back", "none"])}
        else:
            fields |= {"remote": "agent", "plane": over}
        return fields

    def _copy(self, draw: random.Random, from_: str, to: str, at: Path) -> None:
        fields = self._of_copy(draw)
        result = self.session.copy(from_, to, raises=False, **fields)
        assert result.ok, (fields, result.failures)
        assert result.verified == (fields.get("verify") != "none"), fields
        assert tree_digest(at) == tree_digest(self.source), "ok, and it differs"

    def _push(self, draw: random.Random, to: Path) -> None:
        self._copy(draw, f"{self.source}/.", f"{self.host}:{to}", to)

    def _pull(self, draw: random.Random, to: Path) -> None:
        self._copy(draw, f"{self.host}:{self.source}/.", str(to), to)

    def _pipe_to(self, draw: random.Random, to: Path) -> None:
        with self.session.pipe_to(f"cat > {to}", connections=draw.choice([1, 3])) as file:
            file.write(DATA)
        assert to.read_bytes() == DATA, "another stream arrived"

    def _pipe_from(self, draw: random.Random, to: Path) -> None:
        to.write_bytes(DATA)
        with self.session.pipe_from(f"cat {to}", connections=draw.choice([1, 3])) as file:
            came = file.read()
        assert came == DATA, "another stream came"  # where the block did not raise

    def _run(self, draw: random.Random, to: Path) -> None:
        ran = self.session.run(f"echo {to}; exit 3")
        assert (ran.status, ran.out) == (3, f"{to}\n".encode()), ran


def left(server: SshdServer, threads: set[threading.Thread]) -> list[str]:
    """What has not ended in time: threads, and programs of connections."""
    until_s = time.monotonic() + LEFT_S
    while True:
        of_server = {server.pid, *(each.pid for each in descendants(server.pid))}
        found = [f"process {each.pid}" for each in descendants(os.getpid())
                 if each.pid not in of_server]  # fmt: skip
        found += [f"thread {each.name}" for each in set(threading.enumerate()) - threads]
        if not found or time.monotonic() > until_s:
            return found
        time.sleep(0.05)


def run(seconds: float, seed: int | None = None) -> int:
    """Try sessions for so long; return 1 where something was wrong, after its seed was printed."""
    until_s = time.monotonic() + seconds
    seed = random.randrange(10**6) if seed is None else seed
    tried = 0
    with own_home() as home, sshd(home) as server:
        threads = set(threading.enumerate())
        while tried == 0 or time.monotonic() < until_s:
            draw, folder = random.Random(seed), Path(tempfile.mkdtemp(prefix="pscp-sessions-"))
            try:
                (folder / "source").mkdir()
                for number in range(40):
                    size = draw.choice([0, 100, 40_000])
                    (folder / "source" / str(number)).write_bytes(draw.randbytes(size))
                (folder / "source" / "big").write_bytes(draw.randbytes(draw.randrange(6 << 20)))
                wrong = Session(draw, server, folder).run() + left(server, threads)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if wrong:
                print(f"sessions: seed {seed}: {wrong}")
                return 1
            tried, seed = tried + 1, seed + 1
    print(f"sessions: {tried} tried, the last one's seed was {seed - 1}")
    return 0
