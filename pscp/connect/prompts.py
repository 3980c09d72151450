"""Answers what logins ask for, so that a person is asked only once, however many there are.

A way to the far end brings its questions to a private Unix socket: the prompt as it would be
shown, with the token of the connection that asks (transports/askpass.py does so for ssh). A
password or a passphrase is kept in memory (credentials.py); anything else that is secret is good
for one login. Only a connection that may bother a person does.

Not here: how a person is asked (tty.py), when a login is repeated (connections.py).
Read next: tty.py.
"""

from __future__ import annotations

import _socket as socket  # as transports/fdpass.py: this is wanted before ssh starts
import contextlib
import itertools
import os
import re
import select
import shlex
import stat
import sys
import threading
import time
from typing import NamedTuple

from pscp import state
from pscp.connect import credentials
from pscp.errors import AuthenticationError, PscpError, UsageError
from pscp.transports import askpass, control_sockets

# The last words of a question say what kind it is (sshconnect2.c); all else is good only once.
_PASSWORD = r".+@.+'s password: ?|\(.+@.+\) Password: ?"
_PASSPHRASE = r"Enter passphrase for .+: ?"
_HOST_KEY = r"\(yes/no|Please type 'yes'"

_FINGERPRINT = "fingerprint is"

_SAID_S = 0.3  # until what the far end said before its question is shown
_QUESTION_MAX_BYTES = 64 * 1024
_SECRET_MAX_BYTES = 1023  # ssh takes no more (readpass.c)

Reply = tuple[bytes, str]  # ANSWER, NONE or STOP of askpass.py, and the answer


class Asked(NamedTuple):
    """A question."""

    token: str  # of the connection
    asker: str  # the process: a second time the same question from it means a wrong answer
    hint: str  # "confirm", "none" or ""
    prompt: str
    until: tuple[int, ...]  # readable once nobody waits for the answer any more


