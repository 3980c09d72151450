"""Asks a person: on the terminal, or by the user's program for this (SSH_ASKPASS).

Not here: what is asked, and how often (prompts.py). Read next: ground/terminal_text.py.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import termios
from collections.abc import Iterator, Sequence

from pscp.ground import terminal_text
from pscp.ground.signals import last_act

_TERMINAL = "/dev/tty"
_ANSWER_MAX_BYTES = 1024
_END_S = 2.0
_NO_KEYS = (termios.VSUSP, termios.VQUIT)  # they would leave the terminal without its echo


class NobodyToAsk(Exception):
    """There is no terminal to ask on, and no program for it."""


def ask(prompt: str, hint: str, is_secret: bool, until: Sequence[int]) -> str | None:
    """Ask a person, and return the answer; None if there was none.

    This ends as soon as one of the descriptors `until` is readable. `hint` is ssh's
    SSH_ASKPASS_PROMPT. The caller has the turn (credentials.PERSON). Raises NobodyToAsk.
    """
    program = _program()
    if program:
        return _by_program(program, prompt, hint, until)
    try:
        fd = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        raise NobodyToAsk from None
    try:
        with terminal_text.pause_progress():
            return _on_terminal(fd, prompt, hint, is_secret, until)
    except (OSError, termios.error):  # it was closed meanwhile
        raise NobodyToAsk from None
    finally:
        os.close(fd)


def has_person() -> bool:
    """Return whether there seems to be somebody to ask."""
    return bool(_program()) or _has_terminal()


def _program() -> str:
    """Return the user's program for prompts, by ssh's rules; "" if the terminal is asked."""
    required = os.environ.get("SSH_ASKPASS_REQUIRE", "")
    program = os.environ.get("SSH_ASKPASS", "")
    if not program or required == "never":
        return ""
    if required in ("force", "prefer"):
        return program
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return program if has_display and not _has_terminal() else ""


def _has_terminal() -> bool:
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        return True
    except OSError:
        return False


def _by_program(program: str, prompt: str, hint: str, until: Sequence[int]) -> str | None:
    environment = {**os.environ, "SSH_ASKPASS_PROMPT": hint}
    if not hint:
        del environment["SSH_ASKPASS_PROMPT"]
    try:
        child = subprocess.Popen(
            [program, prompt], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
        )
    except OSError:
        raise NobodyToAsk from None
    assert child.stdout is not None
    try:
        answer = _line(child.stdout.fileno(), until)
        if (answer is None and hint != "confirm") or child.wait(_END_S):
            return None
        return answer or ""
    except subprocess.TimeoutExpired:
        return None
    finally:
        child.stdout.close()
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_END_S)


def _on_terminal(
    fd: int, prompt: str, hint: str, is_secret: bool, until: Sequence[int]
) -> str | None:
    shown = "\n".join(map(terminal_text.printable, prompt.splitlines()))
    if hint == "none":  # a message that needs no answer: touch the key
        _write(fd, f"{shown}\n")
        return _line(-1, until)
    with _without_echo(fd) if is_secret else contextlib.nullcontext():
        _write(fd, f"{shown} (yes/no) " if hint == "confirm" else shown + " " * (shown[-1:] != " "))
        answer = _line(fd, until)
        if is_secret or answer is None:
            _write(fd, "\n")
    return answer


@contextlib.contextmanager
def _without_echo(fd: int) -> Iterator[None]:
    before = termios.tcgetattr(fd)
    silent = termios.tcgetattr(fd)
    silent[3] &= ~termios.ECHO
    for key in _NO_KEYS:
        silent[6][key] = bytes([os.fpathconf(fd, "PC_VDISABLE")])

    def restore() -> None:
        with contextlib.suppress(termios.error):  # it is gone
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)

    with last_act(restore):
        termios.tcsetattr(fd, termios.TCSAFLUSH, silent)
        try:
            yield
        finally:
            restore()


def _write(fd: int, text: str) -> None:
    os.write(fd, text.encode(errors="replace"))


def _line(fd: int, until: Sequence[int]) -> str | None:
    """Return the next line, and drop what comes with it; None at the end of input or of waiting."""
    poll = select.poll()
    for each in (fd, *until):
        if each >= 0:
            poll.register(each, select.POLLIN)
    found = b""
    while b"\n" not in found:
        ready = dict(poll.poll())
        if any(each in ready for each in until):
            return None
        data = os.read(fd, _ANSWER_MAX_BYTES)
        if not data:
            break
        found += data
    line, newline, _ = found.partition(b"\n")
    return os.fsdecode(line) if newline or line else None
