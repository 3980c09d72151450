"""A login's questions reach a person once, whatever the number of connections; secrets stay secret.

Not here: what ssh is told otherwise (test_copy_ssh.py), how a prompt is told apart
(../unit/test_prompts.py), MaxSessions (test_max_sessions.py).
"""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import held_lanes
import pytest
from many_hosts_world import Cluster
from programs import script
from servers import LoginServer, PasswordSshd
from servers.private import PrivateServer

import pscp
from e2e.conftest import ShellThat
from e2e.terminal import Terminal, terminal
from e2e.ways import PIPE, PSCP, Ran, run
from pscp.ground import state
from pscp.ground.errors import NoPython
from pscp.ground.processes import Process, descendants
from pscp.ground.values import MIB

MakeLogins = Callable[..., LoginServer]
SECRET = "correct-horse-47"
PASSWORD = r"@127\.0\.0\.1's password: "
CODE = "Verification code: "
SIZE = 20 * MIB  # more than a lane has in flight, so that there is work for another
PARTS = ("--chunk-size", "256k")
SLOW = (*PARTS, "-l", "160000")  # 1 s in all

OVER_EACH = pytest.mark.parametrize("transport", ["openssh", "asyncssh", "paramiko"])


@pytest.fixture
def server(make_login_server: MakeLogins) -> LoginServer:
    """One that wants the password."""
    return make_login_server(password=SECRET)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(contents())
    return path


@functools.cache
def contents() -> bytes:
    return random.Random(5).randbytes(SIZE)


@pytest.fixture
def there(source: Path) -> Iterator[Path]:
    """Where it goes; it must have come there."""
    path = source.with_name("there")
    yield path
    assert path.read_bytes() == source.read_bytes()


def argv(server: PrivateServer, source: Path, *words: str, lanes: int = 1) -> list[str]:
    """A copy that goes on once there are so many lanes, which a real sshd does not wait for."""
    to = f"{server.host}:{source.with_name('there')}"
    program = PSCP if lanes == 1 else (*held_lanes.program(lanes), *held_lanes.LIMIT)
    return [*program, "-F", server.ssh_config, "--stats", *words, str(source), to]


def typed(argv: list[str], environment: Mapping[str, str] | None = None) -> Ran:
    return run(argv, start_new_session=True, env={**os.environ, **(environment or {})})


def answered(
    server: PrivateServer, source: Path, *words: str,
    answers: Sequence[tuple[str, str]] = ((PASSWORD, SECRET),), code: int = 0, lanes: int = 1,
) -> str:  # fmt: skip
    """Copy at a terminal, where these questions are answered; returns what it shows."""
    with terminal(*argv(server, source, *words, lanes=lanes)) as screen:
        for prompt, answer in answers:
            screen.answer(prompt, answer)
        assert screen.end() == code, screen.shown
    return screen.shown


def lanes(shown: str) -> int:
    found = re.search(r"^connections +(\d+)\s*$", shown, re.MULTILINE)
    assert found, shown
    return int(found[1])


# --- what is asked once


@pytest.mark.parametrize(
    ("transport", "asks"), [("openssh", "Password: "), ("asyncssh", ""), ("paramiko", "Password: ")]
)
def test_a_password(
    asks: str, transport: str, source: Path, there: Path, make_login_server: MakeLogins
) -> None:
    server = make_login_server(password=SECRET, awaits=2, asks=asks)
    prompt = r"\(.*@.*\) Password: " if asks else PASSWORD
    words = ("-c", "4", "--transport", transport, *PARTS)
    shown = answered(server, source, *words, answers=[(prompt, SECRET)])
    assert len(re.findall(prompt, shown)) == 1
    assert server.accepted >= 2 and server.refused == 0
    assert SECRET not in shown


@OVER_EACH
def test_c1_who_types_has_all_the_time(
    transport: str, source: Path, there: Path, server: LoginServer
) -> None:
    """C1: the time in which a person is asked is not counted among the --timeout."""
    words = ("-c", "1", "--transport", transport, "--timeout", "6")
    with terminal(*argv(server, source, *words)) as screen:
        screen.wait_for(PASSWORD)
        time.sleep(7.0)  # longer than the timeout
        screen.type(f"{SECRET}\n")
        assert screen.end() == 0, screen.shown


