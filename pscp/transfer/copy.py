"""One copy of a session, from what was asked for to its Result.

What is copied is settled here with both ends (the sources, their names, the destination); then
lanes and coordinator do the work.

Not here: the connections between copies (connect/connections.py), the work itself (coordinator.py).
Read next: coordinator.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from pscp import errors, state
from pscp.connect import host_cache
from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.connections import Connections
from pscp.endpoint import failures, hashes, metadata, placing, requests, source
from pscp.endpoint.end import End
from pscp.endpoint.paths import check
from pscp.endpoint.wire import WireError
from pscp.log import Log
from pscp.options import CHUNK_BYTES, Location, Options
from pscp.progress import Counters, Reporter, Result
from pscp.progress import Failure as Reported
from pscp.transfer.autotune import LOSSY_S, Path
from pscp.transfer.begin import sink_request, source_request
from pscp.transfer.coordinator import Coordinator, as_error, choose_hash
from pscp.transfer.journal import AnyJournal, Journal, NoJournal, token_of
from pscp.transfer.lane_pool import LanePool
from pscp.transfer.plan import expected_top

_log = Log("transfer")
_NONCE = re.compile("[0-9a-f]{8}")
_EARLIER_MOST = 64  # as endpoint/fence.py keeps
_PAUSES_S = (1.0, 2.0, 4.0)  # before a request is made again, whose connection was lost

_SEVERAL = "the contents of two folders may have the same names: copy one folder after the other"


class Run:
    """One copy."""

    def __init__(
        self, connections: Connections, froms: list[Location], to: Location, options: Options, *,
        reporter: Reporter, counters: Counters, keep_digests: bool,
    ) -> None:  # fmt: skip
        self.counters, self._keep_digests = counters, keep_digests
        self._connections, self._froms, self._to = connections, froms, to
        self._options, self._reporter = options, reporter
        self._is_push = to.is_remote
        self._near = End(metadata.current_umask())
        self._nonce = "" if options.dry_run else os.urandom(4).hex()  # of this run
        self._earlier: list[str] = []  # runs that may have left parts
        self._folds = False  # does the root take names that differ by case for one?
        self._server: dict[str, Any] = {}  # of SFTP, as the claim found it
        self._missing: list[Reported] = []

    def run(self) -> Result:
        token = self._token()
        tops = self._expanded_near() if self._is_push else []
        if self._is_push and not tops:  # nobody need be contacted
            return self._result(None, None)
        journal = self._journal(token)
        complete = False
        try:
            agents = self._connections.take(self._options, self._reporter.note)
            try:
                replace_dead(agents, self._connections, self._options, self._reporter.note)
                result = self._copy(agents, tops, token, journal)
                complete = result.ok
                return result
            except errors.ConnectError as error:
                if error.retry:
                    error.hint = errors.RUN_AGAIN
                raise
            finally:
                self._connections.give(agents)
        finally:
            journal.close(complete)

    def _journal(self, token: str) -> AnyJournal:
        """The copy's journal; without a place for one the copy goes on all the same."""
        if self._options.dry_run or self._options.transfer_test:
            return NoJournal()
        try:
            return Journal(token, self._options.resume)
        except OSError as error:
            self._reporter.note(
                f"no journal can be kept in {state.folder()} ({error.strerror}), so this copy will "
                "take longer to go on if it is cut short; XDG_STATE_HOME names another folder"
            )
            return NoJournal()

    def _token(self) -> str:
        """The same for the same command, run by the same user on the same machine.

        Where two machines have one name, or one user two state folders, their runs do not know of
        each other, so their copies are not the same.
        """
        where = (os.uname().nodename, str(os.getuid()), _machine_id(), state.folder())
        froms = [_absolute(f.path) if self._is_push else f.text for f in self._froms]
        to = self._to.text if self._is_push else _absolute(self._to.path)
        return token_of(*where, str(self._is_push), *froms, to)

    def _copy(
        self, agents: list[RemoteAgent], tops: list[source.Top], token: str, journal: AnyJournal
    ) -> Result:
        if agents[0].is_sftp:
            self._tell_of_sftp(agents[0])
        tops = tops or self._expanded_far(agents)
        if not tops:
            return self._result(None, None)
        target = self._target(agents, tops, token, journal)
        algorithm = choose_hash(agents[0])
        pool = make_pool(
            self._connections, self._options, self.counters, agents[0],
            is_push=self._is_push, algorithm=algorithm, note=self._reporter.note,
        )  # fmt: skip
        coordinator = Coordinator(
            self._options, self.counters, self._reporter, journal, pool,
            keep_digests=self._keep_digests, earlier=self._earlier, folds=self._folds,
            chunk_bytes=_chunk_bytes(agents[0]),
        )  # fmt: skip
        self._explain(f"to {target.root}, chunks hashed with {algorithm}")
        self._explain(f"beginning with {pool.count} lanes: {pool.why}")
        coordinator.failures += self._missing
        try:
            pool.begin(
                source_request(tops, self._options, algorithm),
                sink_request(
                    target.root,
                    token,
                    self._options,
                    algorithm,
                    self._nonce,
                    earlier=self._earlier,
                    server=self._server,
                ),
                [agents.pop(0) for _ in range(min(len(agents), pool.count))],
            )
            coordinator.run(tops, target)
        finally:
            pool.end()
            agents += pool.kept
        lesson = pool.lesson()
        _log.debug("to be remembered of the path: %s", lesson)
        self._connections.remember(self._options, self._is_push, lesson)
        return self._result(coordinator, pool)

    def _tell_of_sftp(self, far: RemoteAgent) -> None:
        """What a copy over SFTP does without."""
        how = str(far.hello.get("verify"))
        self.counters.set(verified=how != "none")
        self._explain(f"over SFTP; verified by: {how}")
        if self._options.archive:
            lost = "attributes, ACLs and fractions of a second are not kept, owners by number"
            links = "" if self._is_push else "; hard links become files of their own"
            self._reporter.note(f"over SFTP {lost}{links}")
        elif self._options.preserve:
            self._reporter.note("over SFTP times are kept in whole seconds")

    def _explain(self, text: str) -> None:
        """With -v: what was decided."""
        _log.debug("%s", text)
        if self._options.verbose:
            self._reporter.note(text)

    # --- before the lanes

    def _ask_far(self, agents: list[RemoteAgent], request: requests.Request) -> tuple[Any, bool]:
        """Ask the first agent: its answer, and whether it is a failure. Raises ConnectError.

        Over another connection where that one is lost: each of these requests may be made twice.
        """
        for pause_s in (*_PAUSES_S, None):
            try:
                return agents[0].ask(request)
            except (errors.ConnectionLost, errors.Unreachable) as error:
                if pause_s is None or self._connections.has_one_login:  # nobody is asked again
                    raise
                _log.debug("asks again in %.0f s: %s", pause_s, error.message)
            self.counters.add(connections_lost=1)
            agents.pop(0).close()
            time.sleep(pause_s)
            replace_dead(agents, self._connections, self._options, self._reporter.note)
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, of_near: bool, agents: list[RemoteAgent], request: requests.Request) -> Any:
        """Ask one end before there are lanes. Raises DestinationError for its refusal."""
        found: list[tuple[Any, bool]] = []
        if of_near:
            self._near.answer(request, lambda answer, failed: found.append((answer, failed)))
        else:
            found.append(self._ask_far(agents, request))
        answer, failed = found[0]
        if failed:
            data = _checked(answer)
            raise errors.DestinationError(f"{data['path']}: {data['message']}")
        return answer

    def _expanded_near(self) -> list[source.Top]:
        """The sources here. One that is missing is reported, as a far end's is."""
        tops: list[source.Top] = []
        for location in self._froms:
            try:
                tops += source.expand(location.literal_path, False)
            except failures.Refusal as error:
                self._report_missing(failures.data(error.kind, location.path, str(error)))
        return tops

    def _expanded_far(self, agents: list[RemoteAgent]) -> list[source.Top]:
        paths = [location.path for location in self._froms]
        answer = self._ask(False, agents, requests.Expand(paths, glob=True))
        tops: list[source.Top] = []
        try:
            for path, found in zip(paths, answer, strict=True):
                if isinstance(found, dict):
                    self._report_missing(_checked(found))
                    continue
                for each in found:
                    tops.append(self._checked_top(path, source.Top(*each)))
        except (TypeError, ValueError) as error:
            raise errors.ProtocolError(f"sources of another shape: {error}") from None
        return tops

    def _checked_top(self, path: str, top: source.Top) -> source.Top:
        """Only what was asked for, by its name, may come from a far end (-T: any name)."""
        if not _is_name(top.name):
            raise errors.ProtocolError(f"the far end sends what is no name: {top.name!a}")
        if self._options.strict_names and not expected_top(path, top):
            raise errors.ProtocolError(f"the far end sends {top.name!a} for {path!a}")
        return top

    def _report_missing(self, data: failures.Data) -> None:
        error = as_error(data)
        self.counters.add(files_total=1, files_failed=1)
        self._missing.append(Reported(error.path, type(error).__name__, error.message))
        self._reporter.note(f"{error.path}: {error.message}")

    def _target(
        self, agents: list[RemoteAgent], tops: list[source.Top], token: str, journal: AnyJournal
    ) -> placing.Target:
        """Where the copy lands, which from here on is this run's to change."""
        names = [top.name for top in tops]
        for name, times in Counter(names).items():
            if times > 1:
                what = f"{name}: several sources have this name"
                raise errors.DestinationError(what if name else _SEVERAL)
        if self._options.transfer_test:
            self._ask_far(agents, requests.Ping())  # for the round trip's time
            self._nonce = ""
            return placing.Target("", names, [])
        path = self._to.path if self._is_push else self._to.literal_path
        request = requests.Target(
            path, names, [top.is_folder for top in tops], journal.again(names), token,
            self._nonce, journal.runs,
        )  # fmt: skip
        answer = self._ask(not self._is_push, agents, request)
        try:
            *fields, claim = answer
            target = placing.Target(*fields)
            if len(target.names) != len(names):
                raise ValueError("names")
            if not all(isinstance(each, str) for each in (*target.names, *target.existing)):
                raise TypeError("names")
            if claim is None:
                return target
            asked = requests.Claim(target.root, token, self._nonce, journal.runs)
            self._claim(agents, asked, claim)
        except (TypeError, ValueError, LookupError) as error:
            raise errors.ProtocolError(f"a destination of another shape: {error}") from None
        journal.run(self._nonce)
        journal.to(target.root, names, target.names)
        # What an earlier run was about to copy may have a part, and nothing else.
        return target._replace(existing=target.names) if self._earlier else target

    def _claim(
        self, agents: list[RemoteAgent], request: requests.Claim, claim: dict[str, Any]
    ) -> None:
        """See that this run owns the copy. One that is not known is taken over from as well: that
        it was asked about tells this claim from one that comes late. Raises CopyRunning.
        """
        if claim["held"]:
            known = [*request.known, claim["held"]]
            claim = self._ask(not self._is_push, agents, request._replace(known=known))
        if claim["held"]:
            raise errors.CopyRunning("the same copy has just begun elsewhere")
        for run in claim["earlier"]:
            if not _NONCE.fullmatch(run):
                raise ValueError("a run's name")
        self._earlier = claim["earlier"][-_EARLIER_MOST:]
        self._folds = claim.get("folds") is True
        self._server = claim.get("server", {})
        _log.debug("run %s owns the copy; earlier runs: %s", self._nonce, self._earlier)

    # --- after them

    def _result(self, coordinator: Coordinator | None, pool: LanePool | None) -> Result:
        counters = self.counters
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
            digests=coordinator.digests if coordinator else {},
            failures=tuple(coordinator.failures if coordinator else self._missing),
        )


