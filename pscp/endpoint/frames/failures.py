"""A failure of one file as data that travels in JSON: no pickle, and no name of a class.

    {"kind": KIND, "path": PATH, "message": TEXT, "errno": NUMBER}

Not here: the exceptions a user sees (../../ground/errors.py turns each KIND into one of them).
"""

import errno
import os
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple

from .wire import WireError

CHANGED = "changed"  # the source is not what it was
UNSUPPORTED = "unsupported"  # a dangling link, a special file, a loop of links
UNSAFE = "unsafe"  # a name that must not be used
DAMAGED = "damaged"  # what arrived does not match what was sent: once more
VERIFY = "verify"  # what was written does not match what was read
SYSTEM = "system"  # the operating system said no: errno
DESTINATION = "destination"  # the destination cannot take these sources
SUPERSEDED = "superseded"  # another run of the same copy has taken over
OWNER = "owner"  # a folder that was there is another user's, and keeps its metadata: no failure
KINDS = frozenset(
    [CHANGED, UNSUPPORTED, UNSAFE, DAMAGED, VERIFY, SYSTEM, DESTINATION, SUPERSEDED, OWNER]
)

ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)  # where nothing has such a path

if TYPE_CHECKING:
    from typing import TypedDict

    class _Mark(TypedDict, total=False):
        # Set by the coordinator (transfer/walk/plan_walk.py); they never come from an end.
        of_source: bool
        place: str  # where it is, as a user knows it
        hint: str  # what to do about it

    class Data(_Mark):
        """A failure; `errno` is 0 where there was none."""

        kind: str
        path: str
        message: str
        errno: int

else:
    Data = Dict[str, object]


Outcome = List[Optional[Data]]  # of several items: why each failed, None where it did not
Done = Callable[[Outcome], None]  # is called once the outcome is known


class Refusal(Exception):
    """Raised where this end will not do what it was asked: why, and for which path."""

    def __init__(self, kind: str, path: str, message: str, errno: int = 0) -> None:
        Exception.__init__(self, message)
        self.kind, self.path, self.errno = kind, path, errno


class FileChanged(Exception):
    """Raised where a file is not what it was when the copy of it began."""


class UnknownSize(FileChanged):
    """Raised where a file of size 0 has content, as those of /proc have: nobody knows its end."""


EXPECTED = (OSError, Refusal, FileChanged)  # what from_exception() turns into data


def data(kind: str, path: str, message: str, errno: int = 0) -> Data:
    return {"kind": kind, "path": path, "message": message, "errno": errno}


def from_exception(error: BaseException, path: str) -> Data:
    """Return the failure data of an exception met at `path`. Raises one that is not EXPECTED."""
    if isinstance(error, Refusal):
        return data(error.kind, error.path or path, str(error), error.errno)
    if isinstance(error, UnknownSize):
        return data(UNSUPPORTED, path, "its size is 0, but it has content")
    if isinstance(error, FileChanged):
        return data(CHANGED, path, "changed while it was copied")
    if isinstance(error, OSError):
        number = error.errno or 0
        return data(SYSTEM, path, os.strerror(number) if number else str(error), number)
    raise error


def parse_failure(value: object) -> Data:
    """Return failure data from a far end, each field of its type. Raises WireError."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str) or kind not in KINDS:
        raise WireError("a failure without a kind")
    number = value.get("errno")
    return data(
        kind,
        str(value.get("path", ""))[:8192],
        str(value.get("message", ""))[:1024],
        number if type(number) is int and 0 <= number < 1 << 31 else 0,
    )


def places(outcome: Outcome) -> List[Tuple[int, Data]]:
    """Return the place and the failure of those items that failed."""
    return [(place, failure) for place, failure in enumerate(outcome) if failure is not None]
