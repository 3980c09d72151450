"""The lines of pscp, or pscp-zfs, that a job amounts to, quoted for bash.

They do what one attempt of the job does. What has no like on a command line stands in a comment:
rates by the time of day, what waits until it has settled, and moves where that or an option leaves
files out, which have to stay.

Not here: how a job is run (../calls/api.py).
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence

from pscp.ground.locations import parse_location
from pscp.ground.terminal_text import printable
from pscp.jobs.toml.job import Job
from pscp.options.option_pairs import is_given

_ALL = '"$@"'  # the sources
# What a shell takes as it is, or for a pattern where the job has one too.
_QUOTED_IN_PATTERNS = re.compile(r"[^\w@%+=:,./*?!\[\]-]+", re.ASCII)
_LEAVING_OUT = (
    "filters", "files_from", "one_file_system", "update", "existing", "ignore_existing",
    "min_size_bytes", "max_size_bytes", "min_age_s", "max_age_s",
)  # fmt: skip


def lines(job: Job) -> list[str]:
    """Return the job as lines of a shell script."""
    steps = _steps(job)
    if job.before is not None:
        steps = [_shell(job.before), *steps]
    ends = (job.after_success, job.after_failure)
    if any(ends):
        success, failure = (_shell(each) if each else "true" for each in ends)
        script = [f"if {' && '.join(steps)}", "then", f"    {success}", "else", f"    {failure}"]
        return [*_comments(job), *script, "fi"]
    behind = " &&" if job.before is not None or job.after != "keep" else ""
    return [*_comments(job), *(f"{step}{behind}" for step in steps[:-1]), steps[-1]]


def argv(job: Job, destination: str, sources: Sequence[str], *more: str) -> list[list[str]]:
    """Return the words of each command that sends these sources, or the datasets, there."""
    manifest = f"--manifest={job.manifest_of(destination, 'RUN', time.time())}"
    words = job.chosen(destination).words
    words = tuple(manifest if each.startswith("--manifest=") else each for each in words)
    if job.datasets:
        return [["pscp-zfs", *words, *more, *each] for each in job.replications(destination)]
    age = (f"--min-age={job.min_age_s}",) if job.min_age_s else ()
    return [["pscp", *words, *age, *more, *sources, job.place(destination)]]


def _steps(job: Job) -> list[str]:
    """Return a line for the sources, one for each destination, and what follows once all are."""
    found = [] if job.datasets else [_sources(job)]
    limit = [] if job.max_duration_s is None else ["timeout", str(job.max_duration_s)]
    more = (f"--retry-for={job.retry_for_s}",) if job.retry_for_s else ()
    for destination in job.destinations:
        is_last = destination == job.destinations[-1]
        removes = ("--remove-source-files",) if job.after == "remove" and is_last else ()
        for words in argv(job, destination, ("--", _ALL), *more, *removes):
            quoted = (each if each is _ALL else shlex.quote(each) for each in (*limit, *words))
            found.append(" ".join(quoted))
    if job.after == "move" and job.move_to is not None and not _leaves_out(job):
        folder = shlex.quote(job.move_to)
        found += [f"mkdir -p {folder}", f"mv -n -t {folder} -- {_ALL}"]
    return found


def _sources(job: Job) -> str:
    """Return a line that makes the sources what the lines below it have as "$@": none, where a list
    or the command that prints it fails.
    """
    if job.sources:
        return f"set -- {' '.join(map(_pattern, job.sources))}"
    listed = f"<({shlex.join(job.sources_command)}) && wait $!"
    if job.sources_from is not None:
        listed = shlex.quote(job.sources_from)
    ends = " -d ''" if job.options.from0 else ""
    begin = f"set -- && cd {shlex.quote(job.folder)} && "
    return f'{begin}mapfile -t{ends} sources < {listed} && set -- "${{sources[@]}}"'


def _leaves_out(job: Job) -> bool:
    """Return whether files of the sources may stay though all went well."""
    waits = job.min_age_s or job.settled_for_s
    return bool(waits) or any(is_given(job.options, name) for name in _LEAVING_OUT)


def _pattern(source: str) -> str:
    """Return a source as a shell reads it: with its pattern, where it has one for here."""
    if parse_location(source).is_remote or not re.search(r"[*?\[]", source):
        return shlex.quote(source)
    return _QUOTED_IN_PATTERNS.sub(lambda match: shlex.quote(match[0]), source)


def _shell(command: str | tuple[str, ...]) -> str:
    return shlex.join(["sh", "-c", command] if isinstance(command, str) else command)


def _comments(job: Job) -> list[str]:
    found = []
    for each in job.limit:
        rate = "no --limit" if each.kbit_s is None else f"--limit={each.kbit_s}"
        found.append(f"# {each.begins}-{each.ends}: {rate}")
    if job.settled_for_s:
        found.append(f"# files not seen unchanged for {job.settled_for_s} s are left for later")
    if job.after == "move" and _leaves_out(job):
        folder = printable(job.move_to or "")
        found.append(f"# what every destination has is moved to {folder}, and replaces nothing")
    if job.depends_on:
        found.append(f"# after: {' '.join(job.depends_on)}")
    return found
