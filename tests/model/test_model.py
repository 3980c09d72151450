"""A copy over lanes that stop, die and come late, in any order, at any system call.

The endpoint's own code runs on a simulated kernel (copying.py). Whatever the schedule: a final
name holds a whole source, what a run has reported stays until a later run replaces it, a complete
copy leaves nothing else behind, and nobody waits for ever. Each mend of what an adversary found
(the letters) is taken out in turn, and the same search has to find what it was for.

Not here: the coordinator's own code, SFTP, real disks (tests/faults).
"""

from __future__ import annotations

import contextlib
import itertools
import stat
from collections.abc import Callable, Iterator
from typing import Any

import copying
import pytest
from copying import OLD, Lost, Mixture, Overtaken, Setup, World, edited, version
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule import FULL, KILL, STALL, SWITCH, WAKE, Event

from pscp.endpoint.asking import answers
from pscp.endpoint.reading import files
from pscp.endpoint.reading.paths import part_name
from pscp.endpoint.there import reuse
from pscp.endpoint.writing import commit, fence
from pscp.endpoint.writing.fence import Fence
from pscp.endpoint.writing.parts import Parts
from pscp.endpoint.writing.sink import Sink
from pscp.endpoint.writing.verifying import VerifyingSink

SOURCES = [
    (version("A", 12), version("B", 12)),  # changed
    (version("A", 12), version("A", 12)),
    (version("A", 12), version("B", 8)),
    (version("A", 8), version("B", 13)),
    (version("A", 12), edited(version("A", 12), version("B", 12))),
    (edited(OLD, version("A", 12)), version("B", 12)),
]
LANES = [(1, 1), (2, 2), (3, 1), (1, 2)]
# All that a run may report as failed, where nothing is wrong with its source.
EXPECTED = {
    "No space left on device",
    "its part is held by another process",  # by one that stands still
    "another run of this copy holds the destination",
    "No locks available",  # and the private folder, which has some, takes no fence
}
BOOLEAN = st.booleans()
STEPS = 220  # system calls, at each of which the lane that makes it stands still once


def events(*kinds: str) -> st.SearchStrategy[tuple[Event, ...]]:
    after = st.one_of(st.integers(0, 8), st.integers(0, 60), st.integers(0, 250))
    event = st.builds(Event, after, st.sampled_from(kinds), st.integers(0, 5))
    return st.lists(event, max_size=8).map(tuple)


SETUPS = st.builds(
    Setup, lanes=st.sampled_from(LANES), sources=st.sampled_from(SOURCES), is_known=BOOLEAN,
    has_second=BOOLEAN, has_old=BOOLEAN, nameless=BOOLEAN, has_locks=BOOLEAN,
    stable_inodes=BOOLEAN, is_patient=BOOLEAN, damages=BOOLEAN, reuses=BOOLEAN,
    clones=BOOLEAN, events=events(SWITCH, SWITCH, STALL, KILL, WAKE, FULL),
)  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(SETUPS)
def test_no_schedule_breaks_a_copy(setup: Setup) -> None:
    checked(setup)


@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("has_locks", [True, False])
def test_undisturbed_runs_are_complete(sources: Any, nameless: bool, has_locks: bool) -> None:
    setup = Setup(sources=sources, nameless=nameless, has_locks=has_locks, damages=True)
    world = World(setup._replace(reuses=nameless, clones=has_locks))
    world.run()
    assert [(run.outcome, run.failures) for run in world.runs] == [("done", [])] * 2


def checked(setup: Setup) -> None:
    """Run a world; all that it reports as failed must be for a reason that it has."""
    world = World(setup)
    world.run()
    found = {each["message"] for run in world.runs for each in run.failures}
    assert found <= EXPECTED, setup


@pytest.mark.parametrize(
    "setup",
    [
        Setup(has_second=False, nameless=False, stable_inodes=False),
        Setup(lanes=(2, 1), sources=SOURCES[1], has_old=False),
        Setup(lanes=(1, 1), is_known=False, is_patient=False, nameless=False),
        Setup(sources=SOURCES[5], has_second=False, reuses=True),
        Setup(sources=SOURCES[5], has_second=False, reuses=True, clones=True),
    ],
)
def test_whoever_stands_still_once_breaks_nothing(setup: Setup) -> None:
    for at in range(STEPS):
        checked(setup._replace(events=(Event(at, STALL),)))


def test_runs_that_claim_at_the_same_time() -> None:
    setup = Setup(lanes=(2, 2), is_known=False, is_patient=False)
    for first, second in itertools.product(range(14), repeat=2):
        checked(setup._replace(events=(Event(first, SWITCH), Event(second, SWITCH))))


# --- the mends, taken out

Sabotage = Callable[[pytest.MonkeyPatch], None]


def one_name_for_all_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Parts, "name", lambda self, name, nonce="": part_name(name, self._token))


def owned_by_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fence, "_is_ours", lambda self: True)


def renamed_by_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "is_named", lambda *_: True)


def written_whatever_its_name(patch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def written(self: Parts, fd: int, path: str) -> Iterator[None]:
        yield

    patch.setattr(Parts, "lock_for_writing", written)


def written_before_its_digest(patch: pytest.MonkeyPatch) -> None:
    def write(self: Sink, id_: int, offset: int, block: memoryview, check: bytes = b"") -> None:
        VerifyingSink.write(self, id_, offset, block)
        self._failure = None
        self._write([block], id_, offset + len(block))

    def complete(self: Sink, id_: int, offset: int, length: int, digest: bytes) -> Any:
        VerifyingSink.complete(self, id_, offset, length, digest)
        return self._failure is None, self._receipt, self._failure

    patch.setattr(Sink, "write", write)
    patch.setattr(Sink, "complete", complete)


def any_part_is_the_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Parts, "receipt", lambda self, fd: 1)
    patch.setattr(copying, "EXCLUSIVE", ())  # nor is a lost lane told off


