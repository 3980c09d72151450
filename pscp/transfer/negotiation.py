"""Questions to both ends before a copy has lanes: its sources, its digest, and where it
lands.

Not here: what makes an end the source or the sink (begin_requests.py), the story (copy.py), the
answers (endpoint/serving/end.py), how DEST is read (endpoint/writing/placing.py), who owns a copy
(endpoint/writing/fence.py), who sends a lane's requests (lanes/lane.py).
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pscp.connect.bootstrap import RemoteAgent, shaped
from pscp.connect.connections import Connections
from pscp.connect.known.host_memory import HostMemory
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.frames.wire import to_json
from pscp.endpoint.reading import metadata, source
from pscp.endpoint.reading.paths import check
from pscp.endpoint.serving.end import End
from pscp.endpoint.writing import placing
from pscp.endpoint.writing.fence import EARLIER_MOST
from pscp.ground import errors, stops
from pscp.ground.locations import plain_path
from pscp.ground.log import Log
from pscp.options.options import Options
from pscp.progress.progress import Failure as Reported
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.asked_for import as_pattern, expected_top
from pscp.transfer.pieces.plan import last_name
from pscp.transfer.terms import relative
from pscp.transfer.terms.copy_terms import CopyRequest
from pscp.transfer.terms.journal import Journal
from pscp.transfer.terms.results import as_error
from pscp.transports import socket_options

_log = Log("transfer")
_NONCE = re.compile("[0-9a-f]{8}")
_NAMES_MOST_BYTES = 800 * 1024  # in a request; one that is longer by a name has room in a frame
_BESIDE_NAME_BYTES = 12  # what a request has for each source beside its names
_START_TRIPS = 10  # round trips that an agent's start takes at most on a path that is not near
_AHEAD_MOST = 8192  # characters of names: with the agent they are on their way in a round trip
_PAUSES_S = (1.0, 2.0, 4.0)  # before a request is made again, whose connection was lost


class FenceClaim(NamedTuple):
    """The sink's answer to the request to own the copy (endpoint/asking/requests.py, Claim)."""

    held: str = ""  # the run that owns it and is not known
    earlier: Sequence[str] = ()  # runs that may have left parts
    server: Mapping[str, object] = {}  # what was found of a server for SFTP (sftp/fence.py)


NO_CLAIM = FenceClaim()


class Agreement(NamedTuple):
    """Terms that both ends have agreed to."""

    target: placing.Target
    nonce: str = ""  # of this run; "" for one that changes nothing
    claimed: FenceClaim = NO_CLAIM


