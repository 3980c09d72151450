"""How ssh is set up for one host: what `ssh -G` answered for the last copy, then what it answers.

Not here: what is read of its answer (transports/openssh.py), the connections (connections.py).
"""

from __future__ import annotations

import dataclasses
import threading

from pscp import state
from pscp.connect import host_cache
from pscp.options import Location, Options
from pscp.transports import SshSetup, resolve, transport_of
from pscp.transports.openssh import user_words
from pscp.transports.socket_options import Route, asked


class Setup:
    """The SshSetup of one host, resolved when it is first needed. Any thread may use it."""

    def __init__(self, host: Location) -> None:
        self.host = host
        self._lock = threading.RLock()  # guards what follows
        self._setup: SshSetup | None = None
        self._is_guess = False  # it is the answer of `ssh -G` for the last copy, not for this one

    def get(self, options: Options) -> SshSetup:
        """Return the setup, at once where it is remembered. Raises UsageError for what cannot be.

        Where it is not, ssh is asked with the lock held: whoever else needs the setup waits.
        """
        with self._lock:
            if self._setup is None:
                self._setup = self._resolved(options)
            return self._setup

    def _resolved(self, options: Options) -> SshSetup:
        """Return what `ssh -G` answered last, so that ssh need not wait for it to answer again."""
        advised = host_cache.advice(self.host, options)[1]
        if transport_of(options) != "openssh":  # nobody is asked, so nothing need be remembered
            return dataclasses.replace(resolve(self.host, options), advised=advised)
        try:  # --bind and the like depend on the way there, and may not be
            kept = None if asked(options) else self._recall(options)
            if not isinstance(kept, dict):
                raise TypeError
            route, offered = Route(**kept["route"]), tuple(kept["offered"])
            guess = SshSetup(**{**kept, "route": route, "offered": offered, "advised": advised})
        except (TypeError, LookupError):  # nothing, or of another shape
            found = resolve(self.host, options)
            self._remember(options, found)
            return dataclasses.replace(found, advised=advised)
        self._is_guess = True
        return guess

    def has_changed(self, options: Options) -> bool:
        """Ask ssh where only its last answer is known; return whether that was another."""
        with self._lock:
            guess = self._setup if self._is_guess else None
            self._is_guess = False
        if guess is None:
            return False
        found = resolve(self.host, options)
        if found == dataclasses.replace(guess, advised="", far_aes=None):
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

    def _recall(self, options: Options) -> object:
        return state.recall_entry("ssh", self.host.login, setup_key(self.host, options))

    def _remember(self, options: Options, setup: SshSetup) -> None:
        key, value = setup_key(self.host, options), dataclasses.asdict(setup)
        state.remember_entry("ssh", self.host.login, key, value)


def setup_key(host: Location, options: Options) -> state.Key:
    """Return what distinguishes the ways in which ssh goes to this host: its options, the host."""
    return (options.program, *user_words(host, options), "--", str(host.host))
