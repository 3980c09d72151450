"""A copy that was drawn, on the disk: its words, its two ends, and what the oracle says of it.

Not here: what is drawn (../draws.py), the servers (ends.py), the faults (faults.py).
Read next: ../oracle.py.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import draws
import oracle
from cases import Case
from tree_data import Made, Node, plant, scan

from pscp.api import Session
from pscp.errors import PscpError

LIMIT_S = 90.0  # a copy of some files that has not ended by then never does
PSCP = (sys.executable, "-c", "import sys; from pscp.cli.copy import main; sys.exit(main())")
WORDS = {
    "min_size_bytes": "--min-size", "max_size_bytes": "--max-size", "min_age_s": "--min-age",
    "max_age_s": "--max-age", "chunk_bytes": "--chunk-size",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Way:
    """From where to where, and over what."""

    direction: str = "push"  # pull, or far: from host to host
    transport: str = "openssh"
    remote: str = "agent"
    plane: str = "auto"
    lanes: int = 1

    def words(self) -> list[str]:
        words = ["--transport", self.transport, "--remote", self.remote, "--plane", self.plane]
        return [*words, "-c", str(self.lanes)]

    def __str__(self) -> str:
        over = "sftp" if self.remote == "sftp" else self.plane.replace("auto", "ssh")
        return f"{self.direction} {self.transport} {over} -c {self.lanes}"


class Trial:
    """A case with two trees below `home`."""

    def __init__(self, home: Path, way: Way, given: Mapping[str, Any], seed: int) -> None:
        self.home, self.way, self.given, self.seed = home / str(seed), way, dict(given), seed
        home = self.home  # of its own: a copy of another trial to the same place is known there
        home.mkdir()
        self.source, self.there = (os.fsencode(home / name) for name in ("source", "there"))
        self.rng = random.Random(seed)
        self.ever: list[dict[bytes, Node]] = []

    def draw(self, history: str | None = None, has_oddities: bool = True) -> None:
        """Make the trees; the clock is the machine's, and files are older than that."""
        rng = self.rng
        for folder in (self.source, self.there):
            shutil.rmtree(folder, ignore_errors=True)
            os.mkdir(folder)
        made = draws.source(rng, has_oddities)
        plant(self.source, made)
        sources, self.to, self.listed = draws.spelling(rng, made, self.given)
        history = history or rng.choice(draws.HISTORIES)
        self._plant_there(made, history, sources, has_oddities)
        self.sources = sources
        self.before = scan(self.there)
        self.note_source()

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
        self.now = scan(self.source)
        self.ever.append(self.now)

    @property
    def case(self) -> Case:
        return Case(
            self.given, self.now, self.sources, self.before, self.to, self.listed,
            now_ns=time.time_ns(), over_sftp=self.way.remote == "sftp",
        )  # fmt: skip

    @property
    def is_made_up(self) -> bool:
        return bool(self.given.get("transfer_test"))

    # --- how it is asked for

    def locations(self, host: str) -> tuple[list[str], str]:
        here, far = "", f"{host}:"
        source_at = here if self.way.direction == "push" else far
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
        return [*PSCP, *fixed, *self.words(), "--", *sources, to]

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

    def by_session(self, session: Session, host: str) -> tuple[int, str]:
        """The same in this process, over connections that are open already."""
        sources, to = self.locations(host)
        events: dict[bytes, str] = {}
        try:
            done = session.copy(
                sources, to, on_file=lambda each: events.update({_end(each.path): each.outcome}),
                **self.fields(),
            )  # fmt: skip
        except PscpError as error:
            return error.exit_code, f"{type(error).__name__}: {error.message}"
        said = [f"{each.path}: {each.message}" for each in done.failures]
        wrong = list(self._wrong_outcomes(events))
        return (99 if wrong else int(not done.ok)), "\n".join([*said, *wrong])

    def _wrong_outcomes(self, events: Mapping[bytes, str]) -> Iterator[str]:
        ends: dict[bytes, set[str]] = {}
        for path, outcomes in oracle.judge(self.case).outcomes.items():
            ends.setdefault(_end(os.fsdecode(path)), set()).update(outcomes)
        for name, outcome in events.items():
            if name in ends and outcome not in ends[name] | {"failed"} and not self.is_made_up:
                yield f"{name!r} is told as {outcome}, not {sorted(ends[name])}"

    # --- what came of it

    def wrong(self, code: int, said: str) -> list[str]:
        """Return what is not as the oracle says, after an undisturbed run."""
        verdict = oracle.judge(self.case)
        source, there = scan(self.source), scan(self.there)
        found = list(verdict.complaints(self.case, source, there, code))
        return found + (["a traceback"] if "Traceback" in said else [])

    def wrong_after_cut(self) -> list[str]:
        """Return what no kill or fault may leave."""
        return list(oracle.permitted(self.case, scan(self.source), scan(self.there), self.ever))


def _end(path: str) -> bytes:
    return os.path.basename(os.fsencode(path))
