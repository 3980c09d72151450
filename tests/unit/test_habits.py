"""What users of other programs type is taken as they mean it, or explained.

Not here: each line of docs/coming-from.md (../e2e/test_coming_from.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pscp.cli import copy as cli
from pscp.cli import pipe, zfs
from pscp.ground.errors import UsageError
from pscp.options.options import Options

A = {"archive": True}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("-z", {"compress": True}),
        ("-avz", {**A, "verbose": True, "compress": True}),
        ("-avvz", {**A, "itemize": True, "compress": True}),
        ("-v -v", {"itemize": True}),
        ("-aHAX", A),
        ("-a3W --partial --human-readable", A),
        ("-avP", {**A, "verbose": True}),
        ("-avhP", {**A, "verbose": True}),
        ("-a --progress", A),
        ("-a --progress plain", {**A, "progress": "plain"}),
        ("-aP2222", {**A, "port": 2222}),
        ("-aDU --atimes", A),
        ("-agv", {**A, "verbose": True}),
        ("-a --no-i-r --no-inc-recursive --no-W", A),
        ("-aB4", {**A, "batch": True, "address_family": 4}),
        ("-aJ jump", {**A, "jump": "jump"}),
        ("-a --force --delete", {**A, "delete": True}),
        ("-a --ignore-non-existing", {**A, "existing": True}),
        ("-a --max-size=1.5m", {**A, "max_size_bytes": 3 << 19}),
        ("--bwlimit=1000", {"limit_kbit_s": 8192}),
        ("--bwlimit 1.5m", {"limit_kbit_s": 12583}),
        ("-l 10M", {"limit_kbit_s": 10_000}),
        ("-l 1.5Gbit/s", {"limit_kbit_s": 1_500_000}),
        ("--transfer-test -r", {"transfer_test": True, "recursive": True}),
        ("--exclude -z", None),
        ("--exclude=-z", {"filters": (("exclude", "-z"),)}),
        ("-rF -z", {"recursive": True, "config_file": "-z"}),
    ],
)
def test_what_is_meant(typed: str, meant: dict[str, Any] | None) -> None:
    words = [*typed.split(), "a/b", "host:c"]
    if meant is None or words[1] == "-z":  # no value of an option begins with a "-"
        with pytest.raises(UsageError):
            cli.parse(words)
        return
    command = cli.parse(words)
    assert isinstance(command, cli.Command)
    assert command.options == Options(**meant)
    assert [each.text for each in command.sources] == ["a/b"]


def test_what_stands_after_dashes_is_no_option() -> None:
    command = cli.parse(["-r", "--", "-z", "host:c"])
    assert isinstance(command, cli.Command)
    assert [each.text for each in command.sources] == ["-z"]


def test_the_agent_is_forwarded_beside_direct_and_never_for_acls() -> None:
    def options(*words: str) -> Options:
        command = cli.parse([*words, "there:a", "host:c"])
        assert isinstance(command, cli.Command)
        return command.options

    assert options("-rA", "--direct").ssh_options == ("ForwardAgent=yes",)
    assert options("-aA", "--direct").ssh_options == ()
    assert options("-aA").ssh_options == ()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("-rt", "--transfer-test is the test"),
        ("-aqBt", "--transfer-test is the test"),
        ("-rlpt", "links are kept with -a"),
        ("-H", "kept with -a"),
        ("-c aes128-ctr", "--cipher aes128-ctr"),
        ("-e ssh", "-P PORT"),
        ("-ae ssh\0-p\0" + "2222", "the port is -P 2222 here"),
        ("-p2222", "the port is -P 2222 here"),
        ("-O", "leave it out"),
        ("-a --inplace", "leave it out: only what differs is sent"),
        ("--bwlimit=fast", "-l 10M"),
        ("-l 0.0", "too small"),
        ("--recursiv", "did you mean --recursive?"),
        ("--exlcude=x", "did you mean --exclude?"),
        ("-r --hard-links", "kept with -a, and only then"),
        ("-aM--fake-super", "no rsync runs at the far end"),
        ("-a --copy-unsafe-links", "-L follows them"),
        ("-a --force", "rsync's --force is what --delete does here"),
        ("--dirs", "makes the folders that FILE lists, alone"),
        ("-a --outbuf=L", "--outbuf: each line is written at once leave it out"),
        ("-ak", "-L follows them all"),
        ("-a@1", "as far as a file system keeps them"),
        ("-aB 4096", "-B: pscp compares pieces of a size of its own"),
        ("-a --stop-after=5", "timeout 30m pscp"),
        ("-aJ /tmp", "rsync's -J is about links' times"),
        ("-aT /tmp", "-T, --temp-dir: a part"),
        ("-a --append-verify", "by itself"),
        ("-ab src", "rsync's -b is --backup here"),
        ("-aHAXS /tmp", "rsync's -S is so anyway"),
        ("-aF /tmp", "rsync's -F is --exclude here"),
        ("-aK", "-K, --keep-dirlinks: nothing"),
        ("-rog", "rsync's -o is about owners"),
        ("-rg", "-a keeps groups"),
        ("-g bbr", "--congestion bbr"),
        ("-a --omit-link-times", "links have their source's times too leave it out"),
        ("--checksum-choice=md5", "-s compares SHA-256s"),
        ("--cc md5", "--cc, --checksum-choice: both ends choose"),
        ("-z --skip-compress=gz/zip", "compresses all it sends"),
        ("-a --old-args", "a far source is one path"),
        ("-a --blocking-io", "about rsh"),
        ("-a --copy-as=a:b", "USER@HOST:PATH"),
        ("-a --max-alloc=1G", "bounds its memory"),
        ("-a --write-devices", "pscp-pipe HOST"),
        ("-a --only-write-batch=x", "no batches"),
        ("-a --read-batch=x", "no batches"),
        ("-aI", "--checksum reads it"),
        ("-aviHAX", "rsync's -i is -vv here"),
        ("-aO", "folders have their times"),
        ("-aT/tmp", "--temp-dir"),
        ("-rD", "starts no server"),
        ("-a --no-l", "-L copies what they lead to"),
        ("-a --delete-before", "once all has landed --delete; where both do not fit, -n"),
        ("-a --no-o", "--no-owner: -a keeps owners"),
        ("-a --fake-super", "root@HOST:PATH"),
        ("-a h::mod/a", "rsync's daemon is not spoken here"),
        ("-a fe80::1:/a", "in brackets, [::1]:PATH"),
        ("-a rsync://h/mod", "rsync's daemon is not spoken here"),
    ],
)
def test_what_is_explained(typed: str, said: str) -> None:
    words = [word.replace("\0", " ") for word in typed.split(" ")]
    with pytest.raises(UsageError) as refused:
        cli.parse([*words, "a/b", "host:c"])
    assert said in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize("letter", "iSFJo")
def test_the_value_that_was_none(letter: str) -> None:
    """A letter took the source."""
    with pytest.raises(UsageError) as refused:
        cli.parse([f"-a{letter}", "src", "host:"])
    assert f"rsync's -{letter} is " in refused.value.hint


def test_an_ssh_config_is_not_taken_for_a_source(tmp_path: Path) -> None:
    (tmp_path / "config").touch()
    with pytest.raises(UsageError) as refused:
        cli.parse(["-F", str(tmp_path / "config"), "src"])
    assert "rsync" not in refused.value.hint


def test_letters_that_take_a_value_here() -> None:
    command = cli.parse(["-rb", "64k", "-rS", "ssh-2", "-rF", "config", "-ro", "Port 3", "a/b",
                         "host:./:c"])  # fmt: skip
    assert isinstance(command, cli.Command)
    assert command.options.ssh_options == ("Port 3",)
    assert command.options.block_bytes == 65536 and command.options.program == "ssh-2"
    assert command.destination.path == "./:c"


@pytest.mark.parametrize(
    ("parse", "words", "meant"),
    [
        (pipe.parse, ["--windw", "1M", "host", "cat"], "--window"),
        (zfs.parse, ["--recursiv", "a", "host:b"], "--recursive"),
    ],
)
def test_did_you_mean(parse: Any, words: list[str], meant: str) -> None:
    with pytest.raises(UsageError, match="no such option") as refused:
        parse(words)
    assert f"did you mean {meant}?" in refused.value.hint


@pytest.mark.parametrize("port", [["-p", "4100"], ["-p4100"]])
def test_the_port_as_ssh_has_it(port: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        pipe.parse([*port, "host", "cat"])
    assert refused.value.hint.startswith("the port is -P here; ")
