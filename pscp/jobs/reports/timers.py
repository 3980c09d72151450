"""When a job runs next: by systemd's timers, or by the lines of crontabs that start pscp-run.

What cannot be read, as on a machine without systemd, counts as not there. Cron's times are local
and without a zone: in the hour that a change of the clocks leaves out or repeats, cron itself is
not exact either.

Not here: what is behind by these times (status.py).
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import glob
import itertools
import json
import os
import re
import shlex
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cronsim import CronSim, CronSimError

SYSTEM_CRONTABS = ("/etc/crontab", "/etc/cron.d/*")  # with a user's name before the command
_RUNS_NOTHING = {"--check", "--dry-run", "--explain", "--list", "--status", "-n"}
_COMMAND_S = 5.0
_ARGV = re.compile(r"argv\[\]=(.*?) ;")  # in what systemctl shows of ExecStart
_CRON_LINE = re.compile(r"\s*(@\w+|[*\d]\S*(?:\s+\S+){4})\s+(.*pscp-run.*)")
_NICKNAMES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *",
}  # fmt: skip


@dataclass(frozen=True)
class Timer:
    """The starter of a job, and when it does so next."""

    next_s: float  # seconds since the epoch
    period_s: float | None  # from one start to the next; None: not known
    name: str  # "cron", or the timer's unit


def find(jobs: Collection[str], config: str, now_s: float) -> dict[str, Timer]:
    """Return for each job that something starts what does so next, of those that are known."""
    known = [*_of_systemd("systemctl"), *_of_systemd("systemctl", "--user"), *_of_cron(now_s)]
    found = dict[str, Timer]()
    for command, timer in sorted(known, key=lambda each: each[1].next_s):
        for job in started_jobs(command, jobs, config):
            found.setdefault(job, timer)
    return found


def started_jobs(command: str, jobs: Collection[str], config: str) -> set[str]:
    """Return which of these jobs a command starts: without a name, pscp-run starts all."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        after = itertools.dropwhile(lambda word: os.path.basename(word) != "pscp-run", lexer)
        words = list(itertools.takewhile(lambda word: not set(word) <= set("();<>|&"), after))
    except ValueError:  # a quotation that does not end
        return set()
    if not words or _RUNS_NOTHING & set(words):
        return set()
    for word, following in itertools.pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option == "--config" and os.path.realpath(value if equals else following) != config:
            return set()
    return {job for word in words for job in fnmatch.filter(jobs, word)} or set(jobs)


def _of_systemd(*systemctl: str) -> Iterator[tuple[str, Timer]]:
    """Yield the commands that a service manager's timers start."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):  # no such answer
        for each in json.loads(_output(*systemctl, "list-timers", "--all", "--output=json")):
            if each["next"]:
                next_s, last_s = each["next"] / 1e6, (each["last"] or 0) / 1e6
                period_s = next_s - last_s if 0 < last_s < next_s else None
                timer = Timer(next_s, period_s, each["unit"])
                shown = _output(*systemctl, "show", "--property=ExecStart", "--", each["activates"])
                yield from ((argv, timer) for argv in _ARGV.findall(shown))


def _of_cron(now_s: float) -> Iterator[tuple[str, Timer]]:
    """Yield the commands of crontabs that have the word pscp-run."""
    lines = _output("crontab", "-l").splitlines()
    for path in itertools.chain.from_iterable(map(glob.glob, SYSTEM_CRONTABS)):
        with contextlib.suppress(OSError), open(path, errors="surrogateescape") as file:
            lines += file.read().splitlines()
    now = datetime.datetime.fromtimestamp(now_s)
    for match in filter(None, map(_CRON_LINE.match, lines)):
        with contextlib.suppress(CronSimError, ValueError, StopIteration):  # @reboot, 30 February
            times = CronSim(_NICKNAMES.get(match[1], match[1]), now)
            next_s, second_s = next(times).timestamp(), next(times).timestamp()
            yield match[2], Timer(next_s, second_s - next_s, "cron")


def _output(*argv: str) -> str:
    """Return what a command prints; "" where it fails."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return os.fsdecode(done.stdout) if done.returncode == 0 else ""
