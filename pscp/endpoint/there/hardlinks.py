"""Makes further names of files: of those that have several at the source (-a), and what --link-dest
asks for.

Sent when a copy begins with one of these. Not here: how files in other folders are compared and
linked (linkdest.py), when hard links are made (../../transfer/ending/ending.py).
"""

import functools
import os
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Tuple

from ..asking import answers
from ..frames import failures, wire
from ..reading import files, tree
from ..reading.paths import status_of

if TYPE_CHECKING:
    from ..writing import sink, verifying


class HardLinks(NamedTuple):
    """Make further names of files. Answer: `[place, failure]` of those that failed, the places of
    those that were names of these files already, and of those that were names of others.
    """

    entries: List[tree.Entry]


class LinkFolders(NamedTuple):
    """Which folders of --link-dest can be used. Answer: per folder why not, or ""."""


class LinkSame(NamedTuple):
    """Make these entries names of files that are the same in the folders of --link-dest. Answer:
    per entry null where it is one now, else the bytes of such a file that may be the same (-1:
    there is none).
    """

    entries: List[tree.Entry]
    digests: List[str]  # (of each; empty: not known yet, or what is not compared)
    hash: str  # ("": size and metadata decide)


def hard_link(the_sink: "sink.Sink", value: tree.Entry) -> Optional[bool]:
    """Make the entry a name of its target. Return whether it was that already; None: no name."""
    from_fd, first = the_sink.root.at(value.target)

    def make(part: bytes, folder_fd: int) -> None:
        os.link(first, part, src_dir_fd=from_fd, dst_dir_fd=folder_fd, follow_symlinks=False)

    def is_made(name: bytes, folder_fd: int) -> bool:
        return os.path.samestat(wanted, os.stat(name, dir_fd=folder_fd, follow_symlinks=False))

    wanted = os.stat(first, dir_fd=from_fd, follow_symlinks=False)
    found = status_there(the_sink, value.path)
    is_there = None if found is None else os.path.samestat(found, wanted)
    if not is_there:
        keeper = the_sink.settler.keeper
        if keeper is not None and found is not None and found.st_size > files.PACK_FILE_BYTES:
            keeper.compare_link(value.path, (from_fd, first))  # before the fence: it may take long
        the_sink.put(value.path, make, is_made)
    return is_there


def status_there(the_sink: "sink.Sink", path: str) -> Optional[os.stat_result]:
    """Return the status of what has this path, if anything. Raises OSError, Refusal."""
    try:
        return status_of(*the_sink.root.at(path))
    except FileNotFoundError:
        return None


def _hard_links(
    the_sink: "verifying.VerifyingSink", request: HardLinks
) -> Tuple[answers.Failed, List[int], List[int]]:
    from ..writing import sink

    if not isinstance(the_sink, sink.Sink):  # of a transfer test
        return [], [], []
    act = functools.partial(hard_link, the_sink)
    made = answers.results((entry.path, functools.partial(act, entry)) for entry in request.entries)
    failed = dict(failures.places(the_sink.make_names_durable(request.entries)))
    failed.update((place, each) for place, each in enumerate(made) if isinstance(each, dict))
    same, others = (
        [place for place, each in enumerate(made) if each is was_it] for was_it in (True, False)
    )
    return list(failed.items()), same, others


def _linker(the_sink: "sink.Sink") -> "sink.Linker":
    if the_sink.linker is None:
        raise answers.not_here("sink that links")
    return the_sink.linker


def _link_same(the_sink: "sink.Sink", request: LinkSame) -> List[Optional[int]]:
    digests = request.digests or [""] * len(request.entries)
    if len(digests) != len(request.entries):
        raise wire.WireError("other digests than entries")
    linker, pairs = _linker(the_sink), zip(request.entries, digests)
    found = [linker.link(value, digest, request.hash) for value, digest in pairs]
    is_dry = not the_sink.copy.nonce
    made = [place for place, each in enumerate(found) if each is None and not is_dry]
    synced = the_sink.make_names_durable([request.entries[place] for place in made])
    for place, failure in zip(made, synced):
        if failure is not None:  # it is copied, and fails for the same reason, if that still holds
            found[place] = -1
    return found


answers.add(answers.SINK, {HardLinks: _hard_links})
answers.add(
    answers.WRITING_SINK,
    {LinkFolders: lambda the_sink, request: _linker(the_sink).problems, LinkSame: _link_same},
)
