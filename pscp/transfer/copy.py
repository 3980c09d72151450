"""One copy of a session, from what was asked for to its Result.

Not here: the connections between copies (connect/connections.py), what is settled with both ends
first (negotiation.py), what is fixed from then on (copy_terms.py, pool_terms.py), the work itself
(coordinator.py).
Read next: coordinator.py.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pscp import errors, state
from pscp.connect import host_cache
from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.connections import Connections
from pscp.endpoint import hashes, source
from pscp.log import Log
from pscp.options import CHUNK_BYTES, Location, Options
from pscp.progress import Counters, Reporter, Result
from pscp.transfer.autotune import LOSSY_S, Path
from pscp.transfer.begin import choose_hash, sink_request, source_request
from pscp.transfer.coordinator import Coordinator
from pscp.transfer.copy_terms import CopyTerms
from pscp.transfer.journal import Journal, token_of
from pscp.transfer.lane_context import LaneContext
from pscp.transfer.lane_pool import LanePool
from pscp.transfer.negotiation import Agreement, CopyRequest, Negotiation, replace_dead
from pscp.transfer.pool_terms import PoolTerms
from pscp.transfer.work_queue import WorkQueue

if TYPE_CHECKING:
    from pscp.endpoint.end import Stream

_log = Log("transfer")


class Run:
    """One copy. For the main thread."""

    def __init__(
        self, connections: Connections, froms: list[Location], to: Location, options: Options, *,
        reporter: Reporter, counters: Counters, keep_digests: bool,
    ) -> None:  # fmt: skip
        self._request = CopyRequest(
            connections, froms, to, options, reporter, counters, keep_digests
        )
        self._options = options
        self._negotiation = Negotiation(self._request)
        self._nonce = "" if options.dry_run else os.urandom(4).hex()  # of this run

    def run(self) -> Result:
        token, connections = self._token(), self._request.connections
        tops = self._negotiation.near_tops() if self._request.is_push else []
        if self._request.is_push and not tops:  # nobody need be contacted
            return self._result(None, None)
        journal = self._journal(token)
        complete = False
        try:
            note = self._request.reporter.note
            agents = connections.take(self._options, note)
            try:
                replace_dead(agents, connections, self._options, note)
                result = self._copy(agents, tops, token, journal)
                complete = result.ok
                return result
            except errors.ConnectError as error:
                if error.retry:
                    error.hint = errors.RUN_AGAIN
                raise
            finally:
                connections.give(agents)
        finally:
            journal.close(complete)

    def _journal(self, token: str) -> Journal:
        """Return the copy's journal; without a place for one the copy goes on all the same."""
        if self._options.dry_run or self._options.transfer_test:
            return Journal(None)
        try:
            return Journal(token, self._options.resume)
        except OSError as error:
            self._request.reporter.note(
                f"no journal can be kept in {state.folder()} ({error.strerror}), so this copy will "
                "take longer to go on if it is cut short; XDG_STATE_HOME names another folder"
            )
            return Journal(None)

    def _token(self) -> str:
        """Return the same for the same command, run by the same user on the same machine.

        Where two machines have one name, or one user two state folders, their runs do not know of
        each other, so their copies are not the same.
        """
        request, is_push = self._request, self._request.is_push
        where = (os.uname().nodename, str(os.getuid()), _machine_id(), state.folder())
        froms = [_absolute(f.path) if is_push else f.text for f in request.froms]
        to = request.to.text if is_push else _absolute(request.to.path)
        return token_of(*where, str(is_push), *froms, to)

    def _copy(
        self, agents: list[RemoteAgent], tops: list[source.Top], token: str, journal: Journal
    ) -> Result:
        request = self._request
        if agents[0].is_sftp:
            self._note_sftp(agents[0])
        tops = tops or self._negotiation.far_tops(agents)
        if not tops:
            return self._result(None, None)
        agreed = self._negotiation.agree(agents, tops, token, self._nonce, journal)
        far = agents[0]
        algorithm = choose_hash(far)
        pool = make_pool(
            request.connections, self._options, request.counters, far,
            is_push=request.is_push, note=request.reporter.note,
        )  # fmt: skip
        coordinator = Coordinator(self._terms(far, algorithm, agreed, journal, pool.context))
        coordinator.results.failures += self._negotiation.missing
        lanes = pool.layout.count
        request.explain(f"to {agreed.target.root}, chunks hashed with {algorithm}")
        request.explain(f"beginning with {lanes} lanes: {pool.layout.why}")
        try:
            pool.begin(
                source_request(tops, self._options, algorithm),
                sink_request(
                    agreed.target.root, token, self._options, algorithm, agreed.nonce,
                    earlier=agreed.claimed.earlier, server=agreed.claimed.server,
                ),
                [agents.pop(0) for _ in range(min(len(agents), lanes))],
            )  # fmt: skip
            coordinator.run(tops, agreed.target)
        finally:
            pool.end()
            agents += pool.kept.agents
        lesson = pool.lesson()
        _log.debug("to be remembered of the path: %s", lesson)
        request.connections.remember(self._options, request.is_push, lesson)
        return self._result(coordinator, pool)

    def _terms(
        self, far: RemoteAgent, algorithm: str, agreed: Agreement, journal: Journal,
        context: LaneContext,
    ) -> CopyTerms:  # fmt: skip
        return CopyTerms(
            self._options, self._request.counters, self._request.reporter, journal, context,
            algorithm=algorithm,
            algorithms={algorithm} | hashes.ALGORITHMS.keys() & far.hashes.keys(),
            chunk_bytes=self._options.chunk_bytes or _chunk_bytes(far),
            earlier=agreed.claimed.earlier, folds=agreed.claimed.folds,
            keep_digests=self._request.keep_digests,
        )  # fmt: skip

    def _note_sftp(self, far: RemoteAgent) -> None:
        """Say what a copy over SFTP does without."""
        request = self._request
        how = str(far.hello.get("verify"))
        request.counters.set(verified=how != "none")
        request.explain(f"over SFTP; verified by: {how}")
        if self._options.archive:
            lost = "attributes, ACLs and fractions of a second are not kept, owners by number"
            links = "" if request.is_push else "; hard links become files of their own"
            request.reporter.note(f"over SFTP {lost}{links}")
        elif self._options.preserve:
            request.reporter.note("over SFTP times are kept in whole seconds")

    def _result(self, coordinator: Coordinator | None, pool: LanePool | None) -> Result:
        counters = self._request.counters
        results = coordinator.results if coordinator is not None else None
        return Result(
            files=counters.files_done,
            files_resumed=counters.files_resumed,
            files_skipped=counters.files_skipped,
            bytes=counters.bytes_done + counters.bytes_resumed,
            bytes_sent=counters.bytes_sent,
            bytes_resumed=counters.bytes_resumed,
            chunks_verified=counters.chunks_verified,
            chunks_resent=counters.chunks_resent,
            verified=counters.verified,
            connections=pool.most_alive if pool else 1,
            connections_lost=counters.connections_lost,
            seconds=time.monotonic() - counters.started_s,
            digests=results.digests if results is not None else {},
            failures=tuple(results.failures if results else self._negotiation.missing),
        )


