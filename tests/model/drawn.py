"""What the model of whole copies draws: options, runs, and what happens to them.

Half of the examples are anything at all; the others lie where features meet, in which most was
found: their findings stand beside them.

Not here: trees (../draws.py), how an example runs (whole.py).
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import calls
import draws
import workers
from calls import Disturbance
from core.link import CUT, FAIL, FLIP, FROM, HOST, KILL, LATE, START, TO, TWICE, Fault, asking
from soak.trial import Trial, Way
from whole import ALONE, Focus, Step, World, run_steps

from pscp.endpoint.asking import requests
from pscp.ground.errors import UsageError
from pscp.options.options import Options

ARCHIVE = {"archive": True}
ARCHIVE_MIRROR = {"archive": True, "delete": True}
SNAPSHOT = {"archive": True, "link_dest": ("../yesterday",)}
A_PART = Step(Disturbance(calls.KILL, "write", of="there"))  # some of a large file is written
LATE_RUN = Step(Disturbance(calls.STOP, "write", of="there"))
NOT_SYNCED = Disturbance(calls.FAIL, calls.FOLDER_SYNC, of="there", stays=True)
REVOKING = Fault(0, TO, 0, HOST, contains=asking(requests.Revoke))  # its host is lost with that
OUTLIVES = Disturbance(calls.STOP, "sync", of="there")
AT_ONCE = (workers.TOGETHER,) * 6
GIVEN_UP = (workers.LOST, workers.LOST_LATE)
HOSTS = "bench,bench-2", "bench-2,bench", ALONE  # all of which a copy to the first one may mean
NOT_OF_HOSTS = {"remove_source_files", "manifest"}  # refused to several
FOCI = {
    "N1": Focus(ARCHIVE, (A_PART, Step(journal="lost", large="sparse")), mark=1),
    "N2": Focus(ARCHIVE, (A_PART, Step(earlier_version=True))),
    "N4": Focus({"remove_source_files": True}, (Step(NOT_SYNCED, is_power_cut=True), Step())),
    "N5": Focus(
        {"archive": True, "delete": True},
        (Step(Disturbance(calls.KILL, "write")), Step(other_folder=True)), to=b"new",
    ),
    "N8": Focus(
        {"archive": True, "backup": True, "resume": False},
        (Step(Disturbance(calls.KILL, "metadata")), Step()),
    ),
    "N10": Focus(ARCHIVE, (A_PART, Step(large="small"))),
    "N11": Focus({"archive": True, "ignore_existing": True}, (Step(),), has_links=True),
    "N12": Focus(
        {"remove_source_files": True}, (Step(is_power_cut=True), Step()), to=b"new/",
        history="new",
    ),
    "N12 again": Focus(
        {"remove_source_files": True},
        (
            Step(Disturbance(calls.KILL, calls.FOLDER_SYNC, of="there")),
            Step(is_power_cut=True), Step(),
        ),
        to=b"new/", history="new",
    ),
    "unmarked": Focus(
        ARCHIVE,
        (
            Step(),
            Step(Disturbance(calls.KILL, calls.FOLDER_SYNC, of="there"), is_power_cut=True), Step(),
        ),
        to=b"new", history="new",
    ),
    "N16": Focus({"archive": True, "delete": True}, (A_PART, Step(journal="lost", large="gone"))),
    "N18": Focus({"archive": True, "update": True}, (Step(),), has_links=True),
    "next name": Focus(ARCHIVE, (Step(),), has_clashes=True),
    "T7": Focus({"archive": True, "update": True, "resume": False}, (Step(),), has_links=True),
    "as old": Focus(
        {"archive": True, "update": True, "checksum": True}, (Step(),), has_links=True, unread=True
    ),
    "in the way": Focus(
        {"archive": True, "delete": True, "filters": (("exclude", "x/"),)}, (Step(),),
        has_clashes=True,
    ),
    "stays": Focus(
        {"archive": True, "delete": True, "ignore_existing": True}, (Step(),), has_clashes=True
    ),
    "not made": Focus({"existing": True}, (Step(),), has_clashes=True),
    "made way": Focus(
        {"archive": True, "delete": True, "existing": True}, (Step(),), has_clashes=True
    ),
    "kept": Focus(
        {"archive": True, "delete": True, "backup": True, "backup_dir": "old"}, (Step(), Step()),
        has_clashes=True,
    ),
    "unfinished": Focus({"archive": True, "delete": True}, (Step(),), has_clashes=True),
    "more": Focus(ARCHIVE_MIRROR, (Step(),), history="mixed"),
    "more again": Focus(
        ARCHIVE_MIRROR, (Step(Disturbance(calls.KILL, "write", of="there")), Step()),
        history="mixed",
    ),
    "listed": Focus({"archive": True, "manifest": True}, (Step(),), history="mixed"),
    "P10": Focus(
        {"checksum": True, "archive": True, "chunk_bytes": 65_536},
        (A_PART, Step(large="in place")), mark=1,
    ),
    "in place": Focus(ARCHIVE, (A_PART, Step(large="in place")), mark=1),
    "stretches": Focus(ARCHIVE, (Step(), Step(large="end"), Step()), mark=1),
    "A1": Focus(ARCHIVE, (Step(Disturbance(calls.STOP, "sync")), Step(large="other"))),
    "A2": Focus(ARCHIVE, (LATE_RUN, Step(large="other"))),
    "A3": Focus(ARCHIVE, (Step(fault=Fault(0, TO, 6, TWICE)), Step())),
    "bytes first": Focus(ARCHIVE, (Step(is_power_cut=True), Step())),
    "names first": Focus({"remove_source_files": True}, (Step(is_power_cut=True), Step())),
    "there already": Focus(
        {"remove_source_files": True},
        (
            Step(Disturbance(calls.KILL, calls.FOLDER_SYNC, of="there")),
            Step(NOT_SYNCED, is_power_cut=True), Step(),
        ),
    ),
    "A5": Focus(ARCHIVE, (LATE_RUN, Step(A_PART.disturbance, large="other"), Step())),
    "tries": Focus(
        {"archive": True, "backup": True, "resume": False}, (Step(fates=AT_ONCE), Step()),
        history="mixed", workers=2,
    ),
    "given up": Focus(
        {"archive": True, "backup": True, "resume": False}, (Step(fates=GIVEN_UP), Step()),
        history="mixed", workers=2,
    ),
    "over": Focus(ARCHIVE, (Step(fates=(workers.LATE,) * 4),), workers=2),
    "able": Focus(
        ARCHIVE, (Step(fates=(workers.Fate(told=workers.SHUT_OUT),) * 4),), workers=2
    ),
    "taken back": Focus(
        ARCHIVE,
        (Step(fates=(workers.Fate(told=workers.NOTHING), *(workers.TAKEN_OVER,) * 4)),), workers=2,
    ),
    "host lost": Focus(
        ARCHIVE, (Step(fates=(workers.LATE,) * 8, fault=REVOKING),), history="new", workers=2,
    ),
    "outlives": Focus(
        ARCHIVE,
        (
            Step(A_PART.disturbance, outlives=OUTLIVES, fates=(workers.Fate(workers.OUTLIVES),)),
            Step(changes=3),
        ),
        history="new", workers=2,
    ),
    "goes on": Focus(ARCHIVE, (A_PART, Step()), history="new"),
    "silent": Focus(ARCHIVE, (Step(looks=workers.SILENT),), workers=2),
    "elsewhere": Focus(ARCHIVE, (Step(looks=workers.ELSEWHERE),), workers=2),
    "refused": Focus(ARCHIVE, (Step(fates=AT_ONCE),), workers=2),
    "alike": Focus(ARCHIVE, (Step(), Step()), folds=True),
    "alike unread": Focus(ARCHIVE, (Step(), Step()), history="same", folds=True),
    "alike untold": Focus(
        {"remove_source_files": True},
        (Step(Disturbance(calls.FAIL, "remove", of="there")), Step()), folds=True,
    ),
    "alike above": Focus(
        {"remove_source_files": True, "relative": True}, (Step(), Step()), folds=True
    ),
    "alike mirrored": Focus(ARCHIVE_MIRROR, (Step(), Step()), folds=True),
    "alike deleted": Focus({"delete": True}, (Step(), Step()), folds=True),
    "snapshot": Focus({**SNAPSHOT, "update": True}, (Step(), Step()), history="newer"),
    "snapshot of some": Focus({**SNAPSHOT, "max_size_bytes": 4999}, (Step(), Step())),
    "snapshot mirrored": Focus(
        {**SNAPSHOT, "delete": True, "backup": True, "backup_dir": "old"},
        (Step(Disturbance(calls.KILL, "write", of="there")), Step()), history="mixed",
    ),
    "snapshot kept": Focus({**SNAPSHOT, "backup": True}, (Step(), Step()), has_clashes=True),
    "other modes": Focus({"archive": True, "chmod": "D755,F640"}, (Step(), Step()), history="same"),
    "one place": Focus(
        ARCHIVE, (Step(A_PART.disturbance, host=HOSTS[0]), Step(host=HOSTS[2]))
    ),
}  # fmt: skip
MOST = {
    "sync": 4,
    calls.FOLDER_SYNC: 9,
    "metadata": 20,
    "write": 14,
    "remove": 4,
}  # calls among which one is drawn


# Options whose meeting is where most was found.
MEETING = (
    {"archive": True}, {"archive": True, "delete": True}, {"archive": True, "update": True},
    {"archive": True, "ignore_existing": True}, {"archive": True, "update": True, "resume": False},
    {"archive": True, "update": True, "checksum": True},
    {"archive": True, "delete": True, "ignore_existing": True}, {"existing": True},
    {"backup": True, "resume": False}, {**SNAPSHOT, "update": True}, {**SNAPSHOT, "delete": True},
    {**SNAPSHOT, "backup": True}, {**SNAPSHOT, "min_size_bytes": 41},
    {"archive": True, "chmod": "D755,F640"}, {"archive": True, "relative": True},
    {"remove_source_files": True}, {"archive": True, "remove_source_files": True}, {"strong": True},
)  # fmt: skip


def draw_options(rng: random.Random) -> dict[str, Any]:
    """Draw options that go together, by the table (pscp/options/option_pairs.py)."""
    while True:
        found = draws.options(rng)
        if rng.random() < 0.6:
            found = {"recursive": True, **rng.choice(MEETING)}
        if "transfer_test" in found:  # nothing is there to be judged
            continue
        fields = {**found, **({"files_from": "x"} if "files_from" in found else {})}
        fields |= {"manifest": "x"} if "manifest" in found else {}
        with contextlib.suppress(UsageError):
            Options(**fields)
            return found


def draw_disturbance(rng: random.Random) -> Disturbance:
    act = rng.choice((calls.KILL, calls.KILL, calls.FAIL, calls.FAIL, calls.SHORT, calls.CHANGE,
                      calls.STOP))  # fmt: skip
    group = rng.choice((calls.ANY, calls.ANY, *calls.GROUPS))
    if act == calls.SHORT:
        group = "write"
    most = rng.choice((4, 12, 60))
    of = rng.choice(("", "", "there", "source")) if act == calls.FAIL else ""
    stays = act == calls.FAIL and rng.random() < 0.4
    return Disturbance(act, group, rng.randrange(most), rng.choice(calls.ERRNOS), stays, of)


def draw_fault(rng: random.Random) -> Fault:
    if rng.random() < 0.1:
        nth, do = rng.choice(((0, KILL), (0, LATE), (1, KILL), (1, LATE), (1, FAIL)))
        return Fault(rng.randrange(3), START, nth, do)
    do = rng.choice((KILL, CUT, LATE, TWICE, FLIP, HOST))
    connection = rng.choice((0, 1, 2, rng.randrange(10)))
    most = 8 if do == HOST else 4096
    return Fault(connection, rng.choice((TO, FROM)), rng.randrange(30), do, at=rng.randrange(most))


def draw_steps(rng: random.Random, trial: Trial) -> list[Step]:
    """Draw the runs; the last one is not disturbed."""
    steps: list[Step] = []
    for number in range(rng.choice((1, 2, 2, 2, 3))):
        is_later, which = number > 0, rng.random()
        disturbance = draw_disturbance(rng) if which < 0.75 else None
        fault = draw_fault(rng) if which >= 0.75 and trial.way.direction else None
        journal = rng.choice(("kept", "kept", "kept", "torn", "lost", "of another time"))
        steps.append(Step(
            disturbance, fault, rng.random() < 0.3, journal if is_later else "kept",
            rng.choice((0, 0, 1, 3)) if is_later else 0,
            other_options(rng, trial) if is_later and rng.random() < 0.3 else None,
            is_later and rng.random() < 0.1,
            is_later and rng.random() < 0.05,
        ))  # fmt: skip
    last = steps[-1]
    steps[-1] = last._replace(disturbance=None, fault=None, is_power_cut=False)
    if trial.way.workers:
        steps = [of_cluster(rng, step) for step in steps]
        steps = with_outliving(rng, steps) if rng.random() < 0.4 else steps
    return steps


def of_cluster(rng: random.Random, step: Step) -> Step:
    """Draw what becomes of a cluster's workers, their first tasks, and a connection."""
    looks = rng.choice(("", "", workers.SILENT, workers.ELSEWHERE))
    fault = step.fault
    if step.disturbance is not None and fault is None and rng.random() < 0.5:
        fault = draw_fault(rng)
    return step._replace(
        fates=draw_fates(rng, is_whole=looks != workers.ELSEWHERE), looks=looks, fault=fault,
        hurries=rng.random() < 0.3,
    )  # fmt: skip


