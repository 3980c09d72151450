"""Which extended attributes the destination's file system cannot keep: a request to a sink.

Sent with -a. Not here: how a file gets its attributes (../reading/xattrs.py), what is said of those
that are left out (../../transfer/ending/ending.py).
"""

import errno
import os
from typing import TYPE_CHECKING, List, NamedTuple

from ..asking import answers

if TYPE_CHECKING:
    from ..writing import sink

# One of each kind, as each may be had by itself.
_OF_EACH_KIND = ("user.pscp", "trusted.pscp", "security.pscp", "system.posix_acl_access")


class Lacks(NamedTuple):
    """Ask for attributes that the file system of the destination has not. Answer: the beginnings of
    their names, up to the dot.
    """


def lacks(of: "sink.Sink", request: Lacks) -> List[str]:
    """Return what Lacks does."""
    return [name.partition(".")[0] for name in _OF_EACH_KIND if not _may_have(of.root.fd, name)]


def _may_have(fd: int, name: str) -> bool:
    if not hasattr(os, "getxattr"):
        return False
    try:
        os.getxattr(fd, name)
    except OSError as error:
        return error.errno != errno.ENOTSUP
    return True


answers.add(answers.WRITING_SINK, {Lacks: lacks})
