"""`terms` of a copy: what a program selects, and the limit that it changes while the copy runs.

Not here: copies that move (test_moves.py), the limiter alone (../unit/test_rate_limiter.py), the
bounds of --min-age and the like (test_copy_options.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

import pscp
from e2e.ways import Way, make
from pscp.ground.values import MIB
from pscp.transfer.lanes import lane_context

EVERY_WAY = True


class Selecting:
    """Leaves out what it is told to, and keeps what it was asked."""

    def __init__(self, *left_out: str) -> None:
        self.left_out = left_out
        self.asked: dict[str, tuple[int, int, int]] = {}

    def __call__(self, path: str, size: int, mtime_ns: int, inode: int) -> bool:
        self.asked[path] = size, mtime_ns, inode
        return os.path.basename(path) not in self.left_out


# --- what is selected


def test_what_is_left_out_is_no_failure_and_stays_there(way: Way) -> None:
    make(way.source, "t/taken", "t/sub/growing", "t/empty/", "growing", "alone")
    (way.source / "t" / "link").symlink_to("growing")
    make(way.destination, "t/sub/growing", "t/extra")
    (way.destination / "t" / "sub" / "growing").write_text("of yesterday")
    select = Selecting("growing", "link")
    names = ["t", "growing", "alone"]
    result = way.copy(*names, archive=True, delete=True, terms=pscp.JobTerms(select))
    assert (result.ok, result.files, result.files_skipped) == (True, 3, 0)
    assert way.arrived == {"t", "t/taken", "t/sub", "t/sub/growing", "t/empty", "t/link", "alone"}
    assert (way.destination / "t" / "sub" / "growing").read_text() == "of yesterday"
    assert set(select.asked) == {
        str(way.source / name) for name in ("t/taken", "t/sub/growing", "growing", "alone")
    }


def test_what_is_asked_is_what_the_source_has(push: Way) -> None:
    name = os.fsdecode(b"- \xff\n")
    make(push.source, "t/")
    (push.source / "t" / name).write_bytes(b"four")
    select = Selecting(name)
    assert push.copy("t/.", terms=pscp.JobTerms(select)).files == 0
    status = (push.source / "t" / name).stat()
    seen = {str(push.source / "t" / name): (status.st_size, status.st_mtime_ns, status.st_ino)}
    assert {os.path.normpath(path): each for path, each in select.asked.items()} == seen


@pytest.mark.needs_agent(reason="over SFTP hard links are files of their own")
def test_a_file_is_left_out_with_all_its_names(way: Way) -> None:
    for name in ("a", "b"):
        (way.source / name).write_text(name)
        (way.source / f"{name}-too").hardlink_to(way.source / name)
    make(way.destination, "a")
    select = Selecting("a")
    assert way.copy(".", archive=True, terms=pscp.JobTerms(select)).files == 2
    assert way.arrived == {"a", "b", "b-too"}
    assert {os.path.basename(path) for path in select.asked} == {"a", "b"}


def test_an_unchanged_folder_is_asked_about_too(way: Way) -> None:
    """The quick check of whole folders would not see its files at all."""
    make(way.source, "t/a", "t/b")
    assert way.copy("t", preserve=True).files == 2
    select = Selecting("a")
    result = way.copy("t", preserve=True, terms=pscp.JobTerms(select))
    assert len(select.asked) == 2 and (result.files_unchanged, result.files) == (1, 0)


@pytest.mark.parametrize("error", [ValueError("mine"), OSError("mine")])
def test_what_it_raises_ends_the_copy(push: Way, error: Exception) -> None:
    make(push.source, "t/a", "t/b")

    def select(path: str, size: int, mtime_ns: int, inode: int) -> bool:
        raise error

    with pytest.raises(type(error), match="mine"):
        push.copy("t", terms=pscp.JobTerms(select))
    assert files_below(push.destination) == set()
    assert push.copy("t").files == 2


def files_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}


# --- the limit that holds now


def test_a_copy_under_way_speeds_up(way: Way) -> None:
    """At the first limit it would take nine hours."""
    (way.source / "big").write_bytes(os.urandom(4 * MIB))
    asked = itertools.count()
    terms = pscp.JobTerms(kbit_s=lambda: 1 if next(asked) < 20 else None)
    result = way.copy("big", terms=terms, limit_kbit_s=1)
    assert result.ok and result.connections_lost == 0


@pytest.mark.needs_agent("pull", reason="over SFTP each folder's listing would come twice")
def test_the_total_is_known_before_the_walk_is_over(way: Way) -> None:
    """The walk waits, since more than a lane's window and its queue hold is to be sent."""
    (way.source / "t").mkdir()
    for number in range(250):
        (way.source / "t" / f"{number}").write_bytes(b"x" * 150_000)
    (way.source / "t" / "1-too").hardlink_to(way.source / "t" / "1")
    (way.source / "t" / "too-large").write_bytes(b"x" * 150_001)
    make(way.source, "t/left-out")
    seen: list[pscp.Counters] = []

    def see(now: pscp.Counters) -> None:
        if now.bytes_expected and not now.plan_complete:
            seen.append(now)

    terms = pscp.JobTerms(kbit_s=lambda: None if seen else 16_000)
    result = way.copy(
        "t", progress=see, terms=terms, archive=way.remote != "sftp", max_size_bytes=150_000,
        filters=[("exclude", "left-out")],
    )  # fmt: skip
    assert result.files == 251 and result.files_left_out == 1
    assert {(now.files_expected, now.bytes_expected) for now in seen} == {(251, result.bytes)}


