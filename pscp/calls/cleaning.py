"""Finds what cut copies left below a folder, here or at a host, and removes it on request.

Not here: which files those are (../endpoint/there/leftovers.py, ../sftp/leftovers.py), how they are
shown (../cli/earlier_runs.py).
Read next: ../endpoint/there/leftovers.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pscp.calls.api import Session
from pscp.connect.agent_program import copy_modules
from pscp.connect.bootstrap import shaped
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.serving.end import End
from pscp.endpoint.there import leftovers
from pscp.ground import errors
from pscp.ground.locations import Location, as_location
from pscp.manifests.trees import Asker
from pscp.options.keywords import in_keywords
from pscp.options.options import Options, check_concern, with_fields
from pscp.progress.progress import Failure
from pscp.transfer.pieces import answers

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.options.option_fields import OptionFields

_MOST = 1_000_000  # that are kept in memory; the same command finds the rest


@dataclasses.dataclass(frozen=True)
class Leftover:
    """A file that a copy left, or may still work on."""

    path: str  # below the folder that was asked for
    size_bytes: int
    age_s: int  # since it was written to
    was_file: bool = False  # it is what an earlier version's --inplace was cut short in


@dataclasses.dataclass(frozen=True)
class Cleaned:
    """The leftovers of cut copies below one folder."""

    found: tuple[Leftover, ...]  # nobody holds these
    held: tuple[Leftover, ...]  # a copy works on these, or may: they are left alone
    failures: tuple[Failure, ...]  # folders that could not be read, files that would not go
    removed: bool  # what was found is gone
    by_age: bool  # over SFTP, where nothing but the age tells whether a copy works on a file

    @property
    def ok(self) -> bool:
        """True if every folder was read and every file went that was to go."""
        return not self.failures


@in_keywords()
def clean(
    where: str | os.PathLike[str] | Location,
    options: Options | None = None,
    *,
    remove: bool = False,
    force: bool = False,
    note: Callable[[str], None] = lambda text: None,
    **fields: Unpack[OptionFields],
) -> Cleaned:
    """Find what cut copies left below a folder, "host:folder" or one here; or remove it.

    `fields` are fields of Options; with dry_run nothing is removed. `force` takes also what is
    younger than a day where nobody can tell whether a copy works on it. `note` gets what the login
    says to people. Raises DestinationError where there is no such folder, and as copy() does.
    """
    check_concern("clean()", fields, "dry_run")
    location = as_location(where)
    more = {**fields, "direct": False}  # that is for copies
    chosen = with_fields(options or Options(), more, clean)
    removes = remove and not chosen.dry_run
    request = leftovers.Clean(location.path, removes, force=force)
    if not location.is_remote:
        near = request._replace(path=location.literal_path)
        with contextlib.closing(End(0)) as end:
            return _ask_all(partial(answers.of_near, end), near, False)
    with Session(location, chosen) as session:
        session.connections.check(chosen, True)
        agents = session.connections.take(chosen, note)
        try:
            if not agents[0].is_sftp:
                agents[0].ask(requests.Learn(copy_modules(["leftovers"])))
            return _ask_all(agents[0].ask, request, agents[0].is_sftp)
        finally:
            session.connections.give(agents)


def _ask_all(ask: Asker, request: leftovers.Clean, by_age: bool) -> Cleaned:
    """Ask for page after page until the search is over."""
    found: list[Leftover] = []
    held: list[Leftover] = []
    failed: list[Failure] = []
    is_last, removed = False, request.remove
    while not is_last and len(found) + len(held) + len(failed) < _MOST:
        answer, is_failure = ask(request)
        with shaped():
            if is_failure:
                data = failures.parse_failure(answer)
                raise errors.DestinationError(f"{data['path']}: {data['message']}")
            if not isinstance(answer, dict):
                raise TypeError("no page")
            found += map(_leftover, answer[leftovers.FOUND])
            held += map(_leftover, answer[leftovers.HELD])
            failed += map(_failure, answer[leftovers.FAILED])
            is_last = bool(answer["is_last"])
        request = leftovers.Clean(None, removed)
    return Cleaned(tuple(found), tuple(held), tuple(failed), removed, by_age)


def _leftover(row: list[object]) -> Leftover:
    path, size_bytes, age_s, was_file = row
    if not isinstance(path, str) or type(size_bytes) is not int or type(age_s) is not int:
        raise TypeError("a row")
    return Leftover(path, size_bytes, age_s, was_file is True)


def _failure(row: list[object]) -> Failure:
    path, message = row
    return Failure(str(path), errors.SystemFailure.__name__, str(message))