class Negotiation:
    """Asks both ends of a copy. For the main thread."""

    def __init__(self, request: CopyRequest) -> None:
        self._request, self._options = request, request.options
        self._near = End(metadata.current_umask())
        self.missing: list[Reported] = []  # sources that are not there
        self.names: list[str] = []  # of the sources below DEST

    # --- the sources

    def near_tops(self) -> list[source.Top]:
        """Return the sources at this end. One that is missing is reported."""
        found: list[tuple[str, source.Top]] = []
        for path, location in zip(self._request.from_paths, self._request.froms, strict=True):
            try:
                found += [(path, top) for top in source.expand(path, False)]
            except failures.Refusal as error:
                self._report_missing(failures.data(error.kind, location.path, str(error)))
        return self._named(found)

    def far_tops(self, agents: list[RemoteAgent]) -> list[source.Top]:
        """Return the sources at the far end. One that is missing is reported."""
        paths = self._request.from_paths
        tops: list[tuple[str, source.Top]] = []
        literal: list[str] = []  # paths that may be patterns, but are names that exist
        for path, found in zip(paths, self._expand(agents, paths), strict=True):
            if isinstance(found, dict):
                self._report_missing(_checked_failure(found), self._request.froms[0].prefix)
                continue
            tops += [(path, top) for top in found]
            is_name = [top.name for top in found] == [last_name(path)]
            if glob.has_magic(path) and is_name:
                literal.append(path)
        if self._request.listed is not None and len(tops) > 1:
            raise errors.DestinationError("the list of --files-from is for one source, not several")
        if literal and not self._options.quiet:
            self._note_patterns(agents, literal)
        return self._named(tops)

    def _named(self, found: list[tuple[str, source.Top]]) -> list[source.Top]:
        """Return the sources, each with the path that it was typed as; keep their names."""
        if not self._options.has_whole_paths:
            self.names = [top.name for _, top in found]
            return [top for _, top in found]
        is_pull, is_strict = self._request.froms[0].is_remote, self._options.strict_names
        named = [
            (relative.name_of(path, top, is_pattern=is_pull, is_strict=is_strict), top)
            for path, top in found
        ]
        alone = relative.without_repeated(named)
        self.names = [name for name, _ in alone]
        return [top for _, top in alone]

    def _expand(
        self, agents: list[RemoteAgent], paths: list[str]
    ) -> list[list[source.Top] | dict[str, object]]:
        """Return for each path the far end's sources, or its failure. Raises ProtocolError."""
        if len(in_pieces(paths)) > 1:
            raise errors.CopyError(
                f"{len(paths)} sources at the far end have more names than a request (400 KiB)",
                "name the folder that they are in; --include and --exclude choose in it",
            )
        answer = self._ask(agents, requests.Expand(paths, glob=True))
        with shaped("sources"):
            return [
                found
                if isinstance(found, dict)
                else [self._checked_top(path, row) for row in answers.items(found)]
                for path, found in zip(paths, answers.items(answer), strict=True)
            ]

    def _note_patterns(self, agents: list[RemoteAgent], paths: list[str]) -> None:
        """Note each path that was taken for a name, and would match others as a pattern."""
        patterns = list(map(as_pattern, paths))
        tops = self._expand(agents, patterns)
        for path, pattern, found in zip(paths, patterns, tops, strict=True):
            if isinstance(found, list) and [top.name for top in found] != [last_name(path)]:
                self._request.reporter.note(
                    f"{path}: there is a file of this very name, and it alone is copied; "
                    f"as a pattern it is written {pattern}"
                )

    def _checked_top(self, path: str, row: object) -> source.Top:
        """Return a source that the far end names. Without -T it must have been asked for."""
        name, top_path, is_folder = answers.items(row)
        top = source.Top(_checked_name(name), answers.text(top_path), bool(is_folder))
        if self._options.strict_names and not expected_top(path, top):
            raise errors.ProtocolError(f"the far end sends {top.name!a} for {path!a}")
        return top

    def _report_missing(self, failure: failures.Data, where: str = "") -> None:
        error = as_error(failure)
        self._request.counters.add(files_total=1, files_failed=1)
        self.missing.append(Reported(error.path, type(error).__name__, error.message))
        reporter = self._request.reporter
        place = f"{where}{error.path}" if where else plain_path(error.path)
        reporter.note(f"{place}: {error.message}")
        if reporter.wants_files:
            reporter.file(error.path, "failed", "")

    # --- the destination

    def agree(
        self,
        agents: list[RemoteAgent],
        tops: list[source.Top],
        token: str,
        nonce: str,
        journal: Journal,
    ) -> Agreement:
        """Find where the copy lands, and claim that for this run, which `nonce` names.

        From then on no other run changes the copy. Raises DestinationError and CopyRunning.
        """
        names = self.names
        relative.check_alone(names)
        if self._options.transfer_test:
            self._ask_far(agents, requests.Ping())  # for the round trip's time
            return Agreement(placing.Target("", names, []))
        request = self._target_request(tops, token, nonce, journal)
        with shaped("a destination"):
            target, claim = self._target(agents, request)
            if len(target.names) != len(names):
                raise ValueError("names")
            if claim is None:
                return Agreement(target, nonce)
            request_to_claim = requests.Claim(target.root, token, nonce, journal.runs)
            claimed = self._claim(agents, request_to_claim, _checked_claim(claim))
        journal.run(nonce)
        if claimed.earlier:  # a source that an earlier run was about to copy may have only a part
            target = target._replace(existing=target.names)
        return Agreement(target, nonce, claimed)

    def _target_request(
        self, tops: list[source.Top], token: str, nonce: str, journal: Journal
    ) -> requests.Target:
        backups = self._options.backup_dir or ""
        return requests.Target(
            path=self._request.to_path,
            names=self.names,
            folders=[top.is_folder for top in tops],
            token=token,
            nonce=nonce,
            known=journal.runs,
            mkpath=self._options.mkpath,
            backups=backups if placing.is_beside(backups) else "",
        )

    def first_request(
        self, tops: list[source.Top], token: str, nonce: str, journal: Journal
    ) -> requests.Request | None:
        """Return what the far end is asked first, as far as it is known before it answers.

        None where it is not, as where the source is on a third host, or too long to be sent ahead.
        """
        paths = self._request.from_paths
        if self._options.transfer_test or self._request.far_source is not None:
            return None
        if sum(map(len, self.names or paths)) > _AHEAD_MOST:
            return None
        if not self._request.is_push:
            return requests.Expand(paths, glob=True)
        relative.check_alone(self.names)
        return self._target_request(tops, token, nonce, journal)

    def measure_path(self, agents: list[RemoteAgent]) -> None:
        """Have a request measure the round trip, unless it is known.

        The one request so far may have come with the agent. A kernel that measures the way to a
        tunnel's near end has a round trip that is much shorter than the agent's start. A channel of
        a connection that was kept takes a round trip to open: as long as what is remembered.
        """
        far = agents[0]
        if far.rtt_s == math.inf:
            if (opening_s := far.channel.opening_s) < math.inf:
                memory = HostMemory(self._request.connections.host, self._options)
                known = memory.recall(self._request.is_push).over(opening_s)
                if known.rtt_s:
                    far.rtt_s = min(known.rtt_s, opening_s)
                    return
            sending = socket_options.sending_of(far.channel)
            if sending is None or sending.min_rtt_s * _START_TRIPS < far.start_s:
                self._ask_far(agents, requests.Ping())

    def _target(
        self, agents: list[RemoteAgent], request: requests.Target
    ) -> tuple[placing.Target, object]:
        """Ask where the sources land, so many at once as a request has room for.

        The first request claims that, and makes the folder. Raises what an answer of another shape
        does: TypeError, ValueError.
        """
        found = list[Sequence[object]]()
        pieces = in_pieces(request.names)
        if len(pieces) > 1 and request.path and not request.path.endswith("/"):
            request = request._replace(path=f"{request.path}/")  # a piece may have one name only
        for piece in pieces:
            its = request._replace(names=request.names[piece], folders=request.folders[piece])
            if found:
                its = its._replace(nonce="")
            found.append(answers.items(self._ask(agents, its)))
        roots, names, existing, made, claims = zip(*found, strict=True)
        if len(set(map(answers.text, roots))) > 1:
            raise errors.DestinationError(f"{request.path} was replaced while the copy began")
        target = placing.Target(
            answers.text(roots[0]),
            [name for each in names for name in answers.texts(each)],
            [name for each in existing for name in answers.texts(each)],
            answers.text(made[0]),
        )
        return target, claims[0]

    def _claim(
        self, agents: list[RemoteAgent], request: requests.Claim, claimed: FenceClaim
    ) -> FenceClaim:
        """Make sure that this run owns the copy. Raises CopyRunning.

        From a run that is not known the copy is taken over as well, with a second claim that names
        it: so a claim that comes late takes over from nobody.
        """
        if claimed.held:
            known = [*request.known, claimed.held]
            answer = self._ask(agents, request._replace(known=known))
            claimed = _checked_claim(answer)
        if claimed.held:
            raise errors.CopyRunning("the same copy has just begun elsewhere")
        if not all(_NONCE.fullmatch(run) for run in claimed.earlier):
            raise ValueError("a run's name")
        _log.debug("run %s owns the copy; earlier runs: %s", request.nonce, claimed.earlier)
        return claimed

    def _ask_far(self, agents: list[RemoteAgent], request: requests.Request) -> tuple[object, bool]:
        """Ask the first agent. Return its answer, and whether that is a failure.

        If its connection is lost, another one is asked: each of these requests may be made twice.
        Raises ConnectError.
        """
        connections, far_source = self._request.connections, self._request.far_source
        if far_source is not None and isinstance(request, requests.Expand):
            connections = far_source.connections
        for pause_s in (*_PAUSES_S, None):
            try:
                return agents[0].ask(request)
            except (errors.ConnectionLost, errors.Unreachable) as error:
                if pause_s is None or (connections.has_one_login and not agents[1:]):
                    raise  # nobody is asked for a password again
                _log.debug("asks again in %.0f s: %s", pause_s, error.message)
            self._request.counters.add(connections_lost=1)
            agents.pop(0).close()
            stops.pause(pause_s)
            replace_dead(agents, connections, self._options, self._request.reporter.note)
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, agents: list[RemoteAgent], request: requests.Request) -> object:
        """Ask the far end for sources, and else the sink. Raises DestinationError for a refusal."""
        of_source = isinstance(request, requests.Expand)
        is_far = of_source or self._request.is_push
        asked = self._ask_far(agents, request) if is_far else answers.of_near(self._near, request)
        answer, is_failed = asked
        if not is_failed:
            return answer
        failure = _checked_failure(answer)
        message, hint = failure["message"], ""
        if message.startswith(placing.NO_FOLDER) and not self._options.mkpath:
            hint = "--mkpath makes the folders above DEST that are missing"
        end = self._request.froms[0] if of_source else self._request.to
        raise errors.DestinationError(f"{end.prefix}{failure['path'] or end.path}: {message}", hint)