def replace_dead(
    agents: list[RemoteAgent],
    connections: Connections,
    options: Options,
    note: Callable[[str], None],
) -> None:
    """A connection kept from the last copy may have died since: ask, rather than fail."""
    while agents and agents[0].was_kept:
        try:
            agents[0].ask(requests.Ping())
            return
        except errors.ConnectError:
            agents.pop(0).close()
    if not agents:
        agents += connections.take(options, note)


def make_pool(
    connections: Connections, options: Options, counters: Counters, far: RemoteAgent, *,
    is_push: bool, algorithm: str, note: Callable[[str], None], stream: Any = None,
) -> LanePool:  # fmt: skip
    """The lanes for a copy, or for a stream, over the path that `far` has measured."""
    is_far = is_push and far.rtt_s > LOSSY_S  # nearer, BBR gains nothing
    has_bbr = is_far and not options.congestion and connections.has_bbr(options)
    path = Path(far.rtt_s, connections.login_s, shared_cpus(far), has_bbr)
    known = host_cache.recall(connections.host, options, is_push).over(path.rtt_s)
    known = known._replace(lanes=host_cache.advice(connections.host, options)[0] or known.lanes)
    if connections.has_one_login and not options.quiet:
        note("one login: all lanes share one connection, one CPU core and one TCP buffer")
    pool = LanePool(
        options, counters, is_push=is_push, algorithm=algorithm,
        connect=partial(connections.connect, options), note=note, keeps=connections.keeps,
        path=path, known=known, has_early=connections.has_early,
        is_once=connections.has_one_login, stream=stream,
    )  # fmt: skip
    pool.algorithms |= hashes.ALGORITHMS.keys() & far.hashes.keys()
    pool.late = connections.late
    return pool


