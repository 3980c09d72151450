"""The pool of lanes for a copy, or for a stream, over the path to a far end.

Not here: what a pool does (lane_pool.py), how many lanes are good (lanes/autotune.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.connections import Connections
from pscp.connect.known.host_memory import HostMemory, kind_of
from pscp.options.options import Options
from pscp.progress.progress import LiveCounters
from pscp.transfer.lane_pool import LanePool
from pscp.transfer.lanes.autotune import LOGIN_TRIPS, LOSSY_S, Path, usual_lanes
from pscp.transfer.lanes.lane_context import LaneContext, RateLimiter
from pscp.transfer.lanes.shared_reads import reader_here
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.terms.copy_terms import PoolTerms

if TYPE_CHECKING:
    from pscp.endpoint.serving.end import Stream
    from pscp.transfer.lanes.relay import FarSource

_SHORT_S = 0.005  # a round trip that decides nothing
_TUNNEL = 4.0  # times as long takes a request through a tunnel as a packet to its near end, or more


def make_pool(
    connections: Connections,
    options: Options,
    counters: LiveCounters,
    far: RemoteAgent,
    *,
    is_push: bool,
    note: Callable[[str], None],
    limiter: RateLimiter | None = None,
    stream: Stream | None = None,
    far_source: FarSource | None = None,
) -> LanePool:
    """Return the lanes for a copy, or for a stream, over the path that `far` has measured.

    Where neither end is here, the path is the one from the source's host to the sink's. Without a
    limiter, the options' limit holds.
    """
    rtt_s = sum(map(path_rtt_s, [far, *(far_source.agents[:1] if far_source is not None else [])]))
    is_far = is_push and rtt_s > LOSSY_S  # nearer, BBR gains nothing
    has_bbr = is_far and not options.congestion and connections.has_bbr(options)
    login_s, is_kept = connections.first.clock.login_s, connections.first.is_kept
    if is_kept:  # a session took a quarter of that; a login is what more lanes may cost
        login_s = max(login_s, LOGIN_TRIPS * min(rtt_s, 1.0))
    reader = reader_here()
    copies = reader.at_once if reader is not None else 1
    was_crowded = connections.first.clock.was_crowded
    path = Path(rtt_s, login_s, shared_cpus(far), has_bbr, copies, was_crowded)
    memory = HostMemory(connections.host, options)
    known = memory.recall(is_push)
    kind = kind_of(options, is_stream=stream is not None, copies=copies)
    known = known.over(path.rtt_s, path.cpus, kind).believed(usual_lanes(path))
    known = known._replace(lanes=memory.advice()[0] or known.lanes)
    if connections.has_one_login and not options.quiet:
        who = "one login: all" if connections.count == 1 else "one login at each host: its"
        note(f"{who} lanes share one connection, one CPU core and one TCP buffer")
    limit = options.limit_kbit_s
    if limiter is None and limit is not None:
        limiter = RateLimiter(lambda: limit)
    context = LaneContext(
        WorkQueue(stream is not None),
        is_push=is_push,
        rtt_s=path.rtt_s,
        keeps=connections.keeps,
        limiter=limiter,
        stream=stream,
        make_near=far_source.near_end if far_source is not None else None,
        far_host=connections.host if far_source is not None else None,
        reader=reader,
    )
    return LanePool(PoolTerms(context, connections, options, counters, path, known, note))


def path_rtt_s(far: RemoteAgent) -> float:
    """Return the path's round trip: the kernel's, if it is shorter than the one of a request.

    Busy processors hold up requests, so that a path seems far. A kernel whose round trip is much
    shorter has a tunnel's near end for its peer.
    """
    rtt_s = far.rtt_s
    if rtt_s <= _SHORT_S:
        return rtt_s
    from pscp.transports import socket_options  # here: near paths do not need it

    sending = socket_options.sending_of(far.channel)
    if sending is None or sending.min_rtt_s * _TUNNEL < rtt_s < math.inf:
        return rtt_s
    return min(rtt_s, sending.min_rtt_s)


def shared_cpus(far: RemoteAgent) -> int:
    """Return the number of processors of the end that has fewer."""
    there = far.hello.get("cpus")
    return min(os.cpu_count() or 1, there if isinstance(there, int) and there > 0 else 1)
