"""The common part of the programs that run asyncssh and paramiko, and behave as ssh does.

Not here: the libraries (asyncssh_helper.py, paramiko_helper.py), further channels of a connection
(mux_server.py), the lines of known_hosts (known_hosts.py).
Read next: asyncssh_helper.py.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pscp.ground.errors import UsageError
from pscp.ground.locations import parse_location
from pscp.ground.values import parse_seconds
from pscp.options.option_rows import TIMEOUT_S
from pscp.transports import askpass, fdpass
from pscp.transports.channel import FAILED_STATUS
from pscp.transports.libraries.known_hosts import HostKeyLine, known
from pscp.transports.openssh import WRONG_STATUS
from pscp.transports.ssh_settings import REFUSED, Settings

READ_BYTES = 256 * 1024  # of the command's input, at once
_MAX_JUMPS = 8
_STRICT = ("yes", "ask", "accept-new", "no")  # values of StrictHostKeyChecking
_STRICT_ALIASES = {"true": "yes", "off": "no", "false": "no"}
Key = TypeVar("Key")  # a library's private key


class HelperError(Exception):
    """The connection has ended; the reason is in ssh's words."""

    status = FAILED_STATUS


class Wrong(HelperError):
    """The configuration asks for what this library cannot do."""

    status = WRONG_STATUS


# --- the target

Get = Callable[[str], list[str]]  # returns the words of a keyword's value; none if it is not set


@dataclass(frozen=True)
class Target:
    """One host on the way, by its configuration."""

    name: str
    host: str
    port: int
    user: str
    family: str
    bind: str
    timeout_s: str
    jump: str
    proxy_command: str
    strict: str
    key_name: str  # the host's name in known_hosts
    known_files: tuple[str, ...]  # of known_hosts, the user's first
    tries: int  # attempts with a password
    may_prompt: bool

    @classmethod
    def read(cls, name: str, settings: Settings, local_user: str, get: Get) -> Target:
        def first(keyword: str, default: str = "") -> str:
            return next(iter(get(keyword)), default)

        for keyword in REFUSED:
            if first(keyword, "none").lower() not in ("none", "no"):
                raise Wrong(f"{keyword} is configured for {name}, and needs --transport openssh")
        host, port = first("HostName", name), int(first("Port", "22"))
        strict = first("StrictHostKeyChecking", "ask").lower()
        strict = _STRICT_ALIASES.get(strict, strict)
        if strict not in _STRICT:
            raise Wrong(f"StrictHostKeyChecking {first('StrictHostKeyChecking')} is not known")
        files = []
        for whose, usual in (
            ("User", "~/.ssh/known_hosts"),
            ("Global", "/etc/ssh/ssh_known_hosts"),
        ):
            files += get(f"{whose}KnownHostsFile") or [usual, f"{usual}2"]
        is_batch = first("BatchMode", "no").lower() in ("yes", "true")
        jump, proxy_command = first("ProxyJump"), " ".join(get("ProxyCommand"))
        return cls(
            name=name,
            host=host,
            port=port,
            user=first("User", local_user),
            family=first("AddressFamily", "any"),
            bind=first("BindAddress"),
            timeout_s=_seconds(first("ConnectTimeout", "0")),
            jump="" if jump.lower() == "none" else jump,
            proxy_command="" if proxy_command.lower() == "none" else proxy_command,
            strict=strict,
            key_name=first("HostKeyAlias") or (host if port == 22 else f"[{host}]:{port}"),
            known_files=tuple(map(os.path.expanduser, files)),
            tries=int(first("NumberOfPasswordPrompts", "3")),
            may_prompt=settings.may_prompt and not is_batch,
        )

    @property
    def login(self) -> str:
        """USER@HOST."""
        return f"{self.user}@{self.host}"

    @property
    def address(self) -> str:
        """The host and the port, in ssh's words."""
        return f"host {self.host} port {self.port}"

    def known(self) -> list[HostKeyLine]:
        return list(known(self.known_hosts(), self.key_name))

    def known_hosts(self) -> str:
        texts = []
        for path in self.known_files:
            with contextlib.suppress(OSError), open(path, errors="surrogateescape") as file:
                texts.append(file.read())
        return "\n".join(texts)


