"""Whole copies in forks of this process, disturbed at any call, for so long as is asked.

Not here: one example (../model/drawn.py), the mutants (mutants.py).
"""

from __future__ import annotations

import random
import secrets
import tempfile
import time
import traceback
from pathlib import Path

import drawn
import whole

PLACE = "/dev/shm"


def run(
    seconds: float, seed: int | None = None, most: int = 0, stop: bool = False, focus: str = ""
) -> int:
    """Run examples for so long, or the one with this seed; returns the exit code.

    With `most` only so many, from that seed on; with `stop` until one is bad; with `focus` only
    such ones.
    """
    first = secrets.randbelow(1 << 31) if seed is None else seed
    most = most or (1 << 31 if seed is None else 1)
    print(f"seed {first}: scripts/soak model {seconds:.0f} --seed {first}", flush=True)
    until_s = time.monotonic() + seconds
    done = bad = disturbed = 0
    with tempfile.TemporaryDirectory(dir=PLACE) as home:
        for number in range(most):
            if time.monotonic() > until_s or (bad and stop):
                break
            done += 1
            try:
                wrong, world = drawn.example(
                    Path(home) / str(number), random.Random(first + number), focus
                )
            except Exception:
                print(f"\nBUG of the model: --seed {first + number}\n{traceback.format_exc()}")
                bad += 1
                continue
            disturbed += world.disturbed
            if wrong:
                bad += 1
                show(world, first + number, wrong)
    print(f"{done} examples, {disturbed} disturbances, {bad} bad; seed {first}")
    return 1 if bad else 0


def show(world: whole.World, seed: int, wrong: list[str]) -> None:
    trial = world.trial
    print(f"\nBAD: scripts/soak model 1 --seed {seed}   ({trial.way.direction})")
    print("   ", trial.given, trial.sources, trial.to, trial.listed)
    print(*(f"    {each}" for each in wrong[:6]), sep="\n")
    print(*(f"    {each}" for each in world.said), sep="\n", flush=True)
