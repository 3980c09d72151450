"""How ssh is set up for one host: at first what `ssh -G` answered for the last copy, while ssh logs
in what it answers now.

Not here: what is read in its answer (transports/openssh.py), the connections (../connections.py).
"""

from __future__ import annotations

import dataclasses
import threading

from pscp.connect.logins import host_cache
from pscp.ground import state
from pscp.ground.locations import Location
from pscp.options.options import Options
from pscp.transports import SshSetup, resolve, transport_of
from pscp.transports.openssh import user_words
from pscp.transports.socket_options import Route, asked


class Setup:
    """The SshSetup of one host, resolved when it is first needed. Any thread may use it."""

    def __init__(self, host: Location) -> None:
        self.host = host
        self._lock = threading.RLock()  # guards what follows
        self._setup: SshSetup | None = None
        self._is_guess = False  # the setup is what `ssh -G` answered for the last copy

    def get(self, options: Options) -> SshSetup:
        """Return the setup. Raises UsageError for what cannot be.

        If it is not remembered, ssh is asked with the lock held: other threads need its answer too.
        """
        with self._lock:
            if self._setup is None:
                self._setup = self._resolved(options)
            return self._setup

    def _resolved(self, options: Options) -> SshSetup:
        """Return what `ssh -G` answered last, so that the login need not wait for `ssh -G`."""
        is_ssh = transport_of(options) == "openssh"  # a library's setup costs nothing to find again
        # --bind and the like are checked against the route, so that must not be a guess.
        found = self._recall(options) if is_ssh and not asked(options) else None
        self._is_guess = found is not None
        if found is None:
            found = resolve(self.host, options)
            if is_ssh:
                self._remember(options, found)
        return dataclasses.replace(found, advised=host_cache.advice(self.host, options)[1])

    def has_changed(self, options: Options) -> bool:
        """Ask `ssh -G` if the setup is only its last answer; return whether that has changed."""
        with self._lock:
            guess = self._setup if self._is_guess else None
            self._is_guess = False
        if guess is None:
            return False
        found = resolve(self.host, options)
        before = dataclasses.replace(guess, advised="", far_aes=None)
        is_same = found == before
        if options.persist is None:
            is_same = found.without_kept() == before.without_kept()
        if is_same:
            return False
        with self._lock:
            self._setup = dataclasses.replace(found, advised=guess.advised)
        self._remember(options, found)
        return True

    def learn_aes(self, has_aes: object) -> None:
        """Keep what the far end says of its processor's AES instructions, if it says something."""
        with self._lock:
            setup = self._setup
            if setup is not None and setup.far_aes is None and isinstance(has_aes, bool):
                self._setup = dataclasses.replace(setup, far_aes=has_aes)

    def _recall(self, options: Options) -> SshSetup | None:
        """Return the setup that is remembered; None if there is none, or one of another shape."""
        kept = state.recall_entry("ssh", self.host.login, setup_key(self.host, options))
        if not isinstance(kept, dict):
            return None
        try:
            lists = {name: tuple(kept[name]) for name in ("offered", "send_env", "set_env")}
            return SshSetup(**{**kept, "route": Route(**kept["route"]), **lists})
        except (TypeError, LookupError):
            return None

    def _remember(self, options: Options, setup: SshSetup) -> None:
        value = {**dataclasses.asdict(setup), "route": setup.route._asdict()}
        state.remember_entry("ssh", self.host.login, setup_key(self.host, options), value)


def setup_key(host: Location, options: Options) -> state.Key:
    """Return what distinguishes the ways in which ssh goes to a host: its options and the host."""
    return (options.program, *user_words(host, options), "--", str(host.host))
