"""The requests that make an end the source or the sink of a copy, and the copy's digest.

Not here: what an end makes of them (endpoint/end.py), who sends them (lane.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pscp import errors
from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint import hashes, requests, source, tree
from pscp.options import KIB, Options

_LIMITED_BLOCK_BYTES = 256 * KIB  # a block goes at once: larger ones would make -l a row of bursts


def choose_hash(far: RemoteAgent) -> str:
    """Return the fastest digest that both ends have. ProtocolError for a HELLO without one."""
    try:
        return hashes.fastest(hashes.speeds(), far.hashes)
    except ValueError:
        raise errors.ProtocolError("the agent has no digest that this end has") from None


def source_request(
    tops: list[source.Top], options: Options, algorithm: str
) -> requests.BeginSource:
    """Return the request that makes an end the source of this copy."""
    rules = tree.Rules(
        recursive=options.recursive, follow=not options.archive, preserve=options.preserve,
        archive=options.archive, filters=options.filters,
    )  # fmt: skip
    block_bytes = options.block_bytes
    if options.limit_kbit_s is not None:
        block_bytes = min(block_bytes, _LIMITED_BLOCK_BYTES)
    return requests.BeginSource(
        tops, rules, algorithm, block_bytes, options.strong, options.transfer_test,
        options.debug,
    )  # fmt: skip


def sink_request(
    root: str, token: str, options: Options, algorithm: str, nonce: str = "", *,
    earlier: Sequence[str] = (), server: Mapping[str, object] | None = None,
) -> requests.BeginSink:  # fmt: skip
    """Return the request that makes an end the sink of this copy, for the run with this nonce.

    Without a nonce the sink changes nothing. The `earlier` runs may have left parts. `server` is
    what the claim has told of a server for SFTP (sftp/fence.py).
    """
    return requests.BeginSink(
        root=root, token=token, nonce=nonce, earlier=list(earlier), hash=algorithm,
        strong=options.strong, preserve=options.preserve, archive=options.archive,
        test=options.transfer_test, server=dict(server or {}), debug=options.debug,
    )  # fmt: skip
