"""ssh's SSH_ASKPASS: has the coordinator answer what ssh asks (ssh(1), ENVIRONMENT).

    python3 -I -S askpass.py PROMPT

A program by itself. It takes the question to the coordinator's private socket, and the answer to
ssh over a pipe. Without an answer it ends ssh, which would otherwise send an empty password, and
the server would count a failed login.

Not here: who answers, and what (../connect/logins/prompts.py).
"""

from __future__ import annotations

import _socket as socket  # socket.py would take most of the time
import os
import signal
import sys

SOCKET = "PSCP_ASK"  # the variable with the connection's token, ":", and the socket's path
HINT = "SSH_ASKPASS_PROMPT"  # ssh's variable with the kind of the question

# A reply's first byte: the answer follows; there is no answer; end ssh.
ANSWER, NONE, STOP = b"A", b"N", b"S"


def main(prompt: str) -> int:
    asker = os.getppid()
    token, _, path = os.environ.get(SOCKET, "").partition(":")
    try:
        reply = ask(path, token, asker, os.environ.get(HINT, ""), prompt)
    except OSError:
        reply = STOP
    if reply[:1] == ANSWER:
        os.write(1, reply[1:] + b"\n")
        return 0
    if reply[:1] != NONE and os.getppid() == asker:
        os.kill(asker, signal.SIGTERM)
    return 1


def ask(path: str, token: str, asker: int, hint: str, prompt: str) -> bytes:
    """Send the question; return the reply, empty if the session has ended. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.connect(path)
    made.sendall(os.fsencode("".join(f"{word}\0" for word in (token, asker, hint, prompt))))
    reply = b""
    while data := made.recv(4096):
        reply += data
    made.close()
    return reply


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
