"""The history of runs: an SQLite database, which tells and never stops a run.

It has a rollback journal and syncs at each commit, so a power loss takes back at most what was
being written. (A write-ahead log would need memory that is shared, which NFS homes have not, for
writers who seldom meet.) A database that is damaged is moved aside; one that cannot be written, as
on a full disk, misses a run. Both are noted.

A run is a row from its begin on; one whose row was not closed was killed, and the next run of the
job, which has its lock, closes it as CUT. Rows have the order in which they came: clocks are set.

Not here: what a run is (outcome.py), how history is shown (status.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from typing import TypeVar

from pscp.jobs.lock import state_path
from pscp.jobs.outcome import DestinationRun, JobRun, Outcome
from pscp.progress import Failure

T = TypeVar("T")

VERSION = 1
KILLED = "killed, or the machine went down: it left no word"
_BUSY_S = 10.0  # for another process that writes
_FAILURES_MOST = 100  # of a destination's run; its message says how many there were

# Columns of the two tables that are fields of a record, in the records' order.
_RUN = [each.name for each in fields(JobRun) if each.name not in ("destinations", "commands")]
_PART = [each.name for each in fields(DestinationRun)]
_TABLES = f"""
create table run (id integer primary key autoincrement, is_open integer, {", ".join(_RUN)});
create unique index run_name on run (run);
create index run_job on run (job, id);
create table destination (run_id integer references run (id) on delete cascade,
    job, {", ".join(_PART)});
create index destination_run on destination (run_id);
create index destination_job on destination (job, destination, outcome);
pragma user_version = {VERSION};
"""
_GOOD = (Outcome.DONE.name, Outcome.NOTHING.name)


def history_of(config_path: str, note: Callable[[str], object] = lambda text: None) -> History:
    """Return the history of the jobs of a config file."""
    return History(os.path.join(state_path(config_path), "history.sqlite"), note)


class History:
    """What was run, and what became of it. For one thread at a time, in any number of processes."""

    def __init__(self, path: str, note: Callable[[str], object] = lambda text: None) -> None:
        """Open the history lazily; `note` is told what was amiss, if anything."""
        self.path, self._note = path, note

    # --- for a run that has the job's lock

    def begin(self, run: JobRun) -> None:
        """Note that a run begins, and that those of its job that are open were killed."""

        def change(database: sqlite3.Connection) -> None:
            database.execute(
                "update run set is_open = 0, outcome = ?, message = ? where job = ? and is_open",
                (Outcome.CUT.name, KILLED, _text(run.job)),
            )
            _insert(database, run, is_open=True)

        self._change(change)

    def record(self, run: JobRun) -> None:
        """Note how a run ended, in the place of what was known of it."""

        def change(database: sqlite3.Connection) -> None:
            found = database.execute("select id from run where run = ?", (run.run,)).fetchone()
            number = found[0] if found else None
            database.execute("delete from run where id = ?", (number,))
            _insert(database, run, is_open=False, number=number)

        self._change(change)

    def prune(self, job: str, keep_s: float) -> None:
        """Forget what is older, but the last run and the last success at each destination.

        A clock that was set forth makes all seem old; so the run before the last one has to be of
        this time as well.
        """
        values = {"job": _text(job), "now": time.time(), "keep": keep_s}
        ask = (
            "delete from run where job = :job and not is_open and started_s < -:keep + min(:now,"
            " coalesce((select started_s from run where job = :job order by id desc"
            " limit 1 offset 1), :now))"
            " and id != (select max(id) from run where job = :job)"
            " and id not in (select max(run_id) from destination where job = :job"
            f" and outcome in {_GOOD} group by destination)"
        )
        self._change(lambda database: database.execute(ask, values))

    # --- for anyone

    def last(self, job: str) -> JobRun | None:
        """Return the job's last run that has ended."""
        return next(iter(self._runs("not is_open and job = ?", (_text(job),), 1)), None)

    def under_way(self, job: str) -> JobRun | None:
        """Return the job's run that has begun and not ended; its lock says whether it lives."""
        return next(iter(self._runs("is_open and job = ?", (_text(job),), 1)), None)

    def last_success(self, job: str, destination: str) -> float | None:
        """Return when the last run ended after which a destination had all (epoch, seconds)."""
        ask = (
            "select started_s + seconds from destination where job = ? and destination = ?"
            f" and outcome in {_GOOD} order by run_id desc limit 1"
        )
        values = _text(job), _text(destination)
        found = self._read(lambda database: database.execute(ask, values).fetchall())
        return float(found[0][0]) if found else None

    def runs(self, job: str | None = None, since_s: float = 0) -> list[JobRun]:
        """Return the runs that have ended and began since then, of one job or all, newest first."""
        if job is None:
            return self._runs("not is_open and started_s >= ?", (since_s,))
        return self._runs("not is_open and started_s >= ? and job = ?", (since_s, _text(job)))

    def _runs(self, where: str, values: tuple[object, ...], most: int = -1) -> list[JobRun]:
        ask = f"select id, {', '.join(_RUN)} from run where {where} order by id desc limit {most}"
        of_run = f"select {', '.join(_PART)} from destination where run_id = ? order by rowid"

        def read(database: sqlite3.Connection) -> list[JobRun]:
            return [
                _as_run(row, database.execute(of_run, (row[0],)).fetchall())
                for row in database.execute(ask, values).fetchall()
            ]

        return self._read(read)

    # --- the database

    def _change(self, change: Callable[[sqlite3.Connection], object]) -> None:
        """Make a change as one transaction. What is amiss is noted."""
        for moves_aside in (True, False):
            try:
                with self._opened() as database, database:
                    database.execute("begin immediate")
                    change(database)
                return
            except (sqlite3.Error, OSError) as error:
                if not (moves_aside and _is_damage(error) and self._moved_aside()):
                    self._note(f"{self.path}: this run is not in the history: {error}")
                    return

    def _read(self, read: Callable[[sqlite3.Connection], list[T]]) -> list[T]:
        """Return what is read; nothing where that cannot be, which is noted."""
        try:
            if not os.path.exists(self.path):
                return []
            with self._opened() as database:
                return read(database)
        except (sqlite3.Error, OSError, ValueError, LookupError, TypeError) as error:
            self._note(f"{self.path}: the history cannot be read: {error}")
            return []

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        with contextlib.closing(
            sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        ) as database:
            database.execute("pragma foreign_keys = on")
            if _version(database) == 0:
                with database:
                    database.execute("begin immediate")
                    if _version(database) == 0:  # nobody else has made it meanwhile
                        for statement in _TABLES.split(";"):
                            database.execute(statement)
            if (version := _version(database)) != VERSION:
                raise OSError(f"it is of version {version}, and this pscp knows {VERSION}")
            yield database

    def _moved_aside(self) -> bool:
        aside = f"{self.path}.damaged-{time.strftime('%Y%m%dT%H%M%S')}"
        try:
            for end in ("-journal", ""):  # the journal first: a new one would be made of it as well
                if os.path.exists(self.path + end):
                    os.rename(self.path + end, aside + end)
        except OSError:
            return False
        self._note(f"{self.path} was damaged, and is {os.path.basename(aside)} now")
        return True


