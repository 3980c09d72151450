"""The program of a lane over TLS: how it ends where the other end does not let it in."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pscp
from pscp.transports import tls_pump


def test_w4_a_lane_that_is_not_let_in_is_lost_as_any_other() -> None:
    """Its exit status was that of an agent that has failed, which ended the whole copy."""
    here, there = socket.socketpair()
    lane, peer = socket.socketpair()
    peer.close()
    package = str(Path(pscp.__file__).parent.parent)
    with here, there, lane:
        argv = [sys.executable, tls_pump.__file__, package, str(there.fileno())]
        child = subprocess.Popen(argv, stderr=subprocess.PIPE, pass_fds=[there.fileno()])
        settings = {"is_server": False, "peer": "", "own": "", "token": "0" * 32}
        socket.send_fds(here, [json.dumps(settings).encode()], [lane.fileno()])
        _, messages = child.communicate(timeout=30)
    assert child.returncode == 255, messages
    assert messages.startswith(b"Connection closed: a direct lane: ")
