"""Whether a part that an earlier run left is continued, and how: the one condition, without I/O.

It has to be a part of this very file: the source has the size, time and inode of which the journal
has notes, or both ends hash all of the part. Nobody hashes holes, so what lies in those has to be
known: the run that made the part has written that into the journal. No option gets by this.

Not here: what is then asked of the sink (../walk/resume.py), what is sent (../walk/file_job.py).
"""

from __future__ import annotations

import enum

from pscp.endpoint import tree
from pscp.transfer.terms.journal import Landed

# What a part has where nothing was written that was verified, as the journal has it.
ZEROS, UNKNOWN = "zeros", "unknown"


class Continued(enum.Enum):
    """How an earlier run's part is continued."""

    ANEW = "it is discarded, and all is sent"
    COMPARED = "both ends hash it piece by piece, and what differs is sent"
    AS_NOTED = "the sink hashes what the journal says landed, and the rest is sent"


def rest_of(entry: tree.Entry) -> str:
    """Return what the part of a file has besides what was verified.

    The part of a file without holes may begin as a clone of the old file (endpoint/reuse.py).
    """
    return ZEROS if "sparse" in entry.extra else UNKNOWN


def continued(
    entry: tree.Entry, run: str, landed: Landed | None, *, is_anothers: bool, resume: bool
) -> Continued:
    """Decide about the part that a run left of a file.

    Args:
        landed: what the journal knows of this very file; None: nothing that can be checked.
        is_anothers: the journal knows another file of this name, which the part may be of.
        resume: whether the user wants parts to be continued.
    """
    rest = landed.runs.get(run) if landed is not None else None  # None: not of this very file
    if not resume or is_anothers:
        return Continued.ANEW
    if "sparse" in entry.extra and rest != ZEROS:
        return Continued.ANEW
    return Continued.COMPARED if rest is None else Continued.AS_NOTED