class Prompts:
    """The questions of one session's logins, and the answers so far."""

    def __init__(self, folder: str, password_file: str | None = None, name: str = "") -> None:
        """`folder` is the user's own, and nobody else can look into it. Sessions of one name share
        their answers. Raises UsageError.
        """
        self.was_asked = False  # a login needs answers, which are known by now
        self.is_once = False  # the answer to one of the questions is good for one login
        self.waited_s = 0.0  # for people
        self._asking: set[int] = set()  # the sockets of questions that are being answered
        self._answered_s = 0.0  # when the last one was
        self._file = password_file
        self._of_file = read_password(password_file) if password_file else None
        self._given: set[tuple[str, str]] = set()  # who has had an answer to what
        self._may_ask: set[str] = set()  # tokens of the connections that may bother a person
        self._refused: dict[str, PscpError] = {}
        self._has_person = True  # as far as is known
        self._numbers = itertools.count()
        self._ends, self._end = os.pipe()  # closing the second end wakes all who wait
        self._threads: list[threading.Thread] = []
        self._path = state.private_path(folder)
        self._script = self._path + control_sockets.PROGRAM
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        self._listener.listen(64)
        self._write_script()
        self._name, self._answers = name, credentials.used(name)
        self._is_over = False
        self._thread = threading.Thread(target=self._listen, name="prompts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask nobody any more; the last one that has them forgets the answers."""
        self._is_over = True
        os.close(self._end)
        self._answers.turn.look()
        credentials.PERSON.look()
        self._thread.join()
        for thread in self._threads:
            thread.join()
        self._listener.close()
        os.close(self._ends)
        credentials.released(self._name)
        self._of_file = None
        for path in (self._path, self._script):
            with contextlib.suppress(OSError):
                os.unlink(path)

    # --- for a connection

    def caller(self, may_ask: bool) -> tuple[str, dict[str, str]]:
        """A connection's token, and the environment by which its ssh asks here."""
        token = str(next(self._numbers))
        if may_ask:
            self._may_ask.add(token)
        environment = {
            askpass.SOCKET: f"{token}:{self._path}",
            "SSH_ASKPASS": self._script,
            "SSH_ASKPASS_REQUIRE": "force",
        }
        if not os.environ.get("DISPLAY"):  # without one an OpenSSH before 8.4 does not ask
            environment["DISPLAY"] = "none"
        return token, environment

    def refusal(self, token: str) -> PscpError | None:
        """Why a connection was not answered."""
        return self._refused.get(token)

    def busy_until_s(self) -> float:
        """Until when a question was being answered, on the monotonic clock; now, if one is."""
        return time.monotonic() if self._asking else self._answered_s

    # --- the socket

    def _write_script(self) -> None:
        """ssh takes one program, without arguments of its own."""
        words = shlex.join([sys.executable, "-I", "-S", askpass.__file__])
        fd = os.open(self._script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with open(fd, "w") as file:
            file.write(f'#!/bin/sh\nexec {words} "$1"\n')

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._listener.fileno(), select.POLLIN)
        poll.register(self._ends, 0)
        while self._ends not in dict(poll.poll()):
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
            thread = threading.Thread(target=self._serve, args=(fd,), name="prompt", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, fd: int) -> None:
        peer = socket.socket(fileno=fd)
        try:
            if _is_ours(peer):
                asked = self._question(peer)
                if asked is not None:
                    self._asking.add(fd)
                    kind, answer = self._reply(asked)
                    peer.sendall(kind + os.fsencode(answer))
        except OSError:  # it is gone
            pass
        finally:
            self._answered_s = time.monotonic()
            self._asking.discard(fd)
            peer.close()

    def _question(self, peer: socket.socket) -> Asked | None:
        data, until = b"", (self._ends, peer.fileno())
        poll = select.poll()
        for fd in until:
            poll.register(fd, select.POLLIN)
        while self._ends not in dict(poll.poll()):
            part = peer.recv(4096)
            data += part
            if not part or data.count(b"\0") >= 4 or len(data) > _QUESTION_MAX_BYTES:
                break
        words = os.fsdecode(data).split("\0")
        return Asked(words[0], words[1], words[2], words[3], until) if len(words) == 5 else None

    # --- the answers

    def _reply(self, asked: Asked) -> Reply:
        if not self._answers.turn.take(lambda: self._is_over):
            return askpass.STOP, ""
        try:
            return self._replied(asked)
        finally:
            self._answers.turn.give()

    def _replied(self, asked: Asked) -> Reply:
        key = (asked.asker, asked.prompt)
        is_again = key in self._given
        self._given.add(key)
        if asked.hint == "none":
            self.is_once = True
            return self._asked_person(asked, is_secret=False)
        if asked.hint == "confirm" or re.search(_HOST_KEY, asked.prompt):
            return self._about_a_key(asked, is_again)
        self.was_asked = True
        if re.fullmatch(_PASSPHRASE, asked.prompt):
            return self._passphrase(asked, is_again)
        if re.fullmatch(_PASSWORD, asked.prompt):
            return self._password(asked, is_again)
        self.is_once = True
        return self._asked_person(asked)

    def _about_a_key(self, asked: Asked, is_again: bool) -> Reply:
        """The answer to the same question, of the same fingerprint, is the same."""
        if asked.prompt in self._answers.known and not is_again:
            return askpass.ANSWER, self._answers.known[asked.prompt]
        if asked.token not in self._may_ask:
            return (askpass.NONE, "") if asked.hint else (askpass.ANSWER, "no")
        answer = self._person_says(asked, is_secret=False)
        if asked.hint:
            is_yes = answer is not None and answer.strip().lower() in ("", "y", "yes")
            return (askpass.ANSWER if is_yes else askpass.NONE), ""
        if answer and _FINGERPRINT in asked.prompt:
            self._answers.known[asked.prompt] = answer
        return askpass.ANSWER, answer or "no"

    def _passphrase(self, asked: Asked, is_again: bool) -> Reply:
        """Without one ssh goes on with the next key."""
        known = self._known(asked, is_again)
        if known is not None:
            return askpass.ANSWER, known
        if asked.token not in self._may_ask:
            return askpass.NONE, ""
        return self._kept(asked)

    def _password(self, asked: Asked, is_again: bool) -> Reply:
        known = self._known(asked, is_again)
        if known is not None:
            return askpass.ANSWER, known
        if self._of_file is not None:
            return self._refuse(asked, f"the password in {self._file} was not taken")
        return self._kept(asked)

    def _known(self, asked: Asked, is_again: bool) -> str | None:
        """What was right before, or may be; an answer that was wrong is forgotten."""
        if is_again:
            self._answers.known.pop(asked.prompt, None)
            return None
        return self._answers.known.get(asked.prompt, self._of_file)

    def _kept(self, asked: Asked) -> Reply:
        kind, answer = self._asked_person(asked)
        if kind == askpass.ANSWER:
            self._answers.known[asked.prompt] = answer
        return kind, answer

    def _asked_person(self, asked: Asked, is_secret: bool = True) -> Reply:
        what = asked.prompt.strip().rstrip(":") or "something"
        if asked.token not in self._may_ask:
            return self._refuse(asked, f"a further login asks for {what!r}")
        self._has_person = True
        answer = self._person_says(asked, is_secret)
        if not self._has_person:
            why = f"the login asks for {what!r}, and there is no terminal to ask on"
            hint = "log in with a key, or have a password read by --password-file"
            return self._refuse(asked, why, hint)
        if answer is None:
            return self._refuse(asked, f"the login asks for {what!r}, and got no answer")
        return askpass.ANSWER, answer

    def _person_says(self, asked: Asked, is_secret: bool) -> str | None:
        """None: nothing; or there is nobody."""
        from pscp.connect import tty  # here: most copies ask nothing

        begun_s = time.monotonic()
        if not credentials.PERSON.take(lambda: self._is_over):
            return None
        try:
            if select.select([self._ends], [], [], _SAID_S)[0]:
                return None
            return tty.ask(asked.prompt, asked.hint, is_secret, asked.until)
        except tty.NobodyToAsk:
            self._has_person = False
            return None
        finally:
            credentials.PERSON.give()
            self.waited_s += time.monotonic() - begun_s

    def _refuse(self, asked: Asked, why: str, hint: str = "") -> Reply:
        self._refused[asked.token] = AuthenticationError(why, hint)
        return askpass.STOP, ""


def begun(password_file: str | None, name: str) -> Prompts | None:
    """A session's. None: there is no place for them, so ssh asks by itself. Raises UsageError."""
    folder = state.control_folder()
    if folder is not None and not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        return Prompts(folder, password_file, name)
    if password_file:
        message = "--password-file: no folder for a private program"
        raise UsageError(message, state.NO_FOLDER)
    return None


def read_password(path: str) -> str:
    """The first line of a file that nobody else can read. Raises UsageError."""
    hint = "chmod 600, and owned by you or root; the password is its first line"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"--password-file {path}: {error.strerror}", hint) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"--password-file {path}: not a regular file", hint)
        if status.st_uid not in (os.getuid(), 0):
            raise UsageError(f"--password-file {path}: another user owns it", hint)
        if status.st_mode & 0o077:
            raise UsageError(f"--password-file {path}: others can read it", hint)
        line = os.read(fd, _SECRET_MAX_BYTES + 2).partition(b"\n")[0].rstrip(b"\r")
    finally:
        os.close(fd)
    if not 0 < len(line) <= _SECRET_MAX_BYTES:
        size = f"longer than {_SECRET_MAX_BYTES} bytes" if line else "empty"
        raise UsageError(f"--password-file {path}: its first line is {size}", hint)
    return os.fsdecode(line)


def _is_ours(peer: socket.socket) -> bool:
    """Is it a process of this user? The folder's mode lets in no other anyway."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    of_peer = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # pid, uid, gid
    return int.from_bytes(of_peer[4:8], sys.byteorder) == os.getuid()