def _seconds(value: str) -> str:
    """Return a value of ConnectTimeout, such as 90 or 1m30s, in seconds; for 0 the default."""
    if value.lower() == "none":
        return "none"
    try:
        parts = re.findall(r"[0-9]+[a-z]?", value.lower())
        if "".join(parts) != value.lower():
            raise UsageError(value)
        return str(sum(parse_seconds(part, "ConnectTimeout") for part in parts) or TIMEOUT_S)
    except UsageError:
        raise Wrong(f"Bad configuration option: ConnectTimeout {value}") from None


def jump_settings(target: Target, depth: int) -> tuple[str, tuple[str, ...]] | None:
    """Return the last host to jump through, and lines for its configuration; None without one.

    `depth` counts the jumps so far. Raises Wrong for too many.
    """
    if not target.jump:
        return None
    if depth == _MAX_JUMPS:
        raise Wrong(f"ProxyJump {target.jump}: too many hosts to jump through")
    *before, last = target.jump.split(",")
    place = parse_location(last if "://" in last else f"ssh://{last}")
    given = (("User", place.user), ("Port", place.port), ("ProxyJump", ",".join(before)))
    return str(place.host), tuple(f"{key} {value}" for key, value in given if value)


def check_sockets(target: Target, settings: Settings) -> None:
    """Raise Wrong if options of the socket are set, and a proxy makes it."""
    buffers = [("--rcvbuf", settings.rcvbuf_bytes), ("--sndbuf", settings.sndbuf_bytes)]
    asked = [("--congestion", settings.congestion), *buffers, ("BindAddress", target.bind)]
    names = " and ".join(name for name, value in asked if value)
    if names and (target.jump or target.proxy_command):
        way = "ProxyJump" if target.jump else "ProxyCommand"
        raise Wrong(f"{names}: not with {way}, which connects in its place")


def connected(target: Target, settings: Settings) -> socket.socket:
    """Connect a socket to the target, with the options that are set. Raises HelperError."""
    family = fdpass.FAMILIES.get(target.family, 0)
    try:
        found = socket.getaddrinfo(target.host, target.port, family, socket.SOCK_STREAM)
    except OSError as error:
        raise HelperError(f"Could not resolve hostname {target.host}: {error.strerror}") from None
    asked = (target.bind, settings.congestion, settings.rcvbuf_bytes, settings.sndbuf_bytes)
    words = [str(word or "-") for word in asked]
    try:
        made = fdpass.connected(found, target.timeout_s, *words, watched_fd=2)  # type: ignore[arg-type]
    except OSError as error:
        raise HelperError(f"connect to {target.address}: {error.strerror or error}") from None
    except fdpass.SshIsGone:
        raise HelperError("nobody waits for this connection") from None
    sock = socket.socket(fileno=made.detach())
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


_prompts_s: list[float] = []  # when a prompt began, when it was answered, when the next began, ...


def _answering_s() -> float:
    times_s = [*_prompts_s]
    times_s += [time.monotonic()] * (len(times_s) % 2)
    return sum(times_s[1::2]) - sum(times_s[::2])


@contextlib.contextmanager
def limited(target: Target) -> Iterator[None]:
    """End this program, with ssh's message, if the login within takes longer than ConnectTimeout.

    The time of prompts is not counted. The program ends since a library may block for ever.
    """
    if target.timeout_s == "none":
        yield
        return
    is_done = threading.Event()
    until_s = time.monotonic() + float(target.timeout_s) - _answering_s()

    def watch() -> None:
        while (left_s := until_s + _answering_s() - time.monotonic()) > 0:
            if is_done.wait(left_s):
                return
        say(f"connect to {target.address}: Connection timed out")
        os._exit(FAILED_STATUS)

    threading.Thread(target=watch, name="limit", daemon=True).start()
    try:
        yield
    finally:
        is_done.set()


# --- the terminal


def _ask(question: str, is_secret: bool) -> str | None:
    """Ask on the terminal; return None if it has come to its end. Raises OSError without one."""
    import getpass  # here: few connections ask

    if is_secret:
        with open("/dev/tty", "w") as out, contextlib.suppress(EOFError):
            return getpass.getpass(question, out)
        return None
    with open("/dev/tty", "r+b", buffering=0) as terminal:
        terminal.write(question.encode(errors="replace"))
        return terminal.readline().decode(errors="replace").rstrip("\r\n")


