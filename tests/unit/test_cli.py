"""pscp.cli.copy: what a command line means, what it says when it is wrong, and its exit codes.

The copy itself is a stand-in here; the real one is in tests/e2e.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.calls.deliveries import Delivery
from pscp.cli import closing, fan_out
from pscp.cli import copy as cli
from pscp.cli.pipe import PipeCommand
from pscp.connect import persistent
from pscp.ground.errors import (
    NO_MORE,
    ConnectError,
    CopyError,
    Interrupted,
    PscpError,
    SourceChanged,
    Terminated,
    Unreachable,
    UsageError,
)
from pscp.ground.locations import Location
from pscp.ground.values import KIB, MIB
from pscp.options.options import Options
from pscp.progress.progress import (
    Counters,
    Failure,
    LiveCounters,
    Reporter,
    Result,
    WorkerTotals,
)
from pscp.transports import openssh

DONE = Result(
    files=12, bytes=268_435_456, chunks_verified=64, connections=4, bytes_sent=1, seconds=1.2
)


class Copy:
    """Stands in for pscp.calls.api.copy: remembers how it was called, does as it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[Location], Location, Options]] = []
        self.result = DONE
        self.act: Callable[[Reporter], None] = lambda reporter: None

    def __call__(
        self,
        sources: Sequence[Location],
        destination: Location,
        *,
        options: Options,
        reporter: Reporter,
        keep_digests: bool,
        raises: bool,
        terms: object,
    ) -> Result:
        self.calls.append((list(sources), destination, options))
        reporter.start(LiveCounters())
        self.act(reporter)
        reporter.stop(self.result)
        return self.result


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Copy:
    stand_in = Copy()
    api = types.ModuleType("pscp.calls.api")
    api.copy = stand_in  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pscp.calls.api", api)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("a")
    (tmp_path / "-x").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "way").symlink_to("folder")
    return stand_in


def options_of(copy: Copy, *words: str) -> Options:
    assert cli.main([*words, "a", "host:b"]) == 0
    return copy.calls[-1][2]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-b 64k", {"block_bytes": 64 * KIB}),
        ("-c 12", {"connections": 12}),
        ("-c auto", {"connections": None}),
        ("-d -q", {"debug": True, "quiet": True}),
        ("-s -t", {"strong": True, "transfer_test": True}),
        ("-rp", {"recursive": True, "preserve": True}),
        ("-rP22", {"recursive": True, "port": 22}),
        ("-i k%u -i /dev/null", {"identities": ("k%u", "/dev/null")}),
        ("-F conf -J me@jump:22", {"config_file": "conf", "jump": "me@jump:22"}),
        ("-o A=1 -oB=2 -o C=3", {"ssh_options": ("A=1", "B=2", "C=3")}),
        ("-l 800 -C", {"limit_kbit_s": 800, "compress": True}),
        ("-v -B", {"verbose": True, "batch": True}),
        ("-4", {"address_family": 4}),
        ("-6", {"address_family": 6}),
        ("-S /bin/ssh -T", {"program": "/bin/ssh", "strict_names": False}),
        ("-a", {"archive": True, "recursive": True, "preserve": True}),
        ("-n --update", {"dry_run": True, "update": True}),
        ("--chunk-size 1M --no-resume", {"chunk_bytes": MIB, "resume": False}),
        ("--progress none --stats", {"progress": "none", "stats": True}),
        ("--cipher aes128-ctr", {"cipher": "aes128-ctr"}),
        ("--congestion bbr --cpus 0,2-3", {"congestion": "bbr", "cpus": (0, 2, 3)}),
        ("--rcvbuf 8M --sndbuf=64k", {"rcvbuf_bytes": 8 * MIB, "sndbuf_bytes": 64 * KIB}),
        ("--bind 127.0.0.2,::1 --bind=127.0.0.3", {"bind": ("127.0.0.2", "::1", "127.0.0.3")}),
        (
            "--exclude a --include b --exclude c",
            {"filters": (("exclude", "a"), ("include", "b"), ("exclude", "c"))},
        ),
        ("--block-size=8K --connections=3", {"block_bytes": 8 * KIB, "connections": 3}),
        ("--no-strict-names --strong", {"strict_names": False, "strong": True}),
        ("--transfer-test --ssh-option=A=1", {"transfer_test": True, "ssh_options": ("A=1",)}),
    ],
)
def test_options(copy: Copy, words: str, expected: dict[str, Any]) -> None:
    assert options_of(copy, *words.split()) == Options(**expected)


