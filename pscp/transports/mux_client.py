"""Asks the program of a connection for one more channel, and waits for its end.

    python3 -I -S mux_client.py PATH TEXT IS_SUBSYSTEM

A program by itself, as ssh is for a ControlMaster. It hands over its standard input, output and
error (SCM_RIGHTS), so no data passes through it; its exit status is the command's.

Not here: the other end (libraries/mux_server.py).
"""

from __future__ import annotations

import _socket as socket  # socket.py would take longer than all the rest
import json
import os
import select
import sys

FAILED_STATUS = 255


def main(words: list[str]) -> int:
    path, text, is_subsystem = words
    try:
        master = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        master.connect(path)
        numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
        request = json.dumps([text, is_subsystem == "yes"]).encode()
        master.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
    except OSError as error:
        os.write(2, f"Connection closed: {error.strerror}\n".encode())
        return FAILED_STATUS
    poll = select.poll()
    poll.register(master.fileno(), select.POLLIN)
    poll.register(2, 0)  # the process that reads it may end, perhaps by SIGKILL
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)  # the connection's program has them now, and closes them
    while master.fileno() not in (ready := dict(poll.poll())):
        if 2 in ready:
            return FAILED_STATUS
    status = master.recv(4)
    return int.from_bytes(status, "big", signed=True) if len(status) == 4 else FAILED_STATUS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
