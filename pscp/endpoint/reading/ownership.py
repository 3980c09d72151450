"""The owner of a file with -a: by number and by name at the source, a number again at the sink.

Sent when a copy begins with -a, or that may find something at its destination. Not here: when it is
given (metadata.py), --chown (../there/owners.py).
"""

import contextlib
import functools
import grp
import os
import pwd
from typing import Callable, Dict, List, Optional, Tuple, TypeVar, Union

K = TypeVar("K")
V = TypeVar("V")

_NOBODYS_ID = (1 << 32) - 1  # chown(2) takes it for "leave it as it is"


def owner(uid: int, gid: int) -> "List[object]":
    """Return the owner as a sink needs it: by number and by name."""
    return [uid, gid, _user(uid), _group(gid)]


def _cached(find: Callable[[K], V]) -> Callable[[K], Optional[V]]:
    """Have a function remember what it returned, and return None where it finds nothing."""

    @functools.lru_cache(1024)
    def look_up(key: K) -> Optional[V]:
        try:
            return find(key)
        except (KeyError, OverflowError, TypeError, ValueError):
            return None

    return look_up


_user: Callable[[int], Optional[str]] = _cached(lambda uid: pwd.getpwuid(uid).pw_name)
_group: Callable[[int], Optional[str]] = _cached(lambda gid: grp.getgrgid(gid).gr_name)
_uid: Callable[[str], Optional[int]] = _cached(lambda name: pwd.getpwnam(name).pw_uid)
_gid: Callable[[str], Optional[int]] = _cached(lambda name: grp.getgrnam(name).gr_gid)


def wanted(extra: Dict[str, object]) -> Tuple[int, int]:
    """Return the user's and the group's number here, -1 for each where the entry has no owner."""
    owner = extra.get("o")
    try:
        return _owner_here(tuple(owner)) if isinstance(owner, list) else (-1, -1)
    except (TypeError, ValueError):
        return -1, -1


@functools.lru_cache(1024)  # what raises is not kept
def _owner_here(owner: Tuple[int, int, str, str]) -> Tuple[int, int]:
    """Find the owner by name where this end knows the name, else by number. Raises ValueError,
    TypeError.
    """
    if not all(map(_is_short, owner)):
        raise ValueError("no owner")
    uid, gid, user, group = owner
    here_uid, here_gid = _uid(user), _gid(group)
    ids = (uid if here_uid is None else here_uid, gid if here_gid is None else here_gid)
    if not all(isinstance(number, int) and 0 <= number < _NOBODYS_ID for number in ids):
        raise ValueError("no owner")
    return ids


def _is_short(value: object) -> bool:
    """Is it short enough for the number or the name of a user or group?"""
    if isinstance(value, str):
        return len(value) <= 256
    return value is None or (isinstance(value, int) and abs(value) <= _NOBODYS_ID)


def give(file: Union[int, str], extra: Dict[str, object]) -> None:
    """Give a file its owner as root, else the group alone. Raises OSError."""
    uid, gid = wanted(extra)
    if os.geteuid() == 0:
        os.chown(file, uid, gid)
    elif gid != -1:
        with contextlib.suppress(PermissionError):  # only a group that we are in is ours to give
            os.chown(file, -1, gid)
