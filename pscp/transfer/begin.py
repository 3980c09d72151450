"""The requests that make an end the source or the sink of a copy.

Not here: what an end makes of them (endpoint/end.py), who sends them (lane.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pscp.endpoint import requests, source, tree
from pscp.options import Options


def source_request(
    tops: list[source.Top], options: Options, algorithm: str
) -> requests.BeginSource:
    """The request that makes an end the source of this copy."""
    rules = tree.Rules(
        recursive=options.recursive, follow=not options.archive, preserve=options.preserve,
        archive=options.archive, filters=options.filters,
    )  # fmt: skip
    return requests.BeginSource(
        tops, rules, algorithm, options.block_bytes, options.strong, options.transfer_test,
        options.debug,
    )  # fmt: skip


def sink_request(
    root: str, token: str, options: Options, algorithm: str, nonce: str = "", *,
    earlier: Sequence[str] = (), server: Mapping[str, Any] | None = None,
) -> requests.BeginSink:  # fmt: skip
    """The request that makes an end the sink of this copy, for the run with this nonce.

    Without a nonce the sink changes nothing. The `earlier` runs may have left parts. `server` is
    what the claim has told of a server for SFTP (sftp/fence.py).
    """
    return requests.BeginSink(
        root=root, token=token, nonce=nonce, earlier=list(earlier), hash=algorithm,
        strong=options.strong, preserve=options.preserve, archive=options.archive,
        test=options.transfer_test, server=dict(server or {}), debug=options.debug,
    )  # fmt: skip
