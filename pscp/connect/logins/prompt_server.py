"""The private socket to which the logins of a session bring their prompts, and its threads.

A transport brings the prompt as it would be shown, with the token of the connection that asks
(transports/askpass.py does so for ssh).

Not here: what is answered (prompts.py).
"""

from __future__ import annotations

import _socket as socket  # as transports/fdpass.py: this is wanted before ssh starts
import contextlib
import os
import select
import shlex
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from pscp.ground import state
from pscp.ground.contexts import start_thread
from pscp.transports import askpass, control_sockets

_QUESTION_MAX_BYTES = 64 * 1024

Reply = tuple[bytes, str]  # ANSWER, NONE or STOP of askpass.py, and the answer


class Question(NamedTuple):
    """A prompt of a login, and who asks."""

    token: str  # of the connection
    asker: str  # the process: if it asks the same again, the answer was wrong
    hint: str  # "confirm", "none" or "" (ssh(1), SSH_ASKPASS_PROMPT)
    prompt: str
    until: tuple[int, ...]  # descriptors: one is readable once nobody waits for the answer


class PromptServer:
    """Listens on the socket, and has each question answered in a thread of its own."""

    def __init__(self, folder: str, reply: Callable[[Question], Reply]) -> None:
        """Begin to listen in `folder`, into which only the user can look.

        `reply` is called in the thread of the question. `closing_fd` is readable after stop().
        """
        self.path = state.private_path(folder)
        self.script = self.path + control_sockets.PROGRAM
        self._reply = reply
        self.closing_fd, self._close_fd = os.pipe()  # stop() closes the second
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._write_script()
        self._answered_s = 0.0  # when the last one was answered, on the monotonic clock
        self._lock = threading.Lock()  # held to change what follows
        self._unanswered = 0  # questions that wait for their answer now
        # Used by the listening thread; after its end by close():
        self._threads: list[threading.Thread] = []
        self._thread = start_thread("prompts", self._listen)

    def stop(self) -> None:
        """Make `closing_fd` readable: questions are not answered any more."""
        os.close(self._close_fd)

    def close(self) -> None:
        """After stop(): wait for the threads, and remove the socket."""
        self._thread.join()
        for thread in self._threads:
            thread.join()
        self._listener.close()
        os.close(self.closing_fd)
        for path in (self.path, self.script):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def environment(self, token: str) -> dict[str, str]:
        """Return the environment by which the ssh with this token asks here."""
        environment = {
            askpass.SOCKET: f"{token}:{self.path}",
            "SSH_ASKPASS": self.script,
            "SSH_ASKPASS_REQUIRE": "force",
        }
        if not os.environ.get("DISPLAY"):  # without one an OpenSSH before 8.4 does not ask
            environment["DISPLAY"] = "none"
        return environment

    def busy_until_s(self) -> float:
        """Return until when a question waited for its answer: now, if one still waits.

        The time is on the monotonic clock.
        """
        return time.monotonic() if self._unanswered else self._answered_s

    def _write_script(self) -> None:
        """Write the program that ssh runs for its prompts: ssh gives it no other arguments."""
        words = shlex.join([sys.executable, "-I", "-S", askpass.__file__])
        fd = os.open(self.script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with open(fd, "w") as file:
            file.write(f'#!/bin/sh\nexec {words} "$1"\n')

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._listener.fileno(), select.POLLIN)
        poll.register(self.closing_fd, 0)
        while self.closing_fd not in dict(poll.poll()):
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
            self._threads.append(start_thread("prompt", self._serve, fd))

    def _serve(self, fd: int) -> None:
        peer = socket.socket(fileno=fd)
        try:
            if _is_ours(peer):
                question = self._question(peer)
                if question is not None:
                    kind, answer = self._answered(question)
                    peer.sendall(kind + os.fsencode(answer))
        except OSError:  # the asker is gone
            pass
        finally:
            peer.close()

    def _answered(self, question: Question) -> Reply:
        with self._lock:
            self._unanswered += 1
        try:
            return self._reply(question)
        finally:
            self._answered_s = time.monotonic()
            with self._lock:
                self._unanswered -= 1

    def _question(self, peer: socket.socket) -> Question | None:
        data, until = b"", (self.closing_fd, peer.fileno())
        poll = select.poll()
        for fd in until:
            poll.register(fd, select.POLLIN)
        while self.closing_fd not in dict(poll.poll()):
            part = peer.recv(4096)
            data += part
            if not part or data.count(b"\0") >= 4 or len(data) > _QUESTION_MAX_BYTES:
                break
        words = os.fsdecode(data).split("\0")
        return Question(words[0], words[1], words[2], words[3], until) if len(words) == 5 else None


def _is_ours(peer: socket.socket) -> bool:
    """Return whether a process of this user is connected; the folder's mode should see to it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    of_peer = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # pid, uid, gid
    return int.from_bytes(of_peer[4:8], sys.byteorder) == os.getuid()
