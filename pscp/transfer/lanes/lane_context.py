"""The record that the lanes of one copy share, and the rate limit (-l), which may change while they
work. Several copies may share one (../terms/copy_terms.py).

Not here: one lane (lane.py), how many there are (../lane_pool.py), how long a lane's work may take
(in_flight.py), which frames wait (lane_traffic.py), how threads share CPython's lock (turns.py).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from pscp.connect.messages import named
from pscp.endpoint.asking import requests
from pscp.endpoint.reading import metadata, tree
from pscp.endpoint.reading.source import Source
from pscp.endpoint.serving.end import End
from pscp.ground.errors import PscpError, UsageError
from pscp.ground.locations import Location
from pscp.transfer.lanes.in_flight import LEAST_BYTES, Window
from pscp.transfer.lanes.shared_reads import Reader, SharingEnd
from pscp.transfer.lanes.turns import turns
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.pieces.plan import Work

if TYPE_CHECKING:
    from typing import Protocol

    from pscp.endpoint.asking.answers import Reply
    from pscp.endpoint.serving.end import ChunkSink, ChunkSource, Stream
    from pscp.endpoint.writing.verifying import VerifyingSink
    from pscp.transports import Channel

    class NearEnd(Protocol):
        """The end of a lane that the coordinator asks without a channel."""

        @property
        def source(self) -> ChunkSource | None: ...
        @property
        def sink(self) -> ChunkSink | None: ...
        def the_source(self) -> ChunkSource: ...
        def the_sink(self) -> ChunkSink: ...
        def file_source(self) -> Source: ...
        def file_sink(self) -> VerifyingSink: ...
        def begin(self, request: requests.Begin) -> None: ...
        def answer(self, request: requests.Request, reply: Reply) -> None: ...
        def close(self) -> None: ...

    MakeNear = Callable[["Lost", Channel], NearEnd]

Lost = Callable[[PscpError], None]  # ends a lane, and says why

# Unacknowledged bytes a lane: the channel's window (2 MiB), a socket buffer (4 MiB with Linux's
# default tcp_wmem), the pipes, and what waits to be made durable, with room to spare.
WINDOW_BYTES = 16 * 1024 * 1024
# Over a far path a lane that moves that much may have more. With socket buffers of 64 MiB, one lane
# at 1 Gbit/s and 100 ms needs 12.5 MB on the way, and a chunk at either end.
FAR_WINDOW_BYTES = 96 * 1024 * 1024
_FAR_WINDOW_S = 0.02  # a round trip; 16 MiB in one are 800 MB/s

# The same for a stream, in which all later chunks wait for those that one lane holds: two of a
# channel's windows, and what is in its pipes.
STREAM_WINDOW_BYTES = 6 * 1024 * 1024
KbitS = Callable[[], int | None]  # returns the limit that holds now; None: none

# The longest turn of a lane, of which a lane that is lost wastes one; how often a lane that waits
# looks whether it still should; and how long the rate that held before still counts.
_TURN_S = 0.1


class RateLimiter:
    """Each lane waits for its turns; one with much to send takes many small ones."""

    def __init__(self, kbit_s: KbitS, condition: threading.Condition | None = None) -> None:
        """Limit all lanes together to what `kbit_s()` returns."""
        self.kbit_s = kbit_s
        self._turns = condition or threading.Condition()  # guards what follows; nobody notifies
        self._free_at_s = 0.0

    def wait(self, size_bytes: int, is_over: Callable[[], bool]) -> None:
        """Wait until so many more bytes may go, or until `is_over()`, called every 0.1 s.

        Raises what the limit's function raises, and UsageError for a limit that is none.
        """
        left_bytes = float(size_bytes)
        with self._turns:
            while left_bytes > 0 and (kbit_s := self.kbit_s()) is not None and not is_over():
                if kbit_s < 1:
                    raise UsageError(f"a limit of {kbit_s} kbit/s: nothing would be copied")
                bytes_per_s = kbit_s * 1000 / 8
                turn_bytes = min(left_bytes, bytes_per_s * _TURN_S)
                self._wait_for_turn(turn_bytes / bytes_per_s, is_over)
                left_bytes -= turn_bytes

    def _wait_for_turn(self, length_s: float, is_over: Callable[[], bool]) -> None:
        self._free_at_s = turn_s = max(self._free_at_s, time.monotonic()) + length_s
        while (left_s := turn_s - time.monotonic()) > 0 and not is_over():
            self._turns.wait(min(left_s, _TURN_S))


@dataclass(eq=False)
class LaneContext:
    """The record that every lane of one copy, stream or measurement uses.

    Any thread may use it, once set_ends() was called; nothing changes afterwards.
    """

    queue: WorkQueue
    _: KW_ONLY
    is_push: bool
    rtt_s: float
    keeps: bool  # the next copy gets the lanes' connections
    limiter: RateLimiter | None = None  # None: there is no limit, and will be none
    stream: Stream | None = None  # this end of a stream, whose lanes have a smaller window
    make_near: MakeNear | None = None  # makes a lane's near end, where that is not here
    far_host: Location | None = None  # which errors name where neither end is here
    reader: Reader | None = None  # this copy, where it shares its reads with others
    wants: Callable[[Work], bool] | None = None  # says which work its lanes do; None: all
    numbers_from: int = 1  # of its lanes
    first_window_bytes: int = WINDOW_BYTES  # of a lane that begins
    begin_near: requests.Begin = field(init=False)  # makes the near end the source, or the sink
    begin_far: requests.Begin = field(init=False)  # makes the far end the other
    _umask: int = field(init=False, default_factory=metadata.current_umask)
    _numbers: Iterator[int] = field(init=False, default_factory=itertools.count)

    @property
    def is_stream(self) -> bool:
        return self.stream is not None

    def set_ends(self, of_source: requests.Begin, of_sink: requests.Begin) -> None:
        """Set the requests that make one end of a lane the source and the other the sink."""
        both = (of_source, of_sink) if self.is_push else (of_sink, of_source)
        self.begin_near, self.begin_far = both

    def next_number(self) -> int:
        return self.numbers_from + next(self._numbers)

    def new_window(self) -> Window:
        if self.is_stream:
            return Window(LEAST_BYTES, self.rtt_s, STREAM_WINDOW_BYTES)
        most_bytes = FAR_WINDOW_BYTES if self.rtt_s > _FAR_WINDOW_S else WINDOW_BYTES
        return Window(min(self.first_window_bytes, most_bytes), self.rtt_s, most_bytes)

    def named(self, error: PscpError) -> PscpError:
        """Return an error about the far end; it names that, where there are two far ends."""
        return named(self.far_host, error) if self.far_host is not None else error

    def new_end(self, lost: Lost, far: Channel) -> NearEnd:
        if self.make_near is not None:
            return self.make_near(lost, far)
        if self.reader is not None and self.is_push and not self.is_stream:
            return SharingEnd(self._umask, self.reader)
        return End(self._umask, self.stream)

    def near_source_entries(
        self, entries: Callable[[Source], Iterator[tree.Entry]]
    ) -> Iterator[tree.Entry]:
        """Yield what `entries` yields for the source at this end."""
        end = End(self._umask, self.stream)
        end.begin(self.begin_near)
        try:
            yield from turns.batches(entries(end.file_source()))
        finally:
            end.close()
