"""What the lanes of one copy share: the queue, the rate limit, and what their ends are to be.

Not here: one lane (lane.py), how many there are (lane_pool.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pscp.endpoint import metadata, requests, tree
from pscp.endpoint.end import End
from pscp.transfer.rate_limiter import RateLimiter
from pscp.transfer.window import Window
from pscp.transfer.work_queue import WorkQueue

if TYPE_CHECKING:
    from pscp.endpoint.end import Stream

# Unacknowledged bytes a lane: the channel's window (2 MiB), a socket buffer (4 MiB with Linux's
# default tcp_wmem), the pipes, and what waits to be made durable, with room to spare.
WINDOW_BYTES = 16 * 1024 * 1024

# The same for a stream, where what one lane holds keeps all that comes after it waiting: two of a
# channel's windows, and what lies in its pipes.
STREAM_WINDOW_BYTES = 6 * 1024 * 1024


class LaneContext:
    """The same object for every lane of a copy, a stream or a measurement.

    Any thread may use it, once set_ends() was called; nothing changes afterwards.
    """

    begin_near: requests.Begin  # the requests that make each end what it is
    begin_far: requests.Begin

    def __init__(
        self, queue: WorkQueue, *, is_push: bool, rtt_s: float, keeps: bool,
        bytes_per_s: float | None = None, stream: Stream | None = None,
    ) -> None:  # fmt: skip
        """With `keeps` a lane's connection is for the next copy when this one is done.

        `bytes_per_s` limits all lanes together. `stream` is this end of a stream; its lanes have a
        smaller window, which grows.
        """
        self.queue, self.is_push, self.keeps = queue, is_push, keeps
        self.limiter = RateLimiter(bytes_per_s)
        self._rtt_s, self._stream, self._umask = rtt_s, stream, metadata.current_umask()
        self._numbers = itertools.count(1)

    @property
    def is_stream(self) -> bool:
        return self._stream is not None

    def set_ends(self, of_source: requests.Begin, of_sink: requests.Begin) -> None:
        """Say what each end of a lane is asked to be."""
        both = (of_source, of_sink) if self.is_push else (of_sink, of_source)
        self.begin_near, self.begin_far = both

    def next_number(self) -> int:
        """Return the number of the lane that begins, of all lanes that the copy ever has."""
        return next(self._numbers)

    def new_window(self) -> Window:
        """Return the window of a lane that begins."""
        if self.is_stream:
            return Window(STREAM_WINDOW_BYTES, self._rtt_s, begins_small=True)
        return Window(WINDOW_BYTES, self._rtt_s)

    def new_end(self) -> End:
        """Return this end of a lane, which has not begun yet."""
        return End(self._umask, self._stream)

    def near_source_entries(self) -> Iterator[tree.Entry]:
        """Walk the source at this end."""
        end = self.new_end()
        end.begin(self.begin_near)
        try:
            yield from end.file_source().entries()
        finally:
            end.close()
