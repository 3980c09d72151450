"""The limit of a job by the time of day.

Not here: how a copy keeps to it (the copy asks, while it runs), how it is written (config.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pscp.jobs.job import Job, Span

_DAY_MIN = 24 * 60


def covers(span: Span, minute: int) -> bool:
    """Return whether a span holds in this minute of the day; from a time to the same: all day."""
    length_min = (span.ends_min - span.begins_min) % _DAY_MIN or _DAY_MIN
    return (minute - span.begins_min) % _DAY_MIN < length_min


def limit_at(minute: int, spans: Sequence[Span], otherwise: int | None) -> int | None:
    """Return the kbit/s that hold in a minute of the day; None: no limit. The first span wins."""
    found = (span.kbit_s for span in spans if covers(span, minute))
    return next(found, otherwise)


def limit_of(
    job: Job, local: Callable[[], time.struct_time] = time.localtime
) -> Callable[[], int | None]:
    """Return what a copy asks for the limit that holds now.

    The local clock's hands decide: in the night in which they are set back an hour, the minutes
    between come twice, and in the one in which they are set forth, not at all.
    """

    def now() -> int | None:
        at = local()
        return limit_at(at.tm_hour * 60 + at.tm_min, job.limit, job.options.limit_kbit_s)

    return now