def with_outliving(rng: random.Random, steps: list[Step]) -> list[Step]:
    """Have a worker outlive a run, most often one that is killed, and stand still amid a task."""
    number = rng.randrange(len(steps))
    step = steps[number]
    told = rng.choice((workers.DONE, workers.GONE))
    stands = Disturbance(calls.STOP, rng.choice(list(MOST)), rng.randrange(8), of="there")
    is_killed = number + 1 < len(steps) and rng.random() < 0.8
    killed = draw_disturbance(rng)._replace(act=calls.KILL) if is_killed else None
    steps[number] = step._replace(
        outlives=stands, fates=(workers.Fate(workers.OUTLIVES, told), *step.fates),
        disturbance=killed,
    )  # fmt: skip
    # Nothing else that stands still, and no log of what two processes do at once.
    return [
        each._replace(
            is_power_cut=False,
            other_folder=False,
            earlier_version=False,
            disturbance=each.disturbance if not _stands(each.disturbance) else None,
        )
        for each in steps
    ]


def _stands(disturbance: Disturbance | None) -> bool:
    return disturbance is not None and disturbance.act == calls.STOP


def draw_fates(rng: random.Random, *, is_whole: bool) -> tuple[workers.Fate, ...]:
    """Draw fates of tasks that the copy survives, of which the workers are left that it needs.

    Unless it `is_whole`, a worker of the cluster does nothing.
    """
    fates, fruitless = [], 0 if is_whole else 2
    for _ in range(rng.randrange(7)):
        told = rng.choice(workers.TOLD if is_whole else (workers.DONE, workers.SHUT_OUT))
        fruitless += told in workers.FRUITLESS
        if fruitless > 2:
            told = workers.DONE
        fates.append(workers.Fate(rng.choice(workers.FIRSTS), told, rng.random() < 0.3))
    return tuple(fates)


