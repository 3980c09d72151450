"""pscp --measure: what it finds, how it says it, and that what it saved is used and can be ignored.

The times are very short, so that no rate here means anything: that there is one is what counts.

Not here: what follows from figures (../unit/test_advice.py). Read next: ways.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Unpack

import pytest
from conftest import MakeServer
from programs import script
from servers.private import PrivateServer

import pscp
from e2e.ways import COMMAND_S, PSCP, Ran, Way, run
from pscp.connect.known.host_memory import HostMemory
from pscp.measuring.measure import Say
from pscp.options.option_fields import OptionFields

QUICK = f"""
from pscp.measuring import measure
measure.measure.__wrapped__.__kwdefaults__["seconds"] = 0.05
{PSCP[-1]}
"""
CIPHER, OTHER = "aes192-ctr", "aes256-ctr"  # no default's first choice, and every ssh has them


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def measured(
    server: PrivateServer, *, save: bool = False, seconds: float = 0.05, say: Say | None = None,
    **fields: Unpack[OptionFields],
) -> pscp.Measurement:  # fmt: skip
    fields = {"config_file": server.ssh_config, "batch": True, **fields}
    return pscp.measure(server.host, save=save, seconds=seconds, say=say, **fields)


def typed(way: Way, *words: str) -> Ran:
    argv = [QUICK if word == PSCP[-1] else word for word in way.argv(*words)]
    return run(argv)


def saved(state: Path) -> dict[str, Any]:
    [file] = (state / "pscp" / "hosts").glob("*.json")
    found: dict[str, Any] = json.loads(file.read_text())["value"]
    return found


# --- what it finds


def test_every_cipher_and_number_of_connections_has_its_rates(sshd: PrivateServer) -> None:
    said: list[str] = []
    found = measured(sshd, connections=3, say=said.append)
    names = [point.cipher for point in found.ciphers]
    assert {CIPHER, OTHER, "aes128-gcm@openssh.com"} <= set(names)
    assert [point.connections for point in found.ciphers] == [1] * len(names)
    assert [point.connections for point in found.connections] == [1, 2, 3]
    assert {point.cipher for point in found.connections} == {found.advice.cipher}
    for point in (*found.ciphers, *found.connections):
        assert point.push.bytes_per_s > 0 and point.pull.bytes_per_s > 0
    assert 0 < found.rtt_min_s <= found.rtt_s
    assert found.advice.connections in (1, 2, 3)
    assert all(any(name in text for text in said) for name in (*names, "3 connections"))
    assert (found.notes, found.saved, found.planes) == ((), False, ())


@pytest.mark.parametrize("plane", ["tls", "plain"])
def test_a_plane_is_measured_beside_ssh(sshd: PrivateServer, plane: Any) -> None:
    found = measured(sshd, connections=1, cipher=CIPHER, plane=plane)
    assert [point.cipher for point in found.planes] == [CIPHER, plane]
    assert all(min(point.rates()) > 0 for point in found.planes)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="no CPU time of processes")
def test_what_the_processors_and_kernels_say(sshd: PrivateServer) -> None:
    found = measured(sshd, connections=1, cipher=CIPHER)
    [one] = found.ciphers
    assert all(
        cost is not None and cost > 0
        for way in (one.push, one.pull)
        for cost in (way.near_cpu_s_per_gib, way.far_cpu_s_per_gib)
    )
    assert found.near.system == found.far.system == "Linux"
    assert found.far.settings == found.near.settings
    assert len(found.far.settings["net.ipv4.tcp_rmem"].split()) == 3


def test_only_what_both_ends_offer_is_measured(make_sshd: MakeServer) -> None:
    server = make_sshd([f"Ciphers {OTHER},{CIPHER}"])
    found = measured(server, connections=1)
    assert {point.cipher for point in found.ciphers} == {CIPHER, OTHER}
    assert found.notes == ()


def test_a_login_that_cannot_be_repeated(
    sshd: PrivateServer, tmp_path: Path, own_state: Path
) -> None:
    """A password is typed once: what can be measured over one connection is."""
    refuses = f'echo >>{tmp_path}/tries; echo "me: Permission denied (password)." >&2; exit 255'
    program = script(
        tmp_path / "ssh", f'case "$*" in *BatchMode=yes*) {refuses};; esac\nexec ssh "$@"'
    )
    found = measured(sshd, program=str(program), batch=False, save=True)
    [one] = found.connections
    assert one.push.bytes_per_s > 0 and found.ciphers == (one,)
    assert any("Permission denied" in note for note in found.notes)
    assert (tmp_path / "tries").read_text() == "\n"  # many failures would bring a penalty
    assert saved(own_state) == {"connections": 0, "cipher": ""}  # nothing is known of more


def test_a_state_folder_that_cannot_be_written(sshd: PrivateServer, own_state: Path) -> None:
    own_state.write_text("in its place")
    found = measured(sshd, connections=1, cipher=CIPHER, save=True)
    assert not found.saved
    assert any("nothing was saved" in note for note in found.notes)


# --- the command line


def test_a_table_on_a_pipe(push: Way) -> None:
    ran = typed(push, "--measure", "--cipher", CIPHER, push.server.host)
    assert (ran.code, ran.err) == (0, "")
    assert "a round trip takes" in ran.out
    [row] = [line.split() for line in ran.out.splitlines() if line.startswith(CIPHER)]
    assert len(row) == 5 and float(row[1]) > 0 and float(row[2]) > 0
    assert f"  pscp -c 1 --cipher {CIPHER}" in ran.out.splitlines()
    assert "bandwidth-delay product" in ran.out
    assert "\x1b" not in ran.out


def test_one_json_object(push: Way) -> None:
    ran = typed(push, "--measure", "--progress", "json", "--cipher", CIPHER, push.server.host)
    assert (ran.code, ran.err) == (0, "")
    [line] = ran.out.splitlines()
    found = json.loads(line)
    assert found["host"] == push.server.host
    [point] = found["connections"]
    assert (point["cipher"], point["connections"]) == (CIPHER, 1)
    assert set(point["push"]) == {"bytes_per_s", "near_cpu_s_per_gib", "far_cpu_s_per_gib"}
    assert found["advice"]["bdp_bytes"] > 0
    assert found["windows"]["channel_bytes"] == 2 * 1024 * 1024
    assert set(found["near"]) == {"system", "settings"}


def test_wrong_use(push: Way) -> None:
    """Nothing is contacted: there is no such host."""
    wrong = ("", " HOST HOST", " x HOST:", " HOST:folder", " ssh://HOST/folder", " ./x", " /")
    for words in (*(f"--measure{each}" for each in wrong), "--save x HOST:", "--save HOST"):
        ran = push.typed("-o", "HostName=nowhere.invalid", *words.split())
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("pscp: ") and "Traceback" not in ran.err
        assert ("--save goes with --measure" in ran.err) is words.startswith("--save")


@pytest.mark.parametrize("spelled", ["{}", "{}:", "me@{}", "ssh://{}"])
def test_a_host_that_is_not_there(push: Way, spelled: str) -> None:
    where = spelled.format(push.server.host)
    ran = push.typed("-o", "Port=1", "-o", "HostName=127.0.0.1", "--measure", where)
    assert (ran.code, ran.out) == (3, "")
    assert "refused" in ran.err and "Traceback" not in ran.err


def test_ctrl_c_ends_it(push: Way) -> None:
    words = ("-B", "--measure", "-v", "--cipher", CIPHER, push.server.host)
    argv = [*PSCP, "-F", push.server.ssh_config, *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        while b"pscp: measuring " + CIPHER.encode() not in running.stderr.readline():
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=COMMAND_S)
    assert (running.returncode, out) == (130, b"")
    assert b"interrupted" in err and b"Traceback" not in err


def test_an_exception_amid_a_trial_leaves_nothing(sshd: PrivateServer) -> None:

    def interrupt() -> None:
        while not any(thread.name == "lane 1 in" for thread in threading.enumerate()):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        measured(sshd, connections=1, cipher=CIPHER, seconds=60)
    thread.join()
    assert not any(thread.name.startswith("lane") for thread in threading.enumerate())


# --- what is saved


@pytest.fixture
def advised(push: Way) -> Way:
    """A host for which two connections and a cipher were saved."""
    (push.source / "x").write_bytes(os.urandom(9 * 1024 * 1024))
    config = pscp.Options(config_file=push.server.ssh_config)
    HostMemory(pscp.parse_location(f"{push.server.host}:"), config).save_advice(2, CIPHER)
    return push


def copied(way: Way, *words: str) -> Ran:
    ran = way.command("-c", "auto", "-vv", "-d", *words, names=["x"])
    assert ran.code == 0, ran.err
    return ran


def test_what_is_measured_can_be_saved(sshd: PrivateServer, own_state: Path) -> None:
    found = measured(sshd, connections=2, cipher=CIPHER, save=True)
    assert found.saved
    assert saved(own_state) == {"connections": found.advice.connections, "cipher": CIPHER}


def test_save_is_used_by_the_next_copy(push: Way) -> None:
    (push.source / "x").write_bytes(b"x")
    ran = typed(push, "--measure", "--save", "-c", "2", "--cipher", CIPHER, push.server.host)
    assert ran.code == 0 and "Saved for this host" in ran.out
    assert f"cipher: {CIPHER} MAC" in copied(push).err


@pytest.mark.parametrize(
    ("words", "used", "lanes", "cipher"),
    [
        ((), f"connections: 2, cipher: {CIPHER}", "2 lanes", CIPHER),
        (("-c", "3"), f"cipher: {CIPHER}", "3 lanes", CIPHER),
        (("--cipher", OTHER), "connections: 2", "2 lanes", OTHER),
        (("-o", f"Ciphers={OTHER}"), "connections: 2", "2 lanes", OTHER),
    ],
)
def test_a_copy_uses_what_was_saved_and_says_so(
    advised: Way, words: tuple[str, ...], used: str, lanes: str, cipher: str
) -> None:
    ran = copied(advised, *words)
    assert f"--measure --save found best for this host: {used}\n" in ran.err
    assert f"beginning with {lanes}" in ran.err and f"cipher: {cipher} MAC" in ran.err
    assert f"cipher: {OTHER if cipher == CIPHER else CIPHER}" not in ran.err


def test_without_v_nothing_is_said(advised: Way) -> None:
    ran = advised.command("-c", "auto", names=["x"])
    assert ran.code == 0 and "found best" not in ran.err
