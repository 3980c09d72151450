"""How many connections a copy opens, how many channels each has, and what is said about it.

Not here: what the autotuner decides (../unit/test_autotune.py), lanes that die (../faults/).
"""

from __future__ import annotations

import os
import random
import re
import shutil
import stat
import tempfile
from pathlib import Path

import held_lanes
import pytest
from compare import assert_same_tree
from programs import script

from e2e import ways
from e2e.ways import Notes, Way
from pscp.connect.known import host_memory
from pscp.connect.known.host_memory import HostMemory
from pscp.ground.locations import parse_location
from pscp.ground.state import control_folder
from pscp.ground.values import MIB
from pscp.options.options import Options

EVERY_WAY = True


ONE_LOGIN = """
case " $* " in *" -G "* | *ControlMaster=no*) exec ssh "$@";; esac
if mkdir {taken} 2>/dev/null; then exec ssh "$@"; fi
echo "root@host: Permission denied (publickey,password)." >&2
exit 255
"""


@pytest.fixture
def filled(way: Way) -> Way:
    """Enough that a copy is still running when what it begins later has logged in."""
    return fill(way, 24)


@pytest.fixture
def few(way: Way) -> Way:
    return fill(way, 3)


def fill(way: Way, size_mib: int) -> Way:
    for name in ("a", "b"):
        (way.source / name).write_bytes(random.Random(name).randbytes(size_mib * MIB))
    return way


def logins(way: Way) -> int:
    return way.server.log.count("Accepted publickey")


@pytest.mark.parametrize(
    ("words", "connections", "lanes"),
    [(("-c", "2", "--channels", "3"), 2, 6), (("-c", "1", "--channels", "4"), 1, 4)],
)
def test_channels_share_their_connection(
    few: Way, words: tuple[str, ...], connections: int, lanes: int
) -> None:
    before = logins(few)
    ran = few.command("-rvv", "--chunk-size", "256k", *words, names=["."])
    assert ran.code == 0, ran.err
    assert logins(few) - before <= connections
    assert f"beginning with {lanes} lanes: as was asked for" in ran.err
    assert_same_tree(few.source, few.destination)


@pytest.mark.needs_openssh(reason="what refuses the other logins is a program for -S")
def test_where_one_login_passes_it_carries_more_channels(
    few: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a password or a token: the other logins are refused."""
    program = script(tmp_path / "ssh", ONE_LOGIN.format(taken=tmp_path / "taken"))
    before = logins(few)
    monkeypatch.setattr(ways, "PSCP", held_lanes.program(2))
    ran = few.own.command(
        "-rvv", "--stats", "-c", "3", "--chunk-size", "256k", *held_lanes.LIMIT,
        "-S", str(program), names=["."],
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "no other login passes without asking: using channels of this one" in ran.err
    assert logins(few) - before == 1
    [row] = [row for row in ran.err.splitlines() if re.match(r"connections +\d", row)]
    assert int(row.split()[1]) > 1
    assert_same_tree(few.source, few.destination)


def test_nothing_is_left_of_the_channels_sockets(
    few: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    ran = few.command("-r", "--channels", "2", names=["."])
    assert ran.code == 0, ran.err
    found = [path for path in (tmp_path / "run").rglob("*") if not path.is_dir()]
    assert found == []


def test_where_a_socket_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """unix(7) takes 107 characters, and a folder that others could write to is not used."""
    runtime = Path(tempfile.mkdtemp(prefix="run-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    try:
        folder = control_folder()
        assert folder == f"{runtime}/pscp-{os.getuid()}"
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        os.chmod(folder, 0o777)
        assert control_folder() is None
        os.rmdir(folder)
        os.symlink("/", folder)
        assert control_folder() is None
    finally:
        shutil.rmtree(runtime)
    for unfit in ("", str(tmp_path / ("x" * 60)), "/tmp/with a blank"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unfit)
        assert control_folder() == f"/tmp/pscp-{os.getuid()}"


@pytest.mark.needs_agent(reason="a copy that is long enough, of nothing, is one with -t")
@pytest.mark.needs_openssh(reason="what is remembered does not tell who connects")
def test_what_auto_came_to_is_remembered(
    filled: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its rate was measured, which takes more than a second."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    host = parse_location(f"{filled.server.host}:")
    options = Options(config_file=filled.server.ssh_config)
    (filled.source / "small").write_text("done before anything is measured")
    assert filled.command("-rvv", "-c", "auto", names=["small"]).code == 0
    assert HostMemory(host, options).recall(filled.is_push).lanes == 0
    with open(filled.source / "large", "wb") as file:
        file.truncate(3 << 29)
    for _ in range(4):  # while other tests have the processors, no rate may come of a copy
        words = ("-tvv", "-c", "auto", "--chunk-size", "8M")  # many pieces
        assert "beginning with" in filled.command(*words, names=["large"]).err
        known = HostMemory(host, options).recall(filled.is_push)
        if known.lanes:
            break
    os.unlink(filled.source / "large")
    assert known.lanes >= 1 and known.rtt_s > 0
    # On a busy machine a round trip takes so long that it seems to be another path's.
    monkeypatch.setattr(host_memory, "_NEAR_S", 10.0)
    notes = Notes()
    filled.own.copy(".", to="again", connections=None, itemize=True, reporter=notes)
    if known.believed(
        2
    ).lanes:  # else a busy machine had more than usual, which one copy alone says
        assert f"beginning with {known.lanes} lanes: as was found good before" in notes.texts
