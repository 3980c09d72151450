"""Far ends of every kind: old and new interpreters, noise, and no agent at all.

Not here: how ssh gets there (test_copy_ssh.py), login shells (../unit/test_remote_command.py).
"""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path

import pytest
from compare import assert_same_tree
from conftest import MakeServer

import pscp
from e2e.conftest import ShellThat, SshdThat
from e2e.ways import Way
from pscp.ground.values import MIB

# The far end's shell sees no python, wherever it looks.
NO_PYTHON = """exec /bin/sh -c "$(printf '%s' "$2" | sed 's/python/no-such-python/g')" """

# Its first stage takes the python that is there for one from before its oldest.
OLD_PYTHON = """exec /bin/sh -c "$(printf '%s' "$2" | sed 's/(3,6)/(9,9)/')" """

# The python that is there has no memory, until there is a file.
NO_MEMORY = """[ -e "$HOME/well" ] ||
exec /bin/sh -c "$(printf '%s' "$2" | sed 's/import sys;/raise MemoryError;/')" """


def fill(folder: Path) -> None:
    sizes = {"empty": 0, "t/small": 1000, "t/large": 3 * MIB + 1, "t/ü'\"$x\n": 5}
    for name, size in sizes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(random.Random(name).randbytes(size))
    (folder / "t" / "link").symlink_to("small")
    with open(folder / "sparse", "wb") as sparse:
        sparse.truncate(5 * MIB)


def test_every_python(push: Way, make_sshd: MakeServer, far_python: str) -> None:
    """Files go there and back, streams as well, and commands run."""
    server, data = make_sshd(python=far_python), random.Random(3).randbytes(3 * MIB)
    fill(push.source)
    there, back = push.destination / "there", push.destination.with_name("back")
    options = pscp.Options(config_file=server.ssh_config, connections=2, batch=True)
    with pscp.Session(server.host, options, archive=True, chunk_bytes=MIB, strong=True) as session:
        assert session.copy(f"{push.source}/.", f"{server.host}:{there}").ok
        assert session.copy(f"{server.host}:{there}/.", str(back)).ok
        with session.pipe_to(f"cat > {push.destination}/x") as file:
            file.write(data)
        assert session.run(["cat", f"{push.destination}/x"]).out == data
        with pytest.raises(KeyError), session.pipe_to(f"cat > {push.destination}/y") as file:
            file.write(data)
            raise KeyError
        assert session.run(["sh", "-c", "echo $0; kill $$", "a"]).status == 143
    for folder in (there, back):
        assert_same_tree(push.source, folder, modes=True, times=True)


# --- noise


def test_what_a_login_says_is_shown_and_made_harmless(
    push: Way, make_sshd: MakeServer, shell_that: ShellThat, tmp_path: Path
) -> None:
    (tmp_path / "banner").write_text("Authorised use only\n")
    server = make_sshd(
        [f'Banner "{tmp_path}/banner"'], shell=shell_that(r"printf 'Last login \033[2Jnow\n'")
    )
    fill(push.source)
    way = dataclasses.replace(push, server=server)
    ran = way.command("-r", "-o", "LogLevel=INFO", names=["t"])
    assert ran.code == 0 and "Authorised use only" in ran.err
    assert r"Last login \x1b[2Jnow" in ran.err
    assert "\x1b" not in ran.err
    ran = way.command("-r", "-q", "-o", "LogLevel=INFO", names=["t"])
    assert (ran.code, ran.out) == (0, "")


# --- no agent


def test_no_python(push: Way, sshd_that: SshdThat) -> None:
    fill(push.source)
    ran = dataclasses.replace(push, server=sshd_that(NO_PYTHON)).command("-r", names=["t"])
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.splitlines() == [
        "pscp: the far end has no python3",
        "      install python3 (3.6 or later) on that host; nothing else is needed there",
    ]
    assert list(push.destination.iterdir()) == []


def test_a_python_that_is_too_old(push: Way, sshd_that: SshdThat) -> None:
    fill(push.source)
    ran = dataclasses.replace(push, server=sshd_that(OLD_PYTHON)).command("-r", names=["t"])
    assert ran.code == 3 and "older than 3.6" in ran.err and "install python3" in ran.err


def test_a_python_that_fails_once_is_no_reason_for_sftp(
    push: Way, make_sshd: MakeServer, shell_that: ShellThat
) -> None:
    """Over SFTP less of a file is kept: neither this copy nor those of a day go over it."""
    fill(push.source)
    server = make_sshd(shell=shell_that(NO_MEMORY))
    way = dataclasses.replace(push, server=server, remote="auto")
    ran = way.command("-a", names=["t"])
    # Of Python 3.13 the last words are that its sys.stderr is lost.
    said = re.search("failed as it began: (MemoryError|lost sys.stderr)", ran.err)
    assert ran.code == 3 and said is not None, ran
    assert list(push.destination.iterdir()) == []
    Path(server.environment["HOME"], "well").touch()
    ran = way.command("-a", names=["t"])
    assert ran.code == 0 and "SFTP" not in ran.err, ran
    assert_same_tree(push.source / "t", push.destination / "t")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("ForceCommand echo This account is for tests only; exit 1", "This account is for tests"),
        ("ForceCommand echo Not here >&2; exit 5", "Not here"),
        ("ForceCommand exit 0", "did not start the agent"),
        ("ForceCommand python3 -c 'raise OSError(7)'", "it said: OSError: 7"),
    ],
    ids=["words", "stderr", "nothing", "traceback"],
)
def test_a_forced_command(push: Way, make_sshd: MakeServer, config: str, said: str) -> None:
    fill(push.source)
    server = make_sshd([config])
    ran = dataclasses.replace(push, server=server).command("-r", names=["t"])
    assert (ran.code, ran.out) == (3, "")
    assert said in ran.err and "did not start the agent" in ran.err
    assert f"try: ssh -F {server.ssh_config} pscp-test 'python3 --version'" in ran.err
    assert len(ran.err.splitlines()) <= 3
    assert list(push.destination.iterdir()) == []
