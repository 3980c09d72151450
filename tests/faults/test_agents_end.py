"""An agent whose coordinator is gone ends soon, whatever it was doing.

Here the agent runs without a connection, and what it hears and says is written out, as the
moment at which its coordinator goes matters. Not here: what a signal or kill -9 leaves
(test_signals.py, test_killed.py), which every test checks at its end (../conftest.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import far_environment

from faults.conftest import PATIENCE_S
from pscp.connect.agent_program import bundle
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.endpoint.reading import tree
from pscp.endpoint.writing import fence
from pscp.transports.remote_command import command

MARKER = b"m" * 16
BODY = b"small"
TOKEN, NONCE = "01234567", "89abcdef"


class LoneAgent:
    """An agent that is the sink of a copy, over pipes."""

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["sh", "-c", command()], env=environment, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout, self.stderr = (
            self.process.stdin, self.process.stdout, self.process.stderr,
        )  # fmt: skip
        root_fd = os.open(root, os.O_RDONLY)
        fence.claim(root_fd, TOKEN, NONCE, [])
        os.close(root_fd)
        self.stdin.write(b"%08d" % len(bundle()) + bundle() + MARKER)
        begin = requests.BeginSink(
            root=str(root), token=TOKEN, nonce=NONCE, earlier=[], hash="sha256", strong=False,
            preserve=False, archive=False, test=False, server={}, lane=1,
        )  # fmt: skip
        self.stdin.write(wire.frame(wire.ASK, requests.to_json(begin)))
        assert self.stdout.read(len(MARKER)) == MARKER
        for kind in (wire.HELLO, wire.REPLY):
            assert self.type_of_next() == kind

    def type_of_next(self) -> int:
        fields = wire.HEADER.unpack(self.stdout.read(wire.HEADER.size) or b"")
        self.stdout.read(fields[3])
        return int(fields[0])

    def send_small_files(self, count: int) -> None:
        """Each in a pack of its own, for which the agent's settling thread does the work."""
        digest = hashlib.sha256(BODY).hexdigest()
        for number in range(count):
            made = tree.Entry(tree.FILE, 0, f"{number}", len(BODY), 0o644, 0, 1, {})
            payload = wire.pack_payload([[made, [len(BODY), digest]]], [BODY])
            self.stdin.write(wire.frame(wire.PACK, payload, number + 1))

    def ended(self) -> tuple[int, bytes]:
        """Without the end of its input."""
        return self.process.wait(PATIENCE_S), self.stderr.read()

    def close(self) -> None:
        self.process.kill()
        for file in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):
                file.close()
        self.process.wait()


@pytest.fixture
def agent(own_home: Path) -> Iterator[LoneAgent]:
    environment = far_environment(own_home, own_home, sys.executable)
    made = LoneAgent(own_home / "destination", environment)
    yield made
    made.close()


def test_when_nobody_hears_its_answers(agent: LoneAgent) -> None:
    """The thread that settles small files finds out, and more of them wait than may."""
    agent.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        agent.send_small_files(400)
    assert agent.ended() == (0, b"")


@pytest.mark.parametrize("hears", [True, False])
def test_when_its_input_ends(agent: LoneAgent, own_home: Path, hears: bool) -> None:
    """In the middle of its work; or all is closed."""
    if hears:
        agent.send_small_files(100)
    agent.stdin.close()
    if not hears:
        agent.stdout.close()
    assert agent.ended() == (0, b"")
    arrived = [path for path in (own_home / "destination").iterdir() if path.suffix == ""]
    assert {path.read_bytes() for path in arrived} <= {BODY}
