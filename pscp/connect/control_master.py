"""One login for all channels: an ssh without a command, whose connection carries each of them.

Whatever fails on a channel, its first command for instance, costs no other login. So the first
login that may ask a person is made in this way too, until it is known what the far end offers.

Not here: when it is used (first_login.py, one_host.py), how a channel comes to use it
(transports/openssh.py, ssh_config(5): ControlMaster).
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from pscp.connect import greeting
from pscp.connect.known.host_setup import HostSetup
from pscp.connect.logins.authenticator import Authenticator, Patience
from pscp.connect.messages import Messages
from pscp.ground.contexts import with_context
from pscp.ground.errors import ConnectionLost, PscpError, Unreachable
from pscp.ground.stops import ended_by
from pscp.transports import Channel, Control

_SOCKET_CHECK_MS = 5  # between two checks whether the socket is there
_HANG_UP_MS = 50  # in which a server hangs up that will have none of a login that was answered


def may_ask_again(setup: HostSetup) -> bool:
    """Return whether a second login, needed where no agent can run, may ask a person again."""
    if setup.options.batch or setup.options.remote != "auto" or not setup.memory.asks():
        return False
    from pscp.connect.logins import tty  # here: most logins ask nothing

    return tty.has_person()


class Master:
    """An ssh that only carries other channels: it logs in, or is logged in.

    One thread waits for it and closes it, as SharedLogin has it.
    """

    def __init__(self, channel: Channel, control: Control) -> None:
        self.channel, self.control = channel, control
        self.is_only = False  # no other login is to be tried
        self._messages = Messages(channel, None)
        self._is_up = False
        self._ends, self._end = os.pipe()  # close() closes the second, and the thread ends
        self._thread = threading.Thread(
            target=with_context(self._drain), name="master", daemon=True
        )

    def wait(self, note: Callable[[str], None], patience: Patience) -> PscpError | None:
        """Wait until channels can be opened, and return None; or why they never can be."""
        if self._is_up:
            return None
        self._messages.notice = note
        poll = select.poll()
        poll.register(self.channel.error_fd, select.POLLIN)
        while not os.path.exists(self.control.path):
            if poll.poll(_SOCKET_CHECK_MS) and not self._show_messages():
                if os.path.exists(self.control.path):
                    break  # with --persist this ssh ends, and another has the connection
                return self.channel.explain(self._messages.text())
            try:
                patience.left_s()
            except Unreachable as error:
                return error
        while poll.poll(_HANG_UP_MS):
            if not self._show_messages():
                if not os.path.exists(self.control.path):
                    return self.channel.explain(self._messages.text())
                break
        self._is_up = True
        self.channel.login_over()
        self._thread.start()
        return None

    def is_usable(self) -> bool:
        """Return whether the ssh still logs in, or listens for further channels."""
        return not self._is_up or self.control.is_alive()

    def close(self) -> None:
        """End the connection, and so every channel of it."""
        self.channel.end()
        os.close(self._end)
        if self._is_up:
            self._thread.join()
        os.close(self._ends)
        self.channel.close()

    def _show_messages(self) -> bool:
        """Read what ssh has written, and show it to people. Return False at its end."""
        has_more = self._messages.read()
        self._messages.show()
        return has_more

    def _drain(self) -> None:
        """Read and drop what ssh writes from now on: the ssh of a refused channel writes it too."""
        poll = select.poll()
        poll.register(self._ends, 0)
        poll.register(self.channel.error_fd, select.POLLIN)
        while self._ends not in dict(poll.poll()):
            if not os.read(self.channel.error_fd, 4096):
                return


class SharedLogin:
    """The connection of a session that other channels may use, and the one login for all of them.

    The thread that opens the session's first connection begins it and waits for it. Any thread may
    close it, or ask for its state.
    """

    def __init__(self) -> None:
        # By which further channels use the first connection; only that thread changes it.
        self.control: Control | None = None
        self._lock = threading.Lock()  # held to change what follows
        self._master: Master | None = None  # the one login: it has begun, and has not failed

    def begin(self, setup: HostSetup, open_master: Callable[[HostSetup], Master | None]) -> bool:
        """Begin the one login, unless it has begun. Return False if none is wanted.

        A connection that was lost is replaced: a new copy may ask a person again.
        """
        if self.is_there() is False:
            self.close()
        with self._lock:
            if self._master is None:
                self._master = open_master(setup)
            if self._master is not None:
                self._master.is_only |= setup.options.login_once
            return self._master is not None

    def wait(
        self, setup: HostSetup, authenticator: Authenticator, note: Callable[[str], None]
    ) -> Control:
        """Wait until channels of the one login can be opened, and return its socket.

        Raises what a failed login means.
        """
        if (master := self._master) is None:
            raise ConnectionLost("the session was closed")
        patience = greeting.patience_for(setup, authenticator, may_prompt=True)
        try:
            with ended_by(lambda error: master.channel.end()):
                failure = master.wait(note, patience)
        except BaseException:
            self.close(master)
            raise
        if failure is None:
            return master.control
        self.close(master)
        raise greeting.explain(master.channel, failure, setup, authenticator)

    def share(self, control: Control | None) -> None:
        """Have further channels use the one login's connection, else that of this socket."""
        master = self._master
        self.control = master.control if master is not None else control

    @property
    def is_only(self) -> bool:
        """Return whether no other login is to be tried (--login-once)."""
        master = self._master
        return master is not None and master.is_only

    def is_there(self) -> bool | None:
        """Return whether the one login's connection is usable; None if there is no one login."""
        master = self._master
        return master.is_usable() if master is not None else None

    def close(self, failed: Master | None = None) -> None:
        """End the one login and its connection, or only this one, unless it was ended already."""
        with self._lock:
            if failed not in (None, self._master):
                return
            master, self._master = self._master, None
        if master is not None:
            master.close()
