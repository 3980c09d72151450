"""Reads jobs.toml: its jobs, or every mistake in it at once, each with its line.

Nothing is contacted and nothing is run. A relative path begins at the file's own folder, so that
a job does the same from cron, from systemd and by hand.

Not here: where a key stands (positions.py), which keys and values there are (schema.py), what does
not go together in a job (one_job.py).
Read next: one_job.py.
"""

from __future__ import annotations

import difflib
import graphlib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pscp.ground.errors import UsageError
from pscp.ground.terminal_text import printable
from pscp.jobs.toml import schema
from pscp.jobs.toml.job import Job
from pscp.jobs.toml.one_job import JobReader, Mistakes, Table
from pscp.jobs.toml.positions import Place, lines_of

MAX_MISTAKES = 100  # shown at once
JOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}", re.ASCII)  # a file's name, a label
_DEPTHS: dict[object, int] = {"job": 3, "host": 3, "defaults": 2}  # of the keys in these tables
# What is plainer than pydantic's own words.
_PLAIN = {
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "string_pattern_mismatch": 'must be a time of day, such as "08:00-20:00", or "else"',
    "int_type": "must be a whole number",
    "string_type": "must be a text",
    "too_short": "is empty",
}


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
    document, wrong = _parsed(path)
    folder = os.path.dirname(os.path.abspath(path))
    checked = _checked(document, folder, wrong)

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


def _parsed(path: str) -> tuple[dict[str, Any], Mistakes]:
    """Return the document, and what takes its mistakes. Raises UsageError where there is none."""
    text, line = "", 1
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig").replace("\r\n", "\n")
        return tomllib.loads(text), Mistakes(path, lines_of(text))
    except OSError as error:
        hint = "--config names another file of jobs"
        raise UsageError(f"{path}: {error.strerror}", hint) from None
    except RecursionError:
        why = "is nested too deep"
    except UnicodeDecodeError as error:
        line, why = error.object.count(b"\n", 0, error.start) + 1, "is not UTF-8"
    except ValueError as error:  # also a number with too many digits, or a NUL in the path
        found = re.fullmatch(r"(.*) \(at (?:line ([0-9]+), .*|end of document)\)", str(error), re.S)
        why = found[1] if found else str(error)
        line = int(found[2] or text.count("\n") + 1) if found else 1
    raise UsageError(f"{path}:{line}: {printable(why)}", "nothing was run")


def _checked(document: dict[str, Any], folder: str, wrong: Mistakes) -> dict[str, Any]:
    """Return the document as it is read; what is wrong with a key alone is noted and taken out."""
    while True:
        try:
            return schema.DOCUMENT.validate_python(document, context={"folder": folder})
        except ValidationError as errors:
            for error in errors.errors(include_url=False, include_input=False):
                depth = _DEPTHS.get(error["loc"][0], 1)
                wrong.add(*_mistake(error, depth))
                table: Any = document
                *tables, key = error["loc"][:depth]
                for name in tables:
                    table = table[name]
                table.pop(key, None)
                if len(wrong.found) >= MAX_MISTAKES:
                    wrong.raise_any()


def _mistake(error: ErrorDetails, depth: int) -> tuple[Place, str]:
    """Return where pydantic has found a mistake, and what it is."""
    place = error["loc"]
    if error["type"] == "extra_forbidden":
        return place, _unknown(*map(str, place))
    text, *inner = [_PLAIN.get(error["type"], error["msg"].replace("Input should", "must"))]
    if error["type"] == "string_pattern_mismatch":
        text = f"{place[-2]!r} {text}"
    if error["type"] == "value_error":
        text, *inner = error["ctx"]["error"].args
    return (*place, *inner), f"{'.'.join(map(str, place[:depth]))}: {text}"


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
    return f"there is no {key!r}{nearest(key.replace('_', '-'), known)}"


def nearest(word: str, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(word.lower(), [*words], 1)
    return f"; did you mean {close[0]}?" if close else ""


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


def _check_hosts(jobs: Mapping[str, Job], hosts: Iterable[str], wrong: Mistakes) -> None:
    """Note each host that no job knows: what is said for it would never hold."""
    if not wrong.found:  # else one may be known to a job that is wrong
        for name in {*hosts}.difference(*(job.by_host for job in jobs.values())):
            wrong.add(("host", name), f"host.{name}: no job sends anything there, or from there")
