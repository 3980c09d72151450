"""What became of runs, told at their end: as JSON, as text, as a page of HTML.

JSON has every field of JobRun and DestinationRun (docs/reports.md), and names as they are. In text
and HTML what could act on a terminal or a browser is spelled out.

Not here: all runs so far (status.py, page.py), numbers for a monitor (metrics.py), who
gets it (telling.py).
Read next: words.py.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pscp.jobs import words
from pscp.jobs.outcome import JobRun, Outcome, exit_code
from pscp.jobs.whole_file import write_whole
from pscp.progress import format_duration
from pscp.terminal_text import printable

if TYPE_CHECKING:
    import jinja2

# What to do about an outcome that nothing else explains.
_NEXT_STEP = {
    Outcome.UNREACHABLE: "pscp-run --check {job} tells what does not answer",
    Outcome.MISCONFIGURED: "mend jobs.toml; pscp-run --explain {job} shows what the job amounts to",
    Outcome.CUT: "nothing is lost: the next run goes on from where this one ended",
    Outcome.LOCKED: "another run is under way: wait for it, or end it",
}


def write(form: str, path: str, runs: Sequence[JobRun], again: str = "") -> None:
    """Write a report, of a form of FORMS, in one step; `again` says when it is tried again.

    Raises OSError.
    """
    write_whole(path, FORMS[form](runs, again))


def as_json(runs: Sequence[JobRun], again: str = "") -> str:
    told = [{**dataclasses.asdict(run), "exit_code": run.exit_code} for run in runs]
    return json.dumps({"exit_code": exit_code(runs), "again": again, "runs": told}, indent=1) + "\n"


def as_text(runs: Sequence[JobRun], again: str = "") -> str:
    """Return a few lines on each run: what failed, why, and what to do about it."""
    return "\n".join(line for run in runs for line in _lines(run, again)) + "\n"


def as_html(runs: Sequence[JobRun], again: str = "") -> str:
    steps = {run.run: next_step(run) for run in runs}
    return render("report.html", runs=runs, again=again, steps=steps, took=format_duration)


FORMS: dict[str, Callable[[Sequence[JobRun], str], str]] = {
    "json": as_json,
    "text": as_text,
    "html": as_html,
}


def _lines(run: JobRun, again: str) -> list[str]:
    taken = f"{words.date(run.started_s)}, {format_duration(run.seconds)}"
    lines = [f"{run.job}: {run.outcome} ({taken}, exit code {run.exit_code})"]
    lines += [f"  {line}" for line in run.message.splitlines()]
    for part in run.destinations:
        why, *more = part.message.splitlines() or [""]
        lines += [f"  {part.destination}: {part.outcome}{why and ': '}{why}"]
        lines += [f"    {line}" for line in (*more, words.copied(part))]
        for kind in words.kinds(part.failures):
            lines += [f"    {kind.text}", *([f"      {kind.hint}"] if kind.hint else [])]
    for ran in run.commands:
        lines += [] if ran.ok else [f"  {ran.name} said:", *words.said(ran)] * bool(ran.output)
    lines += [f"  {words.left(run)}"] if run.files_waiting else []
    lines += [f"  {next_step(run)}"] if next_step(run) else []
    lines += [f"  {again}"] if again and run.outcome not in words.GOOD else []
    return [printable(line) for line in lines]


def next_step(run: JobRun) -> str:
    """Return what to do about a run's outcome; "" where its failures say that."""
    return _NEXT_STEP.get(run.outcome, "").format(job=run.job)


@functools.cache
def _templates() -> jinja2.Environment:
    import jinja2  # here: a night without a page needs none
    from markupsafe import Markup

    def safe(value: object) -> object:
        return (
            printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        )

    made = jinja2.Environment(
        autoescape=True,
        finalize=safe,
        loader=jinja2.PackageLoader("pscp.jobs"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(words=words, signs=words.SIGNS)
    return made


def render(name: str, **values: object) -> str:
    """Return the page that a template makes of these values; every text is made safe."""
    return _templates().get_template(name).render(**values)
