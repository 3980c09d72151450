"""The memory of a host: what the last copies there found, for the next one.

It knows how many logins needed no prompt: the next copy logs in over that many connections at once
instead of waiting for the first; with a round trip of 100 ms this saves a second and a half. It
knows how many lanes -c auto came to, over which path; and what --measure --save found best. Nothing
is secret, and without it a copy is only slower. With it, no copy is to be slower than without: what
was measured holds for a week, for the like of what it was measured on, and more lanes than the path
asks for are believed once two copies agree. Each way to a host has a file of its own, since the
libraries differ in speed, in ciphers, and in what they can log in with: {"push": the fields of
PathRecord, "push_at": when they changed last, "pull" and "pull_at": as well, "connections": number,
"cipher": name, "sftp_at": when no agent could run, "asks": whether a login asked a person,
"no_direct_at": when no direct lane was let in}.

Not here: the connections (../connections.py).
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from typing import NamedTuple

from pscp.ground import state
from pscp.ground.locations import Location
from pscp.options.option_rows import MAX_CONNECTIONS
from pscp.options.options import Options
from pscp.transports import transport_of

_ALIKE = 2.0  # round trips that differ by less than this factor are taken for the same path
_NEAR_S = 0.01  # and so are all shorter ones
_WEEK_S = 7 * 86400.0  # hosts, paths and their load change
_DAY_S = 24 * 3600.0
_HOUR_S = 3600.0  # a firewall may be opened, and finding it closed takes seconds
FAR_S = 0.02  # from this round trip on a login takes long, and a lost packet too
_NEAR_LOGINS = 2  # at once on a near path: more take longer there than they save


class PathRecord(NamedTuple):
    """The best settings of the last copies in one direction."""

    logins: int = 0  # connections that were open at once; of a far pull, that were worth it
    lanes: int = 0  # the lanes that the next copy with -c auto begins with; 0: not known
    rtt_s: float = 0.0
    congestion: str = ""  # the congestion control that was faster; "": the system's
    enough_bytes_s: float = 0.0  # the rate at which more lanes brought nothing; 0: not known
    found_lanes: int = 0  # more than usual, which the last copy found better; 0: none
    found_bytes_s: float = 0.0  # the rate of these lanes
    is_agreed: bool = False  # two copies have found that more than the usual lanes are better
    cpus: int = 0  # of the end that has fewer; 0: not known
    kind: str = ""  # of copy, as kind_of() names it

    def over(self, rtt_s: float, cpus: int = 0, kind: str = "") -> PathRecord:
        """Return what holds for a copy of this kind over this path.

        That is all of it if the round trip is similar, but the logins only if the rest was measured
        with another number of processors, or on another kind of copy.
        """
        low, high = sorted((self.rtt_s, rtt_s))
        if high >= max(_ALIKE * low, _NEAR_S):
            return PathRecord()
        is_alike = not (cpus and self.cpus) or (cpus, kind) == (self.cpus, self.kind)
        return self if is_alike else PathRecord(logins=self.logins)

    def after(self, lanes: int, bytes_s: float, usual: int) -> PathRecord:
        """Return what is known after a copy that found so many lanes best, which moved `bytes_s`.

        More lanes than a copy begins with that knows nothing (`usual`) are believed once two copies
        have found them: in one of them another program's work may have stopped while they came.
        """
        if lanes <= usual:
            return self._replace(lanes=lanes, found_lanes=0, found_bytes_s=0.0, is_agreed=False)
        agreed = max(min(lanes, self.found_lanes), usual)
        return self._replace(
            lanes=agreed, found_lanes=lanes, found_bytes_s=bytes_s, is_agreed=agreed > usual
        )

    def believed(self, usual: int) -> PathRecord:
        """Return this, without lanes if they are more than `usual` by now and nobody agreed.

        A busy machine's round trips seem long, and so do its logins: then more are usual.
        """
        return self if self.lanes <= usual or self.is_agreed else self._replace(lanes=0)

    @property
    def logins_at_once(self) -> int:
        """The logins that a copy with -c auto begins with: not more than it uses lanes."""
        is_near = 0 < self.rtt_s <= FAR_S
        return min(self.logins, self.lanes or (_NEAR_LOGINS if is_near else self.logins))

    @property
    def lanes_bytes_s(self) -> float:
        """The rate that `lanes` have moved; 0: not known."""
        return self.found_bytes_s if self.lanes == self.found_lanes else 0.0


def kind_of(options: Options, *, is_stream: bool, copies: int = 1) -> str:
    """Return the kind of a copy: "" for files over ssh. What one teaches says little of another."""
    of_several = f"1 of {copies} " if copies > 1 else ""
    carrier = options.plane if options.has_plane else ""
    return of_several + ("stream " if is_stream else "") + carrier


@dataclass(frozen=True)
class HostMemory:
    """The memory of one way to a host: each method reads the file, or adds to it."""

    host: Location
    options: Options

    def _key(self) -> state.Key:
        """Return what distinguishes the ways to a host: each has its own memory."""
        return (
            self.host.user,
            self.host.host,
            self.host.port or self.options.port,
            self.options.program,
            self.options.config_file,
            self.options.jump,
            transport_of(self.options),
            *self.options.identities,  # one key may be held to SFTP, and another not
        )

    def _known(self) -> dict[str, object]:
        found = state.recall_entry("hosts", self.host.login, self._key())
        return found if isinstance(found, dict) else {}

    def _was_within(self, name: str, span_s: float) -> bool:
        """Return whether the moment that is kept by this name is less than so long ago."""
        at_s = self._known().get(name)
        return isinstance(at_s, float) and abs(time.time() - at_s) < span_s

    def _keep(self, values: dict[str, object]) -> bool:
        """Add these values to what is remembered. Return False where they cannot be kept."""
        before = self._known()
        after = {**before, **values}
        if after == before:
            return True
        return state.remember_entry("hosts", self.host.login, self._key(), after)

    def recall(self, is_push: bool) -> PathRecord:
        """Return what the last copies in this direction found best, or the defaults.

        Of what was measured more than a week ago only the logins and the round trip are left.
        """
        found = self._known()
        kept, at_s = found.get(_way(is_push)), found.get(f"{_way(is_push)}_at")
        known = usual = PathRecord()
        with contextlib.suppress(TypeError):  # it has other fields
            known = PathRecord(*kept) if isinstance(kept, list) else usual
        are_right = list(map(type, known)) == list(map(type, usual))
        if not are_right or not all(0 <= each <= MAX_CONNECTIONS for each in known[:2]):
            known = usual
        if not (isinstance(at_s, float) and 0 <= time.time() - at_s < _WEEK_S):
            known = PathRecord(logins=known.logins, rtt_s=known.rtt_s)
        # --measure logs in without prompts as well
        return known if known.logins else known._replace(logins=_number(found.get("connections")))

    def remember(self, is_push: bool, known: PathRecord) -> None:
        """Keep what this copy found best, for the next one in this direction."""
        before = self.recall(is_push)
        if self.options.connections is not None:  # the user's number is not what is best
            known = before._replace(logins=known.logins)
        if known._replace(rtt_s=0.0) != before.over(known.rtt_s)._replace(rtt_s=0.0):
            values: dict[str, object] = {_way(is_push): list(known)}
            if known[3:] != before[3:] or known.lanes != before.lanes:
                values[f"{_way(is_push)}_at"] = time.time()
            self._keep(values)

    def advice(self) -> tuple[int, str]:
        """Return the connections and the cipher that --measure --save found best, or 0 and ""."""
        known = self._known()
        cipher = known.get("cipher")
        is_name = isinstance(cipher, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9@._-]*", cipher)
        return _number(known.get("connections")), str(cipher) if is_name else ""

    def advice_lines(self, cipher: str) -> list[str]:
        """Return the lines of -v about the advice that is followed.

        `cipher` is the advised one, if it is used, else "".
        """
        connections = self.advice()[0]
        advised = []
        if connections and self.options.connections is None:
            advised.append(f"connections: {connections}")
        if cipher:
            advised.append(f"cipher: {cipher}")
        listed = ", ".join(advised)
        return [f"as pscp --measure --save found best for this host: {listed}"] if advised else []

    def save_advice(self, connections: int, cipher: str) -> bool:
        """Keep what --measure --save found best. Return False where it cannot be kept."""
        return self._keep({"connections": connections, "cipher": cipher})

    def uses_sftp(self) -> bool:
        """Return whether a copy to this host used SFTP lately, since no agent could run there."""
        return self._was_within("sftp_at", _DAY_S)

    def remember_sftp(self, is_so: bool) -> None:
        """Keep whether SFTP was used since no agent could run there: for a day, as an agent keeps
        more of a file, and what was in its way may be gone.
        """
        if self.uses_sftp() != is_so:
            self._keep({"sftp_at": time.time() if is_so else None})

    def asks(self) -> bool:
        """Return whether a login may ask a person: True unless the last one asked nothing."""
        return self._known().get("asks") is not False

    def is_known_to_ask(self) -> bool:
        """Return whether the last login asked a person something; False where that is not known."""
        return self._known().get("asks") is True

    def remember_asks(self, is_so: bool) -> None:
        """Keep whether a login asked a person something."""
        if self._known().get("asks") is not is_so:
            self._keep({"asks": is_so})

    def refuses_direct(self) -> bool:
        """Return whether no direct lane was let in at this host lately."""
        return self._was_within("no_direct_at", _HOUR_S)

    def remember_no_direct(self) -> None:
        """Keep for an hour that no direct lane was let in."""
        self._keep({"no_direct_at": time.time()})


def _way(is_push: bool) -> str:
    return "push" if is_push else "pull"


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 < value <= MAX_CONNECTIONS else 0
