"""Reads jobs.toml: its jobs, or every mistake in it at once, each with its line.

Nothing is contacted and nothing is run. A relative path begins at the file's own folder, so that
a job does the same from cron, from systemd and by hand.

Not here: where a key stands and how a mistake is told (../../toml), which keys and values there are
(schema.py), what does not go together in a job (one_job.py).
Read next: one_job.py.
"""

from __future__ import annotations

import graphlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pscp.ground.errors import UsageError
from pscp.jobs.toml import schema
from pscp.jobs.toml.job import Job
from pscp.jobs.toml.one_job import JobReader, Table, key_of
from pscp.toml.reading import Form, Mistakes, nearest, parsed

JOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}", re.ASCII)  # a file's name, a label
_DEPTHS: dict[object, int] = {"job": 3, "host": 3, "defaults": 2}  # of the keys in these tables


@dataclass(frozen=True)
class Config:
    """The content of jobs.toml."""

    path: str
    jobs: dict[str, Job]  # in the order of the file


def default_paths() -> list[str]:
    """Return where a file of jobs is looked for without --config: the first that is there."""
    users = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [os.path.join(folder, "pscp", "jobs.toml") for folder in (users, "/etc")]


def find_config() -> str:
    """Return the user's file of jobs, or the machine's. Raises UsageError where there is none."""
    paths = default_paths()
    for path in paths:
        if os.path.lexists(path):
            return path
    hint = "docs/jobs.md shows how to write one; --config names another"
    raise UsageError(f"there is no file of jobs: neither {paths[0]} nor {paths[1]}", hint)


def is_default(config: str) -> bool:
    """Return whether this whole path is the file that is found without --config."""
    found = next(filter(os.path.lexists, default_paths()), None)
    return found is not None and os.path.realpath(found) == config


def load(path: str) -> Config:
    """Read and check a file of jobs. Raises UsageError, with a line for each mistake."""
    document, wrong = parsed(path, "--config names another file of jobs", "nothing was run")
    folder = os.path.dirname(os.path.abspath(path))
    checked = _FORM.read(document, folder, wrong)

    def table(*place: str) -> Table:
        values, in_order = checked, document
        for key in place:
            values, in_order = values.get(key, {}), in_order.get(key, {})
        return Table(place, {key: values[key] for key in in_order})

    hosts = {name: table("host", name) for name in checked.get("host", {})}
    jobs = {
        name: JobReader(table("job", name), table("defaults"), hosts, folder, wrong).job()
        for name in document.get("job", {})
    }
    _check_names(jobs, wrong)
    _check_dependencies(jobs, wrong)
    _check_files(jobs, wrong)
    _check_hosts(jobs, hosts, wrong)
    wrong.raise_any()
    return Config(path, jobs)


def _unknown(*place: str) -> str:
    """Say what is wrong with a key that there is not."""
    *tables, key = place
    if key in schema.REFUSED:
        return f"{key} makes no sense in a job: {schema.REFUSED[key]}"
    if tables and key in schema.TABLES["job"].__annotations__:
        return f"{key} cannot be in {'.'.join(tables)}: it belongs to a job"
    if tables and key in schema.EVERY:
        return f"{key} makes no sense in a job: it is for the command line"
    known = schema.TABLES[tables[0]].__annotations__ if tables else schema.TABLES
    what = repr(".".join(place)) if tables else repr(key)
    return f"there is no {what}{nearest(key.replace('_', '-'), known)}"


_TIMES = 'must be a time of day, such as "08:00-20:00", or "else"'
_FORM = Form(schema.DOCUMENT, _DEPTHS, _unknown, _TIMES)


def _check_names(jobs: Mapping[str, Job], wrong: Mistakes) -> None:
    for name in jobs:
        if not JOB_NAME.fullmatch(name):
            wrong.add(("job", name), f"{name!r}: a job's name has letters, digits and _ . + -")
    if not jobs and not wrong.found:
        wrong.add(("job",), "there is no job: give it a table such as [job.NAME]")


def _check_dependencies(jobs: Mapping[str, Job], wrong: Mistakes) -> None:
    for job in jobs.values():
        for number, name in enumerate(job.depends_on):
            if name not in jobs:
                text = f"depends-on: there is no job {name!r}{nearest(name, jobs)}"
                wrong.add(("job", job.name, "depends-on", number), text)
    try:
        graphlib.TopologicalSorter({job.name: job.depends_on for job in jobs.values()}).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
        text = f"depends-on goes in a circle: {' needs '.join(circle[::-1])}"
        wrong.add(("job", min(circle, key=[*jobs].index), "depends-on"), text)


def _check_files(jobs: Mapping[str, Job], wrong: Mistakes) -> None:
    """Note what would be written over: a file that two keys name, of one job or of two."""
    owners: dict[str, str] = {}
    for job in jobs.values():
        files = [("manifest", job.options.manifest), ("metrics", job.metrics)]
        for key, file in (*files, *(("report", file) for _, file in job.report)):
            # In a folder of metrics each job has a file of its own.
            if not file or "{run}" in file or file.endswith("/") or os.path.isdir(file):
                continue
            if (path := os.path.realpath(file)) in owners:
                text = f"{key}: {file} is written by {owners[path]} as well"
                if key == "report" and not owners[path].endswith(f" job.{job.name}"):
                    text += "; {job} in its name, or a folder, gives each job its own"
                wrong.add(("job", job.name, key), text)
            owners[path] = f"the {key} of job.{job.name}"


def _check_hosts(jobs: Mapping[str, Job], hosts: Mapping[str, Table], wrong: Mistakes) -> None:
    """Note each host that no job knows, or another table is of: it would never hold."""
    keys = dict[str, str]()
    for name, table in hosts.items():
        other = keys.setdefault(key_of(name, table), name)
        if other != name:
            wrong.add(("host", name), f"host.{name}: host.{other} is of the same: make one of them")
    ends = ("sources", "sources-from", "sources-command", "datasets", "destinations")
    tables = [("defaults",), *(("job", name) for name in jobs)]
    if wrong.has_any((*table, key) for table in tables for key in ends):
        return  # it may be known to a job whose ends are wrong
    unknown = keys.keys() - {key for job in jobs.values() for key in job.by_host}
    for name in (keys[key] for key in unknown):
        wrong.add(("host", name), f"host.{name}: no job sends anything there, or from there")