@pytest.mark.parametrize(
    ("words", "sources", "destination"),
    [
        (["a", "host:b"], ["a"], "host:b"),
        (["a", "a", "host:b"], ["a", "a"], "host:b"),
        (["host:a", "host:b", "there"], ["host:a", "host:b"], "there"),
        (["-r", "a", "-p", "folder", "host:", "-c", "2"], ["a", "folder"], "host:"),
        (["--", "-x", "host:b"], ["-x"], "host:b"),
        (["a", "--", "-x", "host:b"], ["a", "-x"], "host:b"),
        (["./-x", "host:-b"], ["./-x"], "host:-b"),
        (["ssh://host:22/a", "."], ["ssh://host:22/a"], "."),
        (["dangling", "host:"], ["dangling"], "host:"),
        (["-r", "way", "host:"], ["way"], "host:"),
    ],
)
def test_paths(copy: Copy, words: list[str], sources: list[str], destination: str) -> None:
    assert cli.main(words) == 0
    given_sources, given_destination, _ = copy.calls[-1]
    assert [source.text for source in given_sources] == sources
    assert given_destination.text == destination


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a source and a destination are missing"),
        (["a"], "a destination is missing"),
        (["-a", "--check", "--manifest", "m", "a", "host:b"], "--manifest lists what was copied"),
        (["-Z", "a", "host:b"], "no such option: -Z"),
        (["-rZ", "a", "host:b"], "Z"),
        (["--bogus=1", "a", "host:b"], "no such option: --bogus=1"),
        (["--recurs", "a", "host:b"], "no such option: --recurs"),
        (["-Y Y", "host:b"], "no such option: -Y Y"),
        (["-b", "12q", "a", "host:b"], "-b/--block-size: '12q' is not a size"),
        (["-b", "0", "a", "host:b"], "too small"),
        (["-c", "many", "a", "host:b"], "-c/--connections: 'many' is not a whole number"),
        (["a", "host:b", "-c"], "expected one argument"),
        (["a", "host:b", "-c", "-1"], "--connections must be 1 to 256, not -1"),
        (["-r", "--delete", "--max-delete", "-1", "a", "host:b"], "--max-delete must be 0 to 1"),
        (["--progress", "loud", "a", "host:b"], "must be one of"),
        (["--stats=1", "a", "host:b"], "stats"),
        (["a", "-oProxyCommand=x:b", "host:b", "me@-x:"], "cannot start with"),
        (["a", "-host:b"], "-h does not go with other letters"),
        (["--", "a", "-host:b"], 'cannot start with "-"'),
        (["--", "a", "a"], "both on this machine"),
        (["h:a", "g:a", "a"], "different hosts"),
        (["h:a", "a", "a"], "different hosts"),
        (["a", "h:a", "g:"], "different hosts"),
        (["h:a", "me@h:a", "a"], "different hosts"),
        (["h:a", "ssh://h:23/a", "a"], "different hosts"),
        (["folder", "host:b"], "folder is a folder: use -r"),
        (["way", "host:b"], "way is a folder: use -r"),
        (["a\0b", "host:b"], "NUL"),
    ],
)
def test_wrong_use(
    copy: Copy, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    first, hint = err.splitlines()
    assert first.startswith("pscp: ") and message in first
    assert hint.strip()
    assert out == ""
    assert not copy.calls


@pytest.mark.parametrize("name", ["missing", "a/", "n" * 300, "mis\nsing\x1b[2J\udcff"])
def test_a_source_that_is_missing_is_for_the_copy_to_report(copy: Copy, name: str) -> None:
    assert cli.main([name, "a", "host:b"]) == 0
    assert len(copy.calls) == 1


SHORT = [f"-{letter}" for letter in "bcdhqstrpPiFJolCvB46STan"]
LONG = ["--update", "--exclude", "--include", "--chunk-size", "--no-resume", "--progress"]
WORDS = st.one_of(
    st.sampled_from(SHORT),
    st.sampled_from(LONG),
    st.sampled_from(["-rp", "-P22", "-oA=b", "--", "-", "--include=x", "json", "auto", "1", "64k"]),
    st.sampled_from(["a", "host:", "host:b", "[::1]:c", "ssh://host/x"]),
    st.text(max_size=8),
    st.binary(max_size=8).map(os.fsdecode),
)


@given(st.lists(WORDS, max_size=6))
def test_any_command_line_makes_sense_or_is_wrong_use(words: list[str]) -> None:
    with contextlib.suppress(UsageError):
        assert isinstance(cli.parse(words), cli.Command | PipeCommand)


# --- files of patterns


@pytest.mark.parametrize(
    ("words", "content", "patterns"),
    [
        (
            [],
            b"# no\n\n; no\r\na b \r\n+ *.c\n\xff\n#",
            ["first", "a b ", "+*.c", "\udcff", "last"],
        ),
        (["-0"], b"a\nb\0#no\0\0c\r", ["first", "a\nb", "c\r", "last"]),
        (["--include=x"], b"!", ["last"]),
        ([], b"", ["first", "last"]),
    ],
)
def test_a_file_of_patterns_has_its_place(
    tmp_path: Path, words: list[str], content: bytes, patterns: list[str]
) -> None:
    """Patterns to include are shown with a "+" here."""
    path = tmp_path / "patterns"
    path.write_bytes(content)
    words = ["--exclude=first", *words, "--exclude-from", str(path), "--exclude=last"]
    command = cli.parse([*words, "host:a", "."])
    assert isinstance(command, cli.Command)
    found = [("+" if kind == "include" else "") + each for kind, each in command.options.filters]
    assert found == patterns


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--exclude-from", "gone", "host:a", "."], "--exclude-from: gone: No such file or dir"),
        (["--include-from", ".", "host:a", "."], "--include-from: .: Is a directory"),
        (["--exclude-from=-", "--include-from=-", "host:a", "."], "standard input"),
        (["--exclude-from=-", "-", "host:a"], "standard input"),
        (["--exclude-from=-", "--files-from=-", "a", "host:"], "standard input"),
        (["--exclude", "- ", "host:a", "."], "--exclude is empty"),
    ],
)
def test_files_of_patterns_that_cannot_be(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") <= 2


def test_patterns_from_standard_input() -> None:
    code = (
        "from pscp.cli.copy import parse\n"
        "print(parse(['--include-from', '-', 'host:a', '.']).options.filters)"
    )
    ran = subprocess.run([sys.executable, "-c", code], input=b"a*\n", stdout=-1, check=True)
    assert ran.stdout == b"(('include', 'a*'),)\n"


def test_summary_of_a_copy_with_incidents(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    copy.result = Result(
        files=1,
        files_skipped=4,
        bytes=300_000_000,
        bytes_resumed=100_000_000,
        chunks_verified=1,
        chunks_resent=3,
        seconds=2,
        failures=(Failure("x\x1b", "SourceChanged", "changed"), Failure("y", "FileError", "no")),
    )
    copy.act = lambda reporter: reporter.note("x\x1b: changed")
    assert cli.main(["a", "host:b"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "pscp: x\\x1b: changed",
        "200.0 MB in 2.0 s (100.0 MB/s) to host:b, 1 file, 1 chunk verified, 3 resent, "
        "100.0 MB was there already, 4 skipped, 2 failed",
    ]


def test_what_a_manifest_took_is_told_beside_the_copy(
    copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    copy.result = replace(DONE, seconds=8.4, manifest_seconds=11.1)
    assert cli.main(["--manifest", os.devnull, "--stats", "a", "host:b"]) == 0
    said, *stats = capsys.readouterr().err.splitlines()
    assert " in 8.4 s (" in said and said.endswith("verified, hashed for the manifest in 11.1 s")
    assert f"{'manifest seconds':<26} {'11.100':>16}" in stats


def test_stats_have_a_line_for_each_worker_of_a_cluster() -> None:
    workers = WorkerTotals("n1 (7)", 96_000_000, 48.0, 12, 1, 4, 2), WorkerTotals("n2 (8)", tasks=1)
    first, other = closing.table(replace(DONE, workers=workers), Options())[-2:]
    words = "96.0 MB in 12 tasks, 1 of them again, 48.0 s (2.0 MB/s), 2 connections lost"
    assert first.split(None, 3)[1:] == ["n1", "(7)", words]
    assert other.endswith(" 0 B in 1 task, 0.0 s (0 B/s)")


def test_a_dry_run_counts_what_is_missing_alone() -> None:
    """268.4 MB are of files that are there already."""
    result = replace(DONE, files=0, bytes_resumed=DONE.bytes)
    assert closing.dry_run_summary(result).endswith("it would have been 0 files, 0 B")


def test_a_dry_run_says_what_it_would_leave_as_the_copy_does(
    copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    copy.result = Result(
        files=2, bytes=9, files_resumed=3, files_unchanged=4, files_skipped=5, files_deleted=6,
        metadata_set=7, files_linked=8,
    )  # fmt: skip
    assert cli.main(["-ran", "--stats", "--delete", "a", "host:b"]) == 0
    said, *stats = capsys.readouterr().err.splitlines()
    assert said == (
        "nothing was copied (dry run); it would have been 2 files, 9 B, and 8 linked, and metadata "
        "of 7 set, and 6 deleted, 3 unchanged, 4 unchanged by size and time, 5 skipped"
    )
    rows = {row[:26].rstrip(): row[26:].strip() for row in stats}
    assert {name: rows.pop(f"would be {name}") for name in ("copied", "linked", "deleted")} == {
        "copied": "2", "linked": "8", "deleted": "6",
    }  # fmt: skip
    assert rows.pop("metadata would be set") == "7"
    assert not any(name.startswith(("files copied", "linked", "deleted")) for name in rows)
    assert cli.main(["-a", "--size-only", "--stats", "a", "host:b"]) == 0
    said, *stats = capsys.readouterr().err.splitlines()
    assert ", 4 unchanged by size, " in said and f"{'unchanged by size':<26} {4:>16}" in stats


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (ConnectError("no route\n\x1b", "try"), 3, ["pscp: no route\\x0a\\x1b", "      try"]),
        (PscpError("odd"), 1, ["pscp: odd"]),
        (SourceChanged("a\x1b", "changed", "again"), 1, ["pscp: a\\x1b: changed", "      again"]),
        (Interrupted("stop"), 130, ["pscp: stop", f"      {Interrupted.hint}"]),
        (Terminated("end"), 143, ["pscp: end", f"      {Terminated.hint}"]),
        (KeyboardInterrupt(), 130, ["pscp: interrupted", f"      {Interrupted.hint}"]),
        (
            RuntimeError("can't start new thread"),
            1,  # CPython's words
            ["pscp: the system starts no more threads", f"      {NO_MORE}"],
        ),
    ],
)
def test_errors_become_exit_codes(
    copy: Copy,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    lines: list[str],
) -> None:
    def fail(reporter: Reporter) -> None:
        raise error

    copy.act = fail
    assert cli.main(["--progress=plain", "a", "host:b"]) == code
    assert capsys.readouterr().err.splitlines() == lines


def test_a_bug_is_a_traceback(copy: Copy) -> None:
    def fail(reporter: Reporter) -> None:
        raise ZeroDivisionError

    copy.act = fail
    with pytest.raises(ZeroDivisionError):
        cli.main(["a", "host:b"])


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EAGAIN, Unreachable), (errno.ENOMEM, Unreachable), (errno.ENOENT, UsageError)],
)
def test_an_ssh_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, number: int, kind: type[PscpError]
) -> None:
    """What the system has too few of for a moment is no mistake: a job tries again."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(kind, match="cannot run ssh"):
        openssh.resolve(Location("h:", "", "h"), Options())


def test_h_is_a_screen_of_what_people_use_every_day(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-r", "-h", "--bogus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and max(map(len, lines[1:])) <= 80
    assert not any(line.endswith("...") for line in lines[2:])
    assert "--help" in lines[-1] and any("--archive" in line for line in lines)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pscp ")
    assert cli.main(["host:a", "--", "--version", "--help"]) == 2


def run_python(code: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    root = Path(cli.__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-c", code], cwd=root, stderr=subprocess.PIPE, timeout=200, **options
    )


def test_import_is_light() -> None:
    heavy = "{'rich', 'asyncssh', 'paramiko', 'subprocess', 'importlib.metadata'}"
    done = run_python(f"import sys, pscp.cli.copy; sys.exit(len({heavy} & set(sys.modules)))")
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("pscp --version", ""), ("pscp-verify --json -q - {folder}", "1")],
    ids=["version", "verify"],
)
def test_an_answer_that_cannot_be_written(command: str, unbuffered: str, tmp_path: Path) -> None:
    """To a full disk it is a failure that is told; where the reader went away (`| head`), it is one
    of which nothing is said (N14, N15).
    """
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").touch()
    sums = tmp_path / "SHA256SUMS"
    sums.write_text(f"{hashlib.sha256().hexdigest()}  file\n")
    name, *words = command.format(folder=tmp_path / "tree").split()
    entry = name.replace("-", "_")
    code = f"import sys; sys.argv[1:] = {words}; from pscp.cli.start import {entry} as run; run()"
    full = f"{name}: not everything could be written to standard output: No space left on device\n"
    with open("/dev/full", "wb") as out, open(sums) as listed:
        done = run_python(
            code, stdin=listed, stdout=out, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}
        )
    assert (done.returncode, done.stderr.decode()) == (1, full)
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        with open(sums) as listed:
            done = run_python(code, stdin=listed, stdout=write_end)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b"")


ANSWERS = [
    "pscp --version", "pscp-pipe --help", "pscp-zfs --version", "pscp --list-connections",
    "pscp-run --config {jobs} --list", "pscp-run --config {jobs} --explain",
    "pscp-run --config {jobs} --status", "pscp-run --config {jobs} --status --json",
]  # fmt: skip


@pytest.mark.parametrize("words", ANSWERS)
def test_no_answer_is_lost_with_exit_code_0(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N15: here where the standard output is closed, and print() would fail without a word."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "jobs.toml").write_text('[job.a]\nsources=["/s"]\ndestinations=["h.invalid:/x"]\n')
    kept = tuple(persistent.PersistentConnection("/socket", 1, 0.0, "there", None, None, "yes"))
    start = f"import sys; from pscp.cli.start import {words.split()[0].replace('-', '_')} as run; "
    if "--list-connections" in words:  # else there is nothing to be lost
        start += "from pscp.connect.persistent import PersistentConnection as Kept; "
        start += f"kept = Kept(*{kept!r}); "
        start += "import pscp.connect.persistent as p; p.kept_connections = lambda: [kept]; "
    argv = ["-c", start + "run()", *words.format(jobs=tmp_path / "jobs.toml").split()[1:]]
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, *argv]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=200)
    assert done.returncode != 0 and b"Traceback" not in done.stderr


def test_what_is_typed_goes_over_no_plain_plane(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pscp.cli import pipe

    monkeypatch.setattr("os.isatty", lambda fd: True)
    assert pipe.main(["--plane", "plain", "host", "cat"]) == pipe.OWN_FAILURE
    assert "no cipher" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("host", "cat"), ("--from", "host", "cat f"), ("host:f", "-")])
def test_no_json_comes_into_a_stream(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """It was in the file that was read, or among what the far command said."""
    from pscp.cli import pipe

    main, code = (cli.main, 2) if "-" in words else (pipe.main, pipe.OWN_FAILURE)
    assert main(["--progress", "json", *words]) == code
    out, err = capfd.readouterr()
    assert (out, "--progress json goes to the standard output" in err) == ("", True)


def test_a_summary_names_a_missing_cipher() -> None:
    assert "without a cipher" in closing.summary(Result(plane="plain"))
    assert "cipher" not in closing.summary(Result(plane="tls"))


def test_syslog(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("syslog.openlog", lambda name, *_: said.append(name))
    monkeypatch.setattr("syslog.syslog", lambda priority, text: said.append(text))
    copy.act = lambda reporter: reporter.note("x\x1b: changed")
    assert cli.main(["-q", "--syslog", "a", "host:b"]) == 0
    name, begins, note, closing, ended = said
    assert (name, begins, note) == ("pscp", "begins: pscp -q --syslog a host:b", "x\\x1b: changed")
    assert ("12 files" in closing, ended) == (True, "ended: exit code 0")


def test_a_name_with_a_colon_that_is_there(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a:b").touch()
    with pytest.raises(UsageError, match="a:b is a file here") as refused:
        cli.parse(["a:b", "host:"])
    assert "./a:b is the file" in refused.value.hint
    assert isinstance(cli.parse(["./a:b", "host:"]), cli.Command)
    assert isinstance(cli.parse(["a:b", "."]), cli.Command)


def test_an_error_of_a_fan_out_names_its_destination_once() -> None:
    for message in ("h:x/: no such folder", "no such folder"):
        failed = Delivery("h:x/", None, CopyError(message), 0.0, Counters())
        assert fan_out.told(failed, Options()) == ["pscp: h:x/: no such folder"]