@pytest.mark.parametrize(
    ("transport", "has_pam", "is_typed"),
    [("openssh", True, True), ("asyncssh", True, False), ("paramiko", False, True)],
)
def test_a_password_of_a_real_account(
    is_typed: bool, has_pam: bool, transport: str, source: Path, there: Path,
    password_file: Path, make_password_sshd: Callable[..., PasswordSshd],
) -> None:  # fmt: skip
    server = make_password_sshd(SECRET, has_pam)
    words = ["-c", "4", "--transport", transport, *PARTS]
    words += [] if is_typed else ["-B", "--password-file", str(password_file)]
    prompt = r"\(.*@.*\) Password: " if has_pam else PASSWORD
    shown = answered(server, source, *words, answers=[(prompt, SECRET)] * is_typed, lanes=2)
    assert len(re.findall(prompt, shown)) == int(is_typed)
    assert server.accepted >= 2 and server.refused == 0


def test_each_of_several_hosts_asks_once(
    source: Path, there: Path, tmp_path: Path, make_password_sshd: Callable[..., PasswordSshd]
) -> None:
    """All connections to a host have the answer to its question."""
    one, other = make_password_sshd(SECRET, False), make_password_sshd(SECRET, False)
    words = ["-c", "4", *PARTS]
    hosts: Any = Cluster(tmp_path, one, other)
    shown = answered(hosts, source, *words, answers=[(PASSWORD, SECRET)] * 2, lanes=4)
    assert len(re.findall(PASSWORD, shown)) == 2
    assert (one.accepted, other.accepted, one.refused, other.refused) == (2, 2, 0, 0)


@pytest.mark.parametrize("transport", ["openssh", "asyncssh"])
def test_a_password_that_was_mistyped(
    transport: str, source: Path, there: Path, make_login_server: MakeLogins
) -> None:
    server = make_login_server(password=SECRET, awaits=2)
    again = rf"Permission denied, please try again\.[^@]*{PASSWORD}"
    answers = [(PASSWORD, "wrong"), (again, SECRET)]
    answered(server, source, "-c", "3", "--transport", transport, *PARTS, answers=answers)
    assert server.refused == 1 and server.accepted >= 2


@pytest.mark.parametrize("transport", ["openssh", "paramiko"])
def test_a_passphrase(
    transport: str, source: Path, there: Path, make_sshd: Callable[..., PrivateServer]
) -> None:
    """Though the last copy's logins asked nothing, so that several begin at once."""
    server = make_sshd()
    assert typed(argv(server, source, "-c", "3", *PARTS, lanes=2)).code == 0
    there.unlink()
    before = server.log.count("Accepted publickey")
    key = server.folder / "user_key"
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", SECRET, "-f", key], check=True)
    prompt = "Enter passphrase for key '.*': "
    words = ("-c", "3", "--transport", transport, *PARTS)
    answers = [(prompt, "wrong"), (prompt, SECRET)]
    shown = answered(server, source, *words, answers=answers, lanes=2)
    assert shown.count("Enter passphrase") == 2
    assert server.log.count("Accepted publickey") - before >= 2


