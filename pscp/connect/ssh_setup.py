"""What ssh is set up to be like for one host: what it said for the last copy, then what it says.

Not here: what is read of it (transports/openssh.py), the connections (connections.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pscp import state
from pscp.connect import host_cache
from pscp.options import Location, Options
from pscp.transports import SshSetup, resolve, transport_of
from pscp.transports.openssh import user_words
from pscp.transports.socket_options import Route, asked


class Setup:
    """The SshSetup of one host, resolved when it is first needed."""

    def __init__(self, host: Location) -> None:
        self.host = host
        self._known: SshSetup | None = None
        self._is_guess = False  # what ssh -G said for the last copy, and not yet for this one

    def get(self, options: Options) -> SshSetup:
        """Return it, as remembered where it is. Raises UsageError for what cannot be."""
        if self._known is None:
            self._known = self._guessed(options)
        return self._known

    def _guessed(self, options: Options) -> SshSetup:
        """What ssh -G said last, so that ssh need not wait for it: has_changed() asks again."""
        advised = host_cache.advice(self.host, options)[1]
        if transport_of(options) != "openssh":  # nobody is asked, so nothing need be remembered
            return dataclasses.replace(resolve(self.host, options), advised=advised)
        try:  # --bind and the like depend on the way there, and may not be
            kept: Any = None if asked(options) else state.recall(setup_name(self.host, options))
            route, offered = Route(**kept["route"]), tuple(kept["offered"])
            guess = SshSetup(**{**kept, "route": route, "offered": offered, "advised": advised})
        except (TypeError, LookupError):  # nothing, or of another shape
            found = resolve(self.host, options)
            self._remember(options, found)
            return dataclasses.replace(found, advised=advised)
        self._is_guess = True
        return guess

    def has_changed(self, options: Options) -> bool:
        """Ask ssh, where only its last answer is known: is the user's configuration another?"""
        if not self._is_guess or self._known is None:
            return False
        self._is_guess = False
        found = resolve(self.host, options)
        if found == dataclasses.replace(self._known, advised=""):
            return False
        self._known = dataclasses.replace(found, advised=self._known.advised)
        self._remember(options, found)
        return True

    def learn_aes(self, has_aes: Any) -> None:
        """Keep what the far end said of its processor's AES instructions."""
        if self._known is not None and self._known.far_aes is None and isinstance(has_aes, bool):
            self._known = dataclasses.replace(self._known, far_aes=has_aes)

    def _remember(self, options: Options, setup: SshSetup) -> None:
        state.remember(setup_name(self.host, options), dataclasses.asdict(setup))


def setup_name(host: Location, options: Options) -> str:
    """The name under which it is remembered; another for other options of ssh's."""
    words = user_words(host, options)
    return state.name_of("ssh", options.program, *words, "--", str(host.host))
