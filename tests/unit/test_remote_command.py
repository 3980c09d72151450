"""The remote command, run by every login shell and interpreter, and the program that it is fed.

Not here: the same through a channel (tests/conformance).
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import itertools
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import (
    PYENV_VERSIONS,
    RUN_TOKEN,
    SHELLS,
    far_environment,
    find_far_pythons,
    unavailable,
)

from pscp.connect import agent_program
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.endpoint.reading import tree
from pscp.transports import remote_command as remote

MARKER = b"a marker of 16 " + wire.WITH_HELLO
ROLE = requests.BeginSink(
    "", "", "", [], "sha256", False, False, False, True, {},
    modules=agent_program.copy_modules(["null_sink"]),
)  # fmt: skip


def agent_input(*frames: bytes, marker: bytes = MARKER) -> bytes:
    program = agent_program.bundle()
    return b"".join([b"%08d" % len(program), program, marker, *frames])


def asking(request: requests.Request, id_: int = 0) -> bytes:
    return wire.frame(wire.ASK, requests.to_json(request), id_)


def run(
    shell: str, text: str, environment: Mapping[str, str], said: bytes, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    argv = [shutil.which(shell) or unavailable(f"{shell} is not installed"), "-c", text]
    return subprocess.run(
        argv, input=said, capture_output=True, env=environment, cwd=cwd, timeout=200, check=False
    )


def frames_of(output: bytes) -> list[tuple[int, int, object]]:
    """(type, id, JSON) of each frame that follows the marker."""
    banner, marker, rest = output.partition(MARKER)
    assert (banner, marker) == (remote.STARTED, MARKER)
    decoder = wire.Decoder()
    decoder.feed(rest)
    found = []
    while (frame := decoder.next()) is not None:
        found.append((frame.type, frame.id, frame.json()))
    assert decoder.rest() == b""
    return found


def check_conversation(done: subprocess.CompletedProcess[bytes], version: str) -> None:
    assert (done.stderr, done.returncode) == (b"", 0)
    (hello, _, facts), *answers = frames_of(done.stdout)
    assert hello == wire.HELLO
    assert isinstance(facts, dict)
    assert facts.keys() == {"hashes", "python", "system", "aes", "cpus", "devices"}
    assert facts["python"].startswith(version) and facts["system"] == os.uname().sysname
    assert "sha256" in facts["hashes"] and all(speed > 0 for speed in facts["hashes"].values())
    assert answers == [(wire.REPLY, 1, None), (wire.REPLY, 2, None)]


CONVERSATION = agent_input(asking(ROLE, 1), asking(requests.End(), 2))


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """A folder for PATH, with a python3 in it to be made."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "python3"


@pytest.fixture
def here(tmp_path: Path) -> dict[str, str]:
    """An environment in which python3 is the one that runs the tests."""
    return far_environment(tmp_path, tmp_path, sys.executable)


def path_of(link: Path) -> dict[str, str]:
    """An environment in which python3 is this link."""
    return {"PATH": f"{link.parent}:/usr/bin:/bin", "PSCP_TEST_RUN": RUN_TOKEN}


def test_every_interpreter_is_started_by_sh(far_python: str, link: Path) -> None:
    link.symlink_to(far_python)
    version = next(v for v, path in find_far_pythons().items() if path == far_python)
    check_conversation(run("sh", remote.command(), path_of(link), CONVERSATION), version)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_understands_the_command(shell: str, here: dict[str, str]) -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    check_conversation(run(shell, remote.command(), here, CONVERSATION), version)


def test_the_command_holds_nothing_that_differs_between_two_copies() -> None:
    text = remote.command()
    assert text == remote.command()
    assert text.isascii() and text.isprintable() and "!" not in text  # csh's history
    assert text.count("'") == 2 and len(text) < 1000


