"""ssh's SSH_ASKPASS: has the coordinator answer what ssh asks (ssh(1), ENVIRONMENT).

    python3 -I -S askpass.py PROMPT

A program by itself. It brings the question to the coordinator's private socket, and the answer to
ssh, over a pipe. Where there is none to be had it ends ssh, which would else send an empty
password and be counted as one more failed login.

Not here: who answers, and what (../connect/prompts.py).
"""

from __future__ import annotations

import _socket as socket  # socket.py would take most of the time
import os
import signal
import sys

SOCKET = "PSCP_ASK"  # in the environment: the caller's token, ":", the socket's path
HINT = "SSH_ASKPASS_PROMPT"  # of ssh: what kind of question it is

ANSWER, NONE, STOP = b"A", b"N", b"S"  # how a reply begins: it follows; there is none; give up


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
    """Ask; return the reply, which is empty where nobody is there any more. Raises OSError."""
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
