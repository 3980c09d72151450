"""All undocumented parts of paramiko that pscp uses.

They are as described here in paramiko 3.5 (the oldest that pyproject.toml allows) to 5.1.
../../../tests/unit/test_internals.py fails with the name of a part that another version lacks.

Not here: what paramiko documents (paramiko_helper.py).
"""

from __future__ import annotations

import paramiko
from paramiko.common import cMSG_SERVICE_REQUEST


class Transport(paramiko.Transport):  # type: ignore[misc]
    """A transport that requests the service ssh-userauth once (RFC 4252, 5), not with each method.

    Some servers refuse a second request.
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
