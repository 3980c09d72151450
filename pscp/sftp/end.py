"""The far end of a copy over SFTP: its role, and its answers to the coordinator's requests.

The same records are answered as by endpoint/serving/end.py, each in a task of its own. What only a
source or a sink answers, that answers itself.

Not here: frames (agent.py), what source and sink do (source.py, sink.py), and what a mirror and a
move do at both (mirror.py, moving.py).
Read next: sink.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pscp.endpoint.asking import requests
from pscp.endpoint.asking.answers import not_here
from pscp.endpoint.frames import failures, wire
from pscp.endpoint.reading.paths import to_bytes
from pscp.endpoint.there import (
    attributes,
    counting,
    hardlinks,
    leftovers,
    listed_paths,
    lookup,
    mirror,
    moving,
    owners,
)
from pscp.endpoint.there import listings as there
from pscp.endpoint.writing import fence
from pscp.sftp import listings, placing
from pscp.sftp.digests import Hashing
from pscp.sftp.fence import Fence
from pscp.sftp.leftovers import Search
from pscp.sftp.mirror import absent, all_in_the_way, extras, remove
from pscp.sftp.moving import destination, make_durable, mark, remove_sources, same_place
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.tasks import Steps, results
from pscp.sftp.sink import Sink
from pscp.sftp.source import Source


class End:
    """Serves one copy after another; a Begin says whether as the source or the sink of it."""

    def __init__(self, client: Client, send: wire.Send) -> None:
        """`send` sends the frames of a source."""
        self._client, self._send = client, send
        self.hashing: Hashing | None = None  # set before the first request
        self.source: Source | None = None
        self.sink: Sink | None = None
        self._search: Search | None = None

    def begin(self, request: requests.Request) -> None:
        """Take the role of the request: none after End, nor where SFTP cannot have it."""
        assert self.hashing is not None
        self.drop_role()
        if isinstance(request, requests.BeginSink) and not request.test:
            self.sink = Sink(self._client, self.hashing, request)
        elif isinstance(request, requests.BeginSource) and not request.test:
            self.source = Source(self._client, self.hashing, request, self._send)

    def drop_role(self) -> None:
        """Be neither source nor sink any more."""
        roles = self.source, self.sink
        self.source = self.sink = None
        for role in roles:
            if role is not None:
                role.close()

    def the_sink(self) -> Sink:
        """Return the sink that this end is. Raises WireError where it is none."""
        if self.sink is None:
            raise not_here("sink")
        return self.sink

    def the_source(self) -> Source:
        """Return the source that this end is. Raises WireError where it is none."""
        if self.source is None:
            raise not_here("source")
        return self.source

    async def answer(self, request: requests.Request) -> object:
        act = ANSWERS.get(type(request))
        if act is None:
            raise _needs_agent()
        return await act(self, request)

    async def check_role(self, request: requests.Begin) -> None:
        """Answer a Begin, which begin() has carried out."""
        if self.sink is not None:
            await self.sink.root_checked
        elif self.source is None:
            raise _needs_agent()

    async def ping(self, request: requests.Ping | requests.End | None = None) -> None:
        await self._client.realpath(b".")

    async def expand(self, request: requests.Expand) -> list[object]:
        return await results(
            (path, placing.expand(self._client, path, request.glob)) for path in request.paths
        )

    async def target(self, request: requests.Target) -> list[object]:
        found = await placing.resolve(self._client, request)
        if not request.nonce:
            return [*found, None]
        claim = requests.Claim(found.root, request.token, request.nonce, request.known)
        return [*found, await self.claim(claim)]

    async def claim(self, request: requests.Claim) -> fence.Claim:
        found = Fence(self._client, to_bytes(request.root), request.token)
        return await found.claim(request.nonce, request.known)

    async def count(self, request: counting.Count | counting.StopCounting) -> None:
        """Count nothing: each folder's listing would come over the link twice."""

    async def owners(self, request: owners.Owners) -> list[object]:
        if request.user or request.group:
            what = "over SFTP users and groups are known by their numbers only"
            raise failures.Refusal(failures.UNSUPPORTED, "", what)
        return [None, None, None]

    async def lacks(self, request: attributes.Lacks) -> list[str]:
        """Name none: that there are none over SFTP is said when the copy begins."""
        return []

    async def clean(self, request: leftovers.Clean) -> dict[str, object]:
        if request.path is not None:
            self._search = Search(self._client, request.path, request.remove, force=request.force)
        if self._search is None:
            raise not_here("search")
        return await self._search.page()


def _needs_agent() -> failures.Refusal:
    return failures.Refusal(failures.UNSUPPORTED, "", "needs the agent, which SFTP has not")


Answer = Callable[..., Steps[object]]


def _by_source(act: Answer) -> Answer:
    return lambda end, request: act(end.the_source(), request)


def _by_sink(act: Answer) -> Answer:
    return lambda end, request: act(end.the_sink(), request)


# Each takes the End, and a request of the type that it stands beside.
ANSWERS: dict[type, Answer] = {
    requests.Ping: End.ping,
    requests.BeginSource: End.check_role,
    requests.BeginSink: End.check_role,
    requests.BeginStream: End.check_role,
    requests.End: End.ping,
    requests.Expand: End.expand,
    requests.Target: End.target,
    requests.Claim: End.claim,
    leftovers.Clean: End.clean,
    owners.Owners: End.owners,
    attributes.Lacks: End.lacks,
    requests.Walk: _by_source(Source.walk),
    there.WalkFolders: _by_source(partial(Source.walk, kind=listings.ListingWalk)),
    there.Describe: _by_source(listings.describe),
    there.Compare: _by_sink(listings.compare),
    listed_paths.WalkPaths: _by_source(Source.walk),
    listed_paths.Above: _by_source(Source.above),
    counting.Count: End.count,
    counting.StopCounting: End.count,
    requests.Extents: _by_source(Source.extents),
    requests.Digests: _by_source(Source.digests),
    lookup.ExtentsThere: _by_sink(Sink.extents),
    lookup.DigestsThere: _by_sink(Sink.digests),
    lookup.Lookup: _by_sink(Sink.look),
    lookup.Inherit: _by_sink(Sink.inherit),
    requests.Make: _by_sink(Sink.make),
    requests.Finish: _by_sink(Sink.finish),
    requests.Discard: _by_sink(Sink.discard),
    requests.Sweep: _by_sink(Sink.sweep),
    requests.Revoke: _by_sink(Sink.revoke),
    requests.Release: _by_sink(Sink.release),
    requests.Unmark: _by_sink(Sink.unmark),
    requests.Folds: _by_sink(Sink.folds),
    lookup.Adopt: _by_sink(Sink.adopt),
    hardlinks.HardLinks: _by_sink(Sink.hard_links),
    requests.Folders: _by_sink(Sink.folders),
    mirror.Extras: _by_sink(extras),
    mirror.InTheWay: _by_sink(all_in_the_way),
    mirror.Absent: _by_source(absent),
    mirror.Remove: _by_sink(remove),
    moving.SamePlace: _by_source(same_place),
    moving.Mark: _by_source(mark),
    moving.MakeDurable: _by_sink(make_durable),
    lookup.Landed: _by_sink(Sink.landed),
    moving.Destination: _by_sink(destination),
    moving.RemoveSources: _by_source(remove_sources),
}
