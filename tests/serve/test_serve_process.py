"""The processes of pscp-serve and its command line: signals, systemd, --try, --status, metrics.

Not here: logins (test_serve_logins.py), the settings (test_serve_settings.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import argon2
import asyncssh
import forked
import pytest

from pscp.ground.processes import descendants, is_at_work
from serve import server
from serve.server import COMMAND, Serving, put, run, until

BOB = '[user.bob]\nfolder = "alice"\nrules = "write"\nkeys = "alice.pub"\n'


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path, 'workers = 2\nmetrics = "serve.prom"') as made:
        yield made


def command(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return forked.run([*COMMAND, *words], input=text, capture_output=True, text=True, timeout=200)


# --- signals


def test_a_hangup_changes_the_settings_and_cuts_nobody(serving: Serving) -> None:
    async def through() -> None:
        connection = await serving.connect()
        async with connection, connection.start_sftp_client() as client:
            async with client.open("long", "wb") as file:
                await file.write(b"before ")
                serving.write("workers = 2", BOB)  # alice is no user any more
                serving.hang_up()
                await file.write(b"after")
            assert await put(connection)

    run(through())
    assert (serving.home / "long").read_bytes() == b"before after"
    assert not serving.login("alice")
    assert serving.login("bob")


def test_a_hangup_with_a_mistake_changes_nothing(serving: Serving) -> None:
    serving.config.write_text(serving.config.read_text() + "kyes = 1\n")
    serving.hang_up()
    [event] = serving.events("settings")
    assert not event["ok"] and "did you mean keys?" in event["mistakes"][0]
    assert serving.login("alice")


def test_a_hangup_says_what_holds_at_the_next_start(serving: Serving, tmp_path: Path) -> None:
    """It does not before: another state folder would be that of some sessions and not of others."""
    text = serving.config.read_text().replace("workers = 2", "workers = 3")
    text = text.replace('"state"', '"/proc/none"').replace('"log.jsonl"', '"other"')
    serving.config.write_text(text)
    serving.hang_up()
    serving.hang_up()
    for event in serving.events("settings"):
        assert event["at_the_next_start"] == ["state", "log", "workers"]
    assert serving.login("alice")
    prom = serving.folder / "serve.prom"
    until(prom.exists)
    prom.unlink()
    serving.hang_up()
    until(prom.exists)
    assert "pscp_serve_workers 2" in prom.read_text()


def test_a_log_that_was_rotated_is_begun_anew(serving: Serving) -> None:
    assert serving.login("alice")
    serving.log.rename(f"{serving.log}.1")
    serving.hang_up()
    until(lambda: serving.login("alice") and serving.events("login"))


def test_a_log_that_cannot_be_written_keeps_nobody_out(serving: Serving) -> None:
    """Else a customer who fills the disk could not remove anything either."""
    serving.log.rename(f"{serving.log}.1")
    serving.log.symlink_to("/dev/full")

    def is_counted() -> bool:
        serving.process.send_signal(signal.SIGHUP)  # which has the metrics written as well
        assert serving.login("alice")
        metrics = serving.folder / "serve.prom"
        return metrics.exists() and "pscp_serve_log_failures_total" in metrics.read_text()

    until(is_counted)
    serving.log.unlink()
    serving.log.mkdir()  # nor can it be opened any more
    serving.process.send_signal(signal.SIGHUP)
    assert serving.login("alice")
    serving.log.rmdir()


def test_a_worker_that_dies_is_replaced(serving: Serving) -> None:
    workers = descendants(serving.process.pid)
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    until(lambda: len(serving.events("worker ended")) == 2)
    assert {each["code"] for each in serving.events("worker ended")} == {-signal.SIGKILL}
    assert serving.login("alice")  # the port was open all the time


def test_one_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it was to write metrics meanwhile, it ended: as after Ctrl-Z and fg."""
    soon = "from pscp.serve.server import process; process._TOLD_S = 0.01; "
    python, option, program = server.COMMAND
    monkeypatch.setattr(server, "COMMAND", (python, option, soon + program))
    with Serving(tmp_path, "workers = 1") as serving:
        for _ in range(3):
            serving.process.send_signal(signal.SIGSTOP)
            until(lambda: not is_at_work(serving.process.pid))
            time.sleep(0.05)  # longer than until it is to write metrics
            serving.process.send_signal(signal.SIGCONT)
            serving.hang_up()  # which it hears


