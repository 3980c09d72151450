"""Two runs of one copy over a few lanes, which stop, die and come late: the endpoint's own code.

A lane is a process with the real End (and so Sink, Settler, Parts and Fence) on a simulated
kernel; it does what is in its inbox, in order, also when nobody waits for it any more. A run asks
as the coordinator does: it claims the copy, looks, sends chunks and a pack, finishes, releases.
World watches what has a final name after every change of the file system.

Not here: whose turn it is (schedule.py), the file system (kernel.py), the checks (test_model.py).
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from kernel import FakeFcntl, FakeOs, Kernel
from schedule import Event, Scheduler, Threading, Time

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, system, wire
from pscp.endpoint.reading import files, metadata, tree
from pscp.endpoint.reading import paths as names
from pscp.endpoint.serving import end as ends
from pscp.endpoint.there import lookup, reuse
from pscp.endpoint.writing import commit, fence, parts, sink

TOKEN = "70707070"
NONCES = ("11111111", "22222222")
ROOT = "/dest"
BIG, SMALLS = "big", ("one", "two")
CHUNK_BYTES = 4
LANES_MOST = 5  # that a run ever has
EXCLUSIVE: tuple[str, ...] = ("Pack", "Finish", "Inherit")  # as plan.Ask says
OVERTAKEN_S, LOST_S = 2.0, 90.0  # a lane is given up later than the endpoint's own waits


class File(NamedTuple):
    """What a source, or the destination, has under one name."""

    data: bytes
    mode: int
    mtime_ns: int


Version = dict[str, File]


def version(letter: str, big_bytes: int) -> Version:
    """A source in which every byte tells where it is from."""
    number = ord(letter)
    big = bytes((number + 32 * (place % 2)) for place in range(big_bytes))
    made = {BIG: File(big, 0o600 + number % 8, number * 10**9)}
    for place, name in enumerate(SMALLS):
        made[name] = File(letter.encode() * (place + 1), 0o640, number * 10**9 + place)
    return made


def edited(before: Version, after: Version) -> Version:
    """A source whose large file begins like an earlier one."""
    big = before[BIG].data[:CHUNK_BYTES] + after[BIG].data[CHUNK_BYTES:]
    return {**after, BIG: after[BIG]._replace(data=big)}


OLD = version("O", 6)


class Setup(NamedTuple):
    """What a world is like."""

    lanes: tuple[int, int] = (2, 2)
    sources: tuple[Version, Version] = (version("A", 12), version("B", 12))
    is_known: bool = True  # does the second run's journal know the first run?
    has_second: bool = True
    has_old: bool = True
    nameless: bool = True  # O_TMPFILE
    has_locks: bool = True
    stable_inodes: bool = True
    is_patient: bool = True  # does the second run wait for the end of the first?
    damages: bool = False  # does each run's first chunk arrive damaged at first?
    reuses: bool = False  # is what is the same taken from the file that is there?
    clones: bool = False  # FICLONE
    events: tuple[Event, ...] = ()


class Superseded(Exception):
    """The run learned that it does not own the copy."""


class Lost(Exception):
    """The run has no lane any more."""


class Mixture(AssertionError):
    """A final name holds what is no source's: a mixture, holes, or another's metadata."""


class Overtaken(AssertionError):
    """What an owner of the copy did was changed by who does not own it."""


class Chunk(NamedTuple):
    """A chunk of two blocks, with the check of the first, and its digest."""

    entry: tree.Entry
    offset: int
    body: bytes
    check: bytes
    digest: bytes


class Pack(NamedTuple):
    """Small files, whole."""

    entries: list[tree.Entry]
    rows: list[Any]
    body: bytes


Asked = requests.Request | Chunk | Pack


class Lane:
    """A lane's far end: a process that does what arrives."""

    def __init__(self, world: World, run: Run, number: int) -> None:
        self.number, self.is_lost = number, False
        self._world, self._run = world, run
        self.process = world.scheduler.process(f"run {run.number} lane {number}")
        self._inbox: deque[tuple[Piece, Asked]] = deque()
        self._end = ends.End(0o022)
        self._refused: Any = None  # why it could not begin
        world.scheduler.spawn(self.process, self._serve)

    def send(self, piece: Piece, asked: Asked) -> None:
        piece.takers.append(self)
        self._inbox.append((piece, asked))

    def _serve(self) -> None:
        try:
            while True:
                self._world.scheduler.wait(lambda: bool(self._inbox) or self._is_left())
                if not self._inbox:
                    return
                self._do(*self._inbox.popleft())
        finally:
            self._end.close()

    def _is_left(self) -> bool:
        return self.is_lost or self._run.is_over or self._run.process.is_dead

    def _do(self, piece: Piece, asked: Asked) -> None:
        def reply(answer: Any, failed: bool) -> None:
            piece.answers.append((self, answer, failed))

        if self._refused is not None:
            reply(self._refused, True)
        elif isinstance(asked, Chunk):
            self._chunk(asked, reply)
        elif isinstance(asked, Pack):
            self._end.file_sink().pack(
                asked.entries, asked.rows, memoryview(asked.body),
                lambda found: reply(found, False),
            )  # fmt: skip
        else:
            self._end.answer(requests.from_json(json.loads(requests.to_json(asked))), reply)
            if isinstance(asked, requests.BeginSink) and piece.answers and piece.answers[-1][2]:
                self._refused = piece.answers[-1][1]

    def _chunk(self, asked: Chunk, reply: Callable[[Any, bool], None]) -> None:
        to, body, offset = self._end.the_sink(), asked.body, asked.offset
        to.know(1, asked.entry)
        half = len(body) // 2
        if half:
            to.write(1, offset, memoryview(body)[:half], asked.check)
        to.write(1, offset + half, memoryview(body)[half:], wire.check_of(asked.digest))
        matches, receipt, failed = to.complete(1, offset, len(body), asked.digest)
        reply(failed if failed is not None else (matches, receipt), failed is not None)


