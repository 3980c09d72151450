"""docs/serve.md and the examples of pscp-serve: what they show is run as it stands.

Only the port, and the name of the host, are others.

Not here: the pages of pscp (../e2e/test_docs.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest
from conftest import unavailable

from pscp.jobs.toml import config as jobs
from pscp.serve.server.config import SERVER, USER, load
from serve.server import held_port, run, until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "serve.md"
BLOCKS = dict(re.findall(r"^```sh run=(\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S))
SERVER_TOML, JOB_TOML = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
NOBODY_ASKS = "-oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oIdentityAgent=none"
COMMANDS = {
    "pscp-serve": f"{sys.executable} -c 'from pscp.cli.start import pscp_serve; pscp_serve()'",
    "pscp": f"{sys.executable} -m pscp",
    **{
        name: f"{shutil.which(name)} {NOBODY_ASKS} -oIdentityAgent=none"
        for name in ("scp", "sftp", "ssh")
    },
    "install": "echo install",
    "systemctl": "echo systemctl",
}


class World:
    """A machine with the commands of the page, a customer's files, and a port."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name, words in COMMANDS.items():
            (self.programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (self.programs / name).chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}

    def text(self, shown: str) -> str:
        return shown.replace("2222", str(self.port)).replace("files.example.org", "127.0.0.1")

    def begin(self, name: str) -> subprocess.Popen[str]:
        """Run a block that does not end by itself."""
        return subprocess.Popen(
            ["bash", "-e", "-c", self.text(BLOCKS[name])], cwd=self.folder, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, name: str) -> str:
        """Run a block; return what it wrote."""
        done = subprocess.run(
            ["bash", "-e", "-c", self.text(BLOCKS[name])], cwd=self.folder, env=self.environment,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, (out, errors)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with held_port() as held:
        yield World(tmp_path, held.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_every_block_is_run() -> None:
    checks = {name.removeprefix("check_") for name in globals() if name.startswith("check_")}
    assert checks == {*BLOCKS}


def test_from_the_first_upload_to_the_status(world: World) -> None:
    (world.folder / "serve.toml").write_text(world.text(SERVER_TOML))
    for name in ("big.iso", "film.mov"):
        (world.folder / name).write_bytes(os.urandom(300_000))
    (world.folder / "data").mkdir()
    (world.folder / "data" / "report.txt").write_text("report")
    for name in ("alice", "bob"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{world.folder}/{name}"]
        subprocess.run(argv, check=True)
    check_serve_start(world)


def check_serve_start(world: World) -> None:
    process = world.begin("serve_start")
    with ended(process):
        until(lambda: process.poll() is not None or is_open(world.port))
        check_serve_upload(world)
        check_serve_status(world)


def check_serve_upload(world: World) -> None:
    run(cut_upload(world))
    home = world.folder / "incoming" / "alice"
    [part] = home.iterdir()
    until(lambda: part.stat().st_size == 100_000)  # a write is answered before it is made
    world.run("serve_upload")
    for name in ("big.iso", "film.mov"):
        assert (home / name).read_bytes() == (world.folder / name).read_bytes()
    assert not part.exists()
    for folder in (home / "data", home / "backup" / "data"):
        assert (folder / "report.txt").read_text() == "report"
    lines = [json.loads(line) for line in (world.folder / "serve.jsonl").read_text().splitlines()]
    uploads = [each for each in lines if each["event"] == "upload"]
    assert {"big.iso", "data/report.txt"} <= {each["path"] for each in uploads}
    assert all(re.fullmatch("[0-9a-f]{64}", each["sha256"]) for each in uploads)


async def cut_upload(world: World) -> None:
    """Send the first bytes of a film, and vanish."""
    connection = await asyncssh.connect(
        "127.0.0.1", world.port, username="alice", client_keys=[str(world.folder / "alice")],
        config=None, known_hosts=None, agent_path=None,
    )  # fmt: skip
    client = await connection.start_sftp_client()
    file = await client.open("film.mov", "wb")
    await file.write((world.folder / "film.mov").read_bytes()[:100_000])
    connection.abort()
    await connection.wait_closed()


def check_serve_status(world: World) -> None:
    first, *_, last = world.run("serve_status").splitlines()
    assert first.split() == ["user", "address", "for", "rate", "received", "sent", "upload"]
    assert all(each["user"] in ("alice", "") for each in json.loads(last))


def test_the_first_five_minutes(world: World) -> None:
    check_serve_try(world)


def check_serve_try(world: World) -> None:
    process = world.begin("serve_try")
    with ended(process):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
    assert lines[1].startswith("sftp -P ") and lines[2].startswith("password: ")


def test_the_unit(world: World) -> None:
    check_serve_systemd(world)
    if shutil.which("systemd-analyze") is None:
        unavailable("systemd-analyze is not installed")
    unit = (ROOT / "examples" / "pscp-serve.service").read_text()
    program = world.programs / "pscp-serve"
    shown = world.folder / "pscp-serve.service"
    shown.write_text(unit.replace("/usr/local/bin/pscp-serve", str(program)))
    argv = ["systemd-analyze", "verify", "--man=no", str(shown)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert "pscp-serve.service" not in done.stderr, done.stderr


def check_serve_systemd(world: World) -> None:
    block = BLOCKS["serve_systemd"]
    assert "systemctl enable --now pscp-serve" in world.run("serve_systemd")
    for name in re.findall(r"examples/\S+", block):
        assert (ROOT / name).is_file()


def test_the_examples_settings_are_sound() -> None:
    its = load(str(ROOT / "examples" / "serve.toml"))
    assert {*its.users} == {"alice", "recorder-7"}
    unit = (ROOT / "examples" / "pscp-serve.service").read_text()
    assert "--config /etc/pscp-serve/serve.toml" in unit and its.state == "/var/lib/pscp-serve"


def test_the_job_that_takes_uploads_up(world: World) -> None:
    (world.folder / "jobs.toml").write_text(JOB_TOML)
    [job] = jobs.load(str(world.folder / "jobs.toml")).jobs.values()
    command = job.sources_command[-1].replace("/srv/incoming", str(world.folder))
    names = [os.fsencode(name) for name in ("a b", "ü", "x\ny", "bad\udcff")]
    paths = [os.fsencode(world.folder) + b"/" + name for name in names]
    for path in paths:
        Path(os.fsdecode(path)).touch()
    told = [*paths, b"/srv/is gone"]
    lines = (json.dumps({"user": "alice", "path": os.fsdecode(path)}) + "\n" for path in told)
    (world.folder / "uploads.jsonl").write_text("".join(lines))
    done = subprocess.run(command, shell=True, capture_output=True, check=True)
    assert done.stdout.split(b"\0") == [*paths, b""]


def test_the_schema_for_editors_has_every_key() -> None:
    schema = json.loads((ROOT / "share" / "pscp" / "serve.schema.json").read_text())
    user = schema["$defs"]["User"]["properties"]
    assert ({*schema["properties"]}, {*user}) == ({*SERVER, "user"}, {*USER})
    text = PAGE.read_text()
    assert [key for key in (*SERVER, *USER) if f"| `{key}` |" not in text] == []
    assert tomllib.loads(SERVER_TOML)["user"].keys() == {"alice", "bob"}
