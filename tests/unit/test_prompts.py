"""What is a password, what is good only once, and who is let near the answers.

Not here: a real login (../e2e/test_login.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pscp.connect.logins.prompts import Caller, Prompts, read_password, start_prompts
from pscp.ground.errors import AuthenticationError, UsageError
from pscp.transports import askpass
from pscp.transports.control_sockets import sweep

PASSWORD = "me@host's password: "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path / "run"


def password_file(folder: Path, content: bytes = b"secret\n", mode: int = 0o600) -> str:
    file = folder / "file"
    file.write_bytes(content)
    file.chmod(mode)
    return str(file)


@pytest.fixture
def prompts(folder: Path, tmp_path: Path) -> Iterator[Prompts]:
    """With a password file: nobody is at a terminal here."""
    with contextlib.closing(Prompts(str(folder), password_file(tmp_path))) as made:
        yield made


def place(prompts: Prompts, may_ask: bool = False) -> tuple[str, str]:
    """A connection's token, and where it asks."""
    return called(prompts, may_ask)[1:]


def called(prompts: Prompts, may_ask: bool = False) -> tuple[Caller, str, str]:
    """A connection, its token, and where it asks."""
    caller, environment = prompts.caller(may_ask)
    token, _, path = environment[askpass.SOCKET].partition(":")
    return caller, token, path


def asked(prompts: Prompts, prompt: str, hint: str = "", asker: int = 1) -> bytes:
    token, path = place(prompts)
    return askpass.ask(path, token, asker, hint, prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        PASSWORD,
        "me@jump.example.org's password:",
        "(me@host) Password: ",
        "(me@host) Password:",
        "Enter passphrase for key '/home/me/.ssh/id_ed25519': ",
        "Enter passphrase for /home/me/.ssh/id_rsa: ",
    ],
)
def test_what_can_be_repeated(prompts: Prompts, prompt: str) -> None:
    for asker in (1, 2):
        assert asked(prompts, prompt, asker=asker) == b"Asecret"
    assert prompts.was_asked and not prompts.is_single_use


@pytest.mark.parametrize(
    "prompt",
    [
        "(me@host) Verification code: ",
        "(me@host) Password and code: ",
        "(me@host) One-time password (OATH) for `me': ",
        "(me@host) otp-md5 495 ke1234 ext\nPassword: ",
        "Password: ",
        "Enter PIN for 'token': ",
        "me@host's old password: ",
        "Enter me@host's new password: ",
        "",
    ],
)
def test_all_else_is_good_once(prompts: Prompts, prompt: str) -> None:
    assert asked(prompts, prompt) == askpass.STOP
    assert prompts.is_single_use


def test_a_touch_is_for_one_login(prompts: Prompts) -> None:
    assert asked(prompts, "Confirm user presence for key ED25519-SK", "none") == askpass.STOP
    assert prompts.is_single_use


def test_a_host_key_is_not_taken_unasked(prompts: Prompts) -> None:
    question = "The authenticity ...\nAre you sure you want to continue connecting (yes/no)? "
    assert asked(prompts, question) == b"Ano"
    assert asked(prompts, "Allow this?", "confirm") == askpass.NONE
    assert not prompts.was_asked and not prompts.is_single_use


def test_a_wrong_password_is_not_repeated(prompts: Prompts) -> None:
    caller, token, path = called(prompts)
    assert askpass.ask(path, token, 7, "", PASSWORD) == b"Asecret"
    assert askpass.ask(path, token, 7, "", PASSWORD) == askpass.STOP
    refused = caller.refusal
    assert isinstance(refused, AuthenticationError) and "was not taken" in refused.message
    assert "secret" not in refused.message


def test_a_wrong_passphrase_gives_way_to_the_next_key(prompts: Prompts) -> None:
    caller, token, path = called(prompts)
    prompt = "Enter passphrase for key '/k': "
    assert askpass.ask(path, token, 7, "", prompt) == b"Asecret"
    assert askpass.ask(path, token, 7, "", prompt) == askpass.NONE
    assert caller.refusal is None


