"""The far end of a copy over SFTP: its role, and its answers to the coordinator's requests.

The same records are answered as by endpoint/end.py, each in a task of its own.

Not here: frames (agent.py), what source and sink do (source.py, sink.py).
Read next: sink.py.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from pscp.endpoint import failures, fence, requests, source
from pscp.endpoint.end import not_here
from pscp.endpoint.paths import to_bytes
from pscp.sftp import placing
from pscp.sftp.client import Client
from pscp.sftp.digests import Hashing
from pscp.sftp.fence import Fence
from pscp.sftp.leftovers import Search
from pscp.sftp.sink import Sink
from pscp.sftp.source import Send, Source
from pscp.sftp.tasks import Tasks


class End:
    """Serves one copy after another; a Begin says what it is in the next one."""

    def __init__(self, client: Client, tasks: Tasks, send: Send) -> None:
        """`send` is for a source's frames."""
        self._client, self._tasks, self._send = client, tasks, send
        self.hashing: Hashing | None = None  # known before the first request
        self.source: Source | None = None
        self.sink: Sink | None = None
        self._search: Search | None = None

    # --- what it is

    def begin(self, request: requests.Request) -> None:
        """Be the source or the sink of a copy; neither after End, nor where SFTP cannot be it."""
        assert self.hashing is not None
        self.drop_role()
        if isinstance(request, requests.BeginSink) and not request.test:
            self.sink = Sink(self._client, self._tasks, self.hashing, request)
        elif isinstance(request, requests.BeginSource) and not request.test:
            self.source = Source(self._client, self._tasks, self.hashing, request, self._send)

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

    # --- answers

    async def answer(self, request: requests.Request) -> Any:
        """The answer. Raises what failures.EXPECTED lists."""
        act = ANSWERS.get(type(request))
        if act is None:
            raise _needs_agent()
        return await act(self, request)

    async def _begun(self, request: requests.Begin) -> None:
        if self.sink is not None:
            await self.sink.begun()
        elif self.source is None:
            raise _needs_agent()

    async def _ping(self, request: requests.Ping | requests.End) -> None:
        await self._client.realpath(b".")  # the server is still there

    async def _expand(self, request: requests.Expand) -> list[Any]:
        found: list[Any] = []
        for path in request.paths:
            try:
                found.append(await placing.expand(self._client, self._tasks, path, request.glob))
            except failures.EXPECTED as error:
                found.append(failures.from_exception(error, path))
        return found

    async def _clean(self, request: requests.Clean) -> dict[str, Any]:
        if request.path is not None:
            self._search = Search(self._client, request.path, request.remove)
        if self._search is None:
            raise not_here("search")
        return await self._search.page()

    async def _target(self, request: requests.Target) -> Any:
        """Where the copy lands, as endpoint/end.py's target()."""
        names, folders, make = request.names, request.folders, bool(request.nonce)
        found = await placing.resolve(
            self._client,
            self._tasks,
            request.path,
            names,
            folders,
            make=make,
            before=request.again,
        )
        if not request.nonce:
            return [*found, None]
        claim = requests.Claim(found[0], request.token, request.nonce, request.known)
        return [*found, await self._claim(claim)]

    async def _claim(self, request: requests.Claim) -> fence.Claim:
        found = Fence(self._client, self._tasks, to_bytes(request.root), request.token)
        return await found.claim(request.nonce, request.known)

    # --- of a source

    async def _walk(self, request: requests.Walk) -> Any:
        return await self.the_source().walk(request.after, request.restart, request.most)

    async def _extents(self, request: requests.Extents) -> Any:
        return self.the_source().extents(source.known(request.file), request.offset)

    async def _digests(self, request: requests.Digests) -> list[Any]:
        role = self.the_source()
        return await self._each_digests(
            (file.path, role.digests(source.known(file), extents, request.hash))
            for file, extents in request.files
        )

    async def _each_digests(
        self, asked: Iterable[tuple[str, Coroutine[Any, Any, Any]]]
    ) -> list[Any]:
        """Per file the hex digests of its extents, or its failure. All are asked for at once."""
        work = [(path, self._tasks.start(steps)) for path, steps in asked]
        found: list[Any] = []
        for path, task in work:
            try:
                found.append(await task)
            except failures.EXPECTED as error:
                found.append(failures.from_exception(error, path))
        return found

    # --- of a sink

    async def _extents_there(self, request: requests.ExtentsThere) -> Any:
        return await self.the_sink().extents(request.path, request.offset)

    async def _digests_there(self, request: requests.DigestsThere) -> list[Any]:
        role = self.the_sink()
        return await self._each_digests(
            (path, role.digests(path, is_part, extents, request.hash))
            for is_part, path, extents in request.files
        )

    async def _look(self, request: requests.Look) -> list[Any]:
        return await self.the_sink().look(request.paths)

    async def _make(self, request: requests.Make) -> int:
        return await self.the_sink().make(request.entry)

    async def _inherit(self, request: requests.Inherit) -> bool:
        return await self.the_sink().inherit(request.entry, request.nonce)

    async def _finish(self, request: requests.Finish) -> None:
        await self.the_sink().finish(request.entry, request.strong)

    async def _discard(self, request: requests.Discard) -> bool:
        return await self.the_sink().discard(request.path, request.nonces)

    async def _revoke(self, request: requests.Revoke) -> None:
        """Nothing at the far end holds back what a lost lane still has on its way there."""

    async def _release(self, request: requests.Release) -> None:
        await self.the_sink().release()

    async def _adopt(self, request: requests.Adopt) -> list[Any]:
        return await self.the_sink().each(request.entries, self.the_sink().adopt)

    async def _hard_links(self, request: requests.HardLinks) -> list[Any]:
        return await self.the_sink().each(request.entries, self.the_sink().hard_link)

    async def _folders(self, request: requests.Folders) -> list[Any]:
        return await self.the_sink().each(request.entries, self.the_sink().finish_folder)


def _needs_agent() -> failures.Refusal:
    return failures.Refusal(failures.UNSUPPORTED, "", "needs the agent, which SFTP has not")


ANSWERS: dict[type, Callable[[End, Any], Coroutine[Any, Any, Any]]] = {
    requests.Ping: End._ping,
    requests.BeginSource: End._begun,
    requests.BeginSink: End._begun,
    requests.BeginStream: End._begun,
    requests.End: End._ping,
    requests.Expand: End._expand,
    requests.Target: End._target,
    requests.Claim: End._claim,
    requests.Clean: End._clean,
    requests.Walk: End._walk,
    requests.Extents: End._extents,
    requests.Digests: End._digests,
    requests.ExtentsThere: End._extents_there,
    requests.DigestsThere: End._digests_there,
    requests.Look: End._look,
    requests.Inherit: End._inherit,
    requests.Make: End._make,
    requests.Finish: End._finish,
    requests.Discard: End._discard,
    requests.Revoke: End._revoke,
    requests.Release: End._release,
    requests.Adopt: End._adopt,
    requests.HardLinks: End._hard_links,
    requests.Folders: End._folders,
}