@pytest.mark.parametrize(("value", "error"), [(0, pscp.UsageError), (ValueError("mine"), None)])
def test_a_limit_that_is_none(push: Way, value: int | ValueError, error: type[Exception]) -> None:
    (push.source / "big").write_bytes(os.urandom(MIB))
    asked = iter(range(1000))

    def kbit_s() -> int:
        if next(asked) == 0:
            return 1000
        if isinstance(value, ValueError):
            raise value
        return value

    with pytest.raises(error or ValueError):
        push.copy("big", terms=pscp.JobTerms(kbit_s=kbit_s))
    assert files_below(push.destination) == set()


def test_copies_with_the_same_terms_keep_to_one_limit(
    push: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[int] = set()
    wait = lane_context.RateLimiter.wait

    def noted(limiter: lane_context.RateLimiter, size_bytes: int, is_over: Any) -> None:
        used.add(id(limiter))
        wait(limiter, size_bytes, is_over)

    monkeypatch.setattr(lane_context.RateLimiter, "wait", noted)
    make(push.source, "a", "b")
    terms = pscp.JobTerms(kbit_s=lambda: 10**6)
    for name in ("one", "two"):
        assert push.copy("a", "b", to=f"{name}/", terms=terms, mkpath=True).ok
    assert used == {id(terms.limiter)}


def test_with_asyncio(push: Way) -> None:
    make(push.source, "a", "b")
    [source], to = push.locations(["."], "")
    terms = pscp.JobTerms(Selecting("a"), lambda: 10**6)

    async def copy() -> int:
        given = {"config_file": push.server.ssh_config, "batch": True, "recursive": True}
        first = await pscp.aio.copy(source, to, terms=terms, **given)  # type: ignore[arg-type]
        async with pscp.aio.copying(source, to, terms=terms, **given) as copying:  # type: ignore[arg-type]
            pass
        async with pscp.aio.Session(push.server.host, **given) as session:  # type: ignore[arg-type]
            third = await session.copy(source, to, terms=terms)
            async with session.copying(source, to, terms=terms) as fourth:
                pass
        runs = (first, copying.result, third, fourth.result)
        return sum(run.files + run.files_resumed for run in runs)

    assert asyncio.run(copy()) == 4
    assert push.arrived == {"b"}


# --- what is expected

WRONG = "11" * 32
OTHER, ABSENT = "not the digest that is expected", "is expected and did not come"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in folder.iterdir()}


def failed(way: Way, *names: str, expected: dict[str, str], **fields: Any) -> dict[str, str]:
    result = way.copy(*names, terms=pscp.JobTerms(expected=expected), **fields)
    assert result.ok is not bool(result.failures)
    for each in result.failures:  # not of hardware, which is well
        assert each.message != OTHER or each.hint == "the source is not what was expected"
    return {each.path: each.message for each in result.failures}


