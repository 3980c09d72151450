"""Whole copies on a file system that fails; the mends of what was found, each taken out once.

Each run of the tests has the same examples, in another order of events; `scripts/soak model 600`
has new ones, and `scripts/soak model 1 --seed N` repeats the one that failed. `scripts/soak
mutants` tries all mends in the model; here only that each is still where it is looked for.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import calls
import mutants
import power
import pytest
from soak import model
from soak.mutants import ROOT
from soak.trial import Way
from tree_data import scan
from whole import Focus, Step, World, run_steps

from pscp.endpoint.writing import fence

EXAMPLES = int(os.environ.get("PSCP_MODEL_EXAMPLES", 500))
LIMIT_S = float(os.environ.get("PSCP_MODEL_S", 60))
SEED = int(os.environ.get("PSCP_MODEL_SEED", 25_000))  # of the first; `scripts/soak model` draws it

pytestmark = pytest.mark.skipif(not os.path.isdir(model.PLACE), reason="needs /dev/shm")


def test_a_whole_copy_is_whole_whatever_fails(capfd: pytest.CaptureFixture[str]) -> None:
    failed = model.run(LIMIT_S, seed=SEED, most=EXAMPLES)
    told = capfd.readouterr().out
    with capfd.disabled():
        print(told, end="")
    assert not failed, told  # in a worker of xdist nobody sees what it prints


def test_mends_are_where_they_are_looked_for() -> None:
    for mutant in mutants.MUTANTS:
        for file, old in ((mutant.file, mutant.old), mutant.also[:2]):
            assert not old or (ROOT / "pscp" / file).read_text().count(old) == 1, mutant
        if mutant.test:
            file, _, name = mutant.test.partition("::")
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(), mutant


# --- a run that stands still, and goes on once another one has made DEST


def wrong_late(home: Path, group: str, nth: int = 0) -> list[str]:
    """Return what is wrong after a run that stood still at this call, and one of newer files."""
    focus = Focus({"recursive": True}, (), to=b"new", history="new")
    home.mkdir()
    world = World(home, random.Random(1), Way("push"), focus.options, focus)
    try:
        world.trial.draw(has_oddities=False)
        return run_steps(world, [Step(calls.Disturbance(calls.STOP, group, nth)), Step(changes=3)])
    finally:
        world.close()


def test_a_run_that_had_not_looked_at_dest_copies_into_what_was_made_since(tmp_path: Path) -> None:
    assert not wrong_late(tmp_path / "0", "make")  # of the journal's folder


@pytest.mark.parametrize("has_fence", [True, False])
def test_a_run_that_had_begun_changes_nothing_and_is_told_if_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_fence: bool
) -> None:
    if not has_fence:
        monkeypatch.setattr(fence.Fence, "_is_ours", lambda _: True)
    # One of another thread may hold the fence just then: such a run is killed, and shows nothing.
    tries = range(4 if has_fence else 40)  # till one shows it
    wrong = (each for nth in tries for each in wrong_late(tmp_path / str(nth), "sync", nth % 4))
    assert any("is changed" in each for each in wrong) is not has_fence


# --- the power cut


def logged(tmp_path: Path) -> tuple[power.Log, Path]:
    (tmp_path / "kept").mkdir()
    (tmp_path / "root").mkdir()
    return power.Log(bytes(tmp_path / "log"), bytes(tmp_path / "kept")), tmp_path / "root"


class AllOfIt(random.Random):
    """Draws that all that may be lost is lost."""

    def random(self) -> float:
        return 0.0


def lost(log: power.Log, tmp_path: Path) -> set[bytes]:
    root = bytes(tmp_path / "root")
    log.close()
    power.cut(bytes(tmp_path / "log"), AllOfIt(), [root])
    return set(scan(root)) - {b""}


def test_a_name_that_was_not_synced_goes_back(tmp_path: Path) -> None:
    log, root = logged(tmp_path)
    (root / "old").write_bytes(b"old")
    (root / "part").write_bytes(b"new")
    args = bytes(root / "part"), bytes(root / "old")
    log.around("rename", args[0], os.rename, args, {}, lambda *_: None)
    assert lost(log, tmp_path) == {b"old", b"part"}
    assert (root / "old").read_bytes() == b"old"
    assert (root / "part").read_bytes() == b"new"


def test_a_name_that_was_synced_stays_and_bytes_that_were_not_are_zeros(tmp_path: Path) -> None:
    log, root = logged(tmp_path)
    fd = os.open(root / "one", os.O_CREAT | os.O_WRONLY)
    log.note("made", bytes(root / "one"))
    log.around("write", b"", os.write, (fd, b"abc"), {}, lambda *_: None)
    folder_fd = os.open(root, os.O_RDONLY)
    log.around("fsync", bytes(root), os.fsync, (folder_fd,), {}, lambda *_: None)
    for each in (fd, folder_fd):
        os.close(each)
    assert lost(log, tmp_path) == {b"one"}
    assert (root / "one").read_bytes() == bytes(3)


def test_names_are_lost_in_any_order_and_those_of_one_file_in_theirs(tmp_path: Path) -> None:
    found, rng = set(), random.Random(1)
    for number in range(100):
        place = tmp_path / str(number)
        place.mkdir()
        log, root = logged(place)
        for name in ("a", "b"):
            args = bytes(root / name), bytes(root / name.upper())
            log.around("mkdir", args[0], os.mkdir, args[:1], {}, lambda *_: None)
            log.around("rename", args[0], os.rename, args, {}, lambda *_: None)
        log.close()
        power.cut(bytes(place / "log"), rng, [bytes(root)])
        found.add(tuple(sorted(scan(bytes(root)))[1:]))
    assert {(b"A",), (b"B",), (b"a",), (b"b",), (b"A", b"B"), ()} <= found
    assert all(len({*map(bytes.lower, names)}) == len(names) for names in found)


def test_one_machine_may_lose_its_power_alone(tmp_path: Path) -> None:
    log, root = logged(tmp_path)
    roots = [bytes(root / each) for each in ("source", "there")]
    for each in roots:
        os.mkdir(each)
    found, rng = set(), random.Random(1)
    for _ in range(40):
        for each in roots:
            path = each + b"/name"
            if not os.path.lexists(path):
                log.around("mkdir", path, os.mkdir, (path,), {}, lambda *_: None)
        power.cut(bytes(tmp_path / "log"), rng, roots)
        found.add(tuple(os.path.lexists(each + b"/name") for each in roots))
    log.close()
    assert len(found) == 4
