"""The parts of paramiko that its documentation promises nobody: all that pscp uses of them.

They are as described here in paramiko 3.5 (the oldest that pyproject.toml allows) to 5.1.
../../tests/unit/test_internals.py names the one that another version lacks.

Not here: what paramiko documents (paramiko_helper.py).
"""

from __future__ import annotations

import paramiko
from paramiko.common import cMSG_SERVICE_REQUEST
from paramiko.hostkeys import HostKeyEntry


class Transport(paramiko.Transport):  # type: ignore[misc]
    """A transport that asks for the service of logging in once (RFC 4252, 5), not with each method.

    Some servers refuse to be asked again.
    """

    _has_service = False

    def _send_message(self, data: paramiko.Message) -> None:
        if data.asbytes()[:1] != cMSG_SERVICE_REQUEST:
            super()._send_message(data)
        elif self._has_service:
            accepted = paramiko.Message()
            accepted.add_string("ssh-userauth")
            accepted.rewind()
            self.auth_handler._parse_service_accept(accepted)
        else:
            self._has_service = True
            super()._send_message(data)


def add_entry(known: paramiko.HostKeys, entry: HostKeyEntry) -> None:
    """Add a line of known_hosts as it is: add() would compare it with all that are there."""
    known._entries.append(entry)
