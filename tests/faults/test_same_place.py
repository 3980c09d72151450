"""What DEST meant in the first run it means until the copy is complete, and nothing is left over.

Not here: what is sent again (test_killed.py), DEST in a first run (../e2e/test_copy_placement.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from compare import assert_same_tree
from core.link import asking

from faults.conftest import MIB, Way, fill, until
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire

EVERY_WAY = True
pytestmark = pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes")

CHUNKS = ("--chunk-size", "1M", "-c", "1")
# (frames after which all stands still, bytes of them): before there is a lane, and after.
MOMENTS = {"at the first question": (wire.ASK, 0), "in the middle": (wire.DATA, 4 * MIB)}


def fill_tree(folder: Path) -> None:
    for name, size in [("a/small", 100), ("m/large", 5 * MIB), ("n/large", 5 * MIB), ("z/last", 9)]:
        fill(folder / name, size)
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (1_000_000_000,) * 2)  # SFTP keeps whole seconds


@pytest.fixture
def new(way: Way) -> Way:
    """Its destination does not exist: the source will be called so."""
    way.destination.rmdir()
    return way


def cut_short(way: Way, moment: str, how: signal.Signals, name: str, *words: str) -> None:
    type_, after = MOMENTS[moment]
    breaking = way.breaking()
    if type_ == wire.ASK:
        breaking.rule("block", way="to", type=type_)
    else:
        breaking.rule("block", connections=None, type=None, after=after)
    running = way.start(*CHUNKS, *words, name=name, breaking=breaking)
    until(lambda: breaking.blocked > 0, "a connection stands still")
    if type_ == wire.DATA:
        until(lambda: way.journaled_bytes() >= 2 * MIB, "something has landed")
    running.send(how)
    running.ended()


@pytest.mark.parametrize(
    ("moment", "how"),
    [("at the first question", signal.SIGKILL), ("in the middle", signal.SIGINT)],
    ids=["first", "middle"],
)
def test_a_folder_that_is_new_there(new: Way, moment: str, how: signal.Signals) -> None:
    """USERS.md A1: it went into a second tree inside the first."""
    fill_tree(new.source / "tree")
    cut_short(new, moment, how, "tree")
    finish_tree(new)


def test_a_file_that_is_new_there_under_another_name(new: Way) -> None:
    fill(new.source / "file", 12 * MIB)
    cut_short(new, "in the middle", signal.SIGKILL, "file")
    ended = new.finish(*CHUNKS, name="file")
    assert new.destination.read_bytes() == (new.source / "file").read_bytes()
    assert ended.end["bytes_resumed"] >= 2 * MIB
    assert_nothing_left(new)


@pytest.mark.parametrize("kind", [requests.BeginSink, requests.Folders, requests.Unmark])
@pytest.mark.differs_by_way(reason="each kind of far end has a marker of its own")
def test_killed_at_a_request_it_goes_on_in_the_folder_that_it_made(
    push: Way, kind: type[requests.Request]
) -> None:
    """With a mode by which nothing can be removed from the folder any more."""
    push.destination.rmdir()
    fill_tree(push.source / "tree")
    (push.source / "tree").chmod(0o555)
    breaking = push.breaking()
    breaking.rule("block", way="to", connections=None, type=wire.ASK, contains=asking(kind))
    running = push.start("-p", "--delete", *CHUNKS, name="tree", breaking=breaking)
    until(lambda: breaking.blocked, "a connection stands still")
    running.kill()
    finish_tree(push, "-p", "--delete", times=True, modes=True)


@pytest.mark.differs_by_way(reason="each end, and SFTP, looks for itself")
def test_killed_when_it_had_just_made_the_folder(new: Way) -> None:
    """It lies there empty, beside the fence."""
    fill_tree(new.source / "tree")
    cut_short(new, "in the middle", signal.SIGKILL, "tree")
    until(lambda: left_over(new), "there is a fence")
    shutil.rmtree(new.destination)
    new.destination.mkdir(0o1700)
    finish_tree(new)


@pytest.mark.usefixtures("push")
def test_a_file_that_failed_does_not_change_what_it_means(new: Way) -> None:
    """The folder has its metadata by then, and no run owns the copy."""
    fill_tree(new.source / "tree")
    bad = new.source / "tree" / "a" / "dangling"
    bad.symlink_to("nowhere")
    assert new.run(*CHUNKS, "-p", name="tree").code == 1
    bad.unlink()
    os.utime(bad.parent, (1_000_000_000,) * 2)
    finish_tree(new, "-p", times=True)


@pytest.mark.usefixtures("pull")
def test_a_dry_run_after_a_cut_means_the_same(new: Way) -> None:
    fill_tree(new.source / "tree")
    cut_short(new, "in the middle", signal.SIGKILL, "tree")
    ended = new.finish("-n", name="tree")
    shown = {json.loads(line).get("text") for line in ended.out.splitlines()}
    assert "destination/n/large" in shown and "destination/tree/" not in shown, ended.out


class OnDisk(Way):
    """A way whose destination is a folder on a disk, which is not mounted at first."""

    @property
    def destination(self) -> Path:
        return self.home / "disk" / "host1"


@pytest.mark.parametrize(
    ("what", "words"), [("disk", ("-p", "--delete")), ("host1", ("-p",))], ids=["disk", "host1"]
)
def test_n5_another_folder_has_the_name_by_then(
    way: Way, what: str, words: tuple[str, ...]
) -> None:
    """ADVERSARY N5: the disk is mounted again, and what lies in it is not what the cut run made."""
    way = OnDisk(**{each.name: getattr(way, each.name) for each in dataclasses.fields(way)})
    fill_tree(way.source / "data")
    (way.home / "disk").mkdir()
    cut_short(way, "in the middle", signal.SIGKILL, "data", *words)
    mounted = way.home / "disk" if what == "disk" else way.destination
    mounted.rename(way.home / "covered")
    precious = fill(way.destination / "mail" / "precious", 1000)
    fill(way.destination / "data" / "old", 10)
    for _ in range(2):
        way.finish(*CHUNKS, *words, name="data")
        assert (way.destination / "mail" / "precious").read_bytes() == precious
        assert {path.name for path in way.destination.iterdir()} == {"mail", "data"}
        assert (way.destination / "data" / "old").exists() is ("--delete" not in words)
    (way.destination / "data" / "old").unlink(missing_ok=True)
    assert_same_tree(way.source / "data", way.destination / "data")
    shutil.rmtree(mounted)
    (way.home / "covered").rename(mounted)  # what the cut run made is still known there
    way.finish(*CHUNKS, *words, name="data")
    assert_same_tree(way.source / "data", way.destination, times=True)
    assert not left_over(way)


@pytest.mark.usefixtures("pull")
def test_a_complete_copy_is_forgotten(new: Way) -> None:
    """The next one means by DEST what scp means: a folder to copy into."""
    fill(new.source / "tree" / "file", 10)
    for _ in range(2):
        new.finish(name="tree")
    assert (new.destination / "tree" / "file").exists()


def test_what_the_source_has_no_more_leaves_no_part(way: Way) -> None:
    """USERS.md A14: recordings rotate, and the part of one that is gone stayed for ever."""
    fill(way.source / "tree" / "old", 12 * MIB)
    cut_short(way, "in the middle", signal.SIGKILL, "tree")
    assert way.parts()
    (way.source / "tree" / "old").rename(way.source / "tree" / "new")
    way.finish(*CHUNKS, name="tree")
    assert (way.destination / "tree" / "new").exists()
    assert not left_over(way)


def finish_tree(way: Way, *words: str, **facts: bool) -> None:
    """The same command again; what the folder holds is then at DEST itself, and nothing else."""
    way.finish(*CHUNKS, *words, name="tree")
    assert_same_tree(way.source / "tree", way.destination, **facts)
    assert_nothing_left(way)


def assert_nothing_left(way: Way) -> None:
    assert not way.journals and not left_over(way)


def left_over(way: Way) -> list[str]:
    """Parts and fences, where the destination is a folder and beside it."""
    return [path.name for path in way.home.rglob(".*.pscp-*")]