@pytest.mark.parametrize("before", ["nothing", "same", "same by hash", "other"])
@pytest.mark.parametrize("preserve", [False, True])
def test_other_bytes_fail_whatever_was_there(way: Way, before: str, preserve: bool) -> None:
    sizes = {"in a pack": 10, "in chunks": 3 * MIB}
    for name, size_bytes in sizes.items():
        (way.source / name).write_bytes(os.urandom(size_bytes))
    if before != "nothing":
        assert way.copy(*sizes, preserve=before == "same").ok
    if before == "other":
        for name, size_bytes in sizes.items():
            (way.destination / name).write_bytes(os.urandom(size_bytes))
    known = digests(way.destination)
    found = failed(way, *sizes, expected=dict.fromkeys(sizes, WRONG), preserve=preserve)
    assert found == dict.fromkeys(sizes, OTHER)
    assert digests(way.destination) == known
    right = {name: digest.upper() for name, digest in digests(way.source).items()}
    assert failed(way, *sizes, expected=right, preserve=preserve) == {}
    assert digests(way.destination) == digests(way.source)


@pytest.mark.needs_agent(reason="over SFTP hard links are files of their own")
@pytest.mark.parametrize("is_there", [False, True])
def test_a_hard_link_has_the_digest_that_is_expected(way: Way, is_there: bool) -> None:
    make(way.source, "t/a")
    (way.source / "t" / "b").hardlink_to(way.source / "t" / "a")
    if is_there:
        assert way.copy("t", archive=True).ok
    right = sha256(way.source / "t" / "a")
    assert failed(way, "t", expected={"t/b": WRONG}, archive=True) == {"t/b": OTHER}
    assert failed(way, "t", expected={"t/a": right, "t/b": right}, archive=True) == {}


@pytest.mark.needs_agent(reason="over SFTP nothing is linked to other folders")
def test_what_is_linked_to_another_folder_has_it_too(way: Way) -> None:
    make(way.source, "t/a")
    make(way.destination, "new/")
    assert way.copy("t/", to="old", preserve=True).ok
    fields: dict[str, Any] = {"link_dest": ("../old",), "preserve": True, "to": "new"}
    assert failed(way, "t/.", expected={"a": WRONG}, **fields) == {"a": OTHER}
    assert way.files == ["old/a"]


@pytest.mark.parametrize(
    "fields", [{"update": True}, {"ignore_existing": True}, {"filters": (("exclude", "a"),)}]
)
def test_what_is_expected_and_left_out_or_skipped_fails(way: Way, fields: dict[str, Any]) -> None:
    make(way.source, "t/a", "t/b")
    make(way.destination, "t/a")
    os.utime(way.source / "t" / "a", (1, 1))
    found = failed(way, "t", expected={"t/a": sha256(way.source / "t" / "a")}, **fields)
    assert found == {"t/a": ABSENT}


def test_what_is_expected_and_not_at_the_source_fails(way: Way) -> None:
    make(way.source, "t/a")
    make(way.destination, "t/old")
    found = failed(way, "t", expected={"t/b": WRONG}, delete=True)
    assert found == {"t/b": ABSENT} and way.files == ["t/a", "t/old"]
    found = failed(way, "nosuch", expected={"nosuch": WRONG})
    assert list(found) == [str(way.source / "nosuch")]


def test_a_dry_run_knows_what_would_come(way: Way) -> None:
    make(way.source, "a", "b")
    make(way.destination, "b")
    found = failed(way, "a", "b", expected={"a": WRONG, "b": WRONG, "c": WRONG}, dry_run=True)
    assert found == {"b": OTHER, "c": ABSENT}


@pytest.mark.parametrize("said", ["", "11", "g" * 64, WRONG + "\n", "fifo:x", None, b"11" * 32])
def test_what_is_no_digest_is_refused(said: Any) -> None:
    with pytest.raises(pscp.UsageError, match="is no SHA-256 in hex"):
        pscp.JobTerms(expected={"a": said})
    assert pscp.JobTerms(expected={"a": "link:x", "b": "fifo:", "c": "device:c 1:3"})