def test_a_connection_without_a_session_ends_after_a_while(tmp_path: Path) -> None:
    async def wait(serving: Serving) -> None:
        connection = await serving.connect()
        await connection.wait_closed()

    with Serving(tmp_path, "workers = 1\nidle = 1") as serving:
        run(wait(serving))


def test_hangups_while_workers_begin_end_none(tmp_path: Path) -> None:
    with Serving(tmp_path, "workers = 2") as serving:
        for _ in range(5):
            serving.hang_up()
        assert serving.login("alice")
        assert serving.events("worker ended") == []


def test_no_worker_stays_behind(tmp_path: Path) -> None:
    serving = Serving(tmp_path, "workers = 2").__enter__()
    workers = descendants(serving.process.pid)
    serving.process.kill()
    serving.process.communicate(timeout=120)
    until(lambda: not any(Path(f"/proc/{each.pid}").exists() for each in workers))


# --- what is told


def test_status_shows_who_is_there_and_how_far(serving: Serving) -> None:
    async def during() -> tuple[str, str]:
        connection = await serving.connect()
        async with (
            connection,
            connection.start_sftp_client() as client,
            client.open("big.iso", "wb") as file,
        ):
            await file.write(b"x" * 300_000)
            shown = serving.status("--status"), serving.status("--status", "--json")
        return shown[0].stdout, shown[1].stdout

    shown, told = run(during())
    assert re.search(r"^alice +127\.0\.0\.1 .* big\.iso 300\.0 kB$", shown, re.M), shown
    [session] = json.loads(told)
    assert (session["user"], session["address"]) == ("alice", "127.0.0.1")
    assert session["received_bytes"] > 300_000 and session["uploads"] == [["big.iso", 300_000]]
    until(lambda: serving.status("--status", "--json").stdout == "[]\n")


def test_status_without_a_server(tmp_path: Path) -> None:
    serving = Serving(tmp_path, "")
    done = serving.status("--status")
    assert (done.returncode, "no server answers" in done.stderr) == (1, True)


def test_the_status_is_for_the_servers_user_alone(serving: Serving) -> None:
    until(lambda: serving.status("--status").returncode == 0)
    found = serving.state.glob
    until(lambda: {stat.S_IMODE(each.stat().st_mode) for each in found("*.sock")} == {0o600})
    assert stat.S_IMODE(serving.state.stat().st_mode) == 0o700


def metrics(serving: Serving) -> dict[str, float]:
    """The numbers of the file of metrics, by name and labels."""
    file = serving.folder / "serve.prom"
    lines = file.read_text().splitlines() if file.exists() else []
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(number) for name, _, number in pairs}


def test_metrics_for_a_monitor(serving: Serving) -> None:
    assert serving.login("alice") and not serving.login("bob")
    logins, files = 'pscp_serve_logins_total{user="alice"}', 'pscp_serve_files_total{user="alice"}'
    serving.hang_up()  # written at once, else every 15 s
    until(lambda: metrics(serving).get(files) == 1)
    found = metrics(serving)
    assert (found[logins], found["pscp_serve_workers"]) == (1, 2)
    assert found['pscp_serve_bytes_total{user="alice"}'] >= 1
    for worker in descendants(serving.process.pid):
        os.kill(worker.pid, signal.SIGKILL)
    until(lambda: len(serving.events("worker ended")) == 2)
    serving.hang_up()
    until(lambda: serving.login("alice") and metrics(serving).get(logins, 0) >= 1)


