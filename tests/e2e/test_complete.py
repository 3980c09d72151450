"""Paths at the far end, completed by real shells, and by the command that they ask.

Not here: options, their values, hosts (../unit/test_completions.py), connections that are kept
(test_persist.py).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest
from conftest import MakeServer, unavailable
from programs import script
from servers.private import PrivateServer

from e2e.conftest import WriteConfig
from e2e.terminal import Terminal, terminal
from e2e.ways import Ran, make, run
from e2e.world import installed

SHARE = Path(__file__).parents[2] / "share"
# It waits for a host for five seconds; not on a busy machine, where nothing would be completed.
PATIENT = "from pscp.cli import complete; complete._LIMIT_S = 60; "
PYTHON, DASH_C, PROGRAM = installed("pscp")
PSCP = (PYTHON, DASH_C, f"{PATIENT}{PROGRAM}")
SETUPS = {
    "bash": f". {SHARE}/bash-completion/completions/pscp; PS1='READ'Y'> '",
    "zsh": f"fpath=({SHARE}/zsh/site-functions $fpath); autoload -U compinit; compinit -D -u; "
    "PS1='READ'Y'> '",
}
ARGV = {"bash": ("bash", "--norc", "--noprofile", "-i"), "zsh": ("zsh", "-f", "-i")}
# What a shell would read in some other way, and what the user has typed of each.
NAMES = {
    "two  blanks": "tw", "it's": "it", 'say "so"': "say", "g*[1]?": "g", "c:d:e": "c:", "=x@y": "=",
    "do$(touch ran)`touch ran`": "do", "back\\slash": "ba", "!bang": r"\!b", "#hash;&|<>": r"\#",
    "ümlaut": "ü", "~tilde": r"\~", "{a,b}": r"\{",
}  # fmt: skip
# Those that a quote changes; the others are to it as two blanks or g*[1]? are.
IN_QUOTES = {
    "'": ("two  blanks", "g*[1]?", "it's", "do$(touch ran)`touch ran`", "back\\slash", "!bang"),
    '"': ("two  blanks", "g*[1]?", 'say "so"', "do$(touch ran)`touch ran`", "back\\slash", "!bang"),
}


@pytest.fixture
def far(tmp_path: Path) -> Path:
    folder = tmp_path / "far"
    folder.mkdir()
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, where `pscp` completes, and prints its arguments instead of copying."""
    tools, folder = tmp_path / "tools", tmp_path / "here"
    tools.mkdir()
    folder.mkdir()
    for name in ("pscp", "pscp-verify"):
        code = f"import sys; sys.argv[0] = {name!r}; from pscp.cli.start import run; run('', '')"
        code = f"{PATIENT}{code}"
        program = shlex.join(forked.words([sys.executable, "-c", code]))
        completes = f'case $1 in --complete-*) exec {program} "$@"; esac'
        script(tools / name, f"""{completes}\nfor each; do printf 'took:%s:\\n' "$each"; done""")
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, here: Path) -> Iterator[Terminal]:
    if shutil.which(request.param) is None:
        unavailable(f"{request.param} is not installed")
    with terminal(*ARGV[request.param], environment={"TERM": "dumb"}) as typed:
        typed.type(f"{SETUPS[request.param]}\n")
        typed.wait_for("READY> ")
        yield typed


def complete(*words: str) -> Ran:
    return run([*PSCP, "--complete-path", *words])


@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_a_name_comes_out_as_the_shell_reads_it(
    quote: str, shell: Terminal, sshd: PrivateServer, far: Path, here: Path
) -> None:
    """Also where a quote is open."""
    for name in NAMES:
        (far / name).touch()
    for name in IN_QUOTES.get(quote, NAMES):
        begin = NAMES[name]
        typed = begin.removeprefix("\\") if quote else begin
        shell.type(f"pscp -F {sshd.ssh_config} {quote}{sshd.host}:{far}/{typed}\t\n")
        shell.wait_for(re.escape(f"took:{sshd.host}:{far}/{name}:"))
    assert [*here.iterdir()] == []  # nothing in a name was run


def test_one_goes_on_in_a_folder(shell: Terminal, sshd: PrivateServer, far: Path) -> None:
    make(far, "data/inner/file", "dates")
    (far / "link").symlink_to("data")
    for typed, name in (("data/in\tf\t", "data/inner/file"), ("l\ti\tf\t", "link/inner/file")):
        shell.type(f"pscp -F {sshd.ssh_config} here {sshd.host}:{far}/{typed}\n")
        shell.wait_for(f"took:{sshd.host}:{far}/{name}:")
    shell.type(f"pscp -F {sshd.ssh_config} here {sshd.host}:{far}/dat\ta/\n")
    shell.wait_for(f"took:{sshd.host}:{far}/data/:")


def test_fish_is_told_whole_words(sshd: PrivateServer, far: Path, here: Path) -> None:
    if shutil.which("fish") is None:
        unavailable("fish is not installed")
    make(far, "two  blanks", "two/", "it's", ".hidden")
    for command in ("pscp", "pscp-verify list"):
        file = SHARE / f"fish/vendor_completions.d/{command.split()[0]}.fish"
        for typed in (f"{sshd.host}:{far}/", f"'{sshd.host}:{far}/"):
            line = f"{command} -F {sshd.ssh_config} {typed}"
            code = f"source {file}; complete -C $argv[1]"
            ran = run(["fish", "--no-config", "-c", code, line])
            assert (ran.code, ran.err) == (0, "")
            names = ("it's", "two  blanks", "two/")
            assert ran.out.splitlines() == [f"{sshd.host}:{far}/{name}" for name in names]


def test_hidden_names_are_for_who_types_a_dot(sshd: PrivateServer, far: Path) -> None:
    make(far, ".hidden", "shown")
    (far / "a\x1b[31m").touch()  # no terminal is to be told this
    (far / "two\nlines").touch()
    place = f"{sshd.host}:{far}/"
    assert complete("-F", sshd.ssh_config, place) == (0, f"{place}shown\n", "")
    assert complete("-F", sshd.ssh_config, f"{place}.") == (0, f"{place}.hidden\n", "")


def test_sftp_alone_will_do(make_sshd: MakeServer, far: Path) -> None:
    server = make_sshd(["ForceCommand internal-sftp", "Subsystem sftp internal-sftp"])
    make(far, "file")
    place = f"{server.host}:{far}/"
    assert complete("-F", server.ssh_config, place) == (0, f"{place}file\n", "")


def test_it_is_silent_and_asks_nothing(
    sshd: PrivateServer, config: WriteConfig, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(far, "file")
    silent = Ran(0, "", "")
    place, good = f"{sshd.host}:{far}/", ("-F", sshd.ssh_config)
    assert complete(*good, f"{place}none/f") == silent
    assert complete(*good, "--no-such-option", place) == silent
    assert complete(*good, "-o", place) == silent
    assert complete(*good, "no/host:here") == complete(*good, "here") == complete() == silent
    assert complete("-F", config(Port=1), place) == silent
    refused = config(PubkeyAuthentication="no", PreferredAuthentications="password")
    with terminal(*PSCP, "--complete-path", "-F", refused, place) as typed:
        assert (typed.end(), typed.shown) == (0, "")
    monkeypatch.setenv("PSCP_COMPLETE_REMOTE", "0")
    assert complete(*good, place) == silent
