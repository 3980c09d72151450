"""pscp --clean: what cut copies left is listed and removed, and what a copy may work on is not.

Not here: parts of copies that are really killed (../faults/test_left_parts.py).
Read next: ways.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pscp
from e2e.ways import Ran, Way
from pscp.calls.cleaning import _ask_all
from pscp.cli.earlier_runs import format_age
from pscp.endpoint.there import leftovers
from pscp.ground.errors import DestinationError, ProtocolError
from pscp.options.option_fields import OptionFields

EVERY_WAY = True
pytestmark = pytest.mark.needs_agent("pull", reason="a folder here is asked about by the agent")

DAY_S = 24 * 3600
TOKEN = "0123abcd"
PARTS = (
    f"data/.one.{TOKEN}.pscp-part",  # as earlier versions called them
    f"data/.two.{TOKEN}5e6f70.pscp-part",
    f"data/below/.a name.txt.9f86d081884c7d65.{TOKEN}89ab4567.pscp-part",
)
FENCE = f".{TOKEN}.pscp-run"
OTHERS = (
    "data/one", "data/.two.pscp-part", f"data/three.{TOKEN}.pscp-part", f"data/.x.{TOKEN}.part",
    "data/.0123ABCD.pscp-run", "data/.x.0123abc.pscp-part", f"data/.{TOKEN}.pscp-part",
)  # fmt: skip


@pytest.fixture
def left(way: Way) -> Way:
    """What lies at `destination` was left two days ago. On a pull that is on this machine."""
    for name in (*PARTS, *OTHERS, FENCE):
        put(way.destination / name)
    return way


def put(path: Path, age_s: float = 2 * DAY_S + 60) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 2000)
    return aged(path, age_s)


def aged(path: Path, age_s: float) -> Path:
    os.utime(path, (time.time() - age_s,) * 2, follow_symlinks=False)
    return path


def cleaned(way: Way, *words: str, below: str = "") -> Ran:
    folder = os.path.join(way.destination, below) if below else str(way.destination)
    return way.typed("--clean", *words, way.sent_to + folder)


def listed(ran: Ran, way: Way) -> list[str]:
    """The paths of the rows."""
    before = f"{way.sent_to}{way.destination}/"
    rows = [line.partition(before) for line in ran.out.splitlines() if before in line]
    assert all(row.split() == ["2.0", "kB", "2", "d"] for row, _, _ in rows), ran.out
    return [path for _, _, path in rows]


def test_what_was_left_is_listed_and_with_yes_removed_and_nothing_else(left: Way) -> None:
    for words in ((), ("--yes", "-n")):
        ran = cleaned(left, *words)
        assert (ran.code, ran.err) == (0, "")
        assert listed(ran, left) == [FENCE, *PARTS]
        assert "4 files that cut copies left, 8.0 kB; --yes removes them" in ran.out
        assert {*left.files} == {*PARTS, *OTHERS, FENCE}
    ran = cleaned(left, "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert listed(ran, left) == [FENCE, *PARTS]
    assert "4 files that cut copies left, 8.0 kB: removed" in ran.out
    assert {*left.files} == set(OTHERS)
    assert "nothing that cut copies left lies below" in cleaned(left, "--yes").out


def test_links_are_not_followed_and_parts_of_links_go(left: Way) -> None:
    outside = put(left.destination.with_name("outside") / f".x.{TOKEN}.pscp-part")
    (left.destination / "to outside").symlink_to(outside.parent)
    part = left.destination / f".link.{TOKEN}.pscp-part"
    part.symlink_to(outside)
    aged(part, 2 * DAY_S)
    os.mkfifo(left.destination / f".fifo.{TOKEN}.pscp-part")
    aged(left.destination / f".fifo.{TOKEN}.pscp-part", 2 * DAY_S)
    (left.destination / f".folder.{TOKEN}.pscp-part").mkdir()
    ran = cleaned(left, "--yes")
    assert ran.code == 0 and "5 files that cut copies left" in ran.out, ran.out + ran.err
    assert outside.exists() and not part.is_symlink()
    assert {*left.files} == {*OTHERS, "to outside", f".fifo.{TOKEN}.pscp-part"}


def test_the_folder_itself_may_be_a_link(left: Way) -> None:
    (left.destination.parent / "link").symlink_to(left.destination)
    assert cleaned(left, "--yes", below="../link").code == 0
    assert {*left.files} == set(OTHERS)


@pytest.mark.parametrize("words", [(), ("-q",)])
def test_n2_a_part_that_was_the_file_itself_is_told_apart(
    left: Way, words: tuple[str, ...]
) -> None:
    """N2: an earlier version's --inplace was cut short, and nothing could remove what that left."""
    (left.destination / PARTS[0]).chmod(0o1640)
    ran = cleaned(left, *words)
    before, _, after = ran.out.partition("that an earlier version's --inplace has hidden")
    assert "the only copy" in after and PARTS[0] in after and PARTS[0] not in before
    assert all(each in before for each in (FENCE, *PARTS[1:]))
    assert {*left.files} == {*PARTS, *OTHERS, FENCE}
    assert json.loads(cleaned(left, "--progress", "json").out)["found"][1]["was_file"] is True
    ran = cleaned(left, "--yes", *words)
    assert (ran.code, {*left.files}) == (0, set(OTHERS))
    assert "has hidden" in ran.out and PARTS[0] in ran.out


