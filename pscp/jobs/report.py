"""What became of runs, told at their end: as JSON, as text, as a page of HTML.

JSON has every field of JobRun and DestinationRun (docs/reports.md), and names as they are. In text
and HTML what could act on a terminal or a browser is spelled out.

Not here: all runs so far (status.py, page.py), numbers for a monitor (metrics.py), who
gets it (telling.py), how a file is replaced (whole_file.py).
Read next: words.py.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pscp.jobs import words
from pscp.jobs.outcome import JobRun, Outcome, exit_code
from pscp.jobs.whole_file import write_whole
from pscp.progress import Failure, count, format_duration
from pscp.terminal_text import printable

if TYPE_CHECKING:
    import jinja2

_LINES_SHOWN = 10  # of what a command wrote
_NAMES_SHOWN = 3  # of the files that failed for one reason
# What to do about an outcome that nothing else explains.
_NEXT_STEP = {
    Outcome.UNREACHABLE: "pscp-run --check {job} tells what does not answer",
    Outcome.MISCONFIGURED: "mend jobs.toml; pscp-run --explain {job} shows what the job amounts to",
    Outcome.CUT: "nothing is lost: the next run goes on from where this one ended",
    Outcome.LOCKED: "another run is under way: wait for it, or end it",
}


def write(form: str, path: str, runs: Sequence[JobRun]) -> None:
    """Write a report, of a form of FORMS, in one step. Raises OSError."""
    write_whole(path, FORMS[form](runs))


def as_json(runs: Sequence[JobRun]) -> str:
    told = [{**dataclasses.asdict(run), "exit_code": run.exit_code} for run in runs]
    return json.dumps({"exit_code": exit_code(runs), "runs": told}, indent=1) + "\n"


def as_text(runs: Sequence[JobRun]) -> str:
    return "\n".join(line for run in runs for line in lines(run)) + "\n"


def as_html(runs: Sequence[JobRun]) -> str:
    return render("report.html", runs=runs)


FORMS = {"json": as_json, "text": as_text, "html": as_html}


def lines(run: JobRun) -> list[str]:
    """Return a few printable lines on a run: what failed, why, and what to do about it."""
    taken = f"{words.date(run.started_s)}, {format_duration(run.seconds)}"
    found = [f"{run.job}: {run.outcome} ({taken}, exit code {run.exit_code})"]
    found += [f"  {line}" for line in run.message.splitlines()]
    for part in run.destinations:
        why, *more = part.message.splitlines() or [""]
        found.append(f"  {part.destination}: {part.outcome}{why and ': '}{why}")
        more += [words.copied(part), *_reasons(part.failures)]
        found += [f"    {line}" for line in more]
    for ran in run.commands:
        if ran.output and not ran.ok:
            said = ran.output.splitlines()[-_LINES_SHOWN:]
            found += [f"  {ran.name} said:", *(f"    | {line}" for line in said)]
    if run.files_waiting:
        waiting = count(run.files_waiting, "file")
        found.append(f"  {waiting} left for the next run: still being written, or new")
    if run.outcome in _NEXT_STEP:
        found.append(f"  {_NEXT_STEP[run.outcome].format(job=run.job)}")
    return [printable(line) for line in found]


def _reasons(failures: Iterable[Failure]) -> Iterator[str]:
    """Yield why files failed, the reason for most of them first, each with the first names."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in failures:
        found.setdefault((each.message, each.hint), []).append(each.path)
    for (message, hint), paths in sorted(found.items(), key=lambda item: -len(item[1])):
        left = len(paths) - _NAMES_SHOWN
        more = [f"and {left} more"] if left > 0 else []
        yield f"{message} ({len(paths)}): {', '.join(paths[:_NAMES_SHOWN] + more)}"
        if hint:
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
    made.globals.update(words=words, lines=lines)
    return made


def render(name: str, **values: object) -> str:
    """Return the page that a template makes of these values; every text is made safe."""
    return _templates().get_template(name).render(**values)
