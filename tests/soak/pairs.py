"""Every pair of options, over push and pull, to a new and an old destination, judged once each.

Most run in this process over connections that stay; one in COMMANDS through the command line.

Not here: the oracle (../oracle.py), what is refused (../draws.py).
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import draws

import pscp
from pscp.options.option_pairs import NEEDED
from soak.ends import own_home, sshd
from soak.trial import LIMIT_S, Trial, Way

COMMANDS = 20  # one in so many by the command line
OLD = "mixed"


class Pair(NamedTuple):
    """One run: two options, a direction, and what was there before."""

    number: int
    given: Mapping[str, Any]
    direction: str
    history: str

    def __str__(self) -> str:
        names = " ".join(name for name in self.given if name != "recursive")
        return f"{self.number}: {names or '-r alone'}, {self.direction}, {self.history}"


def pairs() -> Iterator[Pair]:
    """All of them, always with the same numbers."""
    numbers = itertools.count()
    names = sorted(draws.SAMPLES)
    for one, other in [*itertools.combinations(names, 2), *((name, name) for name in names)]:
        given = {"recursive": True, one: draws.SAMPLES[one][0], other: draws.SAMPLES[other][0]}
        for name in (one, other):
            for pair in NEEDED:
                if pair.one == name:
                    given.setdefault(pair.other, True)
        for direction, history in itertools.product(("push", "pull"), ("new", OLD)):
            yield Pair(next(numbers), given, direction, history)


class Late(Exception):
    """A copy has not ended in time."""


def run(every: int = 1, only: int | None = None, is_loud: bool = True, offset: int = 0) -> int:
    """Run them, print a table and a count; returns the exit code."""
    begin_s, counts, bad = time.monotonic(), dict.fromkeys(("ok", "refused", "known", "bad"), 0), []
    with ExitStack() as stack:
        home = stack.enter_context(own_home())
        server = stack.enter_context(sshd(home))
        sessions = {}
        for pair in pairs():
            if pair.number % every != offset if only is None else pair.number != only:
                continue
            way = Way(pair.direction)
            if way not in sessions:
                sessions[way] = stack.enter_context(
                    pscp.Session(server.host, config_file=server.ssh_config, batch=True,
                                 connections=1, transport="openssh", remote="agent")
                )  # fmt: skip
            trial = Trial(home, way, pair.given, pair.number)
            is_command = pair.number % COMMANDS == 0
            outcome, why = one_pair(trial, pair, None if is_command else sessions[way], server)
            counts[outcome] += 1
            if outcome == "bad":
                bad.append(pair)
                print(f"BAD {pair}: {why[:4]}\n    scripts/soak pairs --only {pair.number}")
                if only is not None:
                    print("   ", " ".join(trial.argv(server)[3:]), *why, sep="\n    ")
    if is_loud:
        print(table(bad))
    seconds = time.monotonic() - begin_s
    print(
        f"{sum(counts.values())} runs in {seconds:.0f} s:", *(f"{n} {w}" for w, n in counts.items())
    )
    return 1 if bad else 0


def one_pair(trial: Trial, pair: Pair, session: Any, server: Any) -> tuple[str, list[str]]:
    """Run one; returns ok, refused or bad, and what is wrong."""
    trial.draw(pair.history, has_oddities=pair.number % 7 == 0)
    must_refuse = draws.refusal(pair.given)
    heard = signal.signal(signal.SIGALRM, _late)  # a test run has an alarm of its own
    due_s, _ = signal.setitimer(signal.ITIMER_REAL, LIMIT_S + 10)
    try:
        ran = (
            trial.by_command(server) if session is None else trial.by_session(session, server.host)
        )
    except Late:
        return "bad", ["it never ends"]
    except Exception:
        is_known = trial.is_known("a traceback")
        return "known" if is_known else "bad", ["a traceback", traceback.format_exc()]
    finally:
        signal.setitimer(signal.ITIMER_REAL, due_s)
        signal.signal(signal.SIGALRM, heard)
    code, said = ran
    if must_refuse or code == 2:
        is_right = bool(must_refuse) and code == 2
        return ("refused", []) if is_right else ("bad", [f"exit code {code}", must_refuse, said])
    wrong = trial.wrong(code, said)
    if wrong:
        return "bad", [*wrong, said]
    return ("known" if trial.has_known else "ok"), []


def _late(*_: object) -> None:
    raise Late


def table(bad: list[Pair]) -> str:
    """One line an option: how many of its pairs go, are refused, and are bad."""
    rows: dict[str, list[int]] = {name: [0, 0, 0] for name in sorted(draws.SAMPLES)}
    numbers = {pair.number for pair in bad}
    for pair in pairs():
        column = 2 if pair.number in numbers else 1 if draws.refusal(pair.given) else 0
        for name in rows.keys() & pair.given.keys():
            rows[name][column] += 1
    lines = [
        f"{name:22}{go:>6}{refused:>9}{wrong:>5}" for name, (go, refused, wrong) in rows.items()
    ]
    return "\n".join([f"{'option':22}{'goes':>6}{'refused':>9}{'bad':>5}", *lines])


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
