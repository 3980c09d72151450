"""The completions in share/: what each shell offers for a line that is begun.

Not here: that they are those of the parsers (scripts/docs --check), paths at the far end
(../e2e/test_complete.py).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import unavailable

SHARE = Path(__file__).parents[2] / "share"
# Runs the function that `complete -p` names, as bash does for a word at the end of a line.
IN_BASH = """\
compopt() { :; }
. "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
$(complete -p "$1" | sed 's/.* -F \\([^ ]*\\) .*/\\1/') "$1" "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a file in it, and a home with hosts."""
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True)
    (ssh / "config").write_text("Host alpha alpine\nHost *.wide !not\nhost beta\n")
    (ssh / "known_hosts").write_text("gamma,$(touch${IFS}ran) ssh-ed25519 A\n|1|x= ssh-rsa A\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "alone.iso").touch()
    return folder


def offered(argv: list[str], cwd: Path) -> list[str]:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(filter(None, done.stdout.splitlines()))


def in_bash(here: Path, *words: str) -> list[str]:
    file = SHARE / "bash-completion" / "completions" / words[0]
    return offered(["bash", "--norc", "-c", IN_BASH, "bash", str(file), *words], here)


def in_fish(here: Path, line: str, with_words: bool = False) -> list[str]:
    if shutil.which("fish") is None:
        unavailable("fish is not installed")
    files = (SHARE / "fish" / "vendor_completions.d").iterdir()
    code = "".join(f"source {path};" for path in files) + f"complete -C '{line}'"
    found = offered(["fish", "--no-config", "-c", code], here)
    return found if with_words else [text.split("\t")[0] for text in found]


def test_bash_completes_options(here: Path) -> None:
    assert in_bash(here, "pscp", "--rec") == ["--recursive"]
    assert in_bash(here, "pscp", "--remo") == ["--remote", "--remove-source-files"]
    assert in_bash(here, "pscp-pipe", "--pro") == ["--producer", "--program", "--progress"]
    assert in_bash(here, "pscp-zfs", "--pru") == ["--prune"]
    assert in_bash(here, "pscp-run", "--expl") == ["--explain"]
    assert in_bash(here, "pscp-serve", "--has") == ["--hash-password"]


def test_bash_completes_values(here: Path) -> None:
    assert in_bash(here, "pscp", "--remote", "") == ["agent", "auto", "sftp"]
    assert in_bash(here, "pscp", "--verify", "=", "re") == ["read-back"]
    assert in_bash(here, "pscp-zfs", "--prune", "d") == ["dest"]
    assert in_bash(here, "pscp", "-c", "") == []
    assert in_bash(here, "pscp", "-J", "g") == ["gamma"]
    assert in_bash(here, "pscp-pipe", "-o", "Str") == ["StrictHostKeyChecking="]


def test_bash_completes_hosts_and_files(here: Path) -> None:
    assert in_bash(here, "pscp", "al") == ["alone.iso", "alpha:", "alpine:"]
    assert in_bash(here, "pscp", "@be") == ["@beta:"]  # what bash gives for me@be
    assert in_bash(here, "pscp-pipe", "be") == ["beta"]
    assert in_bash(here, "pscp-pipe", "host", ":", "al") == []  # is at the far end


def test_bash_runs_nothing_that_a_host_is_called(here: Path) -> None:
    in_bash(here, "pscp", "")
    assert [path.name for path in here.iterdir()] == ["alone.iso"]


def test_fish_completes(here: Path) -> None:
    assert in_fish(here, "pscp --remote ") == ["agent", "auto", "sftp"]
    assert in_fish(here, "pscp-zfs --pru") == ["--prune"]
    assert {"alone.iso", "alpha:", "alpine:"} <= set(in_fish(here, "pscp al"))
    assert "beta" in in_fish(here, "pscp-pipe be")
    assert in_fish(here, "pscp -o Str") == ["StrictHostKeyChecking="]


def test_each_choice_has_its_own_words(here: Path) -> None:
    words = ["auto\ta bar on a terminal", "bar", "json", "none\tnot even a closing line", "plain"]
    assert in_fish(here, "pscp --progress ", with_words=True) == words
    zsh = (SHARE / "zsh" / "site-functions" / "_pscp").read_text()
    choices = """((auto\\:"a bar on a terminal" bar plain json none\\:"not even a closing line"))"""
    assert f":STYLE:{choices}'" in zsh


def test_zsh_reads_its_completion(here: Path) -> None:
    if shutil.which("zsh") is None:
        unavailable("zsh is not installed")
    assert offered(["zsh", "-n", str(SHARE / "zsh" / "site-functions" / "_pscp")], here) == []