def make_pool(
    connections: Connections, options: Options, counters: Counters, far: RemoteAgent, *,
    is_push: bool, note: Callable[[str], None], stream: Stream | None = None,
) -> LanePool:  # fmt: skip
    """Return the lanes for a copy, or for a stream, over the path that `far` has measured."""
    is_far = is_push and far.rtt_s > LOSSY_S  # nearer, BBR gains nothing
    has_bbr = is_far and not options.congestion and connections.has_bbr(options)
    path = Path(far.rtt_s, connections.login_s, shared_cpus(far), has_bbr)
    known = host_cache.recall(connections.host, options, is_push).over(path.rtt_s)
    known = known._replace(lanes=host_cache.advice(connections.host, options)[0] or known.lanes)
    if connections.has_one_login and not options.quiet:
        note("one login: all lanes share one connection, one CPU core and one TCP buffer")
    context = LaneContext(
        WorkQueue(stream is not None), is_push=is_push, rtt_s=path.rtt_s, keeps=connections.keeps,
        bytes_per_s=options.limit_kbit_s * 1000 / 8 if options.limit_kbit_s else None,
        stream=stream,
    )  # fmt: skip
    return LanePool(PoolTerms(context, connections, options, counters, path, known, note))


def _absolute(path: str) -> str:
    """Return the path from the root on, with a slash at its end if it has one: it has a meaning."""
    return os.path.abspath(path) + ("/" if path.endswith(("/", "/.")) else "")


def _machine_id() -> str:
    """Return what tells this machine from others with its name (machine-id(5)); "" if unknown."""
    with contextlib.suppress(OSError), open("/etc/machine-id") as file:
        return file.read(64).strip()
    return ""


def _chunk_bytes(far: RemoteAgent) -> int:
    """Return the bytes of a chunk: over SFTP what its program has chosen."""
    chosen = far.hello.get("chunk_bytes") if far.is_sftp else None
    return chosen if isinstance(chosen, int) and chosen else CHUNK_BYTES


def shared_cpus(far: RemoteAgent) -> int:
    """Return the number of processors of the end that has fewer."""
    there = far.hello.get("cpus")
    return min(os.cpu_count() or 1, there if isinstance(there, int) and there > 0 else 1)
