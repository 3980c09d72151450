"""Answers the prompts of a session's logins, so that a person is asked only once for all of them.

A password or a passphrase is kept in memory (credentials.py); any other secret is good for one
login. Only the questions of connections that may ask a person are put to one.

Not here: how a question comes here (prompt_server.py), how a person is asked (tty.py), when a login
is repeated (authenticator.py).
Read next: tty.py.
"""

from __future__ import annotations

import itertools
import os
import re
import select
import stat
import time
from collections.abc import Hashable

from pscp.connect.logins import credentials
from pscp.connect.logins.prompt_server import PromptServer, Question, Reply
from pscp.ground import state
from pscp.ground.errors import AuthenticationError, PscpError, UsageError
from pscp.transports import askpass

# Prompts of which the answers can be given again (sshconnect2.c); others are good for one login.
_PASSWORD = r".+@.+'s password: ?|\(.+@.+\) Password: ?"  # noqa: S105 - what asks for one
_PASSPHRASE = r"Enter passphrase for .+: ?"  # noqa: S105 - what asks for one
_HOST_KEY = r"\(yes/no|Please type 'yes'"

_FINGERPRINT = "fingerprint is"

_SHOW_S = 0.3  # until what the far end printed before its question is shown
_SECRET_MAX_BYTES = 1023  # ssh takes no more (readpass.c)


class Caller:
    """A connection whose prompts are answered."""

    def __init__(self, may_ask: bool) -> None:
        self.may_ask = may_ask  # whether its questions may be put to a person
        self.refusal: PscpError | None = None  # why it got no answer
        self.was_answered = False  # it got a password, a passphrase or a code


