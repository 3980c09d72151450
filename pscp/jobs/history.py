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
import itertools
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

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
begin immediate;
create table if not exists run (
    id integer primary key autoincrement, is_open integer, {", ".join(_RUN)});
create unique index if not exists run_name on run (run);
create index if not exists run_job on run (job, id);
create table if not exists destination (
    run_id integer references run (id) on delete cascade, job, {", ".join(_PART)});
create index if not exists destination_run on destination (run_id);
create index if not exists destination_job on destination (job, destination, outcome);
pragma user_version = {VERSION};
commit;
"""
_GOOD = (Outcome.DONE.name, Outcome.NOTHING.name)
_Row = Sequence[Any]
_Statement = tuple[str, _Row]


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
        killed = "update run set is_open = 0, outcome = ?, message = ? where job = ? and is_open"
        values = Outcome.CUT.name, KILLED, _kept(run.job)
        self._change((killed, values), _put("run", run, True, *_values(run, _RUN)))

    def record(self, run: JobRun) -> None:
        """Note how a run ended, in the place of what was known of it."""
        self._change(
            _put("run", run, False, *_values(run, _RUN)),
            *(
                _put("destination", run, _kept(run.job), *_values(part, _PART))
                for part in run.destinations
            ),
        )

    def prune(self, job: str, keep_s: float) -> None:
        """Forget what is older, but the last run and the last success at each destination.

        A clock that was set forth makes all seem old; so the run before the last one has to be of
        this time as well.
        """
        ask = (
            "delete from run where job = ?1 and not is_open and started_s < -?3 + min(?2,"
            " coalesce((select started_s from run where job = ?1 order by id desc"
            " limit 1 offset 1), ?2)) and id != (select max(id) from run where job = ?1)"
            " and id not in (select max(run_id) from destination where job = ?1"
            f" and outcome in {_GOOD} group by destination)"
        )
        self._change((ask, (_kept(job), time.time(), keep_s)))

    # --- for anyone

    def last(self, job: str) -> JobRun | None:
        """Return the job's last run that has ended."""
        return next(iter(self._runs("not is_open and job = ?", (_kept(job),), 1)), None)

    def under_way(self, job: str) -> JobRun | None:
        """Return the job's run that has begun and not ended; its lock says whether it lives."""
        return next(iter(self._runs("is_open and job = ?", (_kept(job),), 1)), None)

    def last_success(self, job: str, destination: str) -> float | None:
        """Return when the last run ended after which a destination had all (epoch, seconds)."""
        ask = (
            "select started_s + seconds from destination where job = ? and destination = ?"
            f" and outcome in {_GOOD} order by run_id desc limit 1"
        )
        values = _kept(job), _kept(destination)
        return next(iter(self._read(ask, values, lambda rows: [float(rows[0][0])])), None)

    def runs(self, job: str | None = None, since_s: float = 0) -> list[JobRun]:
        """Return the runs that have ended and began since then, of one job or all, newest first."""
        where = "not is_open and started_s >= ?1 and (?2 is null or job = ?2)"
        return self._runs(where, (since_s, job and _kept(job)))

    def _runs(self, where: str, values: _Row, most: int = -1) -> list[JobRun]:
        ask = (
            f"select * from (select * from run where {where} order by id desc limit {most}) as run"
            " left join destination on run_id = run.id order by run.id desc, destination.rowid"
        )
        return self._read(ask, values, _as_runs)

    # --- the database

    def _change(self, *statements: _Statement) -> None:
        """Execute these as one transaction. What is amiss is noted."""
        for moves_aside in (True, False):
            try:
                with self._opened() as database:
                    database.execute("begin immediate")
                    for each in statements:
                        database.execute(*each)
                    database.execute("commit")
                return
            except (sqlite3.Error, OSError) as error:
                if not (moves_aside and _is_damage(error) and self._moved_aside()):
                    self._note(f"{self.path}: this run is not in the history: {error}")
                    return

    def _read(self, ask: str, values: _Row, made: Callable[[list[_Row]], list[T]]) -> list[T]:
        """Return what is made of the rows, if any; nothing where that cannot be: it is noted."""
        try:
            if not os.path.exists(self.path):
                return []
            with self._opened() as database:
                rows = database.execute(ask, values).fetchall()
            return made(rows) if rows else []
        except (sqlite3.Error, OSError, ValueError, LookupError, TypeError) as error:
            self._note(f"{self.path}: the history cannot be read: {error}")
            return []

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Yield the database, made where it is missing. What is not committed is undone."""
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        opened = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        with contextlib.closing(opened) as database:
            database.execute("pragma foreign_keys = on")
            [version] = database.execute("pragma user_version").fetchone()
            if version == 0:
                database.executescript(_TABLES)
            elif version != VERSION:
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


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _put(table: str, run: JobRun, *values: object) -> _Statement:
    """Return what puts a row with the id of this run, and these values, into a table."""
    ask = f"insert or replace into {table} values ((select id from run where run = ?)"
    return f"{ask}{', ?' * len(values)})", (_kept(run.run), *values)


def _values(record: JobRun | DestinationRun, names: Sequence[str]) -> list[object]:
    return [_kept(getattr(record, name)) for name in names]


def _kept(value: object) -> object:
    """Return a value as SQLite keeps it: half surrogates, which are bytes of names, spelled out."""
    if isinstance(value, Outcome):
        return value.name
    if isinstance(value, tuple):
        return json.dumps([asdict(each) for each in value[:_FAILURES_MOST]])
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


_AS_IN_RECORD: dict[str, Callable[[Any], object]] = {
    "outcome": lambda name: Outcome[name],
    "is_skipped": bool,
    "verified": bool,
    "failures": lambda text: tuple(Failure(**each) for each in json.loads(text)),
}


def _as_runs(rows: list[_Row]) -> list[JobRun]:
    """Return the runs of these rows: "run"'s columns, and "destination"'s, or nothing in those."""
    found, width = [], 2 + len(_RUN)
    for _, group in itertools.groupby(rows, lambda row: row[0]):
        same = list(group)
        parts = [_record(_PART, row[width + 2 :]) for row in same if row[width] is not None]
        destinations = tuple(DestinationRun(**each) for each in parts)
        found.append(JobRun(**_record(_RUN, same[0][2:width]), destinations=destinations))
    return found


def _record(names: Sequence[str], row: _Row) -> dict[str, Any]:
    values = zip(names, row, strict=True)
    return {
        name: _AS_IN_RECORD[name](value) if name in _AS_IN_RECORD else value
        for name, value in values
    }
