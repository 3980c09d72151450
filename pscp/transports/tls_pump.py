"""The program that encrypts for one direct lane: between its standard streams and a TLS connection.

It behaves as ssh does. Each lane has one, so that each encrypts on a processor of its own.

Not here: who starts it (direct.py), TLS itself (../endpoint/link.py).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

from pscp.endpoint import link

_LOST_STATUS = 255  # as ssh's


def main() -> None:
    """Run the program. Its arguments: descriptors of the connection, and of the settings."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    with open(int(sys.argv[2]), encoding="ascii") as file:
        settings = json.load(file)
    is_server = settings["is_server"]
    try:
        context = link.context(is_server, settings["own"], settings["peer"])
        lane = link.TlsLink(sock, context, is_server)
        lane.shake_hands(settings["peer"])
    except OSError as error:
        sys.exit(f"Connection closed: TLS: {error}")
    threading.Thread(target=_send, args=(lane,), daemon=True).start()
    lane.bring(1)
    os._exit(_LOST_STATUS)


def _send(lane: link.TlsLink) -> None:
    """Send what the coordinator writes; after that the other end sees the end of its input."""
    lane.take(0)
    lane.end_input()