class Prompts:
    """The questions of one session's logins, and their answers.

    Each question has a thread, and answers when it has the turn of the answers (credentials.py).
    Only that thread changes what follows `_given`; any thread may read it.
    """

    def __init__(self, folder: str, password_file: str | None = None, key: Hashable = "") -> None:
        """Begin to take questions at a socket in `folder`, which is the user's own.

        Sessions with the same key share their answers. Raises UsageError for a password file that
        cannot be used.
        """
        self._file = password_file
        self._of_file = read_password(password_file) if password_file else None
        self._key, self._answers = key, credentials.acquire(key)
        self._tokens = itertools.count()
        self._callers: dict[str, Caller] = {}  # by their tokens; only added to
        self._is_closing = False  # set once, by close()
        self._given: set[tuple[str, str]] = set()  # the prompts, and of which process
        self.was_asked = False  # a login needed answers to prompts
        self.is_single_use = False  # one of the answers was good for one login only
        self.waited_s = 0.0  # for which logins waited for people, in all
        self._server = PromptServer(folder, self._reply)

    def close(self) -> None:
        """Answer and ask nothing any more; the last session with these answers forgets them."""
        self._is_closing = True
        self._server.stop()
        self._answers.turn.wake()
        credentials.PERSON.wake()
        self._server.close()
        credentials.release(self._key)
        self._of_file = None

    # --- for a connection

    def caller(self, may_ask: bool) -> tuple[Caller, dict[str, str]]:
        """Return a new connection, and the environment by which its ssh asks here.

        With `may_ask` its questions may be put to a person.
        """
        token = str(next(self._tokens))
        self._callers[token] = Caller(may_ask)
        return self._callers[token], self._server.environment(token)

    def busy_until_s(self) -> float:
        """Return until when a question waited for its answer: now, if one still waits."""
        return self._server.busy_until_s()

    def _may_ask_person(self, question: Question) -> bool:
        caller = self._callers.get(question.token)
        return caller is not None and caller.may_ask

    def _is_over(self) -> bool:
        return self._is_closing

    # --- the answers

    def _reply(self, question: Question) -> Reply:
        """Answer once it is this question's turn, among those of all sessions."""
        if not self._answers.turn.take(self._is_over):
            return askpass.STOP, ""
        try:
            kind, answer = self._answer(question)
        finally:
            self._answers.turn.give()
        is_secret = not (question.hint or re.search(_HOST_KEY, question.prompt))
        if kind == askpass.ANSWER and is_secret and question.token in self._callers:
            self._callers[question.token].was_answered = True
        return kind, answer

    def _answer(self, question: Question) -> Reply:
        """Answer by the kind of the question. This thread has the turn of the answers."""
        key = (question.asker, question.prompt)
        is_again = key in self._given
        self._given.add(key)
        if question.hint == "none":
            self.is_single_use = True
            return self._ask_person(question, is_secret=False)
        if question.hint == "confirm" or re.search(_HOST_KEY, question.prompt):
            return self._confirm_key(question, is_again)
        self.was_asked = True
        if re.fullmatch(f"{_PASSPHRASE}|{_PASSWORD}", question.prompt):
            return self._lasting(question, is_again)
        self.is_single_use = True
        return self._ask_person(question)

    def _confirm_key(self, question: Question, is_again: bool) -> Reply:
        """Answer a question about a key: the same answer for the same fingerprint."""
        if question.prompt in self._answers.known and not is_again:
            return askpass.ANSWER, self._answers.known[question.prompt]
        if not self._may_ask_person(question):
            return (askpass.NONE, "") if question.hint else (askpass.ANSWER, "no")
        answer, _ = self._put_to_person(question, is_secret=False)
        if question.hint:
            is_yes = answer is not None and answer.strip().lower() in ("", "y", "yes")
            return (askpass.ANSWER if is_yes else askpass.NONE), ""
        if answer and _FINGERPRINT in question.prompt:
            self._answers.known[question.prompt] = answer
        return askpass.ANSWER, answer or "no"

    def _lasting(self, question: Question, is_again: bool) -> Reply:
        """Return a password or a passphrase: that which is known, that in the file, or that which
        a person types, kept for further logins. One that was wrong is forgotten.
        """
        known = self._answers.known
        if is_again:
            known.pop(question.prompt, None)
        elif (answer := known.get(question.prompt, self._of_file)) is not None:
            return askpass.ANSWER, answer
        if re.fullmatch(_PASSPHRASE, question.prompt):
            if not self._may_ask_person(question):  # ssh goes on with the next key
                return askpass.NONE, ""
        elif self._of_file is not None:
            return self._refuse(question, f"the password in {self._file} was not taken")
        kind, typed = self._ask_person(question)
        if kind == askpass.ANSWER:
            known[question.prompt] = typed
        return kind, typed

    def _ask_person(self, question: Question, is_secret: bool = True) -> Reply:
        """Return what a person answers; without an answer the login is refused."""
        what = question.prompt.strip().rstrip(":") or "something"
        if not self._may_ask_person(question):
            return self._refuse(question, f"a further login asks for {what!r}")
        answer, has_person = self._put_to_person(question, is_secret)
        if not has_person:
            why = f"the login asks for {what!r}, and there is no terminal to ask on"
            hint = "log in with a key, or have a password read by --password-file"
            return self._refuse(question, why, hint)
        if answer is None:
            return self._refuse(question, f"the login asks for {what!r}, and got no answer")
        return askpass.ANSWER, answer

    def _put_to_person(self, question: Question, is_secret: bool) -> tuple[str | None, bool]:
        """Put the question to a person; return the answer, and whether a person is there.

        The answer is None if nothing was typed, or if nobody waits for it any more.
        """
        from pscp.connect.logins import tty  # here: most copies ask nothing

        begun_s = time.monotonic()
        if not credentials.PERSON.take(self._is_over):
            return None, True
        try:
            if select.select([self._server.closing_fd], [], [], _SHOW_S)[0]:
                return None, True
            return tty.ask(question.prompt, question.hint, is_secret, question.until), True
        except tty.NobodyToAsk:
            return None, False
        finally:
            credentials.PERSON.give()
            self.waited_s += time.monotonic() - begun_s

    def _refuse(self, question: Question, why: str, hint: str = "") -> Reply:
        """Have the ssh that asks ended, and keep the reason."""
        if question.token in self._callers:
            self._callers[question.token].refusal = AuthenticationError(why, hint)
        return askpass.STOP, ""


def start_prompts(password_file: str | None, key: Hashable) -> Prompts | None:
    """Make a session's Prompts; None if no folder can have the socket, so that ssh asks by itself.

    Raises UsageError for a password file that cannot be used.
    """
    folder = state.control_folder()
    if folder is not None and not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        return Prompts(folder, password_file, key)
    if password_file:
        message = "--password-file: no folder for a private program"
        raise UsageError(message, state.NO_FOLDER)
    return None


def read_password(path: str) -> str:
    """Return the first line of a file that nobody else can read. Raises UsageError."""
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
