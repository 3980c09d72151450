"""The token of a copy, which names what is copied where: journal, fence and parts have it.

Of several hosts (HOST,HOST:PATH) each has the token that it would have alone, and the copy has one
of these. The state folder keeps which, so that any of the hosts goes on with it alone.

Not here: the journal (journal.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os

from pscp.ground import state
from pscp.ground.locations import Location, absolute
from pscp.transfer.terms.copy_terms import CopyRequest
from pscp.transfer.terms.journal import path_of, token_of


def token_of_request(request: CopyRequest) -> str:
    """Return the token, which is the same for the same command, user, machine and state folder.

    Machines with one name, and runs with different state folders, do not know of each other, so
    their copies are not the same. A job's name stands for its sources.

    In whatever order hosts are given, and with fewer of them, it is that of a copy which was cut
    there, else the first host's by name.
    """
    tokens = [_recalled(token) for token in _of_each_host(request)]
    return next((token for token in tokens if os.path.exists(path_of(token))), tokens[0])


def remember_token(request: CopyRequest, token: str) -> None:
    """Keep that each of the request's hosts has this token: they see one place."""
    tokens = _of_each_host(request)
    for own in tokens if len(tokens) > 1 else ():
        if _recalled(own) != token:
            state.remember_entry("tokens", own, (own,), token)


def forget_tokens(request: CopyRequest, token: str) -> None:
    """Forget what remember_token() keeps, once the copy has no journal: no run goes on with it."""
    for own in _of_each_host(request) if not os.path.exists(path_of(token)) else ():
        state.forget_entry("tokens", own, (own,))


def _recalled(own: str) -> str:
    kept = state.recall_entry("tokens", own, (own,))
    return kept if isinstance(kept, str) and len(kept) == len(own) and kept.isalnum() else own


def _of_each_host(request: CopyRequest) -> list[str]:
    """Return the token of each host alone, by the hosts' names."""
    where = (os.uname().nodename, str(os.getuid()), _machine_id(), state.folder())
    ends = [list(zip(*(_texts_of(each) for each in request.froms), strict=True))]
    if request.job.name:
        ends = [[("job", request.job.name)]]
    ends += [[(text,) for text in _texts_of(request.to)]]
    if not request.is_push:
        ends[1] = [(_absolute(request.to.path),)]
    each = itertools.product(*ends)
    return [token_of(*where, str(request.is_push), *froms, *to) for froms, to in each]


def _texts_of(place: Location) -> list[str]:
    if not place.is_remote:
        return [_absolute(place.path)]
    return sorted(each.text for each in place.each_host)


def _absolute(path: str) -> str:
    """Return the absolute path. A slash at its end is kept, since it has a meaning."""
    return absolute(path) + ("/" if path.endswith(("/", "/.")) else "")


def _machine_id() -> str:
    """Return the machine-id(5), which differs even where names do not; "" if there is none."""
    with contextlib.suppress(OSError), open("/etc/machine-id") as file:
        return file.read(64).strip()
    return ""
