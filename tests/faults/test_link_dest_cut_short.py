"""--link-dest, cut short anywhere and run again, twice at once, and what comes late.

Not here: what is linked (../e2e/test_link_dest.py).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from compare import assert_same_tree, tree_digest

from faults.conftest import MIB, Way, fill, until
from faults.late import FarEnds
from faults.test_two_runs import environment, other_machine
from pscp.endpoint.frames import wire

NAMES = [f"t{number}/{name}" for number in range(4) for name in range(30)]


def yesterday(way: Way) -> Path:
    return way.destination.with_name("yesterday")


def fill_both(way: Way) -> str:
    """Files that were there yesterday, but for one. Returns the option."""
    for name in NAMES:
        fill(way.source / name, 100)
    shutil.copytree(way.source, yesterday(way))
    fill(way.source / "z large", 4 * MIB)
    return f"--link-dest={yesterday(way)}"


def linked(way: Way) -> set[str]:
    pairs = {name: (yesterday(way) / name, way.destination / name) for name in NAMES}
    return {name for name, both in pairs.items() if os.path.samefile(*both)}


@pytest.mark.parametrize(
    ("moment", "more"), [("LinkSame", ("--delete",)), ("Folders", ()), ("data", ())]
)
def test_a_push_is_killed_and_run_again(push: Way, moment: str, more: tuple[str, ...]) -> None:
    killed_and_run_again(push, moment, more)


def test_a_pull_is_killed_and_run_again(pull: Way) -> None:
    killed_and_run_again(pull, "Describe")


def killed_and_run_again(way: Way, moment: str, more: tuple[str, ...] = ()) -> None:
    option = fill_both(way)
    before = tree_digest(yesterday(way), modes=True, times=True)
    breaking = way.breaking()
    if moment == "data":
        breaking.rule("block", connections=None, after=2 * MIB)
    else:
        said = f'"{moment}"'
        breaking.rule("block", way="to", connections=None, type=wire.ASK, contains=said)
    words = ("-p", option, *more)
    running = way.start(*words, "-c", "1", "--chunk-size", "1M", breaking=breaking)
    until(lambda: breaking.blocked, "a connection stands still")
    running.kill()
    way.finish(*words)
    assert linked(way) == set(NAMES)
    assert_same_tree(way.source, way.destination, modes=True, times=True)
    assert tree_digest(yesterday(way), modes=True, times=True) == before


def test_a_late_one_of_an_earlier_run(push: Way, far: FarEnds) -> None:
    """The files that it names are others by then."""
    option = fill_both(push)
    late = far.plan().hold(wire.ASK, contains='"Compare"')
    first = push.start("-p", option, "-c", "1")
    late.until_held()
    first.kill()
    for name in NAMES[:50]:
        fill(push.source / name, 101)
    far.plan()
    push.finish("-p", option)
    before = tree_digest(push.destination, times=True)
    late.come()
    assert tree_digest(push.destination, times=True) == before
    assert linked(push) == set(NAMES[50:])


def test_a_run_that_was_overtaken_links_nothing(push: Way) -> None:
    option = fill_both(push)
    other = other_machine(push)
    for name in NAMES:
        fill(other.source / name, 102)
    breaking = push.breaking()
    breaking.rule("block", way="to", connections=None, type=wire.ASK, contains='"Compare"')
    first = push.start(
        "-p", option, "-c", "1", breaking=breaking, env=environment(push, "0123abcd")
    )
    until(lambda: breaking.blocked, "the first stands still")
    other.finish("-p", option, env=environment(other, "0123abcd"))
    breaking.go()
    assert first.ended().code
    assert not linked(push)
    assert_same_tree(other.source, push.destination.resolve())