def test_what_lies_around_at_the_far_end_is_not_imported(
    here: dict[str, str], tmp_path: Path
) -> None:
    for name in ("io", "zlib", "json", "sys", "types"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is not the one')")
    here |= {"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "io.py")}
    done = run("sh", remote.command(), here, CONVERSATION, cwd=tmp_path)
    check_conversation(done, "3.")


@pytest.mark.parametrize("shell", SHELLS)
def test_no_python_is_status_97(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = " ".join(f"{tmp_path}{p}" for p in remote.PYTHONS.split() if p.startswith("/"))
    monkeypatch.setattr(remote, "PYTHONS", f"python3 {nowhere}")
    (tmp_path / "sh").symlink_to("/bin/sh")
    done = run(shell, remote.command(), {"PATH": str(tmp_path), "HOME": str(tmp_path)}, b"")
    assert (done.returncode, done.stdout) == (remote.NO_PYTHON_STATUS, b"")


def test_a_python_beside_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PYTHONS", f"python3 {tmp_path}/no/python3 {sys.executable}")
    (tmp_path / "sh").symlink_to("/bin/sh")
    environment = {"PATH": str(tmp_path), "PSCP_TEST_RUN": RUN_TOKEN}
    check_conversation(run("sh", remote.command(), environment, CONVERSATION), "3.")


def test_a_python_that_is_too_old_is_status_98(link: Path) -> None:
    """Of the version that it says it is, the stage runs no more than the look at it."""
    older = "import sys; sys.version_info = (3, 5, 9); exec(sys.argv[1])"
    link.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{older}" "$3"\n')
    link.chmod(0o755)
    done = run("sh", remote.command(), path_of(link), CONVERSATION)
    assert (done.returncode, done.stdout) == (remote.OLD_PYTHON_STATUS, remote.STARTED)


def test_the_stage_is_python_that_the_oldest_can_read() -> None:
    """Python 2 has to get as far as the look at its version, and so does 3.0."""
    pythons = [*PYENV_VERSIONS.glob("2.7.*/bin/python2.7"), Path("/usr/bin/python2.7")]
    python2 = next((str(path) for path in pythons if path.exists()), None)
    if python2 is None:
        pytest.skip("no python2.7 here, which few machines still have")
    stage = remote.command().split('"')[1]
    done = subprocess.run([python2, "-c", stage], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == remote.OLD_PYTHON_STATUS


def test_an_agent_ends_with_its_input_wherever_that_ends(here: dict[str, str]) -> None:
    """As when a connection is lost: no status but 0, and nothing said, once it was running."""
    for cut in (1, 20, len(asking(requests.End(), 2)) + 5):
        done = run("sh", remote.command(), here, CONVERSATION[:-cut])
        assert (done.returncode, done.stderr) == (0, b"")
        assert frames_of(done.stdout)[0][0] == wire.HELLO


def test_an_agent_of_which_all_is_known_says_no_hello(here: dict[str, str]) -> None:
    marker = MARKER[:-1] + wire.WITHOUT_HELLO
    said = agent_input(asking(ROLE, 1), asking(requests.End(), 2), marker=marker)
    done = run("sh", remote.command(), here, said)
    answers = b"".join(wire.frame(wire.REPLY, b"null", number) for number in (1, 2))
    assert done.stdout == remote.STARTED + marker + answers


def test_an_agent_whose_answers_nobody_hears_ends(here: dict[str, str], tmp_path: Path) -> None:
    """The thread that settles small files finds out, and more of them wait than may."""
    claim = requests.Claim(str(tmp_path), "01234567", "89abcdef", [])
    begin = ROLE._replace(root=claim.root, token=claim.token, nonce=claim.nonce, test=False)
    body, digest = b"small", hashlib.sha256(b"small").hexdigest()
    pipe, answers = subprocess.PIPE, b""
    argv = ["sh", "-c", remote.command()]
    with subprocess.Popen(argv, env=here, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as agent:
        assert agent.stdin and agent.stdout and agent.stderr
        agent.stdin.write(agent_input(asking(claim, 1)))
        agent.stdin.write(asking(begin, 2))
        while b"null" not in answers:  # the answer to the second
            answers += agent.stdout.read(4096) or pytest.fail("it has ended")
        agent.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            for number in range(400):
                file = tree.Entry(tree.FILE, 0, f"{number}", len(body), 0o644, 0, 1, {})
                payload = wire.pack_payload([[file, [len(body), digest]]], [body])
                agent.stdin.write(wire.frame(wire.PACK, payload, number + 3))
        assert (agent.wait(60), agent.stderr.read()) == (0, b"")


# --- the program


def meaning(text: bytes) -> str:
    """The program, without what its docstrings say, and types that only mypy reads."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 2:  # of another room
            node.level, node.module = 1, (node.module or "").partition(".")[2] or None
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name | ast.Constant):
            node.test, node.body = ast.Constant(0), []
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            for place, step in enumerate(node.body):
                if isinstance(step, ast.AnnAssign) and step.value is not None:
                    node.body[place] = ast.Assign([step.target], step.value)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.dump(tree)


@pytest.mark.parametrize("name", [*itertools.chain(*agent_program.ROOMS.values())])
def test_a_module_means_the_same_without_comments_and_docstrings(name: str) -> None:
    text = pkgutil.get_data("pscp.endpoint", f"{agent_program.path_of(name)}.py")
    assert text is not None
    sent = agent_program._text(name)
    assert meaning(sent) == meaning(text)
    assert sent.count(b"\n") == text.count(b"\n")  # a traceback names the right line
    assert b'"""' not in sent and len(sent) < len(text)
