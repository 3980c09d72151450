"""The connections of a copy from host to host, for as long as it takes.

Not here: a lane whose data passes through here (relay.py), or goes straight to the sink's host
(onward.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from pscp.connect.connections import Connections
from pscp.transfer.negotiation import CopyRequest
from pscp.transfer.relay import FarSource


@contextlib.contextmanager
def with_far_source(request: CopyRequest) -> Iterator[CopyRequest]:
    """Yield the request with the connections to the source's host, if neither end is here."""
    source, sink = request.froms[0], request.to
    if not (source.is_remote and sink.is_remote):
        yield request
        return
    from pscp.transfer.onward import DirectSource  # here: few copies need it

    far_source: FarSource
    if request.options.direct:
        far_source = direct = DirectSource(request.connections, request.options)
        request = dataclasses.replace(request, connections=direct.onward(source, sink))
    else:
        far_source = FarSource(Connections(source), request.options)
    is_cut = True
    try:
        yield dataclasses.replace(request, far_source=far_source)
        is_cut = False
    finally:
        if request.options.direct:
            request.connections.close(is_cut=is_cut)
        far_source.close(is_cut=is_cut)