def _version(database: sqlite3.Connection) -> int:
    [version] = database.execute("pragma user_version").fetchone()
    assert isinstance(version, int)
    return version


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _insert(
    database: sqlite3.Connection, run: JobRun, *, is_open: bool, number: int | None = None
) -> None:
    values = [number, is_open, *(_value(getattr(run, name)) for name in _RUN)]
    number = _insert_row(database, "run", ["id", "is_open", *_RUN], values)
    for part in run.destinations:
        values = [number, _text(run.job), *(_value(getattr(part, name)) for name in _PART)]
        _insert_row(database, "destination", ["run_id", "job", *_PART], values)


def _insert_row(
    database: sqlite3.Connection, table: str, columns: list[str], values: list[object]
) -> int | None:
    marks = ", ".join("?" * len(values))
    ask = f"insert into {table} ({', '.join(columns)}) values ({marks})"
    return database.execute(ask, values).lastrowid


def _text(text: str) -> str:
    """Return a text as SQLite keeps it: half surrogates, which are bytes of names, spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _value(value: object) -> object:
    if isinstance(value, Outcome):
        return value.name
    if isinstance(value, tuple):
        return json.dumps([asdict(each) for each in value[:_FAILURES_MOST]])
    return _text(value) if isinstance(value, str) else value


def _as_run(row: tuple[object, ...], parts: list[tuple[object, ...]]) -> JobRun:
    values = dict(zip(_RUN, row[1:], strict=True))
    values["outcome"] = Outcome[str(values["outcome"])]
    values["is_skipped"] = bool(values["is_skipped"])
    return JobRun(**values, destinations=tuple(map(_as_part, parts)))  # type: ignore[arg-type]


def _as_part(row: tuple[object, ...]) -> DestinationRun:
    values = dict(zip(_PART, row, strict=True))
    values["outcome"] = Outcome[str(values["outcome"])]
    values["verified"] = bool(values["verified"])
    values["failures"] = tuple(Failure(**each) for each in json.loads(str(values["failures"])))
    return DestinationRun(**values)  # type: ignore[arg-type]
