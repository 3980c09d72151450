"""Which extended attributes the destination's file system cannot keep: a request to a sink.

Sent with -a. Not here: how a file gets its attributes (../reading/xattrs.py), what is said of those
that are left out (../../transfer/ending/ending.py).
"""

from typing import TYPE_CHECKING, List, NamedTuple

from ..asking import answers
from ..reading import xattrs

if TYPE_CHECKING:
    from ..writing import sink

# One of each kind, as each may be had by itself.
_OF_EACH_KIND = ("user.pscp", "trusted.pscp", "security.pscp", "system.posix_acl_access")


class Lacks(NamedTuple):
    """Ask for attributes that the file system of the destination has not. Answer: the beginnings of
    their names, up to the dot.
    """


def lacks(of: "sink.Sink", request: Lacks) -> List[str]:
    """Return the kinds of which the destination's root can have no attribute."""
    fd = of.root.fd
    return [name.partition(".")[0] for name in _OF_EACH_KIND if not xattrs.may_have(fd, name)]


answers.add(answers.WRITING_SINK, {Lacks: lacks})
