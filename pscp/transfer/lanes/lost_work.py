"""What a lost lane may still do at the sink, though it is taken for dead: refused, then repeated.

Packs, and requests that only one lane may make, wait for that; chunks do not, since the same bytes
in the same place do no harm.

Not here: how a lane's work comes back (in_flight.py), what the sink refuses then
(../../endpoint/writing/fence.py).
"""

from __future__ import annotations

from collections.abc import Callable

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.transfer.pieces.plan import Ask, Failure, Pack, Work


def revoke_first(
    add: Callable[[Work], None],
    failed: Callable[[Failure], None],
    lane: int,
    works: list[Work],
    was_given_up: bool,
) -> Ask:
    """Return the request that refuses a lost lane's late work.

    Once it is answered, these pieces are handed to `add`; where it fails, so does what they hold:
    `failed` is called with the failure of each file of a pack. With `was_given_up` the lane's agent
    may be waiting for its disk, with the fence in its hands: then it is asked for again.
    """

    def then(_: object) -> None:
        for work in works:
            add(work)

    def fail_all(failure: Failure) -> None:
        if was_given_up and failure["kind"] == failures.DESTINATION:
            add(revoke_first(add, failed, lane, works, was_given_up))
            return
        what = failure["message"], failure["errno"]
        for work in works:
            if isinstance(work, Pack):
                for item in work.items:
                    failed(failures.data(failure["kind"], item.entry.path, *what))
            elif isinstance(work, Ask):
                work.failed(failure)

    return Ask(False, requests.Revoke(lane), then, fail_all, is_prompt=True)
