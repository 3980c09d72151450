"""ssh does as the user has set it up; and what it refuses is said clearly, with exit code 3.

Not here: what is at the far end (test_copy_far.py), what libraries do as well (test_transports.py).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from conftest import MakeServer
from programs import script
from servers.private import free_port, make_key

import pscp
from e2e.conftest import ShellThat, WriteConfig
from e2e.ways import Ran, Way
from pscp.ground import state


@pytest.fixture
def filled(push: Way) -> Way:
    (push.source / "x").write_text("x")
    return push


def tried(way: Way, config: str, *words: str) -> Ran:
    return way.command("-F", config, *words, names=["x"])


def arrives(way: Way, config: str, *words: str, host: str | None = None) -> bool:
    to = f"{host or way.server.host}:{way.destination}/y"
    ran = way.typed("-F", config, *words, f"{way.source}/x", to)
    assert ran.code == 0, ran.err
    return (way.destination / "y").read_text() == "x"


def refused(ran: Ran, *said: str) -> bool:
    """Exit 3, nothing on stdout, and one message with a hint at most."""
    assert (ran.code, ran.out) == (3, ""), ran.err
    assert len([line for line in ran.err.splitlines() if line.startswith("pscp: ")]) >= 1
    assert "Traceback" not in ran.err
    return all(re.search(each, ran.err) for each in said)


# --- what a login prints


@pytest.fixture
def talkative(filled: Way, make_sshd: MakeServer, shell_that: ShellThat, tmp_path: Path) -> Way:
    """A server with a banner, where the login's shell prints something as well."""
    (tmp_path / "banner").write_text("** WARNING ** authorized users only\n")
    server = make_sshd(
        [f"Banner {tmp_path}/banner"], shell=shell_that("echo to stdout; echo to stderr >&2")
    )
    config = Path(server.ssh_config)
    config.write_text(config.read_text().replace("LogLevel ERROR", "LogLevel INFO"))
    return dataclasses.replace(filled, server=server)


TALK = ("authorized users only", "to stdout", "to stderr")


def test_what_a_login_prints_is_shown_unless_quiet(talkative: Way) -> None:
    ran = talkative.command(names=["x"])
    assert ran.code == 0 and all(each in ran.err for each in TALK)
    quiet = talkative.command("-q", names=["x"])
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_quiet_shows_it_where_the_copy_or_the_login_fails(talkative: Way) -> None:
    (talkative.destination / "x").mkdir()
    ran = talkative.command("-q", names=["x"])
    assert ran.code == 1 and all(ran.err.count(each) == 1 for each in TALK), ran.err
    (talkative.server.folder / "authorized_keys").write_text("")
    ran = talkative.command("-q", names=["x"])
    assert ran.code == 3 and TALK[0] in ran.err


