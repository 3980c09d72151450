"""Looks at a place, here or at a host, before anything is copied: could a copy there be made?

Not here: sessions (api.py), what pscp-run --check makes of an answer (../jobs/check.py).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import time
from typing import TYPE_CHECKING, Any

from pscp.calls.api import Session
from pscp.ground import errors
from pscp.ground.locations import Location, as_location
from pscp.options.keywords import in_keywords
from pscp.options.options import Options, check_concern, with_fields
from pscp.transports.remote_command import PYTHONS

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.options.option_fields import OptionFields

# It runs a program with python3 as the agent finds it, whatever the PATH of a session is.
_SCRIPT = f'for p in {PYTHONS};do command -v $p >/dev/null 2>&1&&exec $p -IS -c "$@";done;exit 127'


@dataclasses.dataclass(frozen=True)
class Look:
    """A report on a place. Over SFTP that is the login alone: python and folder are ""."""

    login_s: float = 0.0  # what the login took; 0 for a place of this machine
    is_sftp: bool = False  # the host has no python3 that could be used
    python: str = ""  # its version there
    clock_ahead_s: float = 0.0  # of the clock here
    folder: str = ""  # that the place is, or the nearest one above it that is there
    free_bytes: int = 0  # on its file system, for this user
    total_bytes: int = 0
    has_names_left: bool = True  # its file system has room for another file's name (inodes)
    is_writable: bool = False  # this user may make files in it


@in_keywords()
def look(
    where: str | os.PathLike[str] | Location,
    options: Options | None = None,
    *,
    is_source: bool = False,
    **fields: Unpack[OptionFields],
) -> Look:
    """Log in as a copy to this place would, and look at it; nothing is changed.

    `fields` are fields of Options; with batch nobody is asked for a password. With `is_source` the
    options have to fit a copy from there. Raises UsageError, ConnectError, and CopyError where
    python3 there gives no answer.
    """
    check_concern("look()", fields)
    place = as_location(where)
    chosen = with_fields(options or Options(), {**fields, "connections": 1, "channels": 1}, look)
    if not place.is_remote:
        return Look(**_seen(place.literal_path))
    with Session(place, dataclasses.replace(chosen, direct=False)) as session:
        begun_s = time.monotonic()
        session.connections.check(chosen, not is_source)
        agents = session.connections.take(chosen, lambda text: None)
        is_sftp = agents[0].is_sftp
        session.connections.give(agents)
        login_s = time.monotonic() - begun_s
        return Look(login_s, True) if is_sftp else _far_look(session, place.path, login_s)


def _far_look(session: Session, path: str, login_s: float) -> Look:
    asked_s = time.time()
    ran = session.run(["sh", "-c", _SCRIPT, "sh", _PROGRAM, path])
    if ran.status:
        said = os.fsdecode(ran.err).strip().rpartition("\n")[2]
        raise errors.CopyError(f"python3 there ended with status {ran.status}: {said}")
    try:
        time_s, seen = json.loads(ran.out)
        # What the answer's way took is no difference between the clocks.
        ahead_s = max(time_s - time.time(), 0) + min(time_s - asked_s, 0)
        defaults = vars(Look())
        its = {name: type(defaults[name])(value) for name, value in seen.items()}
        return Look(**its, login_s=login_s, clock_ahead_s=ahead_s)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise errors.CopyError("the far end's answer to the look is none") from None


def _seen(path: str) -> "dict[str, Any]":  # noqa: UP037 - Python 3.6 runs it at the far end
    import os
    import sys

    folder = os.path.realpath(os.path.expanduser(path) or ".")
    while not os.path.isdir(folder) and folder != "/":
        folder = os.path.dirname(folder)
    room = os.statvfs(folder)
    return {
        "python": "%d.%d.%d" % sys.version_info[:3],  # noqa: UP031
        "folder": os.fsencode(folder).decode("utf-8", "backslashreplace"),
        "free_bytes": room.f_bavail * room.f_frsize,
        "total_bytes": room.f_blocks * room.f_frsize,
        "has_names_left": room.f_favail > 0 or room.f_files == 0,  # 0: it does not count them
        "is_writable": os.access(folder, os.W_OK | os.X_OK),
    }


_PROGRAM = f"""{inspect.getsource(_seen)}
import json, sys, time
print(json.dumps([time.time(), _seen(sys.argv[1])]))
"""
