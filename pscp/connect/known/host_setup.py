"""Knowledge of a host before anybody is contacted: how ssh is set up for it, and what the
options of a call make of that. At first it is what `ssh -G` answered for the last copy; while ssh
logs in, what it answers now.

Not here: what is read in its answer (transports/openssh.py), the connections (../connections.py).
Read next: host_memory.py.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pscp.connect.known.host_memory import HostMemory
from pscp.ground import errors, state
from pscp.ground.locations import Location
from pscp.options.options import Options
from pscp.transports import SshSetup, transport_of
from pscp.transports.openssh import user_words
from pscp.transports.socket_options import Route, asked

Resolve = Callable[[Location, Options], SshSetup]


class DirectPath(NamedTuple):
    """The places to which connections beside SSH may go."""

    host: str  # a name or an address
    is_proxied: bool = False  # SSH goes through another host, which the far end sees instead of us
    why_not: str = ""  # why there may be none


@dataclass(frozen=True)
class HostSetup:
    """A host, the options of the call that goes there, and what is known of how to log in."""

    host: Location
    options: Options
    ssh: SshSetup

    @property
    def memory(self) -> HostMemory:
        """Return what is remembered of this way to the host."""
        return HostMemory(self.host, self.options)

    @property
    def key(self) -> state.Key:
        """Return what distinguishes the ways of ssh to a host: its options and the host."""
        return setup_key(self.host, self.options)

    @property
    def persists(self) -> bool:
        """Return whether connections outlive this run: only ssh can let them."""
        persist = self.options.persist
        return persist not in (None, "no") and transport_of(self.options) == "openssh"

    @property
    def timeout_s(self) -> str:
        """The seconds that the host has to answer, or "none"."""
        return self.ssh.timeout_s(self.options)

    def check(self, is_push: bool) -> list[str]:
        """Refuse what cannot be, by UsageError; return what -v says."""
        cipher = self.ssh.advised if self.ssh.ciphers_are_ours else ""
        lines = self.ssh.check(self.options, is_push) + self.memory.advice_lines(cipher)
        if self.ssh.ciphers_are_ours and not cipher:
            lines.append(f"ciphers, the first that the host has: {self.ssh.ciphers()}")
        return lines

    def with_congestion(self, name: str) -> HostSetup:
        """Return the setup with this congestion control, unless the user has chosen one."""
        if self.options.congestion or not name or not self.has_bbr():
            return self
        return dataclasses.replace(self, options=dataclasses.replace(self.options, congestion=name))

    def has_bbr(self) -> bool:
        """Return whether connections from here may use BBR."""
        try:
            self.ssh.check(dataclasses.replace(self.options, congestion="bbr"), True)
        except errors.UsageError:
            return False
        return True

    def direct_path(self) -> DirectPath:
        """Return where connections beside SSH may go."""
        why_not = "ssh_config forbids it (SetEnv PSCP_PLANE=ssh)" if self.ssh.forbids_direct else ""
        host = self.ssh.route.hostname or str(self.host.host)
        return DirectPath(host, bool(self.ssh.route.proxy), why_not)

    def absolute(self) -> HostSetup:
        """Return the setup with absolute paths, since an ssh that stays is started in `/`."""
        return dataclasses.replace(self, options=self.options.with_absolute_paths())


class SetupSource:
    """The SshSetup of a session's host, found out when it is first needed. Any thread may use it.

    It may begin as a guess: what `ssh -G` answered for the last copy, so that the login need not
    wait for `ssh -G`.
    """

    def __init__(self, resolve: Resolve | None) -> None:
        """`resolve` contacts nobody; None: nothing is configured for the host, or remembered."""
        self._resolve = resolve
        self._lock = threading.RLock()  # guards what follows
        self._ssh: SshSetup | None = None
        self._is_guess = False

    def get(self, host: Location, options: Options) -> HostSetup:
        """Return the setup for a call. Raises UsageError for what cannot be.

        If it is not remembered, ssh is asked with the lock held: other threads need its answer too.
        """
        with self._lock:
            if self._ssh is None:
                self._ssh = self._found(host, options)
            return HostSetup(host, options, self._ssh)

    def _found(self, host: Location, options: Options) -> SshSetup:
        if self._resolve is None:
            return SshSetup()
        is_ssh = transport_of(options) == "openssh"  # a library's setup costs nothing to find again
        # --bind and the like are checked against the route, so that must not be a guess.
        found = _recalled(host, options) if is_ssh and not asked(options) else None
        self._is_guess = found is not None
        if found is None:
            found = self._resolve(host, options)
            if is_ssh:
                _remember(host, options, found)
        return dataclasses.replace(found, advised=HostMemory(host, options).advice()[1])

    def has_changed(self, host: Location, options: Options) -> bool:
        """Ask `ssh -G` if the setup is a guess; return whether it says something else now."""
        with self._lock:
            guess = self._ssh if self._is_guess else None
            self._is_guess = False
            if guess is None or self._resolve is None:
                return False
            found = self._resolve(host, options)
            before = dataclasses.replace(guess, advised="", far_aes=None)
            is_same = found == before
            if options.persist is None:
                is_same = found.without_kept() == before.without_kept()
            if not is_same:
                self._ssh = dataclasses.replace(found, advised=guess.advised)
                _remember(host, options, found)
            return not is_same

    def learn_aes(self, has_aes: object) -> None:
        """Keep whether the far end's processor has AES instructions, if `has_aes` is a bool."""
        with self._lock:
            ssh = self._ssh
            if ssh is not None and ssh.far_aes is None and isinstance(has_aes, bool):
                self._ssh = dataclasses.replace(ssh, far_aes=has_aes)


def _recalled(host: Location, options: Options) -> SshSetup | None:
    """Return the setup that is remembered; None if there is none, or one of another shape."""
    kept = state.recall_entry("ssh", host.login, setup_key(host, options))
    if not isinstance(kept, dict):
        return None
    try:
        lists = {name: tuple(kept[name]) for name in ("offered", "send_env", "set_env")}
        return SshSetup(**{**kept, "route": Route(**kept["route"]), **lists})
    except (TypeError, LookupError):
        return None


def _remember(host: Location, options: Options, ssh: SshSetup) -> None:
    value = {**dataclasses.asdict(ssh), "route": ssh.route._asdict()}
    state.remember_entry("ssh", host.login, setup_key(host, options), value)


def setup_key(host: Location, options: Options) -> state.Key:
    """Return what distinguishes the ways of ssh to a host: its options and the host."""
    return (options.program, *user_words(host, options), "--", str(host.host))
