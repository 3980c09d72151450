"""Reads jobs.toml: its jobs, or every mistake in it at once, each with its line.

Nothing is contacted and nothing is run. A relative path begins at the file's own folder, so that
a job does the same from cron, from systemd and by hand.

Not here: where a key stands (positions.py), which keys there are (schema.py), what a value may be
(kinds.py), what does not go together in a job (one_job.py).
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
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from pscp.errors import UsageError
from pscp.jobs import schema
from pscp.jobs.job import Job
from pscp.jobs.kinds import Wrong, shown
from pscp.jobs.one_job import JobReader, Table
from pscp.jobs.positions import Place, lines_of
from pscp.terminal_text import printable

MAX_FILE_BYTES = 256 * 1024  # hundreds of jobs; some files of that size take tomllib seconds
MAX_MISTAKES = 100  # shown at once
JOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}", re.ASCII)  # a file's name, a label


@dataclass(frozen=True)
class Config:
    """What jobs.toml says."""

    path: str
    jobs: dict[str, Job]  # in the order of the file


class Mistakes:
    """What is wrong with a file, line by line."""

    def __init__(self, path: str, lines: Mapping[Place, int]) -> None:
        self._path = path
        self._lines = lines
        self._found: set[tuple[int, str]] = set()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, place: Place, text: str) -> None:
        """Note what is wrong at a place, or in it."""
        while place not in self._lines:
            place = place[:-1]
        self._found.add((self._lines[place], printable(text)))

    def raise_any(self) -> None:
        if self._found:
            raise UsageError(
                "\n".join(f"{self._path}:{line}: {text}" for line, text in sorted(self._found)),
                "nothing was run",
            )


def load(path: str) -> Config:
    """Read and check a file of jobs. Raises UsageError, with a line for each mistake."""
    document, lines = _parsed(path, _read(path))
    found = Mistakes(path, lines)
    said = {name: set(table) for name, table in _tables(document, "job").items()}
    folder = os.path.dirname(os.path.abspath(path))
    checked = _checked(document, folder, found)
    defaults = _table(("defaults",), checked.defaults, document)
    hosts = {name: _table(("host", name), host, document) for name, host in checked.host.items()}
    jobs = {}
    for name, model in checked.job.items():
        own = _table(("job", name), model, document, said[name])
        jobs[name] = JobReader(own, defaults, hosts, folder, found.add).job()
    _check_names(said, found)
    _check_dependencies(jobs, said, found)
    _check_files(jobs, found)
    found.raise_any()
    return Config(path, jobs)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path}: {why}", "--config names another file of jobs") from None
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: is larger than 256 KiB: this is no file of jobs")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: is not UTF-8", "nothing was run") from None


def _parsed(path: str, text: str) -> tuple[dict[str, Any], dict[Place, int]]:
    try:
        return tomllib.loads(text), lines_of(text)
    except ValueError as error:  # a TOMLDecodeError, or a number with too many digits
        said = re.fullmatch(r"(.*) \(at (?:line ([0-9]+), .*|end of document)\)", str(error), re.S)
        line = int((said and said[2]) or text.count("\n") + 1) if said else 1
        why = printable(said[1] if said else str(error))
        raise UsageError(f"{path}:{line}: {why}", "nothing was run") from None
    except RecursionError:
        raise UsageError(f"{path}:1: is nested too deep", "nothing was run") from None


def _tables(document: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return the tables in this one, as far as they are tables."""
    outer = document.get(name)
    tables = outer.items() if isinstance(outer, dict) else ()
    return {name: table for name, table in tables if isinstance(table, dict)}


def _checked(document: dict[str, Any], folder: str, found: Mistakes) -> Any:
    """Note what is wrong with any key alone, take it out, and return the rest as a model."""
    while True:
        try:
            return schema.Document.model_validate(document, context={"folder": folder})
        except ValidationError as errors:
            for error in errors.errors(include_url=False, include_input=False):
                place, value = error["loc"], cast(Any, document)
                for key in place:
                    inner, value = value, value[key]
                cause = error.get("ctx", {}).get("error")
                if isinstance(cause, Wrong):
                    found.add((*place, *cause.place), f"{place[-1]}: {cause}")
                elif error["type"] == "extra_forbidden":
                    found.add(place, _unknown(place))
                else:
                    found.add(place, f"{_spelled(place)}: must be a table, not {shown(value)}")
                del inner[key]
                if len(found) >= MAX_MISTAKES:
                    found.raise_any()


def _unknown(place: Place) -> str:
    """Say what is wrong with a key that there is not."""
    *tables, key = map(str, place)
    model: type[BaseModel] = (
        {"job": schema.Job, "host": schema.Host, "defaults": schema.Defaults}[tables[0]]
        if tables
        else schema.Document
    )
    if key in schema.REFUSED:
        return f"{key} makes no sense in a job: {schema.REFUSED[key]}"
    names = [each.alias or name for name, each in model.model_fields.items()]
    elsewhere = {str(each.alias) for each in schema.Job.model_fields.values()}
    if tables and key in elsewhere:
        return f"{key} cannot be in {_spelled(tuple(tables))}: it belongs to a job"
    if tables and key in {name for name, _, _ in schema.every_option()}:
        return f"{key} makes no sense in a job: it is for the command line"
    return f"there is no {key!r}{nearest(key.replace('_', '-'), names)}"


def nearest(word: str, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(word.lower(), [*words], 1)
    return f"; did you mean {close[0]}?" if close else ""


def _spelled(place: Place) -> str:
    return ".".join(map(str, place))


def _table(
    place: Place, model: BaseModel, document: Mapping[str, Any], said: Iterable[str] = ()
) -> Table:
    """Return the table at this place: its sound values in the order of the file, and all keys."""
    keys: Any = document
    for key in place:
        keys = keys.get(key, {})
    values = {key: getattr(model, f"{key}_") for key in keys}
    return Table(place, values, frozenset([*said, *values]))


def _check_names(names: Iterable[str], found: Mistakes) -> None:
    for name in names:
        if not JOB_NAME.fullmatch(name):
            found.add(("job", name), f"{name!r}: a job's name has letters, digits and _ . + -")
    if not names and not found:
        found.add(("job",), "there is no job: give it a table such as [job.NAME]")


def _check_dependencies(jobs: Mapping[str, Job], names: Iterable[str], found: Mistakes) -> None:
    for job in jobs.values():
        for number, name in enumerate(job.depends_on):
            if name not in names:
                text = f"depends-on: there is no job {name!r}{nearest(name, names)}"
                found.add(("job", job.name, "depends-on", number), text)
    try:
        graphlib.TopologicalSorter({job.name: job.depends_on for job in jobs.values()}).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
        text = f"depends-on goes in a circle: {' needs '.join(circle[::-1])}"
        found.add(("job", min(circle, key=[*jobs].index), "depends-on"), text)


def _check_files(jobs: Mapping[str, Job], found: Mistakes) -> None:
    """Note where a job would write over what another one has written."""
    owners: dict[str, str] = {}
    for job in jobs.values():
        files = [("manifest", job.manifest), *(("report", file) for _, file in job.report)]
        for key, file in files:
            if file is not None and owners.setdefault(file, job.name) != job.name:
                text = f"{key}: {file} is written by job.{owners[file]} as well"
                found.add(("job", job.name, key), text)