@pytest.mark.parametrize("where", [FENCE, f"data/{FENCE}"])
def test_the_parts_of_a_run_that_was_killed_a_minute_ago(left: Way, where: str) -> None:
    """4: they were kept for a day. The fence is in the part's folder, or above it."""
    put(left.destination / where, 60)
    ran = cleaned(left, "--yes")
    is_sftp = left.remote == "sftp" and left.is_push
    assert ran.code == 0, ran.err
    assert {*left.files} == {*OTHERS, *([*PARTS, where, FENCE] if is_sftp else [])} - (
        {FENCE} if is_sftp and where != FENCE else set()
    )
    assert ("--force takes those" in ran.out) is is_sftp
    assert cleaned(left, "--yes", "--force").code == 0
    assert {*left.files} == set(OTHERS)


@pytest.mark.parametrize("force", [False, True])
def test_the_fence_of_a_run_that_may_be_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    """Above the folder that is asked for as well."""
    monkeypatch.setattr(leftovers, "_OF_ONE_MACHINE", frozenset())
    put(tmp_path / FENCE, DAY_S - 600)
    parts = [put(tmp_path / path) for path in PARTS]
    page: Any = leftovers.Search(str(tmp_path / "data"), True, force=force).page()
    assert len(page["held" if not force else "found"]) == len(parts)
    assert [path.exists() for path in parts] == [not force] * len(parts)


@contextlib.contextmanager
def held(path: Path, lock: int) -> Iterator[None]:
    with open(path, "rb") as file:
        if lock:
            fcntl.flock(file, lock)
        yield


@pytest.mark.needs_agent(reason="SFTP does not tell who has a file open or locked")
def test_what_is_open_or_locked_is_left_alone(left: Way) -> None:
    with contextlib.ExitStack() as stack:
        for part, lock in zip(PARTS, (0, fcntl.LOCK_SH, fcntl.LOCK_EX), strict=True):
            stack.enter_context(held(left.destination / part, lock))
        ran = cleaned(left, "--yes", "-v")
    assert ran.code == 0, ran.err
    assert {*left.files} == {*OTHERS, *PARTS}
    assert "left alone: 3 files" in ran.out and all(part in ran.out for part in PARTS)


@pytest.mark.needs_agent(reason="SFTP does not tell who has a file open")
def test_a_fence_that_is_open_counts_however_old_it_is(left: Way) -> None:
    with held(left.destination / FENCE, 0):
        assert "left alone: 4 files" in cleaned(left, "--yes").out
    assert {*left.files} >= {*PARTS, FENCE}


def test_over_sftp_only_what_is_older_than_a_day_goes(left: Way) -> None:
    is_sftp = left.remote == "sftp" and left.is_push
    aged(left.destination / PARTS[0], DAY_S - 600)
    ran = cleaned(left, "--yes")
    assert ran.code == 0, ran.err
    assert {*left.files} == {*OTHERS, *([PARTS[0]] if is_sftp else [])}
    assert ("over SFTP only age tells" in ran.out) is is_sftp


@pytest.mark.needs_agent(reason="SFTP does not tell who one is at the far end")
def test_another_users_parts_are_not_listed(left: Way) -> None:
    if os.geteuid() == 0:
        os.chown(left.destination / PARTS[0], 12345, -1)
        assert listed(cleaned(left, "--yes"), left) == [FENCE, *PARTS[1:]]
        assert {*left.files} == {*OTHERS, PARTS[0]}
    (left.destination / FENCE).unlink(missing_ok=True)
    assert cleaned(left, "--yes").code == 0


