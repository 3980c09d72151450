"""The outcomes of runs, in words: as JSON, as text, as a page of HTML; columns of text.

JSON has every field of JobRun and DestinationRun (docs/reports.md), and names as they are. In text
and HTML what could act on a terminal or a browser is spelled out.

Not here: all runs so far (status.py, page.py), numbers for a monitor (notifications.py), who
gets it (notifications.py), how a file is replaced in one step (../../ground/state.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pscp.ground.locations import placed
from pscp.ground.state import replacing
from pscp.ground.terminal_text import printable
from pscp.jobs.reports.outcome import GOOD, DestinationRun, JobRun, Outcome, exit_code
from pscp.progress.progress import Failure, count, format_bytes, format_duration

if TYPE_CHECKING:
    import jinja2

# These may lead to a file, where a shell has redirected them; other devices are seen to be none.
_DEVICES = ("/dev/fd/", "/proc/")
# Nor are these opened anew: a file is then written from its begin on, and a pipe takes no more than
# it holds.
_STANDARD = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
COMMAND = "pscp-run"
_LINES_SHOWN = 10  # of what a command wrote
_DESTINATIONS_SHOWN = 6  # in the first line, of those that failed
_NAMES_SHOWN = 3  # of the files that failed for one reason
# What to do about an outcome that nothing else explains.
_NEXT_STEP = {
    Outcome.UNREACHABLE: "{command} --check {job} tells what does not answer",
    Outcome.MISCONFIGURED: "mend that; {command} --check {job} then tells whether it would go",
    Outcome.CUT: "nothing is lost: the next run goes on from where this one ended",
    Outcome.LOCKED: "another run is under way: wait for it, or end it",
}


def copied(part: DestinationRun) -> str:
    """Return, for example: 298 copied, 2 failed, 4.1 GB in 10 min 2 s (sent at 6.8 MB/s).

    The rate is of the seconds in which bytes moved.
    """
    rate = f" (sent at {format_bytes(part.bytes_per_s)}/s)" if part.bytes_sent else ""
    texts = [
        f"{part.files} copied",
        f"{part.files_unchanged} there already" if part.files_unchanged else "",
        f"{part.files_linked} linked" if part.files_linked else "",
        *skipped_and_deleted(part.files_skipped, part.files_deleted),
        f"{part.files_failed} failed" if part.files_failed else "",
        f"{format_bytes(part.bytes)} in {format_duration(part.seconds)}{rate}",
        f"connected again {count(part.connections_lost, 'time')}" if part.connections_lost else "",
        f"{count(part.chunks_resent, 'chunk')} sent again" if part.chunks_resent else "",
        f"{part.attempts} attempts" if part.attempts > 1 else "",
        "" if part.verified else "not verified",
    ]
    return ", ".join(filter(None, texts))


def skipped_and_deleted(skipped: int, deleted: int) -> list[str]:
    """Return, for example: ["2 skipped", "3 deleted"], as the closing line of a copy has it."""
    counted = ((skipped, "skipped"), (deleted, "deleted"))
    return [f"{number} {what}" for number, what in counted if number]


def date(epoch_s: float | None) -> str:
    """Return local time, for example: 2026-11-23 02:00; "-" for none that a clock shows."""
    if epoch_s is not None:
        with contextlib.suppress(OverflowError, ValueError, OSError):
            return time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch_s))
    return "-"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with columns, made printable."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]


def write_whole(path: str, text: str) -> None:
    """Replace what a file holds in one step, also at a power loss; its links stay.

    A device or a pipe is written to as it is, without waiting for a reader. Raises OSError.
    """
    data = text.encode("utf-8", "backslashreplace")
    if path in _STANDARD:
        with open(os.dup(_STANDARD[path]), "wb") as file:
            file.write(data)
        return
    if path.startswith(_DEVICES) or (os.path.exists(path) and not os.path.isfile(path)):
        with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), "wb") as file:
            file.write(data)
        return
    with replacing(os.path.realpath(path)) as file:
        file.write(data)


def as_json(runs: Sequence[JobRun], command: str = "") -> str:
    told = [{**dataclasses.asdict(run), "exit_code": run.exit_code} for run in runs]
    return json.dumps({"exit_code": exit_code(runs), "runs": told}, indent=1) + "\n"


def as_text(runs: Sequence[JobRun], command: str = COMMAND) -> str:
    return "\n".join(line for run in runs for line in lines(run, command)) + "\n"


def as_html(runs: Sequence[JobRun], command: str = COMMAND) -> str:
    return render("report.html", runs=runs, lines=functools.partial(lines, command=command))


FORMS = {"json": as_json, "text": as_text, "html": as_html}


def lines(run: JobRun, command: str = COMMAND, hints: set[str] | None = None) -> list[str]:
    """Return a few printable lines on a run: what failed, why, and what to do about it.

    `command` is pscp-run with the --config that it had. `hints` are those that were said
    already, in lines before these: none is said again.
    """
    told = set[str]() if hints is None else hints
    taken = f"{date(run.started_s)}, {format_duration(run.seconds)}"
    found = [f"{run.job}: {_became(run)} ({taken}, exit code {run.exit_code})"]
    found += [f"  {line}" for line in run.message.splitlines()]
    for part in sorted(run.destinations, key=lambda part: part.outcome in GOOD):
        why, *given = part.message.splitlines() or [""]
        more = [line for line in given if line not in told]
        told.update(given)
        found.append(f"  {part.destination}: {part.outcome}{why and ': '}{why}")
        more += [copied(part), *reasons(part.failures, told, why)]
        found += [f"    {line}" for line in more]
    for ran in run.commands:
        if ran.output and not ran.ok:
            said = ran.output.splitlines()[-_LINES_SHOWN:]
            found += [f"  {ran.name} said:", *(f"    | {line}" for line in said)]
    if run.files_waiting:
        waiting = count(run.files_waiting, "file")
        found.append(f"  {waiting} left for the next run: too young, or may still change")
    if run.outcome in _NEXT_STEP:
        found.append(f"  {_NEXT_STEP[run.outcome].format(command=command, job=run.job)}")
    return [printable(line) for line in found]


def _became(run: JobRun) -> str:
    """Return, for example: 2 of 12 destinations failed: site07:mirror/, site09:mirror/."""
    bad = [part for part in run.destinations if part.outcome not in GOOD]
    if not 0 < len(bad) < len(run.destinations):
        return run.outcome
    became = {part.outcome for part in bad}
    how = bad[0].outcome if len(became) == 1 else "not done"
    left = len(bad) - _DESTINATIONS_SHOWN
    names = [part.destination for part in bad[:_DESTINATIONS_SHOWN]]
    names += [f"and {left} more"] if left > 0 else []
    return f"{len(bad)} of {len(run.destinations)} destinations {how}: {', '.join(names)}"


def summary(run: JobRun) -> str:
    """Return in a line what a run that did not go well came to, "" of one that did."""
    found = []
    if run.message:
        found.append(" ".join(run.message.split("\n")))
    for part in run.destinations:
        if part.outcome not in GOOD and (part.attempts or not run.message):
            why = part.message.partition("\n")[0]
            told = [why, *itertools.islice(reasons(part.failures, set(), why), 1)]
            its = "; ".join(dict.fromkeys(filter(None, told))) or part.outcome
            if its not in found:  # as where the time of all is over
                found.append(placed(its, part.destination))
    return printable("; ".join(found))


def reasons(failures: Iterable[Failure], said: set[str], why: str = "") -> Iterator[str]:
    """Yield why files failed, the reason for most of them first, each with the first names.

    Hints are added to those that were said; none is said again. `why` was said of the destination.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for each in failures:
        found.setdefault((each.message, each.hint), []).append(each.path)
    for (message, hint), paths in sorted(found.items(), key=lambda item: -len(item[1])):
        left = len(paths) - _NAMES_SHOWN
        more = [f"and {left} more"] if left > 0 else []
        names = ", ".join(paths[:_NAMES_SHOWN] + more)
        if names or message != why:
            yield f"{message} ({len(paths)}): {names}" if names else message
        if hint and hint not in said:
            said.add(hint)
            yield f"  {hint}"


@functools.cache
def _templates() -> jinja2.Environment:
    import jinja2  # here: a night without a page needs none

    made = jinja2.Environment(
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # not Markup
        loader=jinja2.PackageLoader("pscp.jobs"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(Outcome=Outcome, date=date, lines=lines)
    return made


def render(name: str, **values: object) -> str:
    """Return the page that a template makes of these values; every text is made safe."""
    return _templates().get_template(name).render(**values)