def test_quiet_warns_of_another_host_key(talkative: Way, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    known = Path(talkative.server.folder / "known_hosts")
    known.write_text(f"{known.read_text().split()[0]} {(tmp_path / 'other.pub').read_text()}")
    ran = talkative.command("-q", "-o", "StrictHostKeyChecking=no", names=["x"])
    assert ran.code == 0 and "REMOTE HOST IDENTIFICATION HAS CHANGED" in ran.err


# --- what it refuses


def test_a_host_key_that_is_another(filled: Way, config: WriteConfig, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    known = Path(filled.server.folder / "known_hosts").read_text().split()[0]
    (tmp_path / "known").write_text(f"{known} {(tmp_path / 'other.pub').read_text()}")
    ran = tried(filled, config(UserKnownHostsFile=tmp_path / "known"))
    assert refused(ran, "host key")
    said, hint = ran.err.splitlines()
    assert said.startswith("pscp: the host key of ") and " has changed; it is " in said
    assert re.search(rf"ssh-keygen -f .*{tmp_path}/known.* -R ", hint)
    assert list(filled.destination.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["-o", "NoSuchOption=1"],
        ["-o", "Port=nonsense"],
        ["-F", "/no/such/config"],
        ["--cipher", "no-such-cipher"],
        ["-S", "/no/such/ssh"],
    ],
    ids=" ".join,
)
def test_what_ssh_cannot_mean_is_wrong_use(filled: Way, words: list[str]) -> None:
    logins = filled.server.log.count("Connection from")
    ran = filled.command(*words, names=["x"])
    assert (ran.code, ran.out) == (2, "")
    assert words[-1].split("=")[0].lower() in ran.err.lower()
    assert len(ran.err.splitlines()) <= 2
    assert filled.server.log.count("Connection from") == logins


# --- what it is told


def test_user_and_port_of_the_location(filled: Way, config: WriteConfig) -> None:
    """They go before the configuration's, as with ssh."""
    path, server = config(Port=1, User="nobody-at-all"), filled.server
    assert refused(tried(filled, path), "refused")
    place = f"ssh://{server.user}@{server.host}:{server.port}/{filled.destination}/y"
    assert filled.typed("-F", path, f"{filled.source}/x", place).code == 0
    path = config(User="nobody-at-all")
    host = f"{server.user}@{server.host}"
    assert arrives(filled, path, "-P", str(server.port), host=host)


def test_a_jump_that_nobody_knows_is_the_only_reason(filled: Way, config: WriteConfig) -> None:
    ran = tried(filled, config(), "-J", "nobody-knows.invalid")
    assert refused(ran, "nobody-knows.invalid")
    assert "nobody-knows.invalid" in ran.err.splitlines()[0] and len(ran.err.splitlines()) == 2


def test_what_an_interactive_session_is_given_is_not_used(
    filled: Way, config: WriteConfig, tmp_path: Path
) -> None:
    """A remote command, a local one, forwardings and a master would break or leak."""
    port, taken = free_port(), tmp_path / "taken"
    path = config(
        RemoteCommand="echo nothing of ours", RequestTTY="force", PermitLocalCommand="yes",
        LocalCommand=f"touch {taken}", LocalForward=f"{port} 127.0.0.1:1",
        ExitOnForwardFailure="yes", ControlMaster="auto", ControlPath=tmp_path / "master",
        ControlPersist="yes", ForwardX11="yes",
    )  # fmt: skip
    assert arrives(filled, path)
    assert not taken.exists() and not (tmp_path / "master").exists()


def test_v_names_the_cipher_that_was_agreed_on(filled: Way, config: WriteConfig) -> None:
    ran = tried(filled, config(Ciphers="aes192-ctr"), "-vv")
    assert ran.code == 0 and "pscp: cipher: aes192-ctr\n" in ran.err
    assert "debug1" not in ran.err and "Authenticated to" not in ran.err
    assert "cipher: " not in tried(filled, config(Ciphers="aes192-ctr")).err


def test_a_source_that_was_taken_for_a_configuration_is_told(filled: Way, tmp_path: Path) -> None:
    """rsync's -F takes no value."""
    (tmp_path / "data").write_text("hello")
    for name in ("data", "gone"):
        ran = tried(filled, str(tmp_path / name))
        assert ran.code == 2 and f"-F takes '{tmp_path / name}' for an ssh_config" in ran.err
    ran = tried(filled, filled.server.ssh_config, "-o", "NoSuchOption=1")
    assert ran.code == 2 and ran.err.endswith("      see ssh_config(5)\n")


def test_a_configuration_that_changed_is_followed_at_once(filled: Way, config: WriteConfig) -> None:
    """Though ssh was started with what the last copy found."""
    verbose = ("-d", "-o", "LogLevel=DEBUG1")
    assert "cipher: aes192-ctr" not in tried(filled, config(), *verbose, "-C").err
    assert "cipher: aes192-ctr" in tried(filled, config(Ciphers="aes192-ctr"), *verbose, "-C").err


def test_ssh_does_not_wait_for_its_configuration_twice(filled: Way, tmp_path: Path) -> None:
    """From the second copy on ssh logs in while ssh -G is asked whether all is as it was."""
    started = tmp_path / "started"
    asks = f"if [ -e {tmp_path}/again ]; then until [ -e {started} ]; do sleep 0.05; done; fi"
    text = f'case " $* " in *" -G "*) {asks};; *) >{started};; esac\nexec ssh "$@"'
    program = script(tmp_path / "ssh", text)
    assert tried(filled, filled.server.ssh_config, "-S", str(program)).code == 0
    (tmp_path / "again").touch()
    started.unlink()
    assert tried(filled, filled.server.ssh_config, "-S", str(program)).code == 0


@pytest.mark.parametrize("value", ["", "[]", '{"ciphers": 1}', '{"ciphers_are_ours": "?"}'])
def test_what_was_kept_of_a_configuration_may_be_anything(filled: Way, value: str) -> None:
    for file in Path(state.folder(), "ssh").iterdir():
        key, between, _ = file.read_text().partition('"value": ')
        file.write_text(f"{key}{between}{value}}}")
    assert filled.own.command(names=["x"]).code == 0


def test_a_variable_that_is_not_set_is_not_tried_again(filled: Way, config: WriteConfig) -> None:
    """9: it was tried for as long as --retry-for says."""
    text = Path(config()).read_text()
    path = Path(config())
    path.write_text(re.sub("IdentityFile .*", "IdentityFile ${NO_SUCH_VARIABLE}/key", text))
    ran = tried(filled, str(path), "--retry-for", "600")
    assert refused(ran, "NO_SUCH_VARIABLE|environment variable", "set NO_SUCH_VARIABLE where")
    assert "trying again" not in ran.err


def test_an_ssh_that_ends_with_us_says_nothing_of_its_configuration(
    filled: Way, tmp_path: Path
) -> None:
    """20: Ctrl-C goes to the whole group: "misconfigured", exit code 2."""
    program = script(tmp_path / "ssh", "kill -INT $$")
    with pytest.raises(pscp.Interrupted):
        pscp.copy(filled.source, "nowhere.invalid:x", recursive=True, program=str(program))