def never_superseded(patch: pytest.MonkeyPatch) -> None:
    claim = fence.claim

    def claimed(root_fd: int, token: str, nonce: str, known: list[str]) -> fence.Claim:
        claim(root_fd, token, nonce, known)
        return {"held": "", "earlier": []}

    patch.setattr(fence, "claim", claimed)
    patch.setattr(Fence, "_find", _find_any)
    owned_by_all(patch)


def _find_any(self: Any, root_fd: int, token: str) -> Any:
    with fence._places(root_fd, token) as places:
        for place in places:
            with contextlib.suppress(OSError):
                fd = place.open(True)
                place.folder_fd = vars(fence)["os"].dup(place.folder_fd)  # of the simulated kernel
                return fd, place
    raise fence.superseded()


def sized_whatever_its_name(patch: pytest.MonkeyPatch) -> None:
    def opened(self: Sink, value: Any) -> Any:
        try:
            fd = self.parts.open(value.path)
        except FileNotFoundError:
            fd = self.parts.make(value.path)
        files.make_room(fd, value.size, False)
        return files.FileSink(fd)

    patch.setattr(Sink, "open_part", opened)


def taken_before_its_digest(patch: pytest.MonkeyPatch) -> None:
    """Copied into the part, and then hashed there: right, unless it comes late."""

    def take(the_sink: Sink, request: reuse.Reuse) -> tuple[int, list[bool]]:
        fd = the_sink.open_file(request.entry.path)
        part = the_sink.open_part(request.entry)
        with the_sink.parts.lock_for_writing(part.fd, request.entry.path):
            for offset, length in request.extents:
                old = memoryview(bytearray(length))
                files.read_at(fd, old, offset)
                part.write(old, offset)
        room = memoryview(bytearray(16))
        found = files.digests_of(part.fd, request.extents, request.hash, room)
        matches = [a == b for a, b in zip(found, request.digests, strict=True)]
        return the_sink.parts.receipt(part.fd), matches

    patch.setitem(answers.ANSWERS, reuse.Reuse, (answers.WRITING_SINK, take))


def cloned_into_a_part_that_has_its_name(patch: pytest.MonkeyPatch) -> None:
    """So that other lanes may have written into it."""

    def clone(the_sink: Sink, entry: Any, old_fd: int) -> None:
        fd = the_sink.parts.make(entry.path)
        vars(reuse)["fcntl"].ioctl(fd, reuse._CLONE, old_fd)  # of the simulated kernel
        files.make_room(fd, entry.size, False)
        vars(reuse)["os"].close(fd)

    patch.setattr(reuse, "_make_clone", clone)


def taken_unread_from_a_clone(patch: pytest.MonkeyPatch) -> None:
    """As if all of the part were the old file for ever."""

    is_same = reuse._Taker._is_same

    def is_there(self: Any, fd: int, view: memoryview, offset: int, digest: str) -> bool:
        return is_same(self, self._fd, view, offset, digest)

    patch.setattr(reuse._Taker, "_is_same", is_there)
    patch.setattr(reuse, "_IS_CLONE", stat.S_IRUSR)  # any part


REUSING = {"has_second": False, "lanes": (2, 1), "reuses": True}
# What breaks, without which mends, in which setup, and the system call where the search begins: the
# one that finds it lies a little behind.
CASES: dict[str, tuple[type[AssertionError], list[Sabotage], dict[str, Any], int]] = {
    "A1": (
        Mixture,
        [renamed_by_name, one_name_for_all_runs, owned_by_all],
        {"has_locks": True},
        110,
    ),
    "A2": (Overtaken, [owned_by_all], {}, 60),
    "A3": (Mixture, [written_whatever_its_name], {"has_second": False}, 30),
    "A3 damaged": (Mixture, [written_before_its_digest], {"damages": True}, 0),
    "A3 sized": (Mixture, [sized_whatever_its_name], {"has_second": False, "lanes": (2, 1)}, 30),
    "A4": (Mixture, [any_part_is_the_one], {"has_second": False, "lanes": (2, 1)}, 55),
    "late reuse": (
        Mixture,
        [taken_before_its_digest],
        REUSING,
        30,
    ),
    "late clone": (
        Mixture,
        [cloned_into_a_part_that_has_its_name],
        {**REUSING, "clones": True},
        30,
    ),
    "unread clone": (Mixture, [taken_unread_from_a_clone], {**REUSING, "sources": SOURCES[5]}, 10),
    "A5": (Mixture, [never_superseded, one_name_for_all_runs], {"is_patient": False}, 165),
}


@pytest.mark.parametrize("letter", CASES)
def test_each_mend_is_needed(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, sabotages, fixed, begin = CASES[letter]
    for sabotage in sabotages:
        sabotage(monkeypatch)

    def breaks(schedule: tuple[Event, ...]) -> bool:
        world = World(Setup(**{"events": schedule, **fixed}))
        try:
            world.run()
        except expected:
            return True
        except (AssertionError, Lost, OSError):
            return False
        return False

    later = (50, 160, 1000)  # system calls after which the lane goes on
    schedules = itertools.product([*range(begin, STEPS), *range(begin)], later)
    assert any(breaks((Event(at, STALL), Event(after, WAKE))) for at, after in schedules)