def _absolute(path: str) -> str:
    """The path from the root on, with a slash at its end if it has one: DEST means more with it."""
    return os.path.abspath(path) + ("/" if path.endswith(("/", "/.")) else "")


def _machine_id() -> str:
    """What tells this machine from others with its name (machine-id(5)); "" where nothing does."""
    with contextlib.suppress(OSError), open("/etc/machine-id") as file:
        return file.read(64).strip()
    return ""


def _is_name(value: Any) -> bool:
    """Can it be the name of a source? "" is for the contents of a folder."""
    if not isinstance(value, str) or "/" in value:
        return False
    try:
        if value:
            check(value)
        return True
    except failures.Refusal:
        return False


def _chunk_bytes(far: RemoteAgent) -> int:
    """Bytes of a chunk: over SFTP what its program has chosen."""
    chosen = far.hello.get("chunk_bytes") if far.is_sftp else None
    return chosen if isinstance(chosen, int) and chosen else CHUNK_BYTES


def shared_cpus(far: RemoteAgent) -> int:
    """Processors of the end that has fewer."""
    there = far.hello.get("cpus")
    return min(os.cpu_count() or 1, there if isinstance(there, int) and there > 0 else 1)


def _checked(answer: Any) -> failures.Data:
    try:
        return failures.checked(answer)
    except WireError as error:
        raise errors.ProtocolError(str(error)) from None