class Piece:
    """Something that a run has asked of one lane or more."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.takers: list[Lane] = []
        self.answers: list[tuple[Lane, Any, bool]] = []

    def answer(self) -> tuple[Any, bool] | None:
        """The first answer by a lane that was not lost before it came."""
        return next(((a, f) for lane, a, f in self.answers if not lane.is_lost), None)


class Journal:
    """What a run knows of those before it."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.source: File | None = None  # whose parts may lie there
        self.landed: dict[int, str] = {}  # digests, by offset


class Run:
    """The coordinator's side of a run."""

    def __init__(self, world: World, number: int, journal: Journal) -> None:
        self.number, self.nonce = number, NONCES[number]
        self.source = world.setup.sources[number]
        self.is_over, self.outcome, self.failures = False, "", list[failures.Data]()
        self._world, self._journal = world, journal
        self.process = world.scheduler.process(f"run {number}")
        self.lanes: list[Lane] = []
        self._next = 0
        self._receipt = 0
        self._unwanted: list[tuple[str, list[str]]] = []
        world.scheduler.spawn(self.process, self.act)

    def act(self) -> None:
        world = self._world
        if self.number and world.setup.is_patient:
            first = world.runs[0]
            world.scheduler.wait(lambda: first.is_over or first.process.is_dead)
        try:
            self._copy()
            self.outcome = "failed" if self.failures else "done"
        except Superseded:
            self.outcome = "superseded"
        except Lost:
            self.outcome = "lost"
        self.is_over = True
        world.ended(self)

    def _copy(self) -> None:
        count = self._world.setup.lanes[self.number]
        self.lanes = [Lane(self._world, self, number) for number in range(count)]
        earlier = self._claim()
        self._begin = requests.BeginSink(
            root=ROOT, token=TOKEN, nonce=self.nonce, earlier=earlier, hash="sha256", strong=False,
            preserve=True, archive=False, test=False, server={},
        )  # fmt: skip
        for lane in self.lanes:
            self._send_begin(lane)
        smalls, missing = self._look(earlier) if earlier else (list(SMALLS), self._offsets())
        pack = self._send_pack(smalls) if smalls else None
        if missing is not None:
            self._big(missing)
        if pack is not None:
            self._settle_pack(pack, smalls)
        self._ask(requests.Release())
        for path, nonces in self._unwanted:
            self._ask(requests.Discard(path, nonces))

    def _send_begin(self, lane: Lane) -> None:
        lane.send(Piece(self._begin), self._begin._replace(lane=lane.number))

    def _claim(self) -> list[str]:
        claim = requests.Claim(ROOT, TOKEN, self.nonce, list(self._journal.runs))
        found = self._ask(claim, only=self.lanes[0])
        if found["held"]:
            known = [*self._journal.runs, found["held"]]
            found = self._ask(claim._replace(known=known), only=self.lanes[0])
        if found["held"]:
            raise Superseded
        self._journal.runs.append(self.nonce)
        earlier: list[str] = found["earlier"]
        return earlier

    # --- what is there already

    def _look(self, earlier: list[str]) -> tuple[list[str], list[int] | None]:
        """The small files that are to be sent, and the offsets of the large one that are."""
        paths = [BIG, *SMALLS]
        smalls, missing = [], None
        seen = self._ask(lookup.Lookup(paths))
        for path, (_, size, _, left, *_) in zip(paths, seen, strict=True):
            file = self.source[path]
            is_same = size == len(file.data) and self._matching(path, False) == [True]
            if path != BIG or is_same:
                self._unwanted.append((path, left))
            if is_same:
                self._ask(lookup.Adopt([self._entry(path)]))
            elif path == BIG:
                missing = self._go_on(left)
            else:
                smalls.append(path)
        return smalls, missing

    def _matching(self, path: str, part: bool) -> list[bool]:
        """Per chunk of the part, or for the file as a whole: is it the source's?"""
        data = self.source[path].data
        step = CHUNK_BYTES if part else max(len(data), 1)
        extents = [(o, len(data[o : o + step])) for o in range(0, len(data), step)]
        [found] = self._ask(lookup.DigestsThere([(part, path, extents)], "sha256"))
        if isinstance(found, dict):
            return [False] * len(extents)
        wanted = [hashlib.sha256(data[o : o + n]).hexdigest() for o, n in extents]
        return [mine == theirs for mine, theirs in zip(wanted, found, strict=True)]

    def _go_on(self, left: list[str]) -> list[int]:
        knows = self._journal.source
        if not left:
            return self._offsets()
        if knows is not None and knows != self.source[BIG]:
            self._discard(left)
            return self._offsets()
        self._discard(left[:-1])
        if not self._ask(lookup.Inherit(self._entry(BIG), left[-1])):
            self._discard(left[-1:])
            return self._offsets()
        found = zip(self._offsets(), self._matching(BIG, True), strict=True)
        return [offset for offset, matches in found if not matches]

    def _discard(self, nonces: list[str]) -> None:
        if nonces and not self._ask(requests.Discard(BIG, nonces)):
            self._unwanted.append((BIG, nonces))

    # --- the large file

    def _offsets(self) -> list[int]:
        return list(range(0, len(self.source[BIG].data), CHUNK_BYTES))

    def _entry(self, path: str) -> tree.Entry:
        file = self.source[path]
        return tree.Entry(tree.FILE, 0, path, len(file.data), file.mode, file.mtime_ns, 5, {})

    def _big(self, missing: list[int]) -> None:
        self._journal.source = self.source[BIG]
        if self._world.setup.reuses:
            missing = self._reuse(missing)
        chunks = [self._chunk(offset) for offset in missing]
        if self._world.setup.damages and chunks:
            chunks[0] = chunks[0]._replace(body=chunks[0].body.swapcase())
        pieces = [self._send(chunk) for chunk in chunks]
        failed = [each for each in map(self._landed, pieces) if each is not None]
        if not failed:
            if not self._receipt:
                self._receipt = self._ask(requests.Make(self._entry(BIG)))
            finish = requests.Finish(self._entry(BIG), "", self._receipt)
            answer, is_failure = self._answer(self._send(finish))
            failed = [answer] if is_failure else []
        if failed:
            self.failures += failed
            self._ask(requests.Discard(BIG, [""]))
        self._unwanted.append((BIG, [""]))

    def _reuse(self, missing: list[int]) -> list[int]:
        """The offsets of what the file that is there has not."""
        data = self.source[BIG].data
        pieces = [(offset, len(data[offset : offset + CHUNK_BYTES])) for offset in missing]
        digests = [hashlib.sha256(data[offset : offset + n]).hexdigest() for offset, n in pieces]
        asked = reuse.Reuse(self._entry(BIG), pieces, digests, "sha256")
        receipt, taken = self._ask(asked)
        self._receipt = self._receipt or receipt
        return [offset for offset, is_taken in zip(missing, taken, strict=True) if not is_taken]

    def _chunk(self, offset: int) -> Chunk:
        body = self.source[BIG].data[offset : offset + CHUNK_BYTES]
        check = wire.check_of(hashlib.sha256(body[: len(body) // 2]).digest())
        return Chunk(self._entry(BIG), offset, body, check, hashlib.sha256(body).digest())

    def _landed(self, piece: Piece) -> failures.Data | None:
        """Wait for a chunk; returns why it failed."""
        answer, is_failure = self._answer(piece)
        if is_failure:
            return failures.parse_failure(answer)
        matches, receipt = answer
        if not matches:
            assert isinstance(piece.asked, Chunk)
            return self._landed(self._send(self._chunk(piece.asked.offset)))
        self._receipt = self._receipt or receipt
        if receipt != self._receipt:
            return failures.data(failures.SYSTEM, BIG, "its part was replaced")
        return None

    # --- small files

    def _send_pack(self, paths: list[str]) -> Piece:
        contents = [self.source[path].data for path in paths]
        rows = [[len(each), hashlib.sha256(each).hexdigest()] for each in contents]
        listed = [self._entry(path) for path in paths]
        return self._send(Pack(listed, rows, b"".join(contents)))

    def _settle_pack(self, piece: Piece, paths: list[str]) -> None:
        found, is_failure = self._answer(piece)
        outcome = [found] if is_failure else found
        self.failures += [each for each in outcome if each is not None]

    # --- asking

    def _ask(self, asked: Asked, only: Lane | None = None) -> Any:
        answer, is_failure = self._answer(self._send(asked, only), only)
        if not is_failure:
            return answer
        self.failures.append(answer)
        raise Lost

    def _send(self, asked: Asked, only: Lane | None = None) -> Piece:
        piece = Piece(asked)
        (only or self._any_lane(piece)).send(piece, asked)
        return piece

    def _any_lane(self, piece: Piece) -> Lane:
        free = [lane for lane in self.lanes if not lane.is_lost and lane not in piece.takers]
        if not free:
            free = [lane for lane in self.lanes if not lane.is_lost]
        if not free and len(self.lanes) < LANES_MOST:  # a run connects again
            free = [Lane(self._world, self, len(self.lanes))]
            self.lanes += free
            self._send_begin(free[0])
        if not free:
            raise Lost
        self._next += 1
        return free[self._next % len(free)]

    def _answer(self, piece: Piece, only: Lane | None = None) -> tuple[Any, bool]:
        """The answer, from whichever lane gives one. Raises Superseded, Lost."""
        is_chunk = isinstance(piece.asked, Chunk)
        while True:
            living = [lane for lane in piece.takers if not lane.is_lost]
            if not living:
                self._again(piece, only)
                continue
            may_overtake = is_chunk and len(living) == 1 and not only
            patience_s = OVERTAKEN_S if may_overtake else LOST_S
            self._world.scheduler.wait(lambda: self._is_settled(piece), patience_s)
            found = piece.answer()
            if found is not None:
                break
            self._give_up(piece, [lane for lane in living if lane.process.is_dead], may_overtake)
        answer, is_failure = found
        outcomes = answer if isinstance(answer, list) else [answer] if is_failure else []
        for each in outcomes:
            if isinstance(each, dict) and each.get("kind") == failures.SUPERSEDED:
                raise Superseded
        return found

    def _is_settled(self, piece: Piece) -> bool:
        is_cut = any(lane.process.is_dead and not lane.is_lost for lane in piece.takers)
        return piece.answer() is not None or is_cut

    def _give_up(self, piece: Piece, dead: list[Lane], may_overtake: bool) -> None:
        """Nobody answers: another lane does it as well, or those that should have are lost."""
        others = [e for e in self.lanes if not e.is_lost and e not in piece.takers]
        if may_overtake and not dead and others:
            others[0].send(piece, piece.asked)
            return
        for lane in dead or piece.takers:
            lane.is_lost = True

    def _again(self, piece: Piece, only: Lane | None) -> None:
        """All that were asked are lost. A pack is done again only once they are told off."""
        if only is not None:
            raise Lost
        if type(piece.asked).__name__ in EXCLUSIVE:
            for number in {lane.number for lane in piece.takers}:
                self._ask(requests.Revoke(number))
        self._any_lane(piece).send(piece, piece.asked)


class World:
    """A destination, two runs, and what must hold of it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.scheduler = Scheduler(list(setup.events))
        self.kernel = Kernel(self.scheduler, setup.has_locks, setup.clones)
        self.owner: Run | None = None  # who has claimed the copy last
        self.is_owned = False  # and not released it
        if setup.has_old:
            for name, file in OLD.items():
                self.kernel.add_file(name.encode(), *file)
        self._last = {name: self._there(name) for name in OLD}
        self.kernel.changed = self._look
        journal = Journal()
        self.runs = [Run(self, 0, journal)]
        if setup.has_second:
            self.runs.append(Run(self, 1, journal if setup.is_known else Journal()))

    def run(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            self._stand_in(patch)
            self.scheduler.run()
        self._check_left()

    def _stand_in(self, patch: pytest.MonkeyPatch) -> None:
        fake = FakeOs(self.kernel)
        for module in (
            commit, ends, fence, files, lookup, metadata, names, parts, reuse, sink, system,
        ):  # fmt: skip
            patch.setattr(module, "os", fake)
        for module in (fence, parts, reuse):
            patch.setattr(module, "fcntl", FakeFcntl(fake))
        for module in (fence, names, commit):
            patch.setattr(module, "threading", Threading(self.scheduler))
        for module in (fence, commit):
            patch.setattr(module, "time", Time(self.scheduler))
        patch.setattr(files, "reserve", lambda fd, status, size: None)
        if not self.setup.nameless:
            patch.setattr(files, "_NO_NAME", 0)
        patch.setattr(system, "has_stable_inodes", lambda device: self.setup.stable_inodes)
        patch.setattr(system, "holders", self._holders)

    def _holders(self, fd: int) -> list[int]:
        """As proc(5) tells."""
        process = self.scheduler.current.process
        pids = self.kernel.holders(process.descriptors[fd].inode)
        return [pid for pid in pids if pid != process.pid]

    # --- what must hold

    def _there(self, name: str) -> File | None:
        inode = self.kernel.destination.names.get(name.encode())
        if inode is None:
            return None
        return File(bytes(inode.data), stat.S_IMODE(inode.mode), inode.mtime_ns)

    def _look(self) -> None:
        """A final name holds a whole source, and only who owns the copy gives it another."""
        self._see_owner()
        for name, before in self._last.items():
            now = self._there(name)
            if now == before:
                continue
            wholes = [run.source[name] for run in self.runs]
            if now not in wholes:
                raise Mixture(f"{name} is {now}")
            owner = self.owner
            if owner is None or not self.is_owned or now != owner.source[name]:
                raise Overtaken(f"{name} is {now}, which is not the owner's")
            self._last[name] = now

    def _see_owner(self) -> None:
        """Whose the copy is by what a fence says, from the moment on when that is written."""
        for folder in (self.kernel.destination, *self.kernel.private.names.values()):
            inode = folder.names.get(fence.fence_name(TOKEN))
            nonce = fence.state_of(bytes(inode.data))["run"] if inode is not None else ""
            if nonce:
                self.owner = self.runs[NONCES.index(nonce)]
                self.is_owned = True
                return
        self.is_owned = False

    def ended(self, run: Run) -> None:
        if run.outcome == "done" and self.owner is run:
            self.check_copied(run)

    def check_copied(self, run: Run) -> None:
        for name, file in run.source.items():
            assert self._there(name) == file, (
                f"{name} is {self._there(name)} after run {run.number}"
            )

    def _check_left(self) -> None:
        """All are over: what was reported is there, and nothing else where nobody was killed."""
        owner = self.owner
        if owner is None or owner.outcome != "done":
            return
        self.check_copied(owner)
        left = [name for name in self.kernel.destination.names if name.startswith(b".")]
        if not self.scheduler.has_kills:
            assert not left, f"left: {left}"
