"""A copy that was drawn, on the disk: its words, its two ends, and what the oracle says of it.

Not here: what is drawn (../draws.py), the servers (ends.py), the faults (faults.py).
Read next: ../oracle.py.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import draws
import oracle
from cases import OWN, Case, Verdict
from tree_data import FILE, FOLDER, Made, Node, plant, scan

from pscp.calls.api import Session
from pscp.ground.errors import PscpError

LIMIT_S = 90.0  # a copy of some files that has not ended by then never does
PSCP = (sys.executable, "-m", "pscp")
RUN = (sys.executable, "-c", "from pscp.cli.start import pscp_run; pscp_run()")

# What Python tells of a SIGINT that comes before it runs our first line.
_AT_THE_START = re.compile(
    r'Traceback .*\n(?:  .*\n)*?  File "<frozen site>".*\n(?:  .*\n)*KeyboardInterrupt\b'
)
WORDS = {
    "min_size_bytes": "--min-size", "max_size_bytes": "--max-size", "min_age_s": "--min-age",
    "max_age_s": "--max-age", "chunk_bytes": "--chunk-size",
}  # fmt: skip

# Defects that have been told and are not mended yet: (options, what is complained of, the reason).
KNOWN: list[tuple[set[str], str, str]] = [
    (set(), r"mode \d+, not (960|1984)\b", "a folder that is not finished is as good as new"),
    ({"check", "sftp"}, r"exit code 1, not one of \[0\]", "SFTP tells no fractions of a second"),
    ({"link_dest", "size_only"}, "not \\('file'", "a link is of DIR's file, whatever is in it"),
]


@dataclasses.dataclass(frozen=True)
class Way:
    """From where to where, and over what."""

    direction: str = "push"  # pull; far: from host to host; fan, job: to two places
    transport: Any = "openssh"
    remote: Any = "agent"
    plane: Any = "auto"
    lanes: int = 1
    hosts: int = 1  # names of the server, to all of which lanes go
    workers: int = 0  # of a cluster, which move the bytes

    def words(self) -> list[str]:
        words = ["--transport", self.transport, "--remote", self.remote, "--plane", self.plane]
        cluster = ["--cluster", f"local:{self.workers}"] if self.workers else []
        return [*words, "-c", str(self.lanes), *cluster]

    def __str__(self) -> str:
        over = "sftp" if self.remote == "sftp" else self.plane.replace("auto", "ssh")
        hosts = f" {self.hosts} hosts" if self.hosts > 1 else ""
        workers = f" {self.workers} workers" if self.workers else ""
        return f"{self.direction} {self.transport} {over} -c {self.lanes}{hosts}{workers}"


class Trial:
    """A case with two trees below `home`."""

    def __init__(self, home: Path, way: Way, given: Mapping[str, Any], seed: int) -> None:
        self.home, self.way, self.given, self.seed = home / str(seed), way, dict(given), seed
        home = self.home  # of its own: a copy of another trial to the same place is known there
        home.mkdir()
        self.source, self.there = (os.fsencode(home / name) for name in ("source", "there"))
        self.rng = random.Random(seed)
        self.ever: list[dict[bytes, Node]] = []
        self.has_known = False
        self.sent_bytes = 0  # by by_session(), of files
        self.twin = self

    def draw(self, history: str | None = None, has_oddities: bool = True) -> None:
        """Make the trees; the clock is the machine's, and files are older than that."""
        rng = self.rng
        for folder in (self.source, self.there):
            os.makedirs(folder, exist_ok=True)
        made = draws.source(rng, has_oddities)
        plant(self.source, made)
        sources, self.to, self.listed = self.spelling(made)
        history = history or rng.choice(draws.HISTORIES)
        self._plant_there(made, history, sources, has_oddities)
        self.sources = sources
        self.before = self.first = scan(self.there)
        self.note_source()

    def spelling(self, made: Mapping[bytes, Made]) -> tuple[list[bytes], bytes, list[bytes]]:
        return draws.spelling(self.rng, made, self.given)

    def _plant_there(
        self, made: Mapping[bytes, Made], history: str, sources: list[bytes], has_clashes: bool
    ) -> None:
        """What was there before lies where the copy puts things, or would if it were new."""
        rng, root = self.rng, self.there
        if history != "new" and self.to:
            root = os.path.join(self.there, self.to.rstrip(b"/"))
            os.makedirs(root)
        before = draws.before(rng, made, history, has_clashes)
        if sources == [b"t/."] or (self.to == b"new" and sources == [b"t"]):
            cut = {path.partition(b"/")[2]: each for path, each in before.items() if b"/" in path}
            linked = {path: each.same_as.partition(b"/")[2] for path, each in cut.items()}
            before = {path: each._replace(same_as=linked[path]) for path, each in cut.items()}
        plant(root, before)
        if self.given.get("link_dest"):
            yesterday = os.path.join(self.there, b"yesterday")
            os.mkdir(yesterday)
            plant(yesterday, draws.before(rng, made, rng.choice(("same", "mixed")), False))

    def note_source(self) -> None:
        """Take in what the source holds now."""
        self.ever.append(scan(self.source))

    def tick(self) -> int:
        """Return a time for a file that is new, later than all others."""
        self._ticks = getattr(self, "_ticks", 0) + 1
        return (draws.LATELY_S + 86_400 + self._ticks) * 10**9

    def go_on(self) -> None:
        """Take what lies there now for what the next run finds."""
        self.before = {path: node for path, node in scan(self.there).items() if not is_own(path)}
        self.ever.clear()
        self.note_source()

    def decide_anew(self) -> None:
        """DEST means what it does to a new command, unless a copy's marker lies in it."""
        there = scan(self.there)
        root = self.to.rstrip(b"/")
        below = [path for path in there if path.startswith(root + b"/")]
        has_mark = any(os.path.basename(path).startswith(b".made.") for path in below)
        has_fence = any(path.endswith(b".pscp-run") for path in there)
        if not (root and root in there and (has_mark or (has_fence and not below))):
            self.first = {path: node for path, node in there.items() if not is_own(path)}

    @property
    def case(self) -> Case:
        return Case(
            self.given, self.now, self.sources, self.before, self.to, self.listed,
            now_ns=time.time_ns(), first=self.first, over_sftp=self.way.remote == "sftp",
            to_sftp=self.way.remote == "sftp" and self.way.direction != "pull",
        )  # fmt: skip

    def with_twin(self) -> list[Trial]:
        """Return this one, and where there are two destinations one for the other."""
        if self.way.direction not in ("fan", "job"):
            return [self]
        self.twin = copy.copy(self)  # sharing the versions of the source
        self.twin.there = self.there + b"2"
        subprocess.run(["cp", "-a", self.there, self.twin.there], check=True)
        return [self, self.twin]

    @property
    def now(self) -> dict[bytes, Node]:
        """The source as it was seen last."""
        return self.ever[-1]

    @property
    def is_made_up(self) -> bool:
        return bool(self.given.get("transfer_test"))

    # --- how it is asked for

    def locations(self, host: str) -> tuple[list[str], str]:
        here = ""
        far = (
            ",".join([host, *(f"{host}-{number}" for number in range(2, self.way.hosts + 1))]) + ":"
        )
        source_at = far if self.way.direction in ("pull", "far") else here
        there_at = here if self.way.direction == "pull" else far
        middle = "/./" if self.given.get("relative") else "/"
        base, to = os.fsdecode(self.source), os.fsdecode(os.path.join(self.there, self.to))
        escaped = [os.fsdecode(each) for each in self.sources]
        return [f"{source_at}{base}{middle}{each}" for each in escaped], there_at + to

    def fields(self) -> dict[str, Any]:
        """The options as pscp's Python takes them."""
        fields = dict(self.given)
        if "files_from" in fields:
            path = self.home / "listed"
            path.write_bytes(b"".join(each + b"\n" for each in self.listed))
            fields["files_from"] = str(path)
        if "manifest" in fields:
            fields["manifest"] = str(self.home / "manifest.jsonl")
        return fields

    def words(self) -> list[str]:
        """The options as the command line takes them."""
        words: list[str] = []
        for name, value in self.fields().items():
            word = WORDS.get(name, "--" + name.replace("_", "-"))
            if name == "filters":
                words += [f"--{kind}={pattern}" for kind, pattern in value]
            elif name == "resume":
                words.append("--no-resume")
            elif name == "link_dest":
                words += [f"--link-dest={each}" for each in value]
            else:
                words += [word] if value is True else [f"{word}={value}"]
        return words

    def argv(self, server: Any) -> list[str]:
        sources, to = self.locations(server.host)
        fixed = ["-F", server.ssh_config, "-B", *self.way.words()]
        if self.way.direction == "job":
            return self._job(server, sources, [to, self.twin.locations(server.host)[1]])
        more = []
        if self.way.direction == "fan":
            fixed, more = [*fixed, "--fan-out"], [self.twin.locations(server.host)[1]]
        return [*PSCP, *fixed, *self.words(), "--", *sources, to, *more]

    def _job(self, server: Any, sources: list[str], to: list[str]) -> list[str]:
        """The same as a job of pscp-run."""
        keys: dict[str, Any] = {"sources": sources, "destinations": to, "config": server.ssh_config}
        for word in self.words():
            name, _, value = word.removeprefix("--").partition("=")
            keys[name] = [*keys.get(name, ()), value] if name in ("exclude",) else value or True
        lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
        (self.home / "jobs.toml").write_text("[job.drawn]\n" + "\n".join(lines) + "\n")
        return [*RUN, "--config", str(self.home / "jobs.toml")]

    def by_command(self, server: Any) -> tuple[int, str]:
        """Run it; returns its exit code and what it said, and -1 if it never ends."""
        try:
            done = subprocess.run(
                self.argv(server), capture_output=True, timeout=LIMIT_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return -1, f"it never ends: {os.fsdecode(error.stderr or b'')[-2000:]}"
        return done.returncode, os.fsdecode(done.stdout + done.stderr)

    def by_session(self, session: Session, host: str, *, is_steady: bool = True) -> tuple[int, str]:
        """The same in this process, over connections that are open already.

        Args:
            is_steady: nothing changes the source meanwhile, so that what is told can be judged.
        """
        sources, to = self.locations(host)
        events: dict[bytes, str] = {}
        try:
            done = session.copy(
                sources, to, on_file=lambda each: events.update({_end(each.path): each.outcome}),
                raises=False, **self.fields(),
            )  # fmt: skip
        except PscpError as error:
            return error.exit_code, f"{type(error).__name__}: {error.message}"
        self.sent_bytes = done.bytes_sent
        said = [f"{each.path}: {each.message}" for each in done.failures]
        wrong = list(self._wrong_outcomes(events)) if is_steady else []
        is_wrong = wrong and not self.is_known("outcome")
        return 99 if is_wrong else int(not done.ok), "\n".join([*said, *wrong])

    def _wrong_outcomes(self, events: Mapping[bytes, str]) -> Iterator[str]:
        ends: dict[bytes, set[str]] = {}
        for path, outcomes in oracle.judge(self.case).outcomes.items():
            ends.setdefault(_end(os.fsdecode(path)), set()).update(outcomes)
        if {"check", "dry_run"} & self.given.keys():  # which tell what would be copied or deleted
            for outcomes in ends.values():
                outcomes |= {"different"} if outcomes & {*oracle.TAKEN, "deleted"} else set()
        for name, outcome in events.items():
            if name in ends and outcome not in ends[name] | {"failed"} and not self.is_made_up:
                yield f"{name!r} is told as {outcome}, not {sorted(ends[name])}"

    # --- what came of it

    def is_traced(self, said: str) -> bool:
        """Return whether a command has shown a traceback.

        Known, harmless: Python itself tells of a signal that comes while it imports, or before it
        runs our first line, and of the process that keeps its locks for workers of a cluster, where
        a fault ends that.
        """
        said = _AT_THE_START.sub("", said)
        known = ["_get_module_lock"]
        known += ["multiprocessing/resource_tracker"] * (self.way.workers > 0)
        return "Traceback" in said and not any(each in said for each in known)

    def wrong(self, code: int, said: str) -> list[str]:
        """Return what is not as the oracle says, after an undisturbed run."""
        verdict = oracle.judge(self.case)
        source, there = scan(self.source), scan(self.there)
        found = list(verdict.complaints(self.case, source, there, code))
        found += ["a traceback"] if self.is_traced(said) else []
        found += self._unlisted(verdict, code)
        self.has_known = any(map(self.is_known, found))
        return [each for each in found if not self.is_known(each)]

    def _unlisted(self, verdict: Verdict, code: int) -> Iterator[str]:
        """Say which files are good at the destination, and not in the manifest of the copy."""
        if code or not self.case.has("manifest"):
            return
        lines = (self.home / "manifest.jsonl").read_text().splitlines()[1:-1]
        listed = {_listed_end(json.loads(line)) for line in lines}
        for to, at in verdict.places.items():
            is_good = "skipped" not in verdict.outcomes.get(to, {"skipped"})
            is_file = self.case.source[at].kind == FILE
            if is_good and is_file and os.path.basename(to) not in listed:
                yield f"{to!r} is not in the manifest"

    def wrong_but_times(self, code: int, said: str) -> list[str]:
        """The same after a call has failed: a folder may have the time of the last change in it."""
        folders = [path for path, node in scan(self.there).items() if node.kind == FOLDER]
        aged = tuple(f"destination {path!r}: mtime_ns " for path in folders)
        return [each for each in self.wrong(code, said) if not each.startswith(aged)]

    def is_known(self, complaint: str) -> bool:
        """Is it a defect that has been told and is being mended?"""
        return any(
            names <= {*self.given, self.way.remote} and re.search(pattern, complaint)
            for names, pattern, _ in KNOWN
        )

    def wrong_after_cut(self) -> list[str]:
        """Return what no kill or fault may leave."""
        return list(oracle.permitted(self.case, scan(self.source), scan(self.there), self.ever))


def is_own(path: bytes) -> bool:
    return path.endswith(OWN)


def _listed_end(row: Mapping[str, Any]) -> bytes:
    coded = row.get("path_base64")
    return _end(row["path"]) if coded is None else os.path.basename(base64.b64decode(coded))


def _end(path: str) -> bytes:
    return os.path.basename(os.fsencode(path))
