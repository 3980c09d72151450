"""--delete, cut short anywhere: nothing is deleted that a whole run would not have deleted.

Lanes and runs that are lost or come late, a source that vanishes, a far end that lies, and a
destination that takes two names for one.

Not here: what a mirror deletes (../e2e/test_mirror.py).
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from compare import assert_same_tree, tree_digest

from faults.conftest import MIB, Breaking, Way, fill, until
from faults.late import FarEnds
from faults.test_hostile import Victim
from faults.test_two_runs import environment, other_machine
from pscp.endpoint.frames import wire

FILES = [f"t{number}/same" for number in range(3)]
EXTRAS = [f"t{number}/old/{name}" for number in range(3) for name in range(40)]


def fill_both(way: Way) -> None:
    for name in FILES:
        data = fill(way.source / name, 1000)
        (way.destination / name).parent.mkdir(parents=True)
        (way.destination / name).write_bytes(data)
    for name in EXTRAS:
        fill(way.destination / name, 100)
    fill(way.source / "z large", 4 * MIB)


def missing(way: Way) -> set[str]:
    """Of what lay at the destination before."""
    return {name for name in [*FILES, *EXTRAS] if not (way.destination / name).exists()}


def standing_at(way: Way, question: str) -> Breaking:
    """The connections stand still when this is asked of the far end, or when data comes."""
    if question == "data":
        return way.breaking().rule("block", connections=None, after=2 * MIB)
    asks = {"way": "to", "type": wire.ASK, "contains": f'"{question}"'}
    return way.breaking().rule("block", connections=None, **asks)


@pytest.mark.parametrize("moment", ["data", "Extras", "Adopt"])
def test_a_push_is_killed_and_run_again(push: Way, moment: str) -> None:
    killed_and_run_again(push, moment)


def test_a_pull_is_killed_and_run_again(pull: Way) -> None:
    killed_and_run_again(pull, "Absent")


def killed_and_run_again(way: Way, moment: str) -> None:
    fill_both(way)
    breaking = standing_at(way, moment)
    running = way.start("-p", "--delete", "-c", "1", "--chunk-size", "1M", breaking=breaking)
    until(lambda: breaking.blocked, "a connection stands still")
    running.kill()
    assert missing(way) <= set(EXTRAS)
    assert not missing(way) or moment == "Adopt"
    way.finish("-p", "--delete")
    assert_same_tree(way.source, way.destination, times=True)


def test_all_lanes_are_lost_while_it_deletes(way: Way, quick_retries: None) -> None:
    fill_both(way)
    question = "Remove" if way.is_push else "Absent"
    asks = {"way": "to", "type": wire.ASK, "contains": f'"{question}"'}
    breaking = way.breaking().rule("kill", connections=[0, 1], **asks)
    result = way.copy(delete=True, breaking=breaking, connections=2)
    assert result.ok, result.failures
    assert result.connections_lost
    assert_same_tree(way.source, way.destination)


# --- what comes late


def test_a_late_remove_of_an_earlier_run(push: Way, far: FarEnds) -> None:
    """What it names is in the source by then."""
    late = far.plan().hold(wire.ASK, contains='"Remove"')
    fill_both(push)
    first = push.start("--delete", "-c", "1")
    late.until_held()
    first.kill()
    shutil.copytree(push.destination, push.source, dirs_exist_ok=True)
    far.plan()
    push.finish("--delete")
    before = tree_digest(push.destination, times=True)
    assert not missing(push)
    late.come()
    assert tree_digest(push.destination, times=True) == before


def test_a_run_that_was_overtaken_deletes_nothing(push: Way) -> None:
    """Another machine's run has all of it in its source."""
    fill_both(push)
    other = other_machine(push)
    shutil.copytree(push.destination, other.source, dirs_exist_ok=True)
    breaking = standing_at(push, "Remove")
    first = push.start("--delete", "-c", "1", breaking=breaking, env=environment(push, "0123abcd"))
    until(lambda: breaking.blocked, "the first stands still")
    other.finish(env=environment(other, "0123abcd"))
    breaking.go()
    ended = first.ended()
    assert ended.code == 1 and "taken over" in ended.err, ended
    assert not missing(push)


def test_what_was_replaced_meanwhile_stays(push: Way) -> None:
    fill_both(push)
    breaking = standing_at(push, "Remove")
    running = push.start("--delete", "-c", "1", breaking=breaking)
    until(lambda: breaking.blocked, "it has listed what it will delete")
    new = push.destination / "new"
    new.write_text("somebody's")
    new.replace(push.destination / EXTRAS[0])
    (push.destination / "t1" / "old" / "new").write_text("somebody's")
    breaking.go()
    ended = running.ended()
    assert ended.code == 1
    assert missing(push) == set(EXTRAS[1:])
    assert {f["path"] for f in ended.end["failures"]} == {EXTRAS[0], "t0/old", "t1/old"}


# --- a source that vanishes


@pytest.mark.parametrize("how", ["all", "replaced"])
def test_a_source_that_vanishes_after_its_walk(way: Way, how: str) -> None:
    """As where it is unmounted: what it had looks as if it were too much."""
    fill_both(way)
    (way.source / "folder" / "sub").mkdir(parents=True)
    for name in range(40):
        fill(way.destination / "folder" / "sub" / str(name), 100)
    running, breaking = way.standing_still("--delete", after=2 * MIB)
    if how == "all":
        way.source.rename(way.home / "away")
        way.source.mkdir()
    else:
        (way.source / "folder").rename(way.home / "away")
        (way.source / "folder" / "sub").mkdir(parents=True)
    breaking.go()
    ended = running.ended()
    assert ended.code == 1, ended
    if how == "all":
        assert not missing(way)
    assert len(list((way.destination / "folder" / "sub").iterdir())) == 40


