"""One copy of a session, from what was asked for to its Result.

Not here: the connections between copies (connect/connections.py), what is settled with both ends
first (negotiation.py), the lanes (pools.py), what is fixed from then on (terms/copy_terms.py), the
work itself (coordinator.py). Read next: coordinator.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import fields, replace

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.messages import noting
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import hashes, system
from pscp.endpoint.reading import source, tree
from pscp.ground import errors, state, stops
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.options.option_rows import CHUNK_BYTES, MIN_CHUNK_BYTES
from pscp.progress.progress import Counters, Result, count
from pscp.transfer.begin_requests import common_hash, in_common, sink_request, source_request
from pscp.transfer.coordinator import Coordinator
from pscp.transfer.lane_pool import LanePool
from pscp.transfer.lanes.relay import take_named
from pscp.transfer.logins import ahead
from pscp.transfer.negotiation import Agreement, Negotiation, replace_dead
from pscp.transfer.neighbours import neighbours_of
from pscp.transfer.pools import make_pool
from pscp.transfer.terms.copy_terms import CopyRequest, CopyTerms, FilePlaces
from pscp.transfer.terms.journal import Journal, open_when_free
from pscp.transfer.terms.relative import folders_above
from pscp.transfer.terms.tokens import forget_tokens, remember_token, token_of_request
from pscp.transfer.walk.decide import may_check_folders

_COUNTED = {each.name for each in fields(Result)} & {each.name for each in fields(Counters)}
_log = Log("transfer")


class Run:
    """One copy. For the main thread."""

    def __init__(self, request: CopyRequest) -> None:
        options = request.job.options(request.options)
        self._needs_agent = options.needs_agent if request.is_push else ""
        if self._needs_agent:
            options = options.with_agent(self._needs_agent)
        request = replace(request, options=options)
        self._request, self._options = request, request.options
        self._negotiation = Negotiation(request)
        self._source: RemoteAgent | None = None  # with --direct: the first at the source's host
        self._root = ""  # at the destination, once it is known
        self._nonce = "" if self._options.dry_run else os.urandom(4).hex()  # of this run

    def run(self) -> Result:
        """Copy, and return what became of it. Raises what stops the copy as a whole."""
        token, connections = token_of_request(self._request), self._request.connections
        is_here = self._request.is_push and self._request.far_source is None
        tops = self._negotiation.near_tops() if is_here else []
        self._check_moves(tops)
        if is_here and not tops:  # nobody need be contacted
            return self._nothing()
        journal = self._journal(token)
        complete = False
        try:
            note = self._request.reporter.note
            if self._request.far_source is not None:
                near, far = self._request.froms[0].login, self._request.to.login
                way = "straight there" if self._options.direct else "through this machine"
                self._request.explain(f"the data goes from {near} to {far} {way}")
            if self._options.direct:  # the way to the sink is through the source's host
                sources = self._take_source()
                tops, self._source = self._far_tops([], sources), sources[0]
                if not tops:
                    return self._nothing()
            self._request.movers.prepare(self._request)
            if self._request.far_source is None:
                first = self._negotiation.first_request(tops, token, self._nonce, journal)
                agents = connections.take(self._options, note, ahead(self._request, tops, first))
            else:
                agents = take_named(connections, self._options, note)
            try:
                replace_dead(agents, connections, self._options, note)
                connections.expect_lanes(self._options, agents[0])
                result = self._copy(agents, tops, token, journal)
                complete = not result.failures
                return result
            except errors.ConnectError as error:
                if error.retry and self._root:  # else no copy has begun: the login's hint is right
                    error.hint = errors.RUN_AGAIN
                raise
            finally:
                connections.give(agents, None if complete else note)
        except (errors.NoPython, errors.NoAgent) as error:
            if not self._needs_agent:
                raise
            hint = f"without {self._needs_agent} it would be copied over SFTP"
            what = f"{self._needs_agent} needs the agent: {error.message}"
            raise errors.UsageError(what, hint) from None
        finally:
            journal.close(complete)
            forget_tokens(self._request, token)

    def _check_moves(self, tops: list[source.Top]) -> None:
        """Raise UsageError where the sources cannot be moved as the job wants it."""
        if self._request.job.moves is not None:
            self._request.job.moves.check(self._request.to.text, tops)

    def _journal(self, token: str) -> Journal:
        """Return the copy's journal, or, where none can be kept, one that keeps nothing."""
        if self._options.dry_run or self._options.transfer_test:
            return Journal(None)
        try:
            request = self._request
            return open_when_free(
                token, self._options.resume, request.wait_s, request.reporter.note
            )
        except OSError as error:
            self._request.reporter.note(
                f"no journal can be kept in {state.folder()} ({error.strerror}), so this copy will "
                "take longer to go on if it is cut short; XDG_STATE_HOME names another folder"
            )
            return Journal(None)

    def _copy(
        self, agents: list[RemoteAgent], tops: list[source.Top], token: str, journal: Journal
    ) -> Result:
        request = self._request
        if agents[0].is_sftp:
            how = str(agents[0].hello.get("verify"))
            request.counters.set(verified=how != "none")
            request.explain(f"over SFTP; verified by: {how}")
            self._note_sftp(request.connections.host, of_source=not request.is_push)
        sources = [self._source] if self._source is not None else self._take_source()
        if sources and sources[0].is_sftp:
            self._note_sftp(request.froms[0], of_source=True)
        tops = tops or self._far_tops(agents, sources)
        if not tops:
            return self._nothing()
        agreed = self._agree(agents, tops, token, journal)
        self._negotiation.measure_path(agents)
        far, self._root = agents[0], agreed.target.root
        algorithm = common_hash(agents, sources)
        pool = self._make_pool(far)
        reuses = not any(agent.is_sftp for agent in (far, *sources[:1]))
        terms = self._terms(
            pool, agents, agreed, algorithm, tops=tops, journal=journal, reuses=reuses
        )
        coordinator = Coordinator(replace(terms, token=token))
        coordinator.results.failures += self._negotiation.missing
        coordinator.results.is_partial = bool(self._negotiation.missing)
        lanes = pool.layout.count
        where = "a transfer test" if self._options.transfer_test else f"to {self._root}"
        request.explain(f"{where}, chunks hashed with {algorithm}")
        if far.cipher:
            request.explain(f"cipher: {far.cipher}")
        request.explain(f"beginning with {count(lanes, 'lane')}: {pool.layout.why}")
        of_source = source_request(
            tops, self._options, algorithm, lists=terms.checks_folders, counts=request.counts_ahead
        )
        of_sink = self._begin_sink(coordinator.terms, agreed)
        try:
            request.connections.spread(self._options, agents, lanes, request.reporter.note)
            first = [agents.pop(0) for _ in range(min(len(agents), lanes))]
            with stops.ended_by(pool.queue.stop):
                pool.begin(of_source, of_sink, first)
                request.movers.begin(coordinator.terms, of_source, of_sink)
                coordinator.run()
        finally:
            pool.end()
            request.movers.end()
            agents += pool.kept
        self._learn(pool)
        return self._result(coordinator, pool)

    def _agree(
        self, agents: list[RemoteAgent], tops: list[source.Top], token: str, journal: Journal
    ) -> Agreement:
        """Settle where the copy lands; where an end has several hosts, they see that it is one."""
        request = self._request
        to_agree = agents, tops, token, self._nonce, journal
        request.movers.check(request, token + self._nonce, tops)
        if not self._nonce or not any(each.others for each in (request.to, *request.froms)):
            return self._negotiation.agree(*to_agree)
        from pscp.transfer import one_place  # here: few copies need it

        one_place.check_hosts(request, agents, tops, token, self._nonce)
        remember_token(request, token)  # before anything there has it
        agreed = self._negotiation.agree(*to_agree)
        if request.is_push:
            one_place.admit_by_fence(request.connections, agreed.target.root, token)
        return agreed

    def _make_pool(self, far: RemoteAgent) -> LanePool:
        request = self._request
        pool = make_pool(
            request.connections,
            request.movers.options_here(self._options),
            request.counters,
            far,
            is_push=request.is_push,
            note=request.reporter.note,
            limiter=request.job.limiter,
            far_source=request.far_source,
        )
        pool.context.wants = request.movers.wants
        return pool

    def _learn(self, pool: LanePool) -> None:
        """Say how many lanes there were, and keep what the next copy should know of the path."""
        request, times = self._request, self._request.counters.connections_lost
        lost = f", {times} lost" if times else ""
        request.explain(f"{count(pool.most_alive, 'lane')} at once at most{lost}")
        if request.far_source is not None or request.movers.wants:  # it is another path
            return
        lesson = pool.lesson()
        _log.debug("to be remembered of the path: %s", lesson)
        request.connections.remember(self._options, request.is_push, lesson)

    def _begin_sink(self, terms: CopyTerms, agreed: Agreement) -> requests.BeginSink:
        own, there = self._negotiation.names[0], agreed.target.names[0]
        is_there = "" in agreed.target.names  # DEST itself, whatever is in it
        of_sink = sink_request(
            agreed.target.root,
            terms.token,
            self._options,
            terms.algorithm,
            agreed.nonce,
            claimed=agreed.claimed,
            base=there.removesuffix(own).rstrip("/") if there != own else "",
            has_old=self._request.is_push and bool(agreed.target.existing or is_there),
            lists=terms.checks_folders,
            tells_place=neighbours_of(self._options) is not None,
        )
        may_replace = self._options.delete and not self._options.ignore_existing
        replaces = list(agreed.target.names) if may_replace else []
        # Another host, or a worker, may have nothing mounted there, and has a cache of its own.
        by_workers = not self._request.is_push and self._request.movers.wants is not None
        is_one = bool(self._request.to.others) or by_workers
        return of_sink._replace(made=agreed.target.made, replaces=replaces, one_mount=is_one)

    def _take_source(self) -> list[RemoteAgent]:
        """Return the first connection to the source's host, where neither end is here."""
        far_source = self._request.far_source
        return far_source.take(self._request.reporter.note) if far_source is not None else []

    def _far_tops(self, agents: list[RemoteAgent], sources: list[RemoteAgent]) -> list[source.Top]:
        if self._options.one_file_system and (sources or agents)[0].is_sftp:
            what = "over SFTP one file system is not told from another"
            raise errors.CopyError(f"{what}: --one-file-system needs python3 there")
        return self._negotiation.far_tops(sources or agents)

    def _terms(
        self,
        pool: LanePool,
        agents: list[RemoteAgent],
        agreed: Agreement,
        algorithm: str,
        *,
        tops: list[source.Top],
        journal: Journal,
        reuses: bool,
    ) -> CopyTerms:
        request, root, far = self._request, agreed.target.root, agents[0]
        can_check_folders = not (
            not (agreed.target.existing or self._options.link_dest)  # nothing to compare with
            or request.job.select is not None  # each file is asked about
        )
        return CopyTerms(
            **vars(request),
            journal=journal,
            context=pool.context,
            algorithm=algorithm,
            algorithms={algorithm} | hashes.ALGORITHMS.keys() & in_common(agents).keys(),
            chunk_bytes=self._options.chunk_bytes or self._chunk_bytes(far),
            tops=tops,
            target=agreed.target,
            places=FilePlaces(request.froms[0].prefix, tops, request.to.prefix, root),
            nonce=agreed.nonce,
            earlier=agreed.claimed.earlier,
            unmade_kinds=self._unmade_kinds(far),
            checks_folders=can_check_folders and may_check_folders(self._options),
            reuses=reuses,
            above=folders_above(self._negotiation.names, agreed.target.names)
            if self._options.has_whole_paths
            else {},
        )

    def _unmade_kinds(self, far: RemoteAgent) -> list[str]:
        """Return the kinds of special files that the sink does not make."""
        is_push, is_root = self._request.is_push, system.makes_devices()
        has_fifos = self._options.archive and not (is_push and far.is_sftp)
        makes = far.hello.get("devices") is True if is_push else is_root
        has_devices = self._options.archive and not far.is_sftp and makes
        made = {tree.FIFO: has_fifos, tree.DEVICE: has_devices, tree.SPECIAL: False}
        return [kind for kind, is_made in made.items() if not is_made]

    def _chunk_bytes(self, far: RemoteAgent) -> int:
        """Return the bytes of a chunk; over SFTP the stand-in for the agent chooses them."""
        limit_kbit_s = self._options.limit_kbit_s
        if self._options.direct and limit_kbit_s:  # a chunk goes at once: the bytes of 0.1 s
            return max(MIN_CHUNK_BYTES, min(limit_kbit_s * 125 // 10, CHUNK_BYTES))
        chosen = far.hello.get("chunk_bytes") if far.is_sftp else None
        return chosen if isinstance(chosen, int) and chosen else CHUNK_BYTES

    def _note_sftp(self, host: Location, *, of_source: bool) -> None:
        """Tell the user what a copy cannot do whose source, or sink, is reached over SFTP."""
        if self._options.quiet:
            return
        note: Callable[[str], None] = self._request.reporter.note
        if self._request.far_source is not None:
            note = noting(host, note)
        if self._options.archive:
            lost = "attributes, ACLs and fractions of a second are not kept, owners by number"
            links = "; hard links become files of their own" if of_source else ""
            note(f"over SFTP {lost}{links}")
        elif self._options.preserve:
            note("over SFTP times are kept in whole seconds")

    def _left_out(self) -> int:
        """Return how many hosts of either end gave no lanes, or not to the end."""
        far_source = self._request.far_source
        of_source = far_source.connections.left_out if far_source is not None else 0
        return self._request.connections.left_out + of_source

    def _nothing(self) -> Result:
        """Return the result of a copy of which no source is there."""
        why = "nothing was deleted: no source is there" if self._options.delete else ""
        if why:
            self._request.reporter.note(why)
        return replace(self._result(None, None), not_deleted=why)

    def _result(self, coordinator: Coordinator | None, pool: LanePool | None) -> Result:
        counters = self._request.counters
        results = coordinator.results if coordinator is not None else None
        lanes = sum(each.connections for each in counters.workers)
        return Result(
            files=0 if self._options.check else counters.files_done,
            differing=counters.files_done if self._options.check else 0,
            bytes=counters.bytes_done + counters.bytes_resumed,
            connections=lanes or (pool.most_alive if pool else 1),
            hosts_left_out=self._left_out(),
            plane=self._request.connections.carrier(self._options),
            seconds=time.monotonic() - counters.started_s,
            digests=results.digests if results is not None else {},
            not_deleted=results.not_deleted if results is not None else "",
            failures=tuple(results.failures if results else self._negotiation.missing),
            failures_unlisted=results.failures_unlisted if results else 0,
            root=self._root,
            **{name: getattr(counters, name) for name in _COUNTED},
        )