def test_what_is_not_a_question_gets_no_answer(prompts: Prompts) -> None:
    _, path = place(prompts)
    for data in (b"", b"\0", b"0\x001\0\0", b"0\0" * 9, b"x" * 100_000):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(path)
            try:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                assert peer.recv(100) == b""
            except (BrokenPipeError, ConnectionResetError):
                pass
    assert asked(prompts, PASSWORD) == b"Asecret"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_answer(tmp_path: Path) -> None:
    """Not even where the folder would let one in."""
    asks = "import os, sys; from pscp.transports import askpass; os.setuid(int(sys.argv[1]))\n"
    asks += "try: print(askpass.ask(sys.argv[2], sys.argv[3], 1, '', sys.argv[4]))\n"
    asks += "except (BrokenPipeError, ConnectionResetError): print(b'')"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        prompts = stack.enter_context(contextlib.closing(Prompts(folder, password_file(tmp_path))))
        token, path = place(prompts)
        os.chmod(folder, 0o755)
        os.chmod(path, 0o777)
        argv = [sys.executable, "-c", asks]
        said = [
            subprocess.check_output([*argv, uid, path, token, PASSWORD]) for uid in ("0", "65534")
        ]
    assert said == [b"b'Asecret'\n", b"b''\n"]


def test_nothing_is_left(folder: Path) -> None:
    prompts = Prompts(str(folder))
    assert all(not path.stat().st_mode & 0o077 for path in folder.glob("*.ask"))
    assert len(list(folder.iterdir())) == 2
    prompts.close()
    assert list(folder.iterdir()) == []


def test_an_end_lets_go_of_whoever_waits(folder: Path) -> None:
    prompts = Prompts(str(folder))
    _, path = place(prompts)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        peer.sendall(b"0\0")  # half a question
        prompts.close()
        with contextlib.suppress(ConnectionResetError):  # where the question was not read yet
            assert peer.recv(100) == b""


# --- the program that ssh runs


def run_as_ssh(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A shell stands for ssh, and is ended where there is no answer."""
    script = '"$SSH_ASKPASS" "$0"; echo "status $?"'
    return subprocess.run(
        ["sh", "-c", script, PASSWORD], env={**os.environ, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_the_program_where_nobody_answers(folder: Path) -> None:
    """ssh would send an empty password, and be counted as a failed login."""
    prompts = Prompts(str(folder))
    environment = prompts.caller(False)[1]
    assert run_as_ssh(environment).returncode == -15
    script = Path(environment["SSH_ASKPASS"]).read_text()
    prompts.close()
    Path(environment["SSH_ASKPASS"]).write_text(script)
    Path(environment["SSH_ASKPASS"]).chmod(stat.S_IRWXU)
    assert run_as_ssh(environment).returncode == -15


# --- the file


@pytest.mark.parametrize(
    ("content", "password"),
    [
        (b"secret", "secret"), (b"secret\n", "secret"), (b"secret\r\nmore\n", "secret"),
        (b" with blanks \n", " with blanks "), (b"\xff\xc3\xa4\n", "\udcff\u00e4"),
        (b"x" * 1023 + b"\n", "x" * 1023),
    ],
)  # fmt: skip
def test_a_password_is_the_first_line(tmp_path: Path, content: bytes, password: str) -> None:
    assert read_password(password_file(tmp_path, content, 0o400)) == password


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o610, 0o602, 0o777])
def test_a_file_that_others_can_use(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UsageError, match="others can read it"):
        read_password(password_file(tmp_path, mode=mode))


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n", b"x" * 1024, b"x" * 5000])
def test_a_file_without_a_password(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UsageError, match="its first line is"):
        read_password(password_file(tmp_path, content))


def test_what_a_killed_session_left_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as base, contextlib.ExitStack() as stack:
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        alive = stack.enter_context(
            contextlib.closing(start_prompts(None, "") or pytest.fail("none"))
        )
        shared = Path(base) / f"pscp-{os.getuid()}"
        before = {each.name for each in shared.iterdir()}
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(shared / "killed"))
            killed.listen()
        (shared / "killed.ask").touch()
        for name in ("killed", "killed.ask"):
            os.utime(shared / name, (0, 0))  # one that is new may be listened on in a moment
        sweep(str(shared))
        assert {each.name for each in shared.iterdir()} == before
        assert asked(alive, PASSWORD)[:1] == askpass.STOP
