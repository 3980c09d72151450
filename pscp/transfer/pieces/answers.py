"""Checks that what an end answers, or a journal says, has the shape that it should have.

What has another shape raises ValueError, or WireError for a failure.

Not here: what is asked (endpoint/asking/requests.py), what an answer means (../walk/file_job.py,
../walk/lookups.py).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading.files import Extent
from pscp.endpoint.serving.end import End
from pscp.ground.errors import CopyError
from pscp.transfer.pieces.plan import Failure

_VANISHED = "was removed, or renamed, before it was copied"
# What reading a folder or a link in the file's place, or something below one, is answered with.
_OF_NO_FILE = (errno.EISDIR, errno.ELOOP, errno.ENOTDIR)

Digests = list[str | None]  # in hex; None where the file is shorter than that


def ignored(_: object) -> None:
    """Do nothing about an answer, or a failure."""


def unexpected(failure: Failure) -> None:
    """Raise ValueError for a request that no end has a reason to refuse."""
    raise ValueError(failure["message"])


def as_copy_error(failure: Failure, root: str = "") -> CopyError:
    """Return a failure as the error of the whole copy; without a path it is about this root."""
    return CopyError(f"{failure['path'] or root}: {failure['message']}".lstrip(": "))


def of_near(end: End, request: requests.Request) -> tuple[object, bool]:
    """Return the answer of an end of this machine, and whether it is a failure."""
    found: list[tuple[object, bool]] = []
    end.answer(request, lambda answer, failed: found.append((answer, failed)))
    return found[0]


def items(value: object) -> Sequence[object]:
    """Return the items of a list."""
    if not isinstance(value, list | tuple):
        raise ValueError("no list")
    return value


def integer(value: object) -> int:
    if type(value) is not int:
        raise ValueError("no integer")
    return value


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value


def from_source(failure: Failure) -> Failure:
    """Return a failure, marked as one that the source has reported; others are the sink's."""
    return {**failure, "of_source": True}


def of_known(failure: Failure) -> Failure:
    """Return the source's failure to read a file that the walk had found."""
    if failure["kind"] == failures.SYSTEM and failure["errno"] == errno.ENOENT:
        failure = {**failure, "message": _VANISHED}
    elif failure["kind"] == failures.SYSTEM and failure["errno"] in _OF_NO_FILE:
        failure = failures.from_exception(failures.FileChanged(), failure["path"])
    return from_source(failure)


def texts(value: object) -> list[str]:
    return [text(each) for each in items(value)]


def places(value: object) -> list[tuple[int, Failure]]:
    """Return the failures, each with the place of its entry in the request."""
    pairs = [(place, failure) for place, failure in map(items, items(value))]
    return [(integer(place), failures.parse_failure(failure)) for place, failure in pairs]


def extents(value: object, offset: int, size_bytes: int) -> tuple[list[Extent], bool]:
    """Return extents of a file from `offset` on, and whether these were the last.

    They are ascending and inside the file.
    """
    listed, is_last = items(value)
    found = [(integer(at), integer(length)) for at, length in map(items, items(listed))]
    for begin, length in found:
        if begin < offset or length <= 0 or begin + length > size_bytes:
            raise ValueError("an extent out of its place")
        offset = begin + length
    return found, bool(is_last)


def digests(value: object, asked: Iterable[Sequence[Extent]]) -> list[Digests | Failure]:
    """Return for each file the digests of the extents asked for, or why there are none."""
    return [
        failures.parse_failure(of_file)
        if isinstance(of_file, dict)
        else _of_extents(items(of_file), extents)
        for of_file, extents in zip(items(value), asked, strict=True)
    ]


def _of_extents(found: Sequence[object], extents: Sequence[Extent]) -> Digests:
    if len(found) != len(extents):
        raise ValueError("digests of other extents than were asked for")
    return [None if digest is None else text(digest) for digest in found]
