"""A whole copy on a file system that fails: drawn, disturbed, run again, and judged by the oracle.

Each run is a process, forked from this one, with the real coordinator, lanes and agents over links
in memory (../core/link.py) and real folders in /dev/shm. At a call of `os` that is drawn it is
killed, stopped, fails, or the power goes (calls.py, power.py); frames are late, doubled or lost.
After each run no name may hold less than a whole file; what ends with 0 must be as the oracle
(../oracle.py) says; and so must the last run, which nothing disturbs. Between runs the trees, the
options, the journal and what has DEST's name may change.

Not here: what is drawn of trees and options (../draws.py). Read next: calls.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import pickle
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import calls
import distributed  # noqa: F401 - once, and not in each process of a run
import draws
import folding
import oracle
import power
import soak.trial
import workers
from calls import Calls, Disturbance
from cases import Case, check_clean
from core.link import HOST, QUICK, STRETCH_BYTES, Bench, Fault
from soak.trial import Trial, Way, is_own
from tree_data import FILE, FOLDER, LINK, Made, Node, plant, scan

from pscp.endpoint.reading import rows
from pscp.endpoint.there import listings, reuse
from pscp.endpoint.writing import fence, parts
from pscp.ground.locations import parse_location
from pscp.transfer.far_hosts import FarHosts

LIMIT_S = 60.0  # a run of some files that takes a second on a machine that is busy
CUT_CODES = {0, 1, 3, 4, 130, 143}
FAILED, KILLED, ENDLESS = 99, -9, -1
ALONE = "bench"  # the host
SOONER = ((fence, "PATIENCE_S", 0.4), (parts, "_PATIENCE_S", 0.4))

# Told, and not mended yet; what the second round found is.
LEFT_BY_KILLS = (
    # A name that only one lane knew, between the link(2) and the rename(2) of a small file.
    re.compile(rb"\.[0-9a-f]{16}\.[0-9a-f]{22}\.pscp-part$"),
    # What a move looks for at the other end (there/moving.py), killed before it removed that.
    re.compile(rb"\.pscp-(source|move)[0-9]+\.[0-9a-f.]+\.pscp-part$"),
    # What shows whether several hosts see one place, where the next run is to one of them.
    re.compile(rb"\.seen\.[0-9a-f.]+\.pscp-part$"),
)
# A folder with the mode of one that is not finished is as good as new, and gets the source's.
UNFINISHED = re.compile(r"mode \d+, not (960|1984)\b")
# What a mirror has not deleted, nor kept in the folder of draws.SAMPLES["backup_dir"].
STAYS = re.compile(r"^destination (.*, not None$|b'(.*/)?old/.*: None, not )")
MOVES = "remove_source_files"
KNOWN = [each for each in soak.trial.KNOWN if not re.match("N[0-9]", each[2])]


class Step(NamedTuple):
    """One run, and what happens before it."""

    disturbance: Disturbance | None = None
    fault: Fault | None = None
    is_power_cut: bool = False  # once the run has ended, however it did
    journal: str = "kept"  # before the run: torn, lost, or of another time
    changes: int = 0  # of the source, before the run
    options: Mapping[str, Any] | None = None  # other ones than the run before
    other_folder: bool = False  # another one has DEST's name
    earlier_version: bool = False  # its --inplace has left the part: that was the file itself
    # What becomes of the large file before the run: small, other, in place, another end, or gone
    # with all.
    large: str = ""
    host: str = ALONE  # or several that see one place
    fates: tuple[workers.Fate, ...] = ()  # of a cluster's tasks, the first ones (workers.py)
    looks: str = ""  # how one of its workers meets the copy
    hurries: bool = False  # an idle lane of a task does what another one is at
    # Where a worker stands still that outlives the run, and has its first task with OUTLIVES.
    outlives: Disturbance | None = None

    @property
    def is_disturbed(self) -> bool:
        """May what comes of it fall short? Not where a host is lost, and is there again at once."""
        fault = self.fault
        is_passing = fault is None or (fault.do, fault.at) == (HOST, 0)
        # A worker that stands still may hold a part: its file fails.
        return self.disturbance is not None or self.outlives is not None or not is_passing

    @property
    def codes(self) -> set[int]:
        """Return those that it may end with: a call that fails is no reason to answer nonsense."""
        fails = self.disturbance is not None and self.disturbance.act in (calls.FAIL, calls.SHORT)
        return CUT_CODES - ({4} if fails and self.fault is None else set())

    @property
    def changes_meanwhile(self) -> bool:
        """Does the source change while it runs?"""
        return self.disturbance is not None and self.disturbance.act == calls.CHANGE


class Late(NamedTuple):
    """What was asked of a run that stands still."""

    given: dict[str, Any]
    first: dict[bytes, Node]  # by which DEST had its meaning
    ever: list[dict[bytes, Node]]  # versions of the source
    has_begun: bool  # something at the destination has changed, its fence first


class Focus(NamedTuple):
    """A part of what can be drawn, in which more is found than elsewhere."""

    options: Mapping[str, Any]
    steps: tuple[Step, ...]
    to: bytes | None = None  # of the folder t
    mark: int | None = None  # the content of the large file
    history: str | None = None  # what lies at the destination (draws.HISTORIES)
    has_links: bool = False  # a file has two names, of which the destination has the first
    unread: bool = False  # and that of the same size and time
    has_clashes: bool = False  # names are another kind of thing at the destination
    workers: int = 0  # of a cluster, which move the bytes
    folds: bool = False  # the destination takes names for one (../folding.py), and there are such


LINKS = {
    b"aa": Made(FILE, 0, 40, mtime_ns=draws.LATELY_S * 10**9),
    b"zz": Made(FILE, same_as=b"aa"),
}
CLASHES = {
    b"x": Made(FILE, 0, 40), b"w": Made(FILE, 1, 40),
    b"y": Made(FOLDER, mode=0o755), b"y/a": Made(FILE, 2, 40), b"y/A": Made(FILE, 3, 40),
    b"y/large": Made(FILE, 3, draws.SIZES[-1]),
    b"u": Made(FILE, 2, 40), b"v": Made(FILE, same_as=b"u"),
    b"x2": Made(FILE, same_as=b"x"), b"x3": Made(FILE, same_as=b"x"),
    b"y2": Made(FILE, same_as=b"y/large"),
}  # fmt: skip
CLASHES_THERE = {
    b"x": Made(FOLDER, mode=0o755), b"x/in": Made(FILE, 4, 40),
    b"w": Made(FOLDER, mode=0o1700),  # as a killed run leaves it
    b"y": Made(FILE, 5, 40),
    b"v": Made(FOLDER, mode=0o755), b"v/in": Made(FILE, 4, 40),
}  # fmt: skip


class World:
    """A case in a folder of its own, with the runs of it."""

    def __init__(
        self,
        home: Path,
        rng: random.Random,
        way: Way,
        given: Mapping[str, Any],
        focus: Focus | None = None,
    ) -> None:
        self.rng, self.home = rng, home
        self.trial = Whole(home, way, given, rng, focus)
        self.state, self.kept = self.trial.home / "state", home / "kept"
        self.log, self.meanwhile = home / "log", home / "meanwhile"
        self.kept.mkdir(exist_ok=True)
        self.said: list[str] = []
        self.disturbed = 0
        self.stopped = 0  # the process of a run that stands still
        self.outliving = 0  # that of a worker that does, whose run may have ended
        self._journals: dict[str, bytes] = {}  # of another time
        # Whether the last run is the same copy as all before it, of which the journal tells.
        self.is_same = True
        self.has_clones = rng.random() < 0.3
        self.names_most = rng.choice((rows.NAMES_MOST, 2))  # in a folder's listing
        folds = rng.random() < 0.2 if focus is None else focus.folds
        self.trial.fold = folding.fold if folds else None
        self.trial.keeps_alike = folds and self.names_most < rows.NAMES_MOST
        # Whether all runs before were killed, so that this one goes on with what they noted.
        self._goes_on, self._goes_on_now = True, False
        self._noted_bytes = self._sent_bytes = 0  # in journals before a run; and by it, at its end
        self._first: dict[bytes, Node] = {}
        self._asked_late = Late({}, {}, [], True)
        # Before runs of which the log still has what was not synced: a kill loses none of it.
        self._unsynced: list[dict[bytes, Node]] = []
        self.originals: dict[bytes, Node] = {}

    # --- one run in a process of its own

    def run(self, step: Step) -> tuple[int, str]:
        """Copy; return the exit code and what was told."""
        self.meanwhile.unlink(missing_ok=True)
        self._noted_bytes, self._sent_bytes = noted_bytes(self.state), 0
        before, there = power.disturbances(os.fsencode(self.log)), scan(self.trial.there)
        self._goes_on_now = self._goes_on
        earlier, lent = self.outliving, self._start_outliving(step)
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read_fd)
            self._child(step, write_fd, lent)
        os.close(write_fd)
        lent.close()
        with open(read_fd, "rb") as pipe:
            code = self._wait(pid)
            if code is None:  # stopped: a later one finds it
                self.stopped = pid
                trial, has_begun = self.trial, scan(self.trial.there) != there
                self._asked_late = Late(dict(trial.given), trial.first, list(trial.ever), has_begun)
                found: list[Any] = [KILLED, "stands still"]
            else:
                raw = pipe.read() if code == 0 else b""
                found = json.loads(raw) if raw else [code or FAILED, "killed"]
                self._sent_bytes = found[2] if raw else 0
        self._goes_on &= found[0] == KILLED and not (self.stopped or step.outlives)
        self._await_outliving(earlier)
        self.said.append(f"[{describe(step)}: {found[0]}] {found[1][-1500:]}")
        self.disturbed += power.disturbances(os.fsencode(self.log)) - before
        return found[0], found[1]

    def _wait(self, pid: int) -> int | None:
        """Return the exit code of a process, or ENDLESS; None where it has stopped."""
        until_s = time.monotonic() + LIMIT_S
        pause_s = 0.0005
        while True:
            found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if found and os.WIFSTOPPED(status):
                return None
            if found:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until_s:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return ENDLESS
            time.sleep(pause_s)
            pause_s = min(0.005, pause_s * 1.5)

    # --- a worker that outlives its run

    def _start_outliving(self, step: Step) -> socket.socket:
        """Start such a worker, if there is to be one; return by what it is given a task."""
        lent, its = socket.socketpair()
        if step.outlives is not None:
            pid = os.fork()
            if not pid:
                lent.close()
                self._outlive(step.outlives, its)
            self.outliving = pid
            trial = self.trial
            self._asked_late = Late(dict(trial.given), trial.first, list(trial.ever), True)
        its.close()
        return lent

    def _outlive(self, disturbance: Disturbance, its: socket.socket) -> None:
        """Be the process of such a worker."""
        code = FAILED
        try:
            self._prepare(disturbance)
            bench = Bench()
            workers.connect_over(bench)
            workers.do_lent_task(its)
            bench.release()
            self._join(bench)
            code = FAILED if bench.bugs else 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _await_outliving(self, earlier: int) -> None:
        """Wait until the worker that outlives a run has ended, or stands still.

        An `earlier` run's goes on where the one that has just ended has let it.
        """
        if self.outliving and not (self.outliving == earlier and is_still(earlier)):
            code = self._wait(self.outliving)
            if code is not None:
                assert code in (0, KILLED), f"a worker that outlives its run ends with {code}"
                self.outliving = 0

    def _begins_elsewhere(self) -> bool:
        """Does a run that stood still find that DEST means another folder than it did?

        One that had not begun there may not have looked at DEST. If the run after it has made that,
        it copies into it, by scp's rule, as any later run does.
        """
        root, late = self.trial.to.rstrip(b"/"), self._asked_late
        is_new = bool(root) and root not in late.first and root in scan(self.trial.there)
        return is_new and not late.has_begun

    def goes_on_late(self, pid: int, code: int) -> list[str]:
        """Have a run that stood still go on to its end; return what is wrong then.

        The run after it has ended with this code.
        """
        self._forget(pid)
        before = scan(self.trial.there), scan(self.trial.source)
        is_alike = dict(self.trial.given) == self._asked_late.given  # else it may do something else
        is_alike &= not self._begins_elsewhere()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        came = self._wait(pid)
        wrong = ["it never ends"] if came == ENDLESS else []
        after = scan(self.trial.there), scan(self.trial.source)
        for old, new in zip(before, after, strict=True) if code == 0 and is_alike else ():
            for path in {path for path in {*old, *new} if not is_own(path)}:
                what = [tree[path].what if path in tree else None for tree in (old, new)]
                seen = [tree[path][:4] if path in tree else None for tree in (old, new)]
                wrong += [f"{path!r} is changed: {seen}"] if what[0] != what[1] else []
        # A mirror of what has been moved away meanwhile deletes it, as any later one would.
        is_emptied = self._asked_late.given.get("delete") and self.trial.given.get(MOVES)
        wrong += [] if is_emptied else self._wrong_for_both()
        self.trial.decide_anew()  # it may have ended well
        return wrong

    def _wrong_for_both(self) -> list[str]:
        """Return what neither the run that was late may leave, nor the one after it."""
        trial = self.trial
        kept = trial.given, trial.first, list(trial.ever)
        wrong = trial.wrong_after_cut()
        late = self._asked_late
        for given, first in ((kept[0], self._first), (late.given, late.first)):
            trial.given, trial.first = given, first
            trial.ever[:] = [*late.ever, *kept[2]]
            again = trial.wrong_after_cut()
            wrong = [each for each in wrong if each in again]
        moved = self._moved_aside()
        trial.given, trial.first, trial.ever[:] = kept
        return [each for each in wrong if each not in moved]

    def _moved_aside(self) -> set[str]:
        """What is said in vain: a late run may move a source to the folder that it has open."""
        folders = self.kept.glob("aside-*")
        found = [item for folder in folders for item in scan(os.fsencode(folder)).items()]
        there = {node.what for path, node in found if not is_own(path)}
        sources = [item for version in self.trial.ever for item in version.items()]
        gone = (path for path, node in sources if node.kind == FILE and node.what in there)
        return {f"source {path!r} is gone, and is not at the destination" for path in gone}

    def _prepare(self, disturbance: Disturbance | None) -> None:
        """Have this process be quick, and disturbed."""
        gc.disable()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.setswitchinterval(0.0005)
        for module, name, value in (*QUICK, *SOONER):
            if name != "fsync":
                setattr(module, name, value)
        workers.stand_in()
        os.environ["XDG_STATE_HOME"] = str(self.state)
        log = power.Log(os.fsencode(self.log), os.fsencode(self.kept))
        failing = Calls(os.fsencode(self.trial.home), disturbance, log, self._change)
        failing.install()
        if self.trial.fold is not None:
            folding.Folding(self.trial.there, failing.lock).install()
        vars(listings)["NAMES_MOST"] = self.names_most
        if self.has_clones:
            vars(reuse)["fcntl"] = Cloning()

    def _child(self, step: Step, to_fd: int, lent: socket.socket) -> None:
        """Be the process of one run."""
        code = FAILED
        try:
            self._prepare(step.disturbance)
            bench = Bench(*filter(None, [step.fault]))
            code, said = self._copied(bench, step, lent)
            if bench.bugs:
                code, said = FAILED, "\n".join(["Traceback of an agent", *bench.bugs])
            told = code, said, self.trial.sent_bytes
            raw = json.dumps(told).encode()
            with contextlib.suppress(BrokenPipeError):  # a late one is no more listened to
                while raw:
                    raw = raw[os.write(to_fd, raw) :]
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _copied(self, bench: Bench, step: Step, lent: socket.socket) -> tuple[int, str]:
        elsewhere = self._elsewhere() if step.looks == workers.ELSEWHERE else {}
        tries = workers.Tries(bench, step.fates, step.looks, elsewhere)
        tries.lent = lent if step.outlives else None
        if self.outliving and not step.outlives:  # by now this run has claimed the copy
            tries.when_begun = partial(os.kill, self.outliving, signal.SIGCONT)
        if step.hurries:
            workers.hurry()
        workers.connect_over(bench)
        self.trial.client = tries if self.trial.way.workers else None
        with bench.session() as session:
            session.host = parse_location(f"{step.host}:")
            if session.host.others:
                session.connections = FarHosts(session.host)
            code, said = self.trial.by_session(
                session, step.host, is_steady=not step.changes_meanwhile
            )
        bench.release()
        tries.finish()
        self._join(bench)
        return code, said

    def _join(self, bench: Bench) -> None:
        """Have what is late come before the process ends."""
        until_s = time.monotonic() + 5.0
        for link in bench.links:
            for thread in link._threads:
                if thread.ident is not None:
                    thread.join(max(0.0, until_s - time.monotonic()))

    def _elsewhere(self) -> dict[str, str]:
        """Return folders that another machine has under the paths of the copy's: all names are the
        same, and all files have other bytes.
        """
        roots = enumerate((self.trial.source, self.trial.there))
        folders = {os.fsdecode(root): f"{self.home}/elsewhere-{number}" for number, root in roots}
        for here, other in folders.items():
            shutil.rmtree(other, ignore_errors=True)
            subprocess.run(["cp", "-a", here, other], check=True)
            for path, node in scan(os.fsencode(other)).items():
                if node.kind == FILE:
                    full = os.path.join(os.fsencode(other), path)
                    os.unlink(full)
                    Path(os.fsdecode(full)).write_bytes(b"elsewhere" * 1000)
                    os.truncate(full, node.size)
                    os.utime(full, ns=(node.mtime_ns, node.mtime_ns))
        return folders

    # --- what happens meanwhile and between runs

    def _change(self) -> None:
        """Replace a file of the source by a new version, or have a new one there."""
        self.change_source(random.Random(self.rng.random()))
        self.meanwhile.write_bytes(pickle.dumps(scan(self.trial.source)))

    def change_source(self, rng: random.Random) -> None:
        files = sorted(path for path, node in self.trial.now.items()
                       if node.kind == FILE and node.inode == 0)  # fmt: skip
        large = [path for path in files if path.endswith(b"/large")]
        path = rng.choice(large if large and rng.random() < 0.5 else files or [b"t/new"])
        full = os.path.join(self.trial.source, path)
        if not os.path.isdir(os.path.dirname(full)):
            return
        size = rng.choice((40, draws.SIZES[-1]) if path in large else draws.SIZES)
        made = Made(FILE, rng.randrange(3, 9), size, 0o644, self.trial.tick())
        if rng.random() < 0.2 and os.path.lexists(full):
            os.unlink(full)
            return
        folder, name = os.path.split(full)
        plant(folder, {b".new-" + name[:100]: made})
        os.rename(os.path.join(folder, b".new-" + name[:100]), full)

    def meddle(self, step: Step) -> None:
        """Do what happens before a run."""
        trial, rng = self.trial, self.rng
        self.is_same &= (
            step.journal == "kept" and not (step.changes or step.large) and step.options is None
        )
        self.is_same &= not (step.other_folder or self.stopped)
        for path in sorted(self.state.glob("pscp/*.journal")):
            raw = path.read_bytes()
            if step.journal == "lost":
                path.unlink()
            elif step.journal == "torn":
                path.write_bytes(raw[: rng.randrange(len(raw) + 1)])
            elif step.journal == "of another time" and path.name in self._journals:
                path.write_bytes(self._journals[path.name])
            self._journals.setdefault(path.name, raw)
        if step.large:
            trial.change_large(step.large)
        for _ in range(step.changes):
            self.change_source(rng)
            trial.note_source()
        if step.options is not None:
            trial.given = dict(step.options)
        root = os.path.join(trial.there, trial.to.rstrip(b"/"))
        if step.other_folder and trial.to and os.path.isdir(root):
            os.rename(
                root, os.path.join(os.fsencode(self.kept), b"aside-%d" % rng.randrange(1 << 40))
            )
            os.mkdir(root)
            other = {b"other": Made(FILE, 7, 40), b"t": Made(FOLDER, mode=0o755)}
            plant(root, {**other, b"t/other": Made(FILE, 8, 40)})
            trial.first = scan(trial.there)
            self._is_synced()
        if step.earlier_version:
            self._as_left_by_an_earlier_version()
            self._is_synced()
        else:
            self._unsynced.append(dict(trial.before))
        trial.go_on()

    def _as_left_by_an_earlier_version(self) -> None:
        """Have each part be the file itself, as --inplace once left it, if that is still asked for.

        Such a part is all there is of the old file, so that it stays where nothing takes its place.
        """
        for path, node in scan(self.trial.there).items():
            folder, name = os.path.split(path)
            if (
                node.kind == FILE
                and name.endswith(b".pscp-part")
                and node.size
                and name[:1] == b"."
            ):
                full = os.path.join(self.trial.there, path)
                old = os.path.join(self.trial.there, folder, name[1:].rsplit(b".", 3)[0])
                if os.path.isfile(old) and not os.path.islink(old):
                    os.chmod(full, 0o1600)
                    os.unlink(old)

    def judged(self, step: Step, code: int, said: str) -> list[str]:
        """Return what is wrong after a run."""
        trial = self.trial
        wrong = [] if code in step.codes | {KILLED} else [f"exit code {code}: {said[-3000:]}"]
        wrong += ["a traceback"] if "Traceback" in said else []
        changes = step.changes_meanwhile
        if step.is_power_cut:
            self.end(self.stopped)
            roots = [trial.source, trial.there]
            power.cut(os.fsencode(self.log), self.rng, roots, trial.case.key)
        if changes and self.meanwhile.exists():  # a move may have removed it since
            trial.ever.append(pickle.loads(self.meanwhile.read_bytes()))
            trial.note_source()
        wrong += self._wrong_after_cut(step.is_power_cut)
        self.is_same &= not (step.is_power_cut or changes)
        if not step.is_disturbed and not step.is_power_cut:
            trial.may_leave = not self.is_same
            wrong += [*trial.wrong(code, said), *self._sent_again(code)]
        elif code == 0 and not changes and not step.is_power_cut:
            trial.may_leave = True
            wrong += trial.wrong_but_times(code, said)  # what cannot be removed stays
        wrong += self._lost_backups() if self.is_same else []
        self._first = trial.first
        if code == 0 or step.is_power_cut:
            self.trial.decide_anew()
        return wrong

    def _wrong_after_cut(self, is_power_cut: bool) -> list[str]:
        """Return what no cut may leave. What was there before an earlier run may be there again."""
        trial, now = self.trial, self.trial.before
        found = trial.wrong_after_cut()
        for trial.before in self._unsynced if is_power_cut else ():
            again = trial.wrong_after_cut()
            found = [each for each in found if each in again]
        trial.before = now
        if is_power_cut:
            self._is_synced()
        return found

    def _is_synced(self) -> None:
        """All that is there now is on the disk."""
        self.log.unlink(missing_ok=True)
        self._unsynced.clear()

    def _sent_again(self, code: int) -> list[str]:
        """Say whether a run that goes on has sent what was there, by the journals of those before.

        What a killed run had in flight, which it has not noted, may be sent once more.
        """
        trial = self.trial
        goes_on = self._goes_on_now and self.is_same and trial.given.get("resume", True)
        if code or not goes_on or trial.given.get("copy_links"):  # by which a file comes twice
            return []
        source_bytes = sum(node.size for node in trial.now.values() if node.kind == FILE)
        most_bytes = source_bytes - self._noted_bytes
        if self._sent_bytes <= most_bytes:
            return []
        return [f"{self._sent_bytes} bytes are sent, and not {most_bytes} at most"]

    def _lost_backups(self) -> list[str]:
        """Say which files that were there first have no name any more, though backups are kept."""
        trial = self.trial
        if not trial.given.get("backup") or trial.is_made_up:
            return []
        there = {node.what for node in scan(trial.there).values()}
        return [f"no backup of {path!r} is left" for path, node in self.originals.items()
                if node.kind in (FILE, LINK) and node.what not in there]  # fmt: skip

    def end(self, pid: int) -> None:
        """Kill a run that stands still; 0: there is none."""
        self._forget(pid)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _forget(self, pid: int) -> None:
        self.stopped = 0 if self.stopped == pid else self.stopped
        self.outliving = 0 if self.outliving == pid else self.outliving

    def close(self) -> None:
        for pid in (self.stopped, self.outliving):
            self.end(pid)
        shutil.rmtree(self.home, ignore_errors=True)


class Whole(Trial):
    """A trial over links in memory."""

    def __init__(
        self,
        home: Path,
        way: Way,
        given: Mapping[str, Any],
        rng: random.Random,
        focus: Focus | None,
    ) -> None:
        super().__init__(home, way, given, 0)
        self.rng, self.focus = rng, focus
        self.large = b""
        self.client: Any = None  # of a cluster
        self.fold: folding.Fold | None = None  # of the destination
        self.keeps_alike = False  # a mirror deletes nothing that could be spelt otherwise
        self.may_leave = False  # parts of other runs, of which this one cannot know

    def fields(self) -> dict[str, Any]:
        return super().fields() | ({"cluster": self.client} if self.client else {})

    def draw(self, history: str | None = None, has_oddities: bool = True) -> None:
        """Draw the trees; often with large files of which a part is left by a cut."""
        super().draw(self.focus.history if self.focus else history, has_oddities)
        if self.focus or self.rng.random() < 0.5:
            self._draw_large()
        if self.fold is not None:
            self._draw_alike()

    @property
    def case(self) -> Case:
        return replace(super().case, fold=self.fold)

    def _draw_alike(self) -> None:
        """Have names that are one at the destination, where there may be another spelling."""
        place, when_ns = self.rng.choice((b"", b"k/", b"k/in/")), draws.LATELY_S * 10**9
        made = folding.draw_alike(self.rng, place, when_ns)
        folding.plant_in(os.path.join(self.source, b"t"), made)
        if self.rng.random() < 0.5:
            made = folding.draw_alike(self.rng, place, when_ns)
        to = os.path.join(self.there, self.to.rstrip(b"/"))
        roots = [each for each in (os.path.join(to, b"t"), to) if os.path.isdir(each)]
        if roots and self.rng.random() < 0.7:  # a mirror keeps all names of a file spelt otherwise
            folding.plant_in(roots[0], {p: each for p, each in made.items() if not each.same_as})
        folding.make_one(self.rng, self.there)
        self._is_drawn()
        self._name_alike(place)

    def _name_alike(self, place: bytes) -> None:
        """Have -R, and a list of files, name some of those names."""
        paths = sorted(path for path in self.now if path.startswith(b"t/" + place) and path[2:])
        paths = [p for p in paths if self.now[p].kind == FILE and b"\n" not in p]
        if self.given.get("relative") and not self.listed and self.rng.random() < 0.7:
            self.sources = paths or self.sources
        elif self.listed and self.rng.random() < 0.7:
            self.listed = [path.removeprefix(b"t/") for path in paths] or self.listed

    def _is_drawn(self) -> None:
        self.before = self.first = scan(self.there)
        self.ever.clear()
        self.note_source()

    def spelling(self, made: Mapping[bytes, Made]) -> tuple[list[bytes], bytes, list[bytes]]:
        if self.focus and self.focus.to is not None:
            return [b"t"], self.focus.to, []
        return super().spelling(made)

    def _draw_large(self) -> None:
        """Have a large file in a folder of its own; at the destination often an older one."""
        to = os.path.join(self.there, self.to.rstrip(b"/"))
        roots = [os.path.join(self.source, b"t")]
        if self.rng.random() < 0.7:
            roots += [each for each in (os.path.join(to, b"t"), to) if os.path.isdir(each)][:1]
        for root in roots:
            if os.path.lexists(os.path.join(root, b"big")):
                continue
            mark, age_s = self.rng.randrange(6), 86_400
            if root == roots[0]:
                age_s = 0
                if self.focus and self.focus.mark is not None:
                    mark = self.focus.mark
            when_ns = (draws.LATELY_S - age_s) * 10**9
            status = os.stat(root)
            large = Made(FILE, mark, draws.SIZES[-1], 0o644, when_ns)
            folder = Made(FOLDER, mode=0o755, mtime_ns=when_ns)
            plant(root, {b"big": folder, b"big/large": large})
            os.utime(root, ns=(status.st_atime_ns, status.st_mtime_ns))
        if self.focus and self.focus.has_links:
            plant(roots[0], LINKS)
            times = 1 if self.focus.unread else 2
            first = LINKS[b"aa"]._replace(mark=1, mtime_ns=draws.LATELY_S * times * 10**9)
            for root in roots[1:]:
                plant(root, {b"aa": first})
        if self.focus and self.focus.has_clashes:
            plant(roots[0], CLASHES)
            for root in roots[1:]:
                plant(root, CLASHES_THERE)
        self.large = os.path.join(roots[0], b"big", b"large")
        self._is_drawn()

    def change_large(self, how: str) -> None:
        """Change it, and keep the time of its folder; or remove the folder."""
        folder = os.path.dirname(self.large)
        if not self.large or not os.path.isdir(folder):
            return
        if how == "gone":
            shutil.rmtree(folder)
        elif how == "in place":
            self._change_in_place()
        elif how == "end":
            self._change_end()
        else:
            status = os.stat(folder)
            size = 40 if how == "small" else draws.SIZES[-1]
            mark = self.rng.choice((2, 5, 8)) if how == "sparse" else self.rng.randrange(3, 9)
            plant(folder, {b"large": Made(FILE, mark, size, 0o644, self.tick())})
            os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _change_in_place(self) -> None:
        """Write other bytes into the large file, and set its time back."""
        status = os.stat(self.large)
        with open(self.large, "r+b") as file:
            bytes_now = file.read()
            file.seek(0)
            file.write(bytes(byte ^ 1 for byte in bytes_now))
        os.utime(self.large, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _change_end(self) -> None:
        """Write other bytes into the large file but for its beginning, which both ends have hashed
        before they go on with the rest.
        """
        with open(self.large, "r+b") as file:
            file.seek(STRETCH_BYTES)
            bytes_now = file.read()
            file.seek(STRETCH_BYTES)
            file.write(bytes(byte ^ 1 for byte in bytes_now))
        os.utime(self.large, ns=(self.tick(), self.tick()))

    def note_source(self) -> None:
        """Take in what the source holds now, without what is pscp's own."""
        self.ever.append(
            {path: node for path, node in scan(self.source).items() if not is_own(path)}
        )

    def wrong(self, code: int, said: str) -> list[str]:
        """Return what is not as the oracle says, after an undisturbed run."""
        verdict = oracle.judge(self.case)
        source, there = (
            {path: node for path, node in scan(root).items() if not is_own(path)}
            for root in (self.source, self.there)
        )
        found = list(verdict.complaints(self.case, source, there, code))
        found += ["a traceback"] if "Traceback" in said else []
        found += self._unlisted(verdict, code)
        names = {path: os.fsdecode(os.path.basename(path)) for path in verdict.refused}
        untold = (path for path in names if f"{names[path]}: the destination" not in said)
        found += [f"{path!r} is refused, and nothing told of it" for path in untold]
        if code == 0 and not self.may_leave:
            left = [path for root in (self.source, self.there) for path in scan(root)]
            found += [line for line in check_clean(left) if not _is_left_by_kills(line)]
        return [each for each in found if not self.is_known(each)]

    def is_known(self, complaint: str) -> bool:
        if UNFINISHED.search(complaint):
            return True
        if self.keeps_alike and "delete" in self.given and STAYS.search(complaint):
            return True
        return any(
            names <= {*self.given} and re.search(pattern, complaint) for names, pattern, _ in KNOWN
        )


