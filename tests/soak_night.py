"""A night of 20,000 files, an hour long: python tests/soak_night.py.

No test run does it; needs sshd, and root for a small disk. Files come and grow while pscp-run is
started again and again; in half of its runs a server is killed (and restarted), the link is cut,
the disk is full, the run is killed, or the clock is a day off. Each run is compared with what is
seen; in the end every file is at both places, once. Ends with exit code 1 where something is not
as it was told. FILES, MINUTES and SEED in the environment change what is done.

Not here: what is compared (night.py), the same with 300 files (faults/test_night.py).
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from faults.conftest import until
from night import ENDS, Night, Running, Sshd, full

from pscp.endpoint.frames import wire
from pscp.jobs.reports.outcome import JobRun

FILES, MINUTES = int(os.environ.get("FILES", 20_000)), float(os.environ.get("MINUTES", 60))
GROWS_EVERY, BIG_EVERY = 20, 200  # files
DAY_S = 24 * 3600.0


def coming() -> Iterator[Sequence[str]]:
    """Files, as time passes: all have come after the given minutes."""
    begin_s, number = time.monotonic(), 0
    while number < FILES:
        passed = (time.monotonic() - begin_s) / (60 * MINUTES)
        end = min(FILES, int(FILES * passed) + 1)
        yield [name_of(each) for each in range(number, end)]
        number = end


def name_of(number: int) -> str:
    grows = "-grows" if number % GROWS_EVERY == 0 else ""
    big = "-big" if number % BIG_EVERY == 1 else ""
    return f"{number:06}{grows}{big}.rec"


class Soak:
    """Nights with random faults."""

    def __init__(self, night: Night) -> None:
        self.night = night
        self.faults: list[Callable[[], JobRun | None]] = [
            self.server_dies, self.link_is_cut, self.disk_is_full, self.killed, self.clock,
        ]  # fmt: skip

    def once(self) -> str:
        """Run the job once, perhaps with a fault; return what happened, and what came of it."""
        fault = random.choice([*self.faults, *[self.night.run] * len(self.faults)])
        run = fault()
        what = fault.__name__.replace("_", " ")
        return f"{what}: {'killed' if run is None else run.outcome}"

    def server_dies(self) -> JobRun | None:
        """Once it is sent files, if any; it is up by the next run."""
        end = random.choice(ENDS)
        server = self.night.servers[end]
        is_blocked = self.night.blocked(end, wire.PACK)

        def die(running: Running) -> None:
            if self.either(is_blocked, running):
                server.kill()
            self.night.mend(end)

        run = self.night.run(die)
        if not server.is_up:
            server.revive()
        return run

    def link_is_cut(self) -> JobRun | None:
        end = random.choice(ENDS)
        link = self.night.links[end]
        link.rule("kill", connections=[link.connections], type=wire.PACK)
        run = self.night.run()
        self.night.mend(end)
        return run

    def disk_is_full(self) -> JobRun | None:
        with full(self.night.home / "two"):
            return self.night.run()

    def killed(self) -> JobRun | None:
        end, kind = random.choice(ENDS), random.choice((wire.PACK, wire.DATA))
        is_blocked = self.night.blocked(end, kind)

        def kill(running: Running) -> None:
            if self.either(is_blocked, running):
                running.process.kill()
            self.night.mend(end)

        return self.night.run(kill)

    def clock(self) -> JobRun | None:
        return self.night.run(step_s=random.choice((-DAY_S, DAY_S)))

    @staticmethod
    def either(is_blocked: Callable[[], bool], running: Running) -> bool:
        """Wait until the run waits there, or is over; return whether it waits."""
        until(lambda: is_blocked() or running.process.poll() is not None)
        return running.process.poll() is None


def main() -> int:
    random.seed(int(os.environ.get("SEED", 1)))
    begin_s, seen = time.monotonic(), collections.Counter[str]()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pscp-soak-")))
        os.environ.update(XDG_STATE_HOME=str(home / "state"), TMPDIR=str(home))
        night = Night(home, Sshd, coming(), stack)
        soak = Soak(night)
        while len(night.arrivals.names) < FILES:
            seen[soak.once()] += 1
        night.finish()
        night.check_end()
    for what, times in sorted(seen.items()):
        print(f"{times:5} {what}")
    took = f"{time.monotonic() - begin_s:.0f} s"
    print(f"{FILES} files in {len(night.codes)} runs, {took}: each at both places, once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
