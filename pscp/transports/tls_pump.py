"""The program that encrypts for one direct lane: between its standard streams and a TLS connection.

It behaves as ssh does. Each lane has one, so that each encrypts on a processor of its own. It is
started before there is a connection, which comes over a Unix socket with the settings.

Not here: who starts it (direct.py), TLS itself (../endpoint/plane/link.py).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

TYPE_CHECKING = False  # for type checkers it is True; typing takes long to load
if TYPE_CHECKING:
    from pscp.endpoint.plane.link import TlsLink

SETTINGS_MAX_BYTES = 16 * 1024
_LOST_STATUS = 255  # as ssh's


def main(control_fd: int) -> None:
    """Wait for the connection and its settings on this socket, and carry its bytes."""
    from pscp.endpoint.plane import (  # before there is a connection: ssl takes long to load
        gate,
        link,
    )

    with socket.socket(fileno=control_fd) as control:
        text, fds, _, _ = socket.recv_fds(control, SETTINGS_MAX_BYTES, 1)
    if not fds:
        sys.exit(_LOST_STATUS)
    settings = json.loads(text)
    is_server, peer = settings["is_server"], settings["peer"]
    try:
        sock = socket.socket(fileno=fds[0])
        if settings["token"]:
            gate.knock(sock, settings["token"])
        lane = link.TlsLink(sock, link.context(is_server, settings["own"], peer), is_server)
        lane.shake_hands(peer)
    except OSError as error:
        print(f"Connection closed: a direct lane: {error}", file=sys.stderr)
        sys.exit(_LOST_STATUS)
    threading.Thread(target=_send, args=(lane,), daemon=True).start()
    lane.bring(1)
    os._exit(_LOST_STATUS)


def _send(lane: TlsLink) -> None:
    """Send what the coordinator writes; after that the other end sees the end of its input."""
    lane.take(0)
    lane.end_input()


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    main(int(sys.argv[2]))
