"""Random copies over all ways, disturbed at random, ended undisturbed, and judged by the oracle.

Each case has a seed of its own, from which all is drawn but the moments at which things happen: a
seed that is repeated draws the same copy and the same faults. After each disturbed run no name may
hold less than a whole file, and nothing may be lost; what ends with 0 must be as after an
undisturbed run. At last the copy, or another one of the same names, runs undisturbed.

Not here: the faults (faults.py), the oracle (../oracle.py).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import random
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import draws
import oracle

from pscp.ground.processes import descendants
from soak import faults
from soak.ends import own_home, sshd
from soak.trial import LIMIT_S, PSCP, Trial, Way

WAYS = (
    Way("push"), Way("pull"), Way("push", lanes=3), Way("pull", lanes=3), Way("far"),
    Way("push", transport="asyncssh"), Way("pull", transport="paramiko", lanes=2),
    Way("push", remote="sftp"), Way("pull", remote="sftp"), Way("push", remote="sftp", lanes=2),
    Way("push", plane="tls", lanes=2), Way("pull", plane="plain"), Way("push", plane="plain"),
    Way("pull", plane="tls", lanes=2), Way("far", plane="tls"), Way("far", remote="sftp"),
    Way("fan"), Way("fan", plane="plain"), Way("job"), Way("job"), Way("push", lanes=3, hosts=3),
    Way("pull", lanes=3, hosts=2), Way("far", lanes=2, hosts=2), Way("job", hosts=2),
    Way("push", lanes=2, workers=2), Way("pull", workers=2), Way("push", hosts=2, workers=2),
)  # fmt: skip
# Refused there.
NOT_OVER_SFTP = {"backup", "backup_dir", "link_dest", "one_file_system", "transfer_test", "chown"}
# What a job has no words for, and what both destinations decide together. Known: jobs.toml refuses
# link-dest and chown, even with archive = true ("needs -r or -a").
NOT_OF_TWO = {"remove_source_files", "manifest", "dry_run", "check", "transfer_test", "filters",
              "files_from", "relative", "resume", "link_dest", "chown"}  # fmt: skip
NOT_OF_HOSTS = {"remove_source_files", "manifest"}  # refused to several
NOT_OF_WORKERS = {"transfer_test"}  # refused to a cluster's
NOTHING = 7  # what a job ends with that finds no file to copy
CUT = (1, 3, 4, 5, 130, 143, -2, -9, -15)  # exit codes of runs that were disturbed
ENDING_S = 30.0


@dataclasses.dataclass
class Tally:
    """What was tried, how often: (fault, what came of it) -> runs."""

    cases: int = 0
    bad: int = 0
    runs: collections.Counter[tuple[str, str]] = dataclasses.field(
        default_factory=collections.Counter
    )


def is_fit(way: Way, given: Mapping[str, Any]) -> bool:
    """Does this way take these options?"""
    not_here = NOT_OVER_SFTP if way.remote == "sftp" else set()
    if way.direction in ("fan", "job"):
        not_here = NOT_OF_TWO
    if way.hosts > 1:
        not_here = not_here | NOT_OF_HOSTS
    if way.workers:
        not_here = not_here | NOT_OF_WORKERS
    return not not_here & given.keys() and not (way.direction == "far" and "files_from" in given)


class Case:
    """One of them."""

    def __init__(self, home: Path, server: Any, seed: int, tally: Tally) -> None:
        rng = random.Random(seed)
        self.home, self.server, self.tally = home, server, tally
        way, given = rng.choice(WAYS), draws.options(rng)
        while not is_fit(way, given):
            given = draws.options(rng)
        self.kinds = [rng.choice(faults.possible()) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        self.trial = Trial(home, way, given, seed)
        # Most are held back, so that a fault finds them under way.
        self.limit = ["-l", rng.choice(("2M", "6M"))] if rng.random() < 0.7 else []
        self.said: list[str] = []
        self.shown = ""

    def run(self) -> list[str]:
        """Return what is wrong."""
        trial = self.trial
        with contextlib.ExitStack() as stack:
            if "full disk" in self.kinds:
                os.mkdir(trial.there)
                stack.enter_context(faults.disk(trial.there))
            stack.callback(shutil.rmtree, trial.home, ignore_errors=True)
            trial.draw(has_oddities=trial.rng.random() < 0.2)
            self.trials = trial.with_twin()
            for kind in self.kinds:
                if wrong := self._disturbed(kind):
                    return wrong
            if trial.rng.random() < 0.25:
                self._another()
            return self._undisturbed()

    def _another(self) -> None:
        """The last command has other options, for the same names."""
        trial = self.trial
        kept = {"files_from", "relative", "link_dest", "mkpath"}
        for _ in range(100):
            given = {
                name: value for name, value in draws.options(trial.rng).items() if name not in kept
            }
            given |= {name: trial.given[name] for name in kept & trial.given.keys()}
            if is_fit(trial.way, given) and not draws.refusal(given):
                for each in self.trials:
                    each.given = given
                return

    def _disturbed(self, kind: str) -> list[str]:
        trial = self.trial
        with faults.around(kind, trial, self.home) as environment:
            code, said = self._command(kind, environment)
        is_left = self._agents_remain()
        came = {0: "went well"}.get(code, "cut" if code in CUT else "bad")
        self.tally.runs[kind, came] += 1
        wrong = [] if code in (0, *CUT) else [f"exit code {code}"]
        wrong += ["agents remain"] if is_left else []
        wrong += ["a traceback"] if trial.is_traced(said) else []
        if kind == "the source changes":
            trial.note_source()
        for each in self.trials:
            wrong += each.wrong_after_cut()
            if code == 0 and kind != "the source changes":
                found = each.wrong_but_times(code, said)  # what cannot be removed stays
                wrong += [line for line in found if "pscp-" not in line or "a call" not in kind]
        for each in self.trials:
            each.go_on()
            if code == 0:
                each.decide_anew()
        return [f"{kind}: {each}" for each in wrong]

    def _undisturbed(self) -> list[str]:
        code, said = self._command("", {})
        self.tally.runs["none", "went well" if code == 0 else "failed as it had to"] += 1
        codes = set[int]().union(*(oracle.judge(each.case).codes for each in self.trials))
        wrong = [] if code in codes else [f"exit code {code}, not one of {sorted(codes)}"]
        for each in self.trials:
            own = oracle.judge(each.case).codes
            wrong += each.wrong(code if code in own else min(own), said)
        return wrong + (["agents remain"] if self._agents_remain() else [])

    def _command(self, kind: str, environment: dict[str, str]) -> tuple[int, str]:
        """Run it, with this fault; returns its exit code and what it said."""
        out, argv = self.trial.home / "out", self.argv(bool(kind))
        jobs = self.trial.home / "jobs.toml"
        self.shown = jobs.read_text() if jobs.exists() else " ".join(argv[3:])
        with open(out, "wb") as to_out:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=to_out,
                stderr=subprocess.STDOUT, env={**os.environ, **environment},
            )  # fmt: skip
        try:
            if kind and not kind.startswith(("a call", "full")):
                faults.meanwhile(kind, process, self.trial, self.server)
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = 98  # it never ends
        finally:
            process.kill()
            process.wait()
        code = 0 if code == NOTHING else code
        said = out.read_text(errors="replace")
        self.said.append(f"[{kind or 'undisturbed'}: {code}] {said[-1500:]}")
        return code, said

    def argv(self, is_slow: bool) -> list[str]:
        argv, at = self.trial.argv(self.server), len(PSCP)
        if self.trial.way.direction == "job":
            return argv
        return [*argv[:at], *(self.limit if is_slow else []), *argv[at:]]

    def _agents_remain(self) -> bool:
        """Wait until what a run has left at the far end is over."""
        until_s = time.monotonic() + ENDING_S
        while time.monotonic() < until_s:
            if not descendants(self.server.pid):
                return False
            time.sleep(0.02)
        return True


def run(seconds: float, seed: int | None = None, tally: Tally | None = None) -> int:
    """Run cases for so long, or one with this seed; returns the exit code."""
    tally = tally or Tally()
    until_s = time.monotonic() + seconds
    first = secrets.randbelow(1 << 31) if seed is None else seed
    print(f"seed {first}: scripts/soak wild {seconds:.0f} --seed {first}", flush=True)
    with own_home() as home, sshd(home) as server:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        for number in range(1 << 31):
            if time.monotonic() > until_s or (seed is not None and number):
                break
            case = Case(home, server, first + number, tally)
            tally.cases += 1
            if os.environ.get("SOAK_SHOW"):
                print(first + number, case.trial.way, case.kinds, flush=True)
            if wrong := case.run():
                tally.bad += 1
                show(case, first + number, wrong)
    for (kind, came), count in sorted(tally.runs.items()):
        print(f"{kind:26}{came:22}{count:6}")
    print(f"{tally.cases} cases, {tally.bad} bad")
    return 1 if tally.bad else 0


def show(case: Case, seed: int, wrong: list[str]) -> None:
    trial = case.trial
    print(f"\nBAD: scripts/soak wild 1 --seed {seed}   ({trial.way}; {', '.join(case.kinds)})")
    print("    pscp", case.shown)
    print(*(f"    {each}" for each in wrong[:6]), sep="\n")
    print(*(f"    {each}" for each in case.said), sep="\n", flush=True)
