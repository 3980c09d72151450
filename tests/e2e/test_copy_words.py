"""What a copy says: the closing line, --stats, JSON, -q, and what a program's callback gets.

Not here: each reporter by itself (../unit/test_progress.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any

import pytest
from compare import assert_same_tree

import pscp
from e2e.ways import PSCP, Way, make
from pscp.ground.values import MIB
from pscp.progress.progress import Counters

SUMMARY = re.compile(
    r"[0-9.]+ k?M?B in [0-9.]+ s \([0-9.]+ [kMG]?B/s\) to \S+, "
    r"\d+ files?, \d+ chunks? verified.*"
)


@pytest.fixture
def filled(push: Way) -> Way:
    """One direction only: the words do not depend on it."""
    (push.source / "t").mkdir()
    (push.source / "t" / "large").write_bytes(b"x" * 2 * MIB)
    (push.source / "t" / "small").write_bytes(b"x" * 9)
    return push


def test_the_closing_line(filled: Way) -> None:
    ran = filled.command("-r", "--chunk-size", "1M", names=["t"])
    assert (ran.code, ran.out) == (0, "")
    assert SUMMARY.fullmatch(ran.err.rstrip("\n")), ran.err
    assert ran.err.startswith("2.1 MB in ")
    assert ", 2 files, " in ran.err and ran.err.endswith(" chunks verified\n")
    ran = filled.command("-r", names=["t"])
    assert SUMMARY.fullmatch(ran.err.rstrip("\n")), ran.err
    assert ran.err.startswith("0 B in ")
    assert f" to {filled.sent_to}{filled.destination}/, 0 files, " in ran.err
    assert ", 2 unchanged, 2.1 MB was there already" in ran.err


def test_quiet_says_errors_only(filled: Way) -> None:
    ran = filled.command("-r", "-q", names=["t"])
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    (filled.source / "t" / "gone").symlink_to("nowhere")
    ran = filled.command("-r", "-q", names=["t"])
    assert (ran.code, ran.out) == (1, "")
    what, hint = ran.err.splitlines()
    assert what == f"pscp: {filled.source}/t/gone: is a dangling link (to nowhere)"
    assert hint.startswith("      leave it out")


def test_quiet_leaves_the_table_that_is_asked_for(filled: Way) -> None:
    ran = filled.command("-r", "-q", "--stats", names=["t"])
    first, *_ = ran.err.splitlines()
    assert (ran.code, first.split()) == (0, ["files", "copied", "2"])


def test_a_slip_of_the_finger_is_no_copy(filled: Way) -> None:
    ran = filled.command("-r", names=["s"])
    what, line = ran.err.splitlines()
    assert (ran.code, what) == (1, f"pscp: {filled.source}/s: no such file or folder")
    assert line == f"nothing was copied to {filled.sent_to}{filled.destination}/, 1 failed"


def test_what_is_too_new_is_counted(filled: Way) -> None:
    os.utime(filled.source / "t" / "small", (0, 0))
    old = ("-r", "--min-age", "1h")
    ran = filled.command(*old, "-n", names=["t"])
    assert ran.err.endswith("it would have been 1 file, 9 B, 1 left out\n")
    ran = filled.command(*old, names=["t"])
    assert ", 1 file, " in ran.err and ran.err.endswith(", 1 left out\n")
    ran = filled.command(*old, "--check", names=["t"])
    assert (ran.code, ran.err.endswith(", 1 left out\n")) == (0, True)


def test_stats(filled: Way) -> None:
    ran = filled.command("-r", "--stats", "--chunk-size", "1M", names=["t"])
    first, *rest = ran.err.splitlines()
    assert SUMMARY.fullmatch(first)
    stats = dict(line.rsplit(None, 1) for line in rest)
    assert stats.keys() >= {"files copied", "bytes", "bytes sent", "chunks verified", "connections"}
    size = str(2 * MIB + 9)
    assert (stats["bytes"], stats["bytes sent"], stats["files copied"]) == (size, size, "2")
    assert f"{stats['chunks verified']} chunks verified" in first
    assert (stats["failures"], stats["connections lost"]) == ("0", "0")


def events(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_json(filled: Way) -> None:
    ran = filled.command("-r", "--progress", "json", names=["t"])
    assert (ran.code, ran.err) == (0, "")
    told = events(ran.out)
    *before, last = told
    assert all(event["event"] == "progress" for event in before) and before
    assert (last["event"], last["ok"], last["files"]) == ("end", True, 2)
    assert before[-1]["bytes_done"] == before[-1]["bytes_total"] == last["bytes"] == 2 * MIB + 9
    assert last["failures"] == []


def test_json_of_a_failure(filled: Way) -> None:
    (filled.source / "t" / os.fsdecode(b"gone \xff\x1b")).symlink_to("nowhere")
    ran = filled.command("-r", "--progress", "json", names=["t"])
    assert ran.code == 1
    told = events(ran.out)
    assert (told[-1]["event"], told[-1]["ok"]) == ("end", False)
    [failure] = told[-1]["failures"]
    assert os.fsencode(failure["path"]) == b"t/gone \xff\x1b"
    assert failure["error"] == "UnsupportedFile"
    assert [event["text"] for event in told if event["event"] == "note"] == [
        f"{filled.source}/{failure['path']}: {failure['message']}",
        f"  {failure['hint']}",
    ]


def test_json_of_what_cannot_begin(filled: Way) -> None:
    ran = filled.command("-r", "--progress", "json", "-o", "HostName=127.0.0.1",
                         "-o", "Port=1", "-o", "ConnectTimeout=5", names=["t"])  # fmt: skip
    assert ran.code == 3
    last = events(ran.out)[-1]
    assert (last["event"], last["ok"], last["error"]) == ("end", False, "Unreachable")
    assert "refused" in ran.err and "refused" in last["message"] and last["hint"]


@pytest.mark.parametrize("word", ["-r", "-rn", "-rnvv"])
def test_quiet_leaves_the_json_that_is_asked_for(filled: Way, word: str) -> None:
    (filled.source / "t" / "gone").symlink_to("nowhere")
    ran = filled.command(word, "-q", "--progress", "json", names=["t"])
    assert (ran.code, ran.err) == (1, "")
    last = events(ran.out)[-1]  # all is JSON
    assert (last["event"], last["ok"], last["files"]) == ("end", False, 2)


@pytest.mark.parametrize("style", ["plain", "none", "auto"])
def test_on_a_pipe(filled: Way, style: str) -> None:
    ran = filled.command("-r", "--progress", style, names=["t"])
    assert (ran.code, ran.out) == (0, "")
    assert ("chunks verified" in ran.err) == (style != "none")
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", ran.err)


def test_a_callback_sees_it_grow(filled: Way) -> None:
    seen: list[Counters] = []
    result = filled.copy("t", progress=seen.append)
    assert seen[-1].bytes_done == seen[-1].bytes_total == result.bytes == 2 * MIB + 9
    assert (seen[-1].files_done, seen[-1].plan_complete) == (2, True)
    assert [each.bytes_done for each in seen] == sorted(each.bytes_done for each in seen)


def test_options_and_fields_of_them(filled: Way) -> None:
    options = pscp.Options(strong=True, chunk_bytes=MIB)
    result = filled.copy("t", options=options)
    assert (result.ok, len(result.digests)) == (True, 2)
    result = filled.copy("t", options=options, strong=False)
    assert (result.files_resumed, result.digests) == (2, {})
    with pytest.raises(pscp.UsageError, match="no_such_field"):
        filled.copy("t", no_such_field=1)  # type: ignore[call-arg]


FILLED = "t/", "t/large", "t/small"


def test_each_file_is_named_with_what_became_of_it(filled: Way) -> None:
    ran = filled.command("-rv", names=["t"])  # as rsync's: the names of what is copied
    assert (sorted(ran.out.splitlines()), "cipher" in ran.err) == ([*FILLED], False)
    aged = filled.command("-rpv", names=["t"]).out.splitlines()
    assert sorted(aged) == ["t/large", "t/small"]  # that get their times
    assert filled.command("-rpv", names=["t"]).out == ""
    shutil.rmtree(filled.destination / "t")
    ran = filled.command("-vv", "-r", names=["t"])
    assert sorted(ran.out.splitlines()) == [f"new       {name}" for name in FILLED]
    assert "1 lane: " in ran.err and "1 lane at once at most" in ran.err
    (filled.source / "t" / "small").write_bytes(b"another")
    (filled.source / "t" / "gone").symlink_to("nowhere")
    ran = filled.command("-r", "--itemize", names=["t"])
    assert sorted(ran.out.splitlines()) == [
        "changed   t/small", "failed    t/gone", "unchanged t/large",
    ]  # fmt: skip
    ran = filled.command("-ruvv", "--progress", "json", names=["t"])
    became = {each["path"]: each["became"] for each in events(ran.out) if each["event"] == "file"}
    assert became.pop("t/gone") == "failed"
    assert "skipped" in became.values() and len(became) == 2


@pytest.mark.parametrize("option", ["-av", "-avv"])
def test_a_dry_run_names_what_the_copy_does(filled: Way, option: str) -> None:
    """Folders too, which rsync names as well, but those alone that are made."""
    make(filled.source, "t/in/deep/a", "t/in/b")
    (filled.source / "t" / "none").mkdir()
    for _ in range(2):
        listed = sorted(filled.command(option, "-n", names=["t"]).out.splitlines())
        ran = filled.command(option, names=["t"])
        assert (ran.code, sorted(ran.out.splitlines())) == (0, listed)
        assert any(line.endswith("/none/") for line in listed)
        (filled.destination / "t" / "none").rmdir()
        shutil.rmtree(filled.destination / "t" / "in")


DATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} pscp\[\d+\]: (.*)")


def test_a_log_file_keeps_what_is_said_of_each_run(filled: Way) -> None:
    path = filled.source / "a log"
    logged = ["--log-file", str(path), "-r"]
    (filled.source / "t" / "go\x1bne").symlink_to(os.fsdecode(b"nowh\xff\xc3\xa9re"))
    assert filled.command("-q", *logged, names=["t"]).code == 1
    assert (
        filled.command(*logged, "-o", "HostName=127.0.0.1", "-o", "Port=1", names=["t"]).code == 3
    )
    lines = [DATED.fullmatch(line) for line in path.read_text().splitlines()]
    said = [line[1] for line in lines if line]
    assert len(said) == len(lines) and said[0].startswith("begins: pscp -F ")
    assert f"{filled.source}/t/go\\x1bne: is a dangling link (to nowh\\xffére)" in said
    assert any(SUMMARY.fullmatch(each) and each.endswith("1 failed") for each in said)
    assert {"copied t/large", "copied t/small", "ended: exit code 1"} <= set(said)
    assert said[-1].startswith("ended: ") and said[-1].endswith("refused; exit code 3")
    assert sum(each.startswith("begins: ") for each in said) == 2


def test_a_log_file_on_a_full_disk(filled: Way) -> None:
    """N15: all is copied, and that the log is not whole is one line and the exit code."""
    ran = filled.command("-rq", "--log-file", "/dev/full", names=["t"])
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[0] == "pscp: --log-file /dev/full: No space left on device"
    assert "all else was done" in ran.err and "Traceback" not in ran.err
    assert_same_tree(filled.source / "t", filled.destination / "t")


def test_json_that_cannot_be_written_is_in_the_exit_code(filled: Way) -> None:
    """N15: the copy goes on to its end, whatever becomes of what is told of it."""
    places, destination = filled.locations(["t"], "")
    *_, python, option, _ = filled.prefix + PSCP
    words = filled.argv("-r", "--progress", "json")[len(filled.prefix + PSCP) :]
    program = "from pscp.cli.start import pscp; pscp()"  # with what the installed command does last
    argv = [python, option, program, *words, "--", *places, destination]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, timeout=200)
    assert done.returncode == 1
    assert b"not everything could be written to standard output: No space" in done.stderr
    assert_same_tree(filled.source / "t", filled.destination / "t")


def test_a_log_file_that_cannot_be_written(filled: Way) -> None:
    ran = filled.command("-r", "--log-file", str(filled.source), names=["t"])
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"pscp: --log-file {filled.source}: Is a directory\n")
    assert list(filled.destination.iterdir()) == []