def test_a_folder_that_cannot_be_read_is_named(powerless: Way) -> None:
    way = powerless
    for name in PARTS:
        put(way.destination / name)
    os.chmod(way.destination / "data" / "below", 0)
    try:
        ran = cleaned(way, "--yes")
    finally:
        os.chmod(way.destination / "data" / "below", 0o755)
    assert ran.code == 1
    assert f"{way.sent_to}{way.destination}/data/below: Permission denied" in ran.err
    assert {*way.files} == {PARTS[2]}


@pytest.mark.parametrize("below", ["missing", "data/one"])
def test_a_folder_that_is_not_there(left: Way, below: str) -> None:
    ran = cleaned(left, "--yes", below=below)
    assert (ran.code, ran.out) == (1, "")
    assert f"{left.destination}/{below}: no such folder" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_one_json_object(left: Way) -> None:
    ran = cleaned(left, "--progress", "json", below="data")
    assert (ran.code, ran.err) == (0, "")
    found: dict[str, Any] = json.loads(ran.out)
    assert [each["path"] for each in found["found"]] == [p.removeprefix("data/") for p in PARTS]
    assert {each["size_bytes"] for each in found["found"]} == {2000}
    assert all(2 * DAY_S <= each["age_s"] < 3 * DAY_S for each in found["found"])
    assert (found["held"], found["failures"], found["removed"]) == ([], [], False)


def test_more_than_a_page(way: Way) -> None:
    for number in range(1100):
        put(way.destination / f"{number % 7}" / f".{number}.{TOKEN}.pscp-part")
    assert "1100 files that cut copies left, 2.2 MB: removed" in cleaned(way, "--yes").out
    assert {*way.files} == set()


def test_names_that_would_act_on_a_terminal(way: Way) -> None:
    part = put(way.destination / f".\x1b[2J\n\udcff.{TOKEN}.pscp-part")
    ran = cleaned(way, "--yes")
    assert ran.code == 0 and "\\x1b[2J\\x0a\\xff" in ran.out and "\x1b" not in ran.out
    assert not part.exists()


def test_through_the_api(left: Way) -> None:
    where = f"{left.sent_to}{left.destination}/data"
    fields: OptionFields = {
        "config_file": left.server.ssh_config, "batch": True, "remote": left.remote,
        "transport": left.transport,
    }  # fmt: skip
    found = pscp.clean(where, **fields)
    assert [each.path for each in found.found] == [p.removeprefix("data/") for p in PARTS]
    assert found.ok and not found.removed and {*left.files} >= {*PARTS}
    assert pscp.clean(where, remove=True, **fields).removed
    assert {*left.files} == {*OTHERS, FENCE}
    with pytest.raises(DestinationError, match="no such folder"):
        pscp.clean(f"{where}/missing", **fields)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--clean",), "--clean takes one folder"),
        (("--clean", "HOST:a", "HOST:b"), "--clean takes one folder"),
        (("--yes", "a", "HOST:"), "--yes and --force go with --clean"),
        (("-a", "--force", "a", "HOST:"), "--yes and --force go with --clean"),
        (("--clean", "--measure", "HOST:"), "do not go together"),
        (("--clean", "--save", "HOST:"), "--save goes with --measure"),
    ],
)
def test_wrong_use(push: Way, words: tuple[str, ...], message: str) -> None:
    ran = push.typed("-o", "HostName=nowhere.invalid", *words)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"found": [["x", 1]], "held": [], "failed": [], "is_last": True},
        {"found": [["x", 1, "2"]], "held": [], "failed": [], "is_last": True},
        {"found": [[1, 1, 2]], "held": [], "failed": [], "is_last": True},
        {"found": [], "held": [], "failed": [["x"]], "is_last": True},
        {"found": 3, "held": [], "failed": [], "is_last": True},
    ],
)
def test_an_answer_of_another_shape(answer: Any) -> None:
    with pytest.raises(ProtocolError, match="another shape"):
        _ask_all(lambda request: (answer, False), leftovers.Clean("", False), False)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7205, "2 h"), (200000, "2 d")]
)
def test_ages(seconds: int, said: str) -> None:
    assert format_age(seconds) == said