@pytest.mark.parametrize("transport", ["openssh", "paramiko"])
def test_a_host_key_and_a_password(
    transport: str, source: Path, there: Path, tmp_path: Path, make_login_server: MakeLogins
) -> None:
    server = make_login_server(password=SECRET, awaits=2)
    known = tmp_path / "new" / "known_hosts"
    known.parent.mkdir()
    unknown = ("-o", f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=ask")
    words = ("-c", "3", "--transport", transport, *unknown, *PARTS)
    with terminal(*argv(server, source, *words)) as screen:
        screen.wait_for(r"key fingerprint is SHA256:[\w+/]{43}")
        screen.wait_for(r"\(yes/no/\[fingerprint\]\)\? ")
        assert screen.echoes
        screen.type("yes\n")
        screen.wait_for(PASSWORD)
        assert not screen.echoes
        screen.type(f"{SECRET}\n")
        assert screen.end() == 0, screen.shown
    assert screen.shown.count("(yes/no/") == 1
    assert server.accepted >= 2
    assert (server.folder / "host_key.pub").read_text().split()[1] in known.read_text()


@OVER_EACH
def test_a_host_key_that_is_not_taken(
    transport: str, source: Path, tmp_path: Path, server: LoginServer
) -> None:
    """Not here: with -B (test_copy_ssh.py, test_transports.py)."""
    known = tmp_path / "known_hosts"
    words = ["--transport", transport, "-o", f"UserKnownHostsFile={known}"]
    words += ["-o", "StrictHostKeyChecking=ask"]
    with terminal(*argv(server, source, *words)) as screen:
        screen.answer(r"\(yes/no/\[fingerprint\]\)\? ", "no")
        assert screen.end() == 3, screen.shown
    assert "Host key verification failed" in screen.shown
    assert "compare the key with the host's owner" in " ".join(screen.shown.split())
    assert screen.shown.count("(yes/no/") == 1
    assert "password" not in screen.shown and not known.exists()


def test_a_stream(source: Path, there: Path, make_login_server: MakeLogins) -> None:
    server = make_login_server(password=SECRET, awaits=2)
    command = f"cat >{there}"
    pipe = [*PIPE, "-F", server.ssh_config, "-c", "3", "-l", "160000"]
    words = [*pipe, "--producer", f"cat {source}", server.host, command]
    with terminal(*words) as screen:
        screen.answer(PASSWORD, SECRET)
        assert screen.end() == 0, screen.shown
    assert server.accepted >= 2 and screen.shown.count("password:") == 1


# Each of three commands at the far end waits until all three are there.
TOGETHER = """
import contextlib, sys
from concurrent.futures import ThreadPoolExecutor
import pscp
from pscp.ground.locations import parse_location
from pscp.zfs.link import Link

way, host, config, folder = sys.argv[1:]
wait = f"touch {folder}/$$; while [ $(ls {folder} | wc -l) -lt 3 ]; do sleep 0.05; done"
options = pscp.Options(config_file=config)
with contextlib.ExitStack() as stack, ThreadPoolExecutor(3) as pool:
    if way == "link":
        link = Link(parse_location(f"{host}:"), options, print)
        ends = [stack.enter_context(contextlib.closing(link))] * 3
        link.run(["true"])
    else:
        ends = [stack.enter_context(pscp.Session(host, options)) for _ in range(3)]
    statuses = list(pool.map(lambda end: end.run(["sh", "-c", wait]).status, ends))
sys.exit(statuses != [0, 0, 0])
"""


@pytest.mark.parametrize("ends", ["link", "sessions"])
def test_several_sessions_of_one_process(ends: str, tmp_path: Path, server: LoginServer) -> None:
    """Such as pscp-zfs has: one for each of the datasets that are sent at once."""
    (tmp_path / "begun").mkdir()
    words = (ends, server.host, server.ssh_config, str(tmp_path / "begun"))
    with terminal(sys.executable, "-c", TOGETHER, *words) as screen:
        screen.answer(PASSWORD, SECRET)
        assert screen.end() == 0, screen.shown
    assert screen.shown.count("password:") == 1
    assert (server.accepted, server.refused) == (3, 0)


# --- what cannot be repeated


@OVER_EACH
def test_a_code_that_is_good_once(
    transport: str, source: Path, there: Path, make_login_server: MakeLogins
) -> None:
    server = make_login_server(codes=("123456", "654321"), awaits_sessions=2)
    words = ("-c", "4", "--transport", transport, *PARTS)
    shown = answered(server, source, *words, answers=[(CODE, "123456")])
    assert shown.count("Verification code") == 1
    assert (server.begun, server.accepted, server.refused) == (1, 1, 0)
    assert "one login: all lanes share one connection, one CPU core and" in shown
    assert lanes(shown) > 1


@pytest.mark.parametrize("transport", ["asyncssh", "paramiko"])
def test_a_password_and_a_code(
    transport: str, source: Path, there: Path, make_login_server: MakeLogins
) -> None:
    codes = {"codes": ("123456",), "awaits_sessions": 2}
    server = make_login_server(password=SECRET, asks="Password: ", **codes)
    words = ("-c", "4", "--transport", transport, *PARTS)
    shown = answered(server, source, *words, answers=[(r"\) Password: ", SECRET), (CODE, "123456")])
    assert (server.accepted, server.refused) == (1, 0)
    assert lanes(shown) > 1


def test_a_code_that_is_asked_for_as_a_password(
    source: Path, there: Path, make_login_server: MakeLogins
) -> None:
    """It is tried again by one connection, not by all, and then by none."""
    server = make_login_server(codes=("123456",), question="Password: ", awaits_sessions=2)
    shown = answered(server, source, "-c", "6", *PARTS, answers=[(r"\) Password: ", "123456")])
    assert server.accepted == 1 and server.refused <= 1 and server.begun <= 2
    assert lanes(shown) > 1
    assert shown.count("Password: ") == 1


@pytest.mark.parametrize(
    ("transport", "lacks"), [("openssh", "python3"), ("asyncssh", "exec"), ("paramiko", "python3")]
)
def test_a_code_where_only_sftp_is_there(
    lacks: str, transport: str, source: Path, there: Path, make_login_server: MakeLogins,
    shell_that: ShellThat,
) -> None:  # fmt: skip
    """No agent can be there: SFTP goes over the connection that has logged in already."""
    shell = shell_that('case "$2" in *python3*) exit 97 ;; esac')
    lacking = {"shell": shell} if lacks == "python3" else {"refuses": "exec"}
    server = make_login_server(codes=("123456", "654321"), awaits_sessions=2, **lacking)
    words = ("-c", "3", "--transport", transport, *PARTS)
    shown = answered(server, source, *words, answers=[(CODE, "123456")])
    assert shown.count("Verification code") == shown.count(": using SFTP") == 1
    assert (server.begun, server.accepted, server.refused) == (1, 1, 0)
    assert lanes(shown) > 1


def test_a_code_where_a_refused_command_ends_the_connection(
    source: Path, there: Path, make_login_server: MakeLogins
) -> None:
    """Nor can a hash program be run there."""
    server = make_login_server(codes=("123456", "654321"), refuses="connection")
    words = ("--verify", "none", "-c", "3", *SLOW)
    answered(server, source, *words, answers=[(CODE, "123456"), (CODE, "654321")])
    assert server.accepted == 2


@OVER_EACH
def test_a_code_after_which_the_server_hangs_up(
    transport: str, source: Path, make_login_server: MakeLogins
) -> None:
    """The account has expired, for instance: it asked for four more codes."""
    server = make_login_server(codes=("123456", "654321"), refuses="login")
    words = ("-c", "2", "--transport", transport)
    shown = answered(server, source, *words, answers=[(CODE, "123456")], code=3)
    assert shown.count("Verification code") == 1 and server.begun == 1
    assert "the login was answered, and then the server closed the connection" in shown
    assert "the account may have expired" in shown and "--retry-for" not in shown


@OVER_EACH
def test_an_account_that_has_expired(
    transport: str, source: Path, password_file: Path,
    make_password_sshd: Callable[..., PasswordSshd],
) -> None:  # fmt: skip
    """The password is not tried again and again."""
    server = make_password_sshd(SECRET, True)
    shadow = server.folder / "shadow"
    shadow.write_text(shadow.read_text().replace(":7:::", ":7::15000:"))
    words = ("--transport", transport, "-B", "--password-file", str(password_file))
    done = typed(argv(server, source, *words))
    assert done.code == 3 and "the account may have expired" in done.err
    assert (server.accepted, server.refused) == (0, 1)


def test_a_login_that_asked_nothing_is_expected_to_ask_nothing(
    source: Path, there: Path, tmp_path: Path, make_sshd: Callable[..., PrivateServer]
) -> None:
    server = make_sshd()
    log = tmp_path / "log"
    ssh = script(tmp_path / "ssh", f'echo "$1" >>{log}\nexec ssh "$@"')
    for _ in range(2):
        answered(server, source, "-S", str(ssh), "-c", "1", "--no-resume", answers=())
    assert log.read_text().split().count("-N") == 1


@pytest.mark.parametrize("words", [("-c", "5"), ("--channels", "5")], ids=" ".join)
def test_login_once(
    words: tuple[str, ...], source: Path, there: Path, make_login_server: MakeLogins
) -> None:
    server = make_login_server(password=SECRET, awaits_sessions=2)
    shown = answered(server, source, "--login-once", *words, *PARTS)
    assert (server.accepted, server.refused) == (1, 0)
    assert "one login: all lanes share one connection" in shown
    assert 1 < lanes(shown) <= 5


def test_login_once_for_several_copies(
    source: Path, make_sshd: Callable[..., PrivateServer]
) -> None:
    server = make_sshd()
    options = pscp.Options(config_file=server.ssh_config, batch=True, login_once=True)
    with pscp.Session(server.host, options) as session:
        for number in range(2):
            copy = source.with_name(f"{number}")
            assert session.copy(str(source), f"{server.host}:{copy}").ok
            assert copy.read_bytes() == source.read_bytes()
    assert server.log.count("Accepted publickey") == 1


def test_a_first_command_that_fails_costs_no_other_login(
    source: Path, tmp_path: Path, make_sshd: Callable[..., PrivateServer]
) -> None:
    # What the first stage says where there is no python3.
    server = make_sshd(shell=str(script(tmp_path / "shell", "exit 97")))
    with pscp.Session(server.host, config_file=server.ssh_config, login_once=True) as session:
        for _ in range(2):
            with pytest.raises(NoPython):
                session.copy(str(source), f"{server.host}:{source}-there")
    assert server.log.count("Accepted publickey") == 1


def test_the_only_login_is_lost(source: Path, server: LoginServer) -> None:
    slow = ("-c", "1", "-l", "1000")  # it would take longer than a command may
    with terminal(*argv(server, source, "--login-once", *slow)) as screen:
        screen.answer(PASSWORD, SECRET)
        screen.wait_for("1 of 1 lane")
        [master] = [each for each in descendants(screen.child.pid) if "-N" in words(each)]
        os.kill(master.pid, signal.SIGTERM)
        assert screen.end() == 3, screen.shown
    assert "the only login's connection was lost" in screen.shown
    assert "run the same command again" in screen.shown
    assert screen.shown.count("password:") == 1 and server.accepted == 1


def test_no_measurement_with_one_login(server: LoginServer) -> None:
    done = typed([*PSCP, "-F", server.ssh_config, "--measure", "--login-once", server.host])
    assert done.code == 2 and "not with --login-once" in done.err
    assert server.begun == 0


def words(process: Process) -> list[str]:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


# --- nobody to ask


def test_batch_asks_nothing(source: Path, server: LoginServer) -> None:
    shown = answered(server, source, "-B", answers=(), code=3)
    assert "Permission denied" in shown and "password:" not in shown
    assert "--password-file FILE reads a password" in shown
    assert (server.accepted, server.refused) == (0, 0)


def test_no_terminal(source: Path, server: LoginServer) -> None:
    done = typed(argv(server, source))
    assert done.code == 3
    assert "'s password', and there is no terminal to ask on" in done.err.replace('"', "'")
    assert "--password-file" in done.err
    assert (server.accepted, server.refused) == (0, 0)


def test_a_program_of_the_users_asks(
    source: Path, there: Path, tmp_path: Path, make_login_server: MakeLogins
) -> None:
    """SSH_ASKPASS, under the rules of ssh: there is no terminal, and there is a display."""
    server = make_login_server(password=SECRET, awaits=2)
    asked = tmp_path / "asked"
    program = script(tmp_path / "askpass", f'echo "$1" >>{asked}\necho {SECRET}')
    environment = {"SSH_ASKPASS": str(program), "DISPLAY": ":7"}
    assert typed(argv(server, source, "-c", "3", *PARTS), environment).code == 0
    assert len(asked.read_text().splitlines()) == 1
    assert server.accepted >= 2


# --- an end while a question is open


@pytest.mark.parametrize("words", [(), ("--login-once",)], ids=["", "once"])
def test_ctrl_c_at_the_prompt(words: tuple[str, ...], source: Path, server: LoginServer) -> None:
    with terminal(*argv(server, source, *words)) as screen:
        screen.wait_for(PASSWORD)
        assert not screen.echoes
        screen.type("half a pass\x03")
        assert screen.end() == 130, screen.shown
        assert screen.echoes
    assert "Traceback" not in screen.shown and "half" not in screen.shown


@pytest.mark.parametrize("how", ["", "trap '' HUP; "], ids=["", "nohup"])
def test_a_terminal_that_goes_away_at_the_prompt(
    how: str, source: Path, tmp_path: Path, server: LoginServer
) -> None:
    """13: 53 lines of a traceback."""
    said = tmp_path / "said"
    with terminal("sh", "-c", f'{how}exec "$@" 2>{said}', "sh", *argv(server, source)) as screen:
        screen.wait_for(PASSWORD)
        assert screen.hang_up() == (3 if how else 143)
    assert "Traceback" not in said.read_text() and len(said.read_text().splitlines()) <= 2


def test_no_progress_while_a_person_types(source: Path, there: Path, server: LoginServer) -> None:
    with terminal(*argv(server, source, "--progress", "plain", "-c", "1")) as screen:
        screen.wait_for(PASSWORD)
        time.sleep(1.5)  # longer than between two lines of progress
        screen.type(f"{SECRET}\n")
        assert screen.end() == 0, screen.shown
    after = re.split(PASSWORD, screen.shown)[1]
    assert after.startswith("\r\n")


# --- a file


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\nnot this line\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_password_of_a_file(
    by: str, source: Path, there: Path, password_file: Path, make_login_server: MakeLogins
) -> None:
    server = make_login_server(password=SECRET, awaits=2)
    words = ("--password-file", str(password_file)) if by == "option" else ()
    environment = {} if words else {"PSCP_PASSWORD_FILE": str(password_file)}
    done = typed(argv(server, source, "-Bq", "-c", "3", *words, *PARTS), environment)
    assert (done.code, done.out) == (0, "") and done.err.startswith("files copied ")
    assert server.accepted >= 2 and server.refused == 0


def test_a_password_of_a_file_that_is_wrong_is_tried_once(
    source: Path, password_file: Path, make_login_server: MakeLogins
) -> None:
    server = make_login_server(password="another")
    done = typed(argv(server, source, "-c", "3", "--password-file", str(password_file)))
    assert done.code == 3
    assert f"the password in {password_file} was not taken" in done.err
    assert (server.accepted, server.refused) == (0, 1)


@pytest.mark.parametrize(
    "act", ["chmod 640 {0}", "rm {0}; mkfifo -m 600 {0}", "echo >{0}", "rm {0}", "chown 12345 {0}"]
)
def test_a_password_file_that_is_refused(
    act: str, source: Path, password_file: Path, server: LoginServer
) -> None:
    if act.startswith("chown") and os.getuid() != 0:
        pytest.skip("only root can give a file away")
    subprocess.run(act.format(password_file), shell=True, check=True)
    done = typed(argv(server, source, "--password-file", str(password_file)))
    assert done.code == 2, done.err
    assert done.err.startswith(f"pscp: --password-file {password_file}: ")
    assert len(done.err.splitlines()) == 2
    assert "Connection" not in server.log and server.accepted == 0


# --- where the secret is not


def test_the_secret_is_in_no_argument_environment_or_file(
    source: Path, there: Path, tmp_path: Path, make_login_server: MakeLogins
) -> None:
    server = make_login_server(password=SECRET, awaits=2)
    log = tmp_path / "log"
    words = argv(server, source, "-d", "-vv", "-c", "3", "--progress", "json", *SLOW)
    script = 'exec "$@" >"$0" 2>&1'
    run_folder = Path(os.environ["XDG_RUNTIME_DIR"])
    before = set(run_folder.rglob("*"))
    with terminal("sh", "-c", script, str(log), *words) as screen:
        screen.answer(PASSWORD, SECRET)
        looked = set()
        while screen.child.poll() is None:
            looked |= secret_free(screen)
        assert screen.end() == 0, log.read_text()
    assert len(looked) >= 3  # pscp and some of its ssh
    assert server.accepted >= 2
    for folder in (Path(state.folder()), run_folder, log.parent):
        for path in folder.rglob("*"):
            if path.is_file():
                assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in screen.shown
    left = {path for path in run_folder.rglob("*") if not path.is_dir()}
    assert left <= before


def secret_free(screen: Terminal) -> set[int]:
    """The processes that have it neither in their arguments nor in their environment."""
    pids = {screen.child.pid, *(process.pid for process in descendants(screen.child.pid))}
    for pid in pids:
        for name in ("cmdline", "environ"):
            try:
                assert SECRET.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue
    return pids
