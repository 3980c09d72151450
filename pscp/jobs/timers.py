"""When a job runs next: by systemd's timers, or by the lines of crontabs that start pscp-run.

What cannot be read, as on a machine without systemd, counts as not there.

Not here: what the fields of such a line mean (cron.py), what is behind by it (status.py).
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pscp.jobs import cron

SYSTEM_CRONTABS = ("/etc/crontab", "/etc/cron.d/*")  # with a user's name before the command
_RUNS_NOTHING = {"--check", "--dry-run", "--explain", "--list", "--status", "-n"}
_COMMAND_S = 5.0
_ARGV = re.compile(r"argv\[\]=(.*?) ;")
_MANAGERS: tuple[tuple[str, ...], ...] = ((), ("--user",))


@dataclass(frozen=True)
class Timer:
    """What starts a job, and when it does so next."""

    next_s: float  # seconds since the epoch
    period_s: float | None  # from one start to the next; None: not known
    name: str  # "cron", or the timer's unit


def find(jobs: Iterable[str], config: str, now_s: float) -> dict[str, Timer]:
    """Return for each job that something starts what does so next, of those that are known."""
    names, found = list(jobs), dict[str, Timer]()
    for command, timer in itertools.chain(_of_systemd(), _of_cron(now_s)):
        for job in started_jobs(command, names, config):
            if job not in found or timer.next_s < found[job].next_s:
                found[job] = timer
    return found


def started_jobs(command: str, names: Iterable[str], config: str) -> set[str]:
    """Return which of these jobs a command starts: without a name, pscp-run starts all."""
    words = _after_program(command)
    if words is None or _RUNS_NOTHING & set(words):
        return set()
    for word, following in itertools.pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option == "--config" and os.path.realpath(value if equals else following) != config:
            return set()
    known = list(names)
    return {each for word in words for each in fnmatch.filter(known, word)} or set(known)


def _after_program(command: str) -> list[str] | None:
    """Return the words after pscp-run, up to the end of that command; None: it is not there."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        for word in lexer:
            if os.path.basename(word) == "pscp-run":
                return list(
                    itertools.takewhile(lambda each: not set(each) <= set("();<>|&"), lexer)
                )
    except ValueError:
        pass
    return None


def _of_systemd() -> Iterator[tuple[str, Timer]]:
    for manager in _MANAGERS:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            yield from _of_manager(("systemctl", *manager))


def _of_manager(systemctl: tuple[str, ...]) -> Iterator[tuple[str, Timer]]:
    listed = json.loads(_output(*systemctl, "list-timers", "--all", "--output=json") or "[]")
    timers = {}
    for each in listed:
        if each["next"]:
            next_s, last_s = each["next"] / 1e6, (each["last"] or 0) / 1e6
            period_s = next_s - last_s if 0 < last_s < next_s else None
            timers[each["activates"]] = Timer(next_s, period_s, each["unit"])
    if not timers:
        return
    shown = _output(*systemctl, "show", "--property=Id,ExecStart", "--", *timers)
    for block in shown.split("\n\n"):
        lines = block.splitlines()
        unit = next((line[3:] for line in lines if line.startswith("Id=")), "")
        for argv in _ARGV.findall(block) if unit in timers else ():
            yield argv, timers[unit]


def _of_cron(now_s: float) -> Iterator[tuple[str, Timer]]:
    now = datetime.datetime.fromtimestamp(now_s)
    for line, has_user in _crontab_lines():
        split = cron.split_line(line, has_user=has_user)
        if split is None or "pscp-run" not in split[1]:
            continue
        with contextlib.suppress(ValueError):
            following = [
                each.timestamp() for each in itertools.islice(cron.times(split[0], now), 2)
            ]
            if following:
                yield split[1], Timer(following[0], following[-1] - following[0] or None, "cron")


def _crontab_lines() -> Iterator[tuple[str, bool]]:
    yield from ((line, False) for line in _output("crontab", "-l").splitlines())
    for path in itertools.chain.from_iterable(map(glob.glob, SYSTEM_CRONTABS)):
        with contextlib.suppress(OSError), open(path, errors="surrogateescape") as file:
            yield from ((line, True) for line in file.read().splitlines())


def _output(*argv: str) -> str:
    """Return what a command prints; "" where it fails."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return os.fsdecode(done.stdout) if done.returncode == 0 else ""