def prompt(target: Target, question: str, *, is_secret: bool = True) -> str | None:
    """Ask what a login needs; return None if nobody may be asked. All prompts go this way."""
    if not target.may_prompt:
        return None
    token, _, path = os.environ.get(askpass.SOCKET, "").partition(":")
    _prompts_s.append(time.monotonic())
    try:
        if not path:
            return _ask(question, is_secret)
        reply = askpass.ask(path, token, os.getpid(), "", question)
    except OSError:
        return None
    finally:
        _prompts_s.append(time.monotonic())
    return os.fsdecode(reply[1:]) if reply[:1] == askpass.ANSWER else None


def answers(target: Target, questions: Sequence[tuple[str, bool]]) -> list[str] | None:
    """Ask the server's questions (keyboard-interactive), each with whether its answer is shown.

    Returns None if one of them gets no answer.
    """
    given = []
    for text, is_shown in questions:
        answer = prompt(target, f"({target.login}) {text}", is_secret=not is_shown)
        if answer is None:
            return None
        given.append(answer)
    return given


def ask_password(target: Target, *, is_again: bool) -> str | None:
    """Ask for the user's password at the target, `is_again` after a wrong one."""
    if is_again:
        say("Permission denied, please try again.")
    return prompt(target, f"{target.login}'s password: ")


def decrypted(target: Target, path: str, read: Callable[[str], Key | None]) -> Key | None:
    """Return what `read` makes of an encrypted key by its passphrase; None if it is not told.

    `read` returns None for a wrong passphrase.
    """
    for _ in range(target.tries):
        given = prompt(target, f"Enter passphrase for key '{path}': ")
        if not given:
            return None
        if (key := read(given)) is not None:
            return key
    return None


# --- host keys


def judge(target: Target, kind: str, key: bytes, is_other_known: bool) -> None:
    """Decide on a host key that is not in known_hosts. Raises HelperError if it is not trusted.

    `key` is its wire form (RFC 4253, 6.6). No secret may have been sent before.
    """
    if is_other_known:
        raise HelperError(
            f"REMOTE HOST IDENTIFICATION HAS CHANGED: {target.key_name} has another {kind} key "
            f"({fingerprint(key)}). Host key verification failed."
        )
    is_asked = target.strict == "ask"
    if target.strict == "yes" or (is_asked and not _is_accepted(target, kind, key)):
        raise HelperError(
            f"No {kind} host key is known for {target.key_name}. Host key verification failed."
        )
    path = target.known_files[0]
    try:  # a key that cannot be added is trusted once, as by ssh
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "a") as file:
            file.write(f"{target.key_name} {kind} {base64.b64encode(key).decode()}\n")
    except OSError as error:
        print(f"Failed to add the host to {path}: {error.strerror}", file=sys.stderr)


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a host key as ssh shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _is_accepted(target: Target, kind: str, key: bytes) -> bool:
    question = (
        f"The authenticity of host '{target.key_name}' can't be established.\n"
        f"{kind} key fingerprint is {fingerprint(key)}.\n"
        "Are you sure you want to continue connecting (yes/no/[fingerprint])? "
    )
    answer = prompt(target, question, is_secret=False)
    return (answer or "").strip() in ("yes", fingerprint(key))


# --- the end


def run(serve: Callable[[Settings], int]) -> None:
    """Run the whole program: serve one connection, and end as ssh would."""
    settings = Settings.from_json(sys.argv[1])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends the process at once
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _end_with_reader()
    # What matters of a library's log is raised, and becomes a line.
    if settings.is_debug:
        logging.basicConfig(level=logging.DEBUG)
    else:
        logging.disable(logging.CRITICAL)
    try:
        status = serve(settings)
    except HelperError as error:
        status = error.status
        say(str(error))
    except Exception as error:  # from the library: a line tells more than a traceback
        if settings.is_debug:
            raise
        status = FAILED_STATUS
        say(f"Connection closed: {type(error).__name__}: {error}")
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(status)  # a library's threads may wait for a connection that is gone


def hang_up() -> None:
    """Let the reader of the command's output see its end, while further channels go on."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.close(nothing)


def say(line: str) -> None:
    """Write a line to standard error, with white space folded."""
    with contextlib.suppress(OSError):
        os.write(2, (" ".join(line.split()) + "\n").encode(errors="replace"))


def _end_with_reader() -> None:
    """End the process when nobody reads its standard error: its parent was killed, perhaps."""

    def wait() -> None:
        poll = select.poll()
        poll.register(2, 0)
        poll.poll()
        os._exit(FAILED_STATUS)

    threading.Thread(target=wait, daemon=True).start()