def test_what_comes_to_the_source_meanwhile_is_not_deleted(way: Way) -> None:
    fill_both(way)
    running, breaking = way.standing_still("--delete", after=2 * MIB)
    fill(way.source / "t0" / "old" / "0", 5)
    breaking.go()
    running.finished()
    assert missing(way) == {name for name in EXTRAS if not name.startswith("t0/")}


@pytest.mark.parametrize("at", ["t0", "t1/sub"])
def test_a_walk_whose_lane_is_lost(pull: Way, at: str, quick_retries: None) -> None:
    """Another one goes on behind the last entry; the folder that it was in is gone by then."""
    for number in range(1000):
        (pull.source / "t1" / "sub" / f"{number:04}").mkdir(parents=True)
        (pull.destination / "t1" / "sub" / f"{number:04}").mkdir(parents=True)
    fill(pull.destination / "t1" / "sub" / "old", 1)
    (pull.source / "t0").mkdir()
    breaking = pull.breaking().rule("block", way="to", type=wire.ASK, contains='"restart":false')
    breaking.rule("kill", way="to", type=wire.ASK, contains='"restart":false')
    running = pull.start("--delete", "-c", "1", breaking=breaking)
    until(lambda: breaking.blocked, "the walk stands still")
    shutil.rmtree(pull.source / at)
    breaking.go()
    ended = running.ended()
    assert ended.end["connections_lost"]
    found = len(list((pull.destination / "t1" / "sub").iterdir()))
    assert (ended.code, found) == ((0, 1000) if at == "t0" else (1, 1001)), ended


# --- ends that are not as they should be


@pytest.fixture
def victim(own_home: Path, capfd: pytest.CaptureFixture[str]) -> Victim:
    made = Victim(own_home, capfd)
    for name in ("tree/old", "tree/sub/old", "beside"):
        fill(made.destination / name, 10)
    (made.destination / "tree" / "link").symlink_to(made.beside)
    return made


KEPT = {"beside", "tree/good", "tree/large good"}


@pytest.mark.parametrize(
    ("scenario", "code"),
    [("Honest", 0), ("NoOrder", 1), ("Twice", 1), ("ThroughTheUsersLink", 1), ("Names", 1),
     ('Answers:["absent", 5, false]', 4), ('Answers:["absent", [], false]', 4),
     ('Answers:["absent", [5], false]', 4), ('Answers:["absent", [["old", "link"]], false]', 0)],
)  # fmt: skip
def test_a_far_end_that_lies(victim: Victim, scenario: str, code: int) -> None:
    """It can say that it has nothing, as that is what was asked for; elsewhere nothing goes."""
    ended = victim.pull(scenario, "-r", "--delete", "--no-resume")
    assert ended.code == code, ended
    there = victim.there()
    assert there >= {"beside", "tree/good"}
    if scenario == "Honest":
        assert there == KEPT
    elif code:
        assert there >= {"tree/old", "tree/sub/old", "tree/link"}
        assert "nothing was deleted" in ended.out
    else:
        assert there >= {"tree/old", "tree/link"} and "tree/sub/old" not in there


def test_names_that_are_one_at_the_destination(push: Way, far: FarEnds) -> None:
    """What was copied as "Foo" lies there as "foo", and is not too much."""
    far.plan().call("names", connections=None)
    fill(push.source / "Foo", 100)
    fill(push.source / "Bar" / "X", 100)
    fill(push.destination / "foo", 50)
    fill(push.destination / "old", 50)
    push.finish("--delete")
    assert {path.name for path in push.destination.iterdir()} == {"foo", "bar"}
    assert (push.destination / "foo").read_bytes() == (push.source / "Foo").read_bytes()


# --- moving


def test_a_source_that_changed_after_it_landed_stays(way: Way) -> None:
    fill_both(way)
    running, breaking = way.standing_still("--remove-source-files", after=2 * MIB)
    (way.source / "t0" / "new").write_bytes((way.source / "t0" / "same").read_bytes())
    (way.source / "t0" / "new").replace(way.source / "t0" / "same")
    with open(way.source / "t1" / "same", "ab") as file:
        file.write(b"more")
    breaking.go()
    ended = running.ended()
    assert ended.code == 1
    assert {f["path"] for f in ended.end["failures"]} == {"t0/same", "t1/same"}
    left = {str(p.relative_to(way.source)) for p in way.source.rglob("*") if p.is_file()}
    assert left == {"t0/same", "t1/same"}


def test_moved_again_after_a_kill(way: Way) -> None:
    """Nothing is lost that was removed, or landed, before."""
    fill_both(way)
    before = {name: (way.source / name).read_bytes() for name in [*FILES, "z large"]}
    for question in ("data", "Release") if way.is_push else ("data", "RemoveSources"):
        breaking = standing_at(way, question)
        words = ("--remove-source-files", "-c", "1", "--chunk-size", "1M")
        running = way.start(*words, breaking=breaking)
        until(partial(getattr, breaking, "blocked"), "it stands still")
        running.kill()
        assert all((way.source / name).exists() for name in before)
    way.finish("--remove-source-files")
    assert {name: (way.destination / name).read_bytes() for name in before} == before
    assert not [path for path in way.source.rglob("*") if path.is_file()]
