"""Changes a large file itself instead of a copy of it (--inplace): the file becomes the part.

While it is one it has the part's name, and not its own: so no name of a file has half of one. It
keeps its mode and owner, and has the sticky bit, which says nothing of a file, but here that it is
such a part: whoever removes parts leaves it, since there is no other copy of what it was.

Sent when a copy begins that changes files so. Not here: which of its bytes differ, and that it gets
its name back (sink.py, commit.py).
"""

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from . import end, files, requests, tree
from .parts import IN_PLACE

if TYPE_CHECKING:
    from . import sink


class Become(NamedTuple):
    """Make the file that is there its own part. Answer: whether it is; false where it has other
    names or another owner.
    """

    entry: tree.Entry


def become(the_sink: "sink.Sink", request: Become) -> bool:
    """Answer the request. Raises OSError, and Refusal where the run is superseded.

    A lane that is lost has been revoked before another one is asked, so it cannot do this late,
    when the file is complete.
    """
    path = request.entry.path
    with the_sink.held(), the_sink.root.lock:
        folder_fd, name = the_sink.root.at(path)
        try:
            fd = os.open(name, files.PART_FLAGS, dir_fd=folder_fd)
        except FileNotFoundError:  # a lane that died did so before it could report that
            return the_sink.parts.has_own(path, request.entry.size)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                return False
            if status.st_uid != os.geteuid():
                if os.geteuid() or "o" not in request.entry.extra:
                    return False
                os.fchown(fd, 0, -1)  # with -a it gets its source's owner at the end
            os.fchmod(fd, status.st_mode & 0o777 | IN_PLACE)
            if not os.fstat(fd).st_mode & IN_PLACE:  # this filesystem has no such bit
                return False
            part = the_sink.parts.name(name)
            os.rename(name, part, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        finally:
            os.close(fd)
    return True


requests.add([Become], {})
end.ANSWERS.update({Become: lambda the_end, request: become(the_end.writing_sink(), request)})
