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
_VALUES = {"--config": 1, "--if-running": 1, "--report": 2}  # options, and words that follow each
_REDIRECTED = re.compile(r"(\s)[0-9]+(?=[<>])")  # the number of a descriptor, as in 2>&1
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


def find(
    jobs: Collection[str], config: str, now_s: float, *, is_default: bool = True
) -> dict[str, Timer]:
    """Return for each job that something starts what does so next, of those that are known.

    `is_default`: this file of jobs is the one that pscp-run finds without --config.
    """
    known = [*_of_systemd("systemctl"), *_of_systemd("systemctl", "--user"), *_of_cron(now_s)]
    found = dict[str, Timer]()
    for command, timer in sorted(known, key=lambda each: each[1].next_s):
        for job in started_jobs(command, jobs, config, is_default=is_default):
            found.setdefault(job, timer)
    return found


def started_jobs(
    command: str, jobs: Collection[str], config: str, *, is_default: bool = True
) -> set[str]:
    """Return which jobs of this file a command starts: all of them where it names none."""
    words = _words(command)
    if not words or _RUNS_NOTHING & set(words):
        return set()
    is_ours, named, rest = is_default, list[str](), iter(words[1:])
    for word in rest:
        option, equals, value = word.partition("=")
        if option in _VALUES:
            values = [value] if equals else [*itertools.islice(rest, _VALUES[option])]
            if option == "--config":
                is_ours = any(config in _places(each) for each in values)
        elif not word.startswith("-"):
            named.append(word)
    if not is_ours:
        return set()
    return {job for word in named for job in fnmatch.filter(jobs, word)} if named else set(jobs)


def _words(command: str) -> list[str]:
    """Return pscp-run and its words in a shell's line, [] where there is none."""
    lexer = shlex.shlex(_REDIRECTED.sub(r"\1", command), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        after = itertools.dropwhile(lambda word: os.path.basename(word) != "pscp-run", lexer)
        return list(itertools.takewhile(lambda word: not set(word) <= set("();<>|&"), after))
    except ValueError:  # a quotation that does not end
        return []


def _places(path: str) -> set[str]:
    """Return the files that a path in a command may mean: cron starts it in the home folder."""
    path = os.path.expanduser(os.path.expandvars(path))
    return {os.path.realpath(path), os.path.realpath(os.path.join(os.path.expanduser("~"), path))}


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
