"""Tables of what was thrown at pscp, and of the same at scp, rsync and mscp, for docs/testing.md.

The comparison gives each program the same tree, over a destination that has an older version of
it, at the same rate, and the same fault at a moment that is drawn anew; then the program's exit
code and what lies at the destination are compared. Then the same command runs undisturbed. rsync
and scp do not sync what they write; rsync's --partial and --inplace are off, as by default.

Not here: pscp's own trials with all its options (wild.py).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tree_data import FILE, FOLDER, Made, Node, plant, scan

from soak import faults
from soak.ends import own_home, sshd
from soak.wild import Tally
from soak.wild import run as run_wild

LIMIT_S = 100.0
KBIT_S = 24_000
OLD, NEW = "old", "new"
PROGRAMS: dict[str, Callable[[Any], list[str]]] = {
    "pscp": lambda server: [
        sys.executable, "-m", "pscp", "-aB", "-F", server.ssh_config, "-c", "2", "-l", str(KBIT_S),
        "--no-resume",
    ],
    "rsync": lambda server: [
        "rsync", "-a", "--whole-file", f"--bwlimit={KBIT_S // 8}",
        "-e", f"ssh -F {server.ssh_config}",
    ],
    "scp": lambda server: ["scp", "-rpBq", "-F", server.ssh_config, "-l", str(KBIT_S)],
    "mscp": lambda server: ["mscp", "-p", "-F", server.ssh_config, "-L", f"{KBIT_S}k"],
}  # fmt: skip
FAULTS = (
    "kill", "SIGINT", "kill the link", "kill an agent", "full disk", "a call fails here",
    "the source changes",
)  # fmt: skip
WORDS = {
    "kill": "kill -9 of the command",
    "SIGINT": "Ctrl-C",
    "SIGTERM": "SIGTERM",
    "kill the link": "kill -9 of its ssh",
    "kill an agent": "kill -9 of what runs at the far end",
    "stop an agent": "the far end stopped for a while (SIGSTOP)",
    "full disk": "the destination's disk is full",
    "a call fails here": "calls that fail at this end (EIO, ENOSPC, EDQUOT, EINTR, EMFILE)",
    "a call fails there": "the same at the far end",
    "the source changes": "sources change while they are copied",
    "what is sent comes late": "what was sent arrives after the command was killed",
    "none": "undisturbed, afterwards",
}


CHANGES = "the source changes"
PIECE_BYTES = 64 << 10


class Left(NamedTuple):
    """What was left by one run with a fault."""

    torn: bool  # a final name holds neither the old nor the new file
    false: bool  # exit code 0, and not all is new
    litter: bool  # names that neither end had
    unmended: bool  # the same command, undisturbed, did not end well, with nothing left behind


@dataclasses.dataclass
class Trial:
    """One program, one fault; as faults.py takes it."""

    home: Path
    program: str
    kind: str
    direction: str

    def __post_init__(self) -> None:
        self.rng = random.Random()
        self.source, self.there = (os.fsencode(self.home / name) for name in ("source", "there"))
        for folder in (self.source, self.there):
            os.makedirs(folder, exist_ok=True)
        plant(self.source, tree(NEW))
        plant(self.there, tree(OLD))
        self.before, self.now = scan(self.there), scan(self.source)
        self.ever = [self.now]

    def tick(self) -> int:
        return 1_700_000_100 * 10**9

    def note_source(self) -> None:
        self.now = scan(self.source)
        self.ever.append(self.now)

    def argv(self, server: Any) -> list[str]:
        far = f"{server.host}:"
        source, there = os.fsdecode(self.source) + "/t", os.fsdecode(self.there) + "/"
        ends = [source, far + there] if self.direction == "push" else [far + source, there]
        return [*PROGRAMS[self.program](server), *ends]

    def run(self, server: Any) -> Left:
        with faults.around(self.kind, self, self.home.parent) as environment:
            code = self._command(server, environment, self.kind)
        changed = self.kind == CHANGES
        self.note_source()
        found, versions = scan(self.there), [self.before, *self.ever]
        names = {path for version in versions for path in version}
        torn = any(
            all(version[path].data != node.data for version in versions)
            for path, node in found.items()
            if path in names
        )
        false = code == 0 and (torn if changed else not self._is_whole(found))
        litter = bool(found.keys() - names)
        again = self._command(server, {}, "")
        after = scan(self.there)
        unmended = again != 0 or not self._is_whole(after) or bool(after.keys() - names)
        return Left(torn, false, litter, unmended)

    def _is_whole(self, found: dict[bytes, Node]) -> bool:
        return all(
            path in found and found[path].data == node.data
            for path, node in self.now.items()
            if node.kind == FILE
        )

    def _overwrite(self, process: subprocess.Popen[bytes]) -> None:
        """Write another version into a large file, from its beginning on, while it is read."""
        faults.wait_for_something(self, process)
        new = tree(NEW)[b"t/big"]._replace(mark=77).content
        new = bytes(each ^ 1 for each in new)
        with open(os.path.join(self.source, b"t/big"), "r+b") as file:
            for at in range(0, len(new), PIECE_BYTES):
                file.write(new[at : at + PIECE_BYTES])
                file.flush()
                time.sleep(0.01)

    def _command(self, server: Any, environment: dict[str, str], kind: str) -> int:
        process = subprocess.Popen(
            self.argv(server), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, **environment},
        )  # fmt: skip
        try:
            if kind == CHANGES:
                self._overwrite(process)
            elif kind and not kind.startswith(("a call", "full")):
                faults.meanwhile(kind, process, self, server)
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return 98
        finally:
            process.kill()
            process.wait()


def tree(version: str) -> dict[bytes, Made]:
    """The same names in both versions, with other contents and times."""
    mark, time_ns = (0, 10**18) if version == OLD else (100, 17 * 10**17)
    made = {b"t": Made(FOLDER, mode=0o755, mtime_ns=time_ns)}
    for number in range(20):
        made[b"t/small %d" % number] = Made(FILE, mark + number % 2, 20_000, 0o644, time_ns)
    for name, size in ((b"big", 1_500_000), (b"bigger", 2_000_000)):
        made[b"t/" + name] = Made(FILE, mark, size + 4000 * mark, 0o644, time_ns)
    return made


# --- the tables


def compare(seconds: float) -> dict[tuple[str, str], collections.Counter[str]]:
    """Try each program with each fault in turn, for so long; (fault, program) -> counts."""
    counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    until_s = time.monotonic() + seconds
    programs = [name for name in PROGRAMS if name == "pscp" or shutil.which(name)]
    with own_home() as home, sshd(home) as server:
        faults.library()
        for number, (kind, program) in enumerate(
            itertools.cycle(itertools.product(FAULTS, programs))
        ):
            if time.monotonic() > until_s:
                return counts
            # A call that fails where all of them write is one of the command, on a pull.
            is_pull = kind == "a call fails here" or number % 2 == 0
            place = home / f"n{number}"
            os.makedirs(place / "there")
            with faults.disk(os.fsencode(place / "there")):
                left = Trial(place, program, kind, "pull" if is_pull else "push").run(server)
            shutil.rmtree(place, ignore_errors=True)
            counts[kind, program]["runs"] += 1
            counts[kind, program].update(name for name, is_so in left._asdict().items() if is_so)
    return counts


def tables(tally: Tally, counts: dict[tuple[str, str], collections.Counter[str]]) -> str:
    """Return both tables, and what they are of."""
    programs = sorted({program for _, program in counts}, key=list(PROGRAMS).index)
    tried = ["| fault | runs | ended early | went on, and well |", "|---|---|---|---|"]
    for kind in (*faults.KINDS, "none"):
        early = tally.runs[kind, "cut"] + tally.runs[kind, "failed as it had to"]
        well = tally.runs[kind, "went well"]
        tried.append(f"| {WORDS[kind]} | {early + well} | {early} | {well} |")
    compared = [
        "| fault | program | runs | half a file | false success | litter | not mended |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, program in itertools.product(FAULTS, programs):
        cells = (str(counts[kind, program][name]) for name in ("runs", *Left._fields))
        word = "a file is written to while it is read" if kind == CHANGES else WORDS[kind]
        compared.append(f"| {word} | {program} | {' | '.join(cells)} |")
    runs, of = sum(tally.runs.values()), ", ".join(map(version, programs))
    lost = f"Lost, torn or untold: {tally.bad or 'nothing'}."
    first = f"Of {tally.cases} copies, {runs} runs; {of}. {lost}"
    return "\n".join([first, "", *tried, "", *compared])


def version(program: str) -> str:
    argv = [sys.executable, "-m", "pscp"] if program == "pscp" else [program]
    said = subprocess.run([*argv, "--version"], capture_output=True, text=True, check=False)
    first = said.stdout.partition("\n")[0]
    return first.partition("  protocol")[0] or f"{program} of OpenSSH"


def run(seconds: float) -> int:
    """Try for so long, a third of it pscp alone, and print the tables."""
    tally = Tally()
    code = run_wild(seconds / 3, None, tally)
    print(tables(tally, compare(seconds * 2 / 3)))
    return code
