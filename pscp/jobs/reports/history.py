"""The history of runs: an SQLite database, which tells and never stops a run.

It has a rollback journal and syncs at each commit, so a power loss takes back at most what was
being written. (A write-ahead log would need memory that is shared, which NFS homes have not, for
writers who seldom meet.) A database that is damaged is moved aside; one that cannot be written, as
on a full disk, misses a run. Both are noted.

A run is a row from its begin on; one whose row was not closed was killed, which readers see by the
lock that nobody has, and the next run of the job, which has its lock, closes it as CUT. Rows have
the order in which they came: clocks are set.

Not here: what a run is (outcome.py), how history is shown (status.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from pydantic import TypeAdapter

from pscp.ground import state
from pscp.jobs.reports.lock import state_path
from pscp.jobs.reports.outcome import GOOD, JobRun, Outcome

T = TypeVar("T")

VERSION = 2
KILLED = "killed, or the machine went down: it left no word"
_BUSY_S = 10.0  # for another process that writes
_FAILURES_MOST = 100  # of a destination's run; its message says how many there were

_GOOD = tuple(each.value for each in GOOD)
# `told` is all of a run as JSON; the other columns are what is asked for.
_TABLES = f"""
begin immediate;
create table if not exists run (id integer primary key autoincrement,
    run text unique, job text, outcome text, started_s real, is_open integer, told text);
create index if not exists run_job on run (job, id);
create view if not exists destination as select run.id as run_id, job,
    json_extract(value, '$.destination') as destination,
    json_extract(value, '$.outcome') as outcome,
    json_extract(value, '$.started_s') as started_s,
    json_extract(value, '$.seconds') as seconds,
    json_extract(value, '$.bytes') as bytes
    from run, json_each(told, '$.destinations');
pragma user_version = {VERSION};
commit;
"""
_PUT = """
insert or replace into run values
((select id from run where run = :run), :run, :job, :outcome, :started_s, :is_open, :told)
"""
_KILL = """
update run set is_open = 0, outcome = :cut,
told = json_set(told, '$.outcome', :cut, '$.message', :why) where job = :job and is_open
"""
_PRUNE = f"""
delete from run where job = :job and not is_open
and started_s < -:keep_s + min(:now_s, coalesce(
    (select started_s from run where job = :job order by id desc limit 1 offset 1), :now_s))
and id != (select max(id) from run where job = :job)
and not exists (select 1 from destination its where run_id = run.id and outcome in {_GOOD}
    and not exists (select 1 from destination where job = :job and run_id > run.id
        and destination = its.destination and outcome in {_GOOD}))
"""
_LAST_SUCCESS = f"""
select started_s + seconds from destination where job = :job and destination = :destination
and outcome in {_GOOD} order by run_id desc limit 1
"""
_OPEN = "select told from run where is_open"
_RUNS = """
select case when is_open then json_set(told, '$.outcome', :cut, '$.message', :why) else told end
from run where (not is_open or run in (select value from json_each(:killed)))
and job is coalesce(:job, job) and started_s >= :since_s order by id desc limit :most
"""
_JSON = TypeAdapter(JobRun)
_Values = Mapping[str, object]  # of the :names in a statement
_KILLED: _Values = {"cut": Outcome.CUT.value, "why": KILLED}


def history_of(config_path: str, note: Callable[[str], object] = lambda text: None) -> History:
    """Return the history of the jobs of a config file."""
    return History(os.path.join(state_path(config_path), "history.sqlite"), note)


class History:
    """The record of runs and their outcomes. For a thread at a time, in any number of processes."""

    def __init__(self, path: str, note: Callable[[str], object] = lambda text: None) -> None:
        """Open the history lazily; `note` is told what was amiss, if anything."""
        self.path, self._note = path, note
        self._killed: list[str] = []  # runs that are open, and that nobody goes on with

    # --- for a run that has the job's lock

    def begin(self, run: JobRun) -> None:
        """Note that a run begins, and that those of its job that are open were killed."""
        self._change((_KILL, {**_KILLED, "job": run.job}), (_PUT, _row(run, is_open=True)))

    def record(self, run: JobRun) -> None:
        """Note how a run ended, in the place of what was known of it."""
        self._change((_PUT, _row(run, is_open=False)))

    def prune(self, job: str, keep_s: float) -> None:
        """Forget what is older, but the last run and the last success at each destination.

        A clock that was set forth makes all seem old; so the run before the last one has to be of
        this time as well.
        """
        self._change((_PRUNE, {"job": job, "now_s": time.time(), "keep_s": keep_s}))

    # --- for anyone

    def last_success(self, job: str, destination: str) -> float | None:
        """Return when the last run ended after which a destination had all (epoch, seconds)."""
        its = {"job": job, "destination": _text(destination)}
        return next(iter(self._read(float, _LAST_SUCCESS, its)), None)

    def find_killed(self, is_locked: Callable[[str], bool]) -> None:
        """Have runs() tell of the runs that are open though nobody has the lock of their job."""
        opened = self._read(_run_of, _OPEN, {})  # first: who begins now is none of them
        self._killed = [run.run for run in opened if not is_locked(run.job)]

    def runs(self, job: str | None = None, since_s: float = 0, most: int = -1) -> list[JobRun]:
        """Return the newest runs, newest first, of those that have ended and began since then.

        They are of one job or all; -1: not only so many.
        """
        its = {"killed": json.dumps(self._killed), "job": job, "since_s": since_s, "most": most}
        return self._read(_run_of, _RUNS, {**_KILLED, **its})

    # --- the database

    def _change(self, *statements: tuple[str, _Values]) -> None:
        """Execute these as one transaction. What is amiss is noted."""
        for moves_aside in (True, False):
            try:
                with self._opened() as database, database:
                    for each in statements:
                        database.execute(*each)
                return
            except (sqlite3.Error, OSError) as error:
                if not (moves_aside and _is_damage(error) and self._moved_aside()):
                    self._note(f"{self.path}: this run is not in the history: {error}")
                    return

    def _read(self, made: Callable[[str], T], ask: str, values: _Values) -> list[T]:
        """Return what is made of each row's value; nothing where that cannot be: it is noted."""
        try:
            with open(self.path, "rb"), self._opened() as database:
                return [made(row[0]) for row in database.execute(ask, values)]
        except FileNotFoundError:
            pass
        except (sqlite3.Error, OSError, ValueError) as error:
            self._note(f"cannot read {self.path}: {getattr(error, 'strerror', None) or error}")
        return []

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Yield the database, made where it is missing. What is not committed is undone."""
        state.make_folder(os.path.dirname(self.path))
        opened = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level="IMMEDIATE")
        with contextlib.closing(opened) as database:
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


def _text(text: str) -> str:
    """Return a text as SQLite keeps it: half surrogates, which are bytes of names, spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _row(run: JobRun, *, is_open: bool) -> _Values:
    parts = (replace(each, failures=each.failures[:_FAILURES_MOST]) for each in run.destinations)
    kept = replace(run, destinations=tuple(parts), commands=())
    told = json.dumps(_JSON.dump_python(kept, mode="json"))
    its = {"run": run.run, "job": run.job, "outcome": run.outcome.value, "told": told}
    return {**its, "started_s": run.started_s, "is_open": is_open}


def _run_of(told: str) -> JobRun:
    return _JSON.validate_python(json.loads(told))  # whose texts may have half surrogates
