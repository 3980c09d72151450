"""What a copy that moves does at its source (--remove-source-files): it removes what has landed.

A request may come late or twice: only what is still the very file that was copied is removed, never
through a link, and never a folder.

Sent with BeginSource where it is needed. Not here: what has landed (../transfer/moving.py).
"""

import functools
import os
import stat
from typing import Callable, Dict, List, NamedTuple, Tuple

from . import end, failures, fields, requests, source, tree
from .files import Changed
from .paths import FOLDER_FLAGS, Root, to_bytes, to_text
from .source import Known

Moved = Tuple[str, Known]
Beside = Tuple[int, str, str]


class SamePlace(NamedTuple):
    """Whether sources are what lies at the destination: whether what only the destination should
    have is beside them. Answer: per path whether it is so.
    """

    sources: List[Beside]  # (`[number of the source, path, or "" for its contents, name]`)


class RemoveSources(NamedTuple):
    """Remove files, and links, that have landed, if they are unchanged. Answer: `[place, failure]`
    of those that stay.
    """

    moved: List[Moved]  # (`[kind, known]`)


def same_place(of: source.Source, top: int, path: str, name: str) -> bool:
    """Is a file of this name beside the source's path, or in its contents?"""
    return os.path.lexists(os.path.join(folder_beside(*of.where(top, path), path), to_bytes(name)))


def folder_beside(root: bytes, rest: str, path: str) -> bytes:
    """Return the folder that a path of the source is in; "" is the source's contents."""
    if not path:
        return root
    return os.path.dirname(os.path.join(root, to_bytes(rest)) if rest else root.rstrip(b"/"))


def remove(of: source.Source, moved: Moved) -> None:
    """Remove a file of the source. Raises Changed where it is another by now, Refusal, OSError."""
    kind, known = moved
    fd, name = _folder(of, known)
    try:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:  # removed already, maybe by a lane that was lost then
            return
        if not _is_same(status, kind, known):
            raise Changed()
        os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


def _is_same(status: os.stat_result, kind: str, known: Known) -> bool:
    """Is it the file that was copied? Of links, and of hard links, the entry has no size."""
    of_kind = stat.S_ISLNK if kind == tree.LINK else stat.S_ISREG
    size = known.size if kind == tree.FILE else status.st_size
    seen = status.st_size, status.st_mtime_ns, status.st_ino
    return of_kind(status.st_mode) and seen == (size, known.mtime_ns, known.inode)


def _folder(of: source.Source, known: Known) -> Tuple[int, bytes]:
    """Return the open folder that a file is in, and its name."""
    root, rest = of.where(known.top, known.path)
    if not rest:  # the source itself, and its path is the user's
        folder, name = os.path.split(root)
        return os.open(folder or b".", FOLDER_FLAGS & ~os.O_NOFOLLOW), name
    held = Root(to_text(root), follow=of.follows)
    try:
        folder_fd, name = held.at(rest)
        return os.dup(folder_fd), name
    except failures.Refusal:
        raise through_a_link(known.path)
    finally:
        held.close()


def through_a_link(path: str) -> failures.Refusal:
    message = "was reached through a link, so it stays at the source"
    return failures.Refusal(failures.UNSUPPORTED, path, message)


# --- the requests


def _same_place(of: end.End, request: SamePlace) -> List[bool]:
    return [same_place(of.file_source(), *each) for each in request.sources]


def _remove_sources(of: end.End, request: RemoveSources) -> List[object]:
    act = functools.partial(remove, of.file_source())
    calls = ((each[1].path, functools.partial(act, each)) for each in request.moved)
    return list(failures.places(end.results(calls)))


_text, _number = fields.of(str), fields.integer(0, (1 << 64) - 1)
_READERS: Dict[object, fields.Reader] = {
    List[Beside]: fields.list_of(fields.row(_number, _text, _text)),
    List[Moved]: fields.list_of(fields.row(_text, requests.known)),
}
requests.add([SamePlace, RemoveSources], _READERS)
_ANSWERS: Dict[type, Callable[..., object]] = {
    SamePlace: _same_place,
    RemoveSources: _remove_sources,
}
end.ANSWERS.update(_ANSWERS)