def _is_left_by_kills(line: str) -> bool:
    path = line.partition(": ")[2][2:-1].encode()
    return any(each.search(path) for each in LEFT_BY_KILLS)


class Cloning:
    """Stands in for the module `fcntl` where parts are cloned: it copies the bytes."""

    def ioctl(self, fd: int, request: int, old_fd: int) -> None:
        assert request == reuse._CLONE
        os.pwrite(fd, os.pread(old_fd, os.fstat(old_fd).st_size, 0), 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(fcntl, name)


def noted_bytes(state: Path) -> int:
    """Return how many bytes of files have landed by the journals there (terms/journal.py)."""
    extents = set[tuple[Any, ...]]()
    for path in state.glob("pscp/*.journal"):
        files: dict[int, Any] = {}
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # the last one may be cut short
                kind, number, *rest = json.loads(line)
                if kind == "file":
                    files[number] = rest[0]
                elif kind == "chunk":
                    extents.add((files[number], *rest[:2]))
    return sum(length for _, _, length in extents)


def is_still(pid: int) -> bool:
    """Has a signal stopped this process (proc_pid_stat(5))?"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def describe(step: Step) -> str:
    shown = [str(each) for each in (step.disturbance, step.fault) if each is not None]
    shown += [f"tasks: {', '.join(map(str, step.fates))}"] if step.fates else []
    shown += [f"a worker is {step.looks}"] if step.looks else []
    shown += ["its lanes hurry"] if step.hurries else []
    shown += [f"a worker outlives it: {step.outlives}"] if step.outlives else []
    shown += [f"to or from {step.host}"] if step.host != ALONE else []
    shown += ["the power goes"] if step.is_power_cut else []
    return "; ".join(shown) or "undisturbed"


def run_steps(world: World, steps: list[Step]) -> list[str]:
    """Run them one after the other; return what is wrong after the first that is."""
    for number, step in enumerate(steps):
        if number:  # one that stands still holds its journal; another machine's run has its own
            world.meddle(step._replace(journal="lost") if world.stopped else step)
        late, worker = world.stopped, world.outliving
        code, said = world.run(step)
        if wrong := world.judged(step, code, said):
            return [f"run {number + 1}, {describe(step)}: {each}" for each in wrong]
        if step.is_power_cut:
            world.end(late)
        elif late and (wrong := world.goes_on_late(late, code)):
            return [f"the run before run {number + 1}, late: {each}" for each in wrong]
        is_last = number + 1 == len(steps)
        worker = world.outliving if is_last or worker == world.outliving else 0
        if worker and (wrong := world.goes_on_late(worker, code)):
            return [
                f"run {number + 1}, a worker of it or of one before, late: {each}" for each in wrong
            ]
    return []
