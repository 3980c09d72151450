"""The numbers of a user and a group at the destination, for --chown: a request to a sink.

Not here: how a file gets its owner (../reading/metadata.py), what --chown is
(../../options/attributes.py).
"""

import grp
import os
import pwd
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Optional

from ..asking import answers
from ..frames import failures

if TYPE_CHECKING:
    Find = Callable[[str], int]


class Owners(NamedTuple):
    """Ask who is to own what arrives. Answer: `[the user's number, the group's number, [those of
    whom this user may give files to: itself, its groups]]`; null for a name that was not asked for,
    and where it may give them to anybody.
    """

    user: str  # ("": none)
    group: str  # ("": none)


def find(of: object, request: Owners) -> List[object]:
    """Return the numbers. Raises Refusal where there is no such name here."""
    user, group = request
    uid = _number("user", user, lambda name: pwd.getpwnam(name).pw_uid)
    gid = _number("group", group, lambda name: grp.getgrnam(name).gr_gid)
    return [uid, gid, None if os.geteuid() == 0 else _own()]


def _own() -> List[int]:
    return [os.geteuid(), os.getegid(), *os.getgroups()]


def _number(what: str, name: str, find_number: "Find") -> Optional[int]:
    try:
        return find_number(name) if name else None
    except KeyError:
        message = "there is no %s called %s" % (what, ascii(name)[1:-1])
        raise failures.Refusal(failures.DESTINATION, "", message)


answers.add(answers.ITSELF, {Owners: find})