def test_a_part_that_nobody_resumes_goes(tmp_path: Path) -> None:
    async def cut(serving: Serving) -> None:
        connection = await serving.connect()
        client = await connection.start_sftp_client()
        file = await client.open("cut", "wb")
        await file.write(b"x" * 1000)
        connection.abort()
        await connection.wait_closed()

    with Serving(tmp_path, "workers = 1") as serving:
        run(cut(serving))
        [part] = serving.home.iterdir()
        until(lambda: part.stat().st_size == 1000)  # a write is answered before it is made
        os.utime(part, (1, 1))
    with Serving(tmp_path, 'workers = 2\nkeep-parts = "1h"') as serving:
        until(lambda: serving.events("swept"))
        assert [(each["user"], each["parts"]) for each in serving.events("swept")] == [("alice", 1)]
        assert [*serving.home.iterdir()] == []


# --- systemd, keys, another user


def test_systemd_may_have_opened_the_port(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        with Serving(tmp_path, "workers = 2", listener=listener) as serving:
            serving.port = listener.getsockname()[1]
            assert serving.login("alice")


def test_the_host_key_is_made_once(tmp_path: Path) -> None:
    keys = []
    for _ in range(2):
        with Serving(tmp_path, "workers = 1"):
            keys.append((tmp_path / "state" / "host_ed25519").read_bytes())
    assert keys[0] == keys[1]
    assert stat.S_IMODE((tmp_path / "state" / "host_ed25519").stat().st_mode) == 0o600


def test_a_host_key_of_sshds_is_taken(tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    key.write_private_key(tmp_path / "sshd_key")
    with Serving(tmp_path, 'workers = 1\nhost-keys = "sshd_key"') as serving:
        known: Any = ([key.convert_to_public()], [], [])
        assert serving.login("alice", known_hosts=known)


def test_an_owner_and_a_mode_of_ones_own_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a server that has of root's rights no more than docs/serve.md says."""
    if os.geteuid() != 0:
        return  # nobody else can give files away
    rights = ",".join(("-all", "+chown", "+fowner", "+dac_override"))
    kept = [f"--{which}={rights}" for which in ("inh-caps", "ambient-caps", "bounding-set")]
    words = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *kept, *server.COMMAND)
    monkeypatch.setattr(server, "COMMAND", words)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = Serving(folder, "workers = 1\n")
        made.let_port_go()  # it shares one only with who is the same user
        alice = 'folder = "alice"\nrules = "write"\nkeys = "alice.pub"\nmode = "660"\n'
        made.write("workers = 1\n", alice=f'[user.alice]\n{alice}owner = "1234:1235"\n')
        for path in (folder, *folder.iterdir()):
            os.chown(path, 65534, 65534)
        with made as serving:
            assert serving.login("alice") and serving.login("alice")  # which replaces the file
            run(make_folder(serving))
        for path, mode in ((serving.home / "tried", 0o660), (serving.home / "made", 0o770)):
            status = path.stat()
            assert (status.st_uid, status.st_gid) == (1234, 1235)
            assert stat.S_IMODE(status.st_mode) == mode


async def make_folder(serving: Serving) -> None:
    async with await serving.connect() as connection, connection.start_sftp_client() as client:
        await client.mkdir("made")


def test_it_becomes_another_user_once_the_port_is_open(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return  # nobody else can become another user
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)  # where anybody may look
        folder.chmod(0o777)
        becomes(Serving(folder, 'workers = 1\nrun-as = "nobody"'))


def becomes(serving: Serving) -> None:
    os.chown(serving.home, 65534, 65534)
    with serving:
        assert serving.login("alice")
        assert (serving.home / "tried").stat().st_uid == 65534
        ids = (Path("/proc") / str(serving.process.pid) / "status").read_text()
        assert re.search(r"^Uid:\t65534\t65534\t65534\t65534$", ids, re.M)
        assert re.search(r"^Groups:\t(65534 )?$", ids, re.M)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('host-keys = "serve.toml"', "host keys: "),
        ('state = "serve.toml/x"', "state "),
        ('log = "not-there/log"', "not-there/log"),
    ],
)
def test_a_server_that_cannot_begin_says_why(tmp_path: Path, settings: str, said: str) -> None:
    serving = Serving(tmp_path, settings)
    name = settings.partition(" ")[0]
    kept = [
        each for each in serving.config.read_text().splitlines()
        if each == settings or not each.startswith(f"{name} =")
    ]  # fmt: skip
    serving.config.write_text("\n".join(kept))
    done = serving.status()
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