def with_hosts(rng: random.Random, steps: list[Step]) -> list[Step]:
    """Have the copy go to, or from, several hosts; later runs name them otherwise, or one."""
    later = [step._replace(host=rng.choice(HOSTS)) for step in steps[1:]]
    named = [steps[0]._replace(host=HOSTS[0]), *later]
    return [
        step._replace(options=None) if NOT_OF_HOSTS & (step.options or {}).keys() else step
        for step in named
    ]


def other_options(rng: random.Random, trial: Trial) -> dict[str, Any]:
    """Draw other options for the same names."""
    kept = {"files_from", "relative", "link_dest", "mkpath"}
    while True:
        given = {name: value for name, value in draw_options(rng).items() if name not in kept}
        given |= {name: trial.given[name] for name in kept & trial.given.keys()}
        fields: dict[str, Any] = {**given}
        fields |= {name: "x" for name in ("files_from", "manifest") if name in given}
        with contextlib.suppress(UsageError):
            Options(**fields)
            return given


def focused_steps(rng: random.Random, focus: Focus) -> list[Step]:
    """Draw at which call it happens, or at which of its frames, of the copy's two own lanes."""
    steps = []
    for step in focus.steps:
        found, fault = step.disturbance, step.fault
        if found is not None:
            found = found._replace(nth=rng.randrange(MOST[found.group]))
        if fault is not None and fault.contains:
            fault = fault._replace(connection=rng.randrange(2), nth=rng.randrange(5))
        if (stands := step.outlives) is not None:
            stands = stands._replace(nth=rng.randrange(MOST[stands.group]))
        steps.append(step._replace(disturbance=found, fault=fault, outlives=stands))
    return steps


def example(home: Path, rng: random.Random, name: str = "") -> tuple[list[str], World]:
    """Draw one example, of this focus if one is named, and run it; return what is wrong."""
    focus = rng.choice(list(FOCI.values())) if rng.random() < 0.5 else None
    focus = FOCI[name] if name else focus
    many = rng.choice((0, 0, 0, 2)) if focus is None else focus.workers
    way = Way(rng.choice(("push", "pull")), workers=many)
    home.mkdir()
    given = {"recursive": True, **focus.options} if focus else draw_options(rng)
    has_hosts = focus is None and not NOT_OF_HOSTS & given.keys() and rng.random() < 0.2
    world = World(home, rng, way, given, focus)
    try:
        world.trial.draw(has_oddities=rng.random() < 0.2)
        world.originals = dict(world.trial.before)
        steps = focused_steps(rng, focus) if focus else draw_steps(rng, world.trial)
        steps = with_hosts(rng, steps) if has_hosts else steps
        return run_steps(world, steps), world
    finally:
        world.close()
