"""The command pscp-zfs: what it prints, its exit codes, and what it refuses before any contact.

Not here: what a replication does (test_fuse.py).
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import signal
from collections.abc import Callable

import pytest

from pscp.cli import zfs as cli
from pscp.ground import errors
from pscp.zfs.replicate import Replicated, replicate
from zfs.conftest import Ends

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(push: Ends, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """typed(WORD...): the command, over a plain link; its exit code, and what it printed."""
    connecting = functools.partial(replicate, connect=lambda *_: push.link)
    monkeypatch.setattr(cli, "replicate", connecting)
    zfs = [shlex.join(each.zfs) for each in (push.sender, push.receiver)]

    def run(*words: str) -> tuple[int, str, str]:
        push.link.closed = False
        code = cli.main(
            ["--zfs-command", zfs[0], "--far-zfs-command", zfs[1], *words, push.source,
             f"host:{push.dest}"]
        )  # fmt: skip
        return code, *capsys.readouterr()

    return run


def test_it_replicates_and_says_so(push: Ends, typed: Typed) -> None:
    push.grow("one", "two")
    code, out, err = typed()
    noted, summary = err.splitlines()
    assert (code, out) == (0, "") and summary.startswith("1 dataset, 2 streams, ")
    assert noted.startswith("pscp-zfs: host: this zfs mounts what it receives")
    assert push.received() == ["one", "two"]
    code, out, err = typed("-q", "--snapshot-name", "auto-{time}")
    assert (code, out, err) == (0, "", "")  # or cron would send mail
    assert push.received()[-1].startswith("auto-20")


def test_what_fails_is_named_with_what_to_do(push: Ends, typed: Typed) -> None:
    code, _, err = typed("-q")
    said = f"pscp-zfs: {push.source}: it has no snapshot\n      --snapshot-name NAME takes"
    assert code == 1 and said in err


def test_that_there_are_no_resume_tokens_is_said_of_what_was_cut(push: Ends, typed: Typed) -> None:
    push.grow("one", "two")
    code, _, err = typed("-v")
    assert code == 0 and "resume tokens" not in err
    push.grow("three")
    push.link.cut_at = 8192
    code, _, err = typed()
    assert code == 0 and "starts over; there are no resume tokens" in err


def test_an_interrupt_promises_no_more_than_there_is(push: Ends, typed: Typed) -> None:
    """To go on from here, it said, where there are no resume tokens."""
    push.grow("one")
    push.link.before_stream = lambda: os.kill(os.getpid(), signal.SIGINT)
    code, _, err = typed()
    assert code == 130 and "where both ends can resume, it goes on" in err.splitlines()[-1], err


def test_json(push: Ends, typed: Typed) -> None:
    push.grow("one")
    code, out, err = typed("--progress", "json")
    last = json.loads(out.splitlines()[-1])
    assert (code, last["event"], last["ok"], err) == (0, "end", True, "")
    assert last["datasets"][0]["snapshot"] == "one"


def test_a_dry_run(push: Ends, typed: Typed) -> None:
    push.grow("one")
    code, out, err = typed("-n")
    assert code == 0 and f"zfs send {push.source}@one\n" in out and "dry run" in err
    assert not push.receiver.exists(push.dest)
    code, out, err = typed("-n", "--snapshot-name", "two")
    assert code == 0 and err.splitlines()[-1].endswith("(dry run); the size is not known yet")
    push.sender.do("destroy", f"{push.source}@one")
    code, out, err = typed("-n")
    assert code == 1 and err.splitlines()[-1].endswith("it would have been 0 B, 1 failed")


@pytest.mark.parametrize(
    ("words", "found", "said"),
    [
        ([], Replicated(bytes=60_000_000), "it would have been 60.0 MB"),
        ([], Replicated(unknown_sizes=1), "the size is not known"),
        (
            ["--snapshot-name", "a"], Replicated(bytes=60_000_000, unknown_sizes=2),
            "it would have been 60.0 MB, and 2 streams of a size not known yet",
        ),
    ],
)  # fmt: skip
def test_a_dry_run_says_no_size_that_it_does_not_know(
    words: list[str], found: Replicated, said: str
) -> None:
    """P5b: it said 0 B."""
    command = cli.parse(["-n", *words, "tank/a", "host:tank/b"])
    assert cli.summary(found, command) == f"nothing was changed (dry run); {said}"


def test_stats_speak_of_what_zfs_has(push: Ends, typed: Typed) -> None:
    push.sender.do("create", f"{push.source}/new")
    push.grow("one")
    code, _, err = typed("-R", "--snapshot-name", "two", "--exclude", "new", "--stats")
    rows = dict(re.split(" {2,}", row) for row in err.splitlines()[-10:])
    assert code == 0 and rows["datasets"] == "1" and rows["streams"] == "2", err
    assert rows["snapshot taken"] == "two" and "connections" not in rows
    code, _, err = typed("-R")
    assert code == 0 and f"{push.source}/new: left out" in err
    assert err.splitlines()[-1].endswith(", 1 left out")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tank/a"], "one SOURCE and one DEST"),
        (["tank/a", "tank/b"], "both on this machine"),
        (["a:tank/a", "b:tank/b"], "both remote"),
        (["tank/a", "host:tank/b", "c@host:tank/c"], "usage: pscp-zfs"),
        (["-F", "tank/a", "host:tank/b"], "what zfs receive -F does is --force-rollback"),
        (["-F", "/dev/null", "tank/b"], "usage: pscp-zfs"),
        (["-i", "tank/a@one", "tank/a", "host:tank/b"], "leave the snapshot out"),
        (["-I", "#mark", "tank/a@two", "host:tank/b"], "leave the snapshot out"),
        (["tank/a@one", "host:tank/b"], "without a snapshot"),
        (["tank/a", "host:/srv/b"], "no name of a dataset"),
        (["--no-such", "tank/a", "host:tank/b"], "no such option"),
        (["-r", "tank/a", "host:tank/b"], "-R, or --recursive"),
        (["--check", "tank/a", "host:tank/b"], "-n, or --dry-run"),
        (["--no-sync-snap", "tank/a", "host:tank/b"], "unless --snapshot-name is given"),
        (["--sshport=22", "tank/a", "host:tank/b"], "the port is -P here"),
        (["-o", "x", "tank/a", "host:tank/b"], "NAME=VALUE"),
        (["--prune", "both", "tank/a", "host:tank/b"], "--keep-last"),
        (["--zfs-command", "'", "tank/a", "host:tank/b"], "zfs command"),
        (["--snapshot-name", "bad name", "tank/a", "host:tank/b"], "it has letters, digits"),
        (["--snapshot-name", "a" * 300, "tank/a", "host:tank/b"], "at most 255 characters"),
        (["--snapshot-name", "a-{date}", "tank/a", "host:tank/b"], "{time} alone stands for"),
        (["tank/a/", "host:tank/b"], "without a slash before or behind"),
        (["--keep-last", "3", "tank/a", "host:tank/b"], "goes with --snapshot-name"),
        (["--keep-last", "0", "tank/a", "host:tank/b"], "(--keep-last) must be"),
        (["-c", "0", "tank/a", "host:tank/b"], "connections"),
        (["-C", "tank/a", "host:tank/b"], "compress it again"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_at_once(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert said in err and err.startswith("pscp-zfs: ") and err.count("\n") <= 2


def test_a_hint_to_try_ssh_has_what_was_typed() -> None:
    with pytest.raises(errors.Unreachable) as caught:
        replicate("127.0.0.1:tank/a", "vault/a", port=1, config_file="/dev/null")
    assert caught.value.hint.startswith("try: ssh -F /dev/null -p 1 127.0.0.1 true")


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help", "--nonsense"]) == 0 and cli.main(["--version"]) == 0
    out = capsys.readouterr().out
    assert "--identity FILE" in out and "-i, --newest-only" in out and "pscp-zfs " in out