def replace_dead(
    agents: list[RemoteAgent],
    connections: Connections,
    options: Options,
    note: Callable[[str], None],
) -> None:
    """Close the connections kept from the last copy that died since; open one if none is left."""
    while agents and agents[0].was_kept:
        try:
            agents[0].ask(requests.Ping())
            return
        except errors.ConnectError:
            agents.pop(0).close()
    if not agents:
        agents += connections.take(options, note)


def in_pieces(names: list[str]) -> list[slice]:
    """Return the pieces of the list that have room in one request each.

    The answer may have each name twice: what it is there, and that it is there already.
    """
    sizes = itertools.accumulate(2 * len(to_json(name)) + _BESIDE_NAME_BYTES for name in names)
    grouped = itertools.groupby(size // _NAMES_MOST_BYTES for size in sizes)
    ends = itertools.accumulate((len(list(group)) for _, group in grouped), initial=0)
    return [slice(*each) for each in itertools.pairwise(ends)]


def _checked_claim(answer: object) -> FenceClaim:
    if not isinstance(answer, dict) or not isinstance(server := answer.get("server", {}), dict):
        raise TypeError("no claim")
    held, earlier = answers.text(answer["held"]), answers.texts(answer["earlier"])
    return FenceClaim(held, earlier[-EARLIER_MOST:], server)


def _checked_failure(answer: object) -> failures.Data:
    with shaped():
        return failures.parse_failure(answer)


def _checked_name(value: object) -> str:
    """Return the name of a source; "" means a folder's contents. Raises ProtocolError."""
    with contextlib.suppress(failures.Refusal):
        if isinstance(value, str) and "/" not in value:
            if value:
                check(value)
            return value
    raise errors.ProtocolError(f"the far end sends what is no name: {value!a}")