def test_a_second_server_of_one_state_folder(serving: Serving) -> None:
    """It listened at the same port, and took the first one's --status away for good."""
    done = command("--config", str(serving.config))
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1, f"pscp-serve: a pscp-serve runs already with {serving.state}"
    )  # fmt: skip
    assert serving.status("--status").returncode == 0
    assert [each["listen"] for each in serving.events("started")] == [[f"127.0.0.1:{serving.port}"]]


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    serving = Serving(tmp_path, "workers = 1")
    serving.let_port_go()
    with socket.socket() as other:
        other.bind(("127.0.0.1", serving.port))
        other.listen()
        done = serving.status()
    assert (done.returncode, "Address already in use" in done.stderr) == (1, True)


# --- the command line


def test_a_hash_is_that_of_the_password() -> None:
    done = command("--hash-password", text="secret\n")
    assert argon2.PasswordHasher().verify(done.stdout.strip(), "secret")
    assert command("--hash-password", text="\n").returncode == 2


def test_check_finds_what_keeps_a_user_out(tmp_path: Path) -> None:
    serving = Serving(tmp_path, "")
    assert serving.status("--check").returncode == 0
    serving.home.rmdir()
    done = serving.status("--check")
    assert (done.returncode, done.stderr) == (1, f"user.alice: {serving.home} is no folder\n")
    serving.config.write_text("listn = 1\n")
    done = serving.status("--check")
    assert done.returncode == 2
    assert f"{serving.config}:1: there is no 'listn'; did you mean listen?" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        [], ["--config"], ["--config", "x", "y"], ["--json", "--config", "x"], ["--status"],
        ["--try", "--check"], ["--try", "--config", "x"], ["--status", "--check", "--config", "x"],
        ["--hash-password", "--config", "x"], ["--config", "/not/there"],
    ],
)  # fmt: skip
def test_wrong_use(words: list[str]) -> None:
    done = command(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr and "Traceback" not in done.stderr


def test_without_a_library_it_says_what_to_install(tmp_path: Path) -> None:
    """It named an extra of a distribution that no index has."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['argon2'] = None")
    done = subprocess.run(
        [*COMMAND, "--try"], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "pscp-serve: the Python package argon2 is not installed\n"
        f"            {sys.executable} -m pip install argon2-cffi\n"
    )


def test_trying_it_out_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    process = subprocess.Popen(
        (*COMMAND, "--try"), cwd=tmp_path / "here", env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        port = re.fullmatch(r"sftp -P ([0-9]+) try@.*\n", lines[1])
        password = re.fullmatch(r"password: (.+)\n", lines[2])
        assert port and password, lines

        async def one() -> None:
            connection = await asyncssh.connect(
                "127.0.0.1", int(port[1]), username="try", password=password[1], config=None,
                client_keys=None, known_hosts=None, agent_path=None,
            )  # fmt: skip
            async with connection:
                key = connection.get_server_host_key()
                assert key is not None and key.get_fingerprint() in lines[3]
                assert await put(connection)

        run(one())
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        with contextlib.suppress(OSError):
            process.kill()
        _, told = process.communicate()
    events = [json.loads(line)["event"] for line in told.splitlines()]
    assert events == ["started", "login", "upload", "logout", "stopped"]
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert (tmp_path / "here" / "tried").read_bytes() == b"x"
