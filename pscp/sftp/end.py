"""The far end of a copy over SFTP: its role, and its answers to the coordinator's requests.

The same records are answered as by endpoint/end.py, each in a task of its own.

Not here: frames (agent.py), what source and sink do (source.py, sink.py).
Read next: sink.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable

from pscp.endpoint import failures, fence, requests, source, tree, wire
from pscp.endpoint.end import not_here
from pscp.endpoint.paths import to_bytes
from pscp.sftp import placing
from pscp.sftp.client import Client
from pscp.sftp.digests import Hashing
from pscp.sftp.fence import Fence
from pscp.sftp.leftovers import Search
from pscp.sftp.sink import Sink
from pscp.sftp.source import Source
from pscp.sftp.tasks import T, Waitable, outcomes


class End:
    """Serves one copy after another; a Begin says what it is in the next one."""

    def __init__(self, client: Client, send: wire.Send) -> None:
        """`send` is for a source's frames."""
        self._client, self._send = client, send
        self.hashing: Hashing | None = None  # known before the first request
        self.source: Source | None = None
        self.sink: Sink | None = None
        self._search: Search | None = None

    # --- what this end is

    def begin(self, request: requests.Request) -> None:
        """Be the source or the sink of a copy; neither after End, nor where SFTP cannot be it."""
        assert self.hashing is not None
        self.drop_role()
        if isinstance(request, requests.BeginSink) and not request.test:
            self.sink = Sink(self._client, self.hashing, request)
        elif isinstance(request, requests.BeginSource) and not request.test:
            self.source = Source(self._client, self.hashing, request, self._send)

    def drop_role(self) -> None:
        roles = self.source, self.sink
        self.source = self.sink = None
        for role in roles:
            if role is not None:
                role.close()

    def the_sink(self) -> Sink:
        if self.sink is None:
            raise not_here("sink")
        return self.sink

    def the_source(self) -> Source:
        if self.source is None:
            raise not_here("source")
        return self.source

    # --- answers of either end

    async def answer(self, request: requests.Request) -> object:
        """Return the answer. Raises what failures.EXPECTED lists."""
        act = ANSWERS.get(type(request))
        if act is None:
            raise _needs_agent()
        return await act(self, request)

    async def begun(self, request: requests.Begin) -> None:
        if self.sink is not None:
            await self.sink.root_checked
        elif self.source is None:
            raise _needs_agent()

    async def ping(self, request: requests.Ping | requests.End) -> None:
        await self._client.realpath(b".")  # the server is still there

    async def expand(self, request: requests.Expand) -> list[object]:
        return await _results(
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

    async def clean(self, request: requests.Clean) -> dict[str, object]:
        if request.path is not None:
            self._search = Search(self._client, request.path, request.remove)
        if self._search is None:
            raise not_here("search")
        return await self._search.page()

    # --- of a source

    async def walk(self, request: requests.Walk) -> tuple[list[tree.Entry], bool]:
        return await self.the_source().walk(request.after, request.restart, request.most)

    async def extents(self, request: requests.Extents) -> object:
        return self.the_source().extents(source.known(request.file), request.offset)

    async def digests(self, request: requests.Digests) -> list[object]:
        role = self.the_source()
        return await _results(
            (file.path, role.digests(source.known(file), extents, request.hash))
            for file, extents in request.files
        )

    # --- of a sink

    async def extents_there(self, request: requests.ExtentsThere) -> object:
        return await self.the_sink().extents(request.path, request.offset)

    async def digests_there(self, request: requests.DigestsThere) -> list[object]:
        role = self.the_sink()
        return await _results(
            (path, role.digests(path, is_part, extents, request.hash))
            for is_part, path, extents in request.files
        )

    async def look(self, request: requests.Look) -> list[list[object]]:
        return await self.the_sink().look(request.paths)

    async def inherit(self, request: requests.Inherit) -> bool:
        return await self.the_sink().inherit(request.entry, request.nonce)

    async def make(self, request: requests.Make) -> int:
        return await self.the_sink().make(request.entry)

    async def finish(self, request: requests.Finish) -> None:
        await self.the_sink().finish(request.entry, request.strong)

    async def discard(self, request: requests.Discard) -> bool:
        return await self.the_sink().discard(request.path, request.nonces)

    async def revoke(self, request: requests.Revoke) -> None:
        """Do nothing: SFTP has no lock that holds back what a lost lane still has on its way."""

    async def release(self, request: requests.Release) -> None:
        await self.the_sink().release()

    async def adopt(self, request: requests.Adopt) -> list[object]:
        return await self.the_sink().each(request.entries, self.the_sink().adopt)

    async def hard_links(self, request: requests.HardLinks) -> list[object]:
        return await self.the_sink().each(request.entries, self.the_sink().hard_link)

    async def folders(self, request: requests.Folders) -> list[object]:
        return await self.the_sink().each(request.entries, self.the_sink().finish_folder)


async def _results(asked: Iterable[tuple[str, Awaitable[T]]]) -> list[object]:
    """Ask for all at once; return per path its result, or its failure as data."""
    listed = list(asked)
    found = await outcomes(*[awaitable for _, awaitable in listed])
    return [
        failures.from_exception(result, path) if isinstance(result, Exception) else result
        for (path, _), result in zip(listed, found, strict=True)
    ]


def _needs_agent() -> failures.Refusal:
    return failures.Refusal(failures.UNSUPPORTED, "", "needs the agent, which SFTP has not")


# Each takes the End, and a request of the type that it stands beside.
ANSWERS: dict[type, Callable[..., Coroutine[Waitable, None, object]]] = {
    requests.Ping: End.ping,
    requests.BeginSource: End.begun,
    requests.BeginSink: End.begun,
    requests.BeginStream: End.begun,
    requests.End: End.ping,
    requests.Expand: End.expand,
    requests.Target: End.target,
    requests.Claim: End.claim,
    requests.Clean: End.clean,
    requests.Walk: End.walk,
    requests.Extents: End.extents,
    requests.Digests: End.digests,
    requests.ExtentsThere: End.extents_there,
    requests.DigestsThere: End.digests_there,
    requests.Look: End.look,
    requests.Inherit: End.inherit,
    requests.Make: End.make,
    requests.Finish: End.finish,
    requests.Discard: End.discard,
    requests.Revoke: End.revoke,
    requests.Release: End.release,
    requests.Adopt: End.adopt,
    requests.HardLinks: End.hard_links,
    requests.Folders: End.folders,
}
