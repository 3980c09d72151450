"""What the programs that run asyncssh and paramiko have in common: they behave as ssh does.

The target as ssh_config(5) has it, the questions on the terminal, what is thought of a host key,
the socket, the further channels of a connection, and how all of it ends.

Not here: the libraries (asyncssh_helper.py, paramiko_helper.py), a further channel as its user has
it (mux_client.py).
Read next: asyncssh_helper.py.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import select
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pscp.errors import UsageError
from pscp.options import TIMEOUT_S, parse_location, parse_seconds
from pscp.transports import askpass, fdpass
from pscp.transports.openssh import WRONG_STATUS
from pscp.transports.ssh_settings import REFUSED, Request, Settings

FAILED_STATUS = 255  # as ssh's
AGAIN = "Permission denied, please try again."  # of a password

READ_BYTES = 256 * 1024  # of the command's input at once
MAX_JUMPS = 8
_REQUEST_MAX_BYTES = 64 * 1024
_STRICT = {"yes": "yes", "true": "yes", "ask": "ask", "accept-new": "accept-new", "no": "no",
           "off": "no", "false": "no"}  # fmt: skip


class Failed(Exception):
    """What ended the connection, in ssh's words."""

    status = FAILED_STATUS


class Wrong(Failed):
    """The configuration asks for what this library cannot do."""

    status = WRONG_STATUS


# --- the target

Get = Callable[[str], list[str]]  # the words of a keyword's value; none: it is not configured


@dataclass(frozen=True)
class Target:
    """One host on the way, as the configuration has it."""

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
    key_name: str  # by which known_hosts knows it
    user_files: tuple[str, ...]
    global_files: tuple[str, ...]
    tries: int  # of a password
    may_prompt: bool

    @classmethod
    def read(cls, name: str, settings: Settings, local_user: str, get: Get) -> Target:
        def first(keyword: str, default: str = "") -> str:
            return next(iter(get(keyword)), default)

        for keyword in REFUSED:
            if first(keyword, "none").lower() not in ("none", "no"):
                raise Wrong(f"{keyword} is configured for {name}, and needs --transport openssh")
        host, port = first("HostName", name), int(first("Port", "22"))
        strict = _STRICT.get(first("StrictHostKeyChecking", "ask").lower())
        if strict is None:
            raise Wrong(f"StrictHostKeyChecking {first('StrictHostKeyChecking')} is not known")
        known = "~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"
        names = [get(f"{whose}KnownHostsFile") for whose in ("User", "Global")]
        files = [words or [base, f"{base}2"] for words, base in zip(names, known, strict=True)]
        user_files, global_files = (tuple(map(os.path.expanduser, each)) for each in files)
        return cls(
            name, host, port, first("User", local_user), first("AddressFamily", "any"),
            first("BindAddress"), _seconds(first("ConnectTimeout", "0")),
            _unless_none(first("ProxyJump")), _unless_none(" ".join(get("ProxyCommand"))), strict,
            first("HostKeyAlias") or (host if port == 22 else f"[{host}]:{port}"),
            user_files, global_files, int(first("NumberOfPasswordPrompts", "3")),
            settings.may_prompt and first("BatchMode", "no").lower() not in ("yes", "true"),
        )  # fmt: skip

    def known_hosts(self) -> str:
        """Return the text of all files of known hosts."""
        texts = []
        for path in (*self.user_files, *self.global_files):
            with contextlib.suppress(OSError), open(path, errors="surrogateescape") as file:
                texts.append(file.read())
        return "\n".join(texts)


def _seconds(value: str) -> str:
    """Return a ConnectTimeout, such as 90 or 1m30s, in seconds; 0 means that none is set."""
    if value.lower() == "none":
        return "none"
    try:
        parts = re.findall(r"[0-9]+[a-z]?", value.lower())
        if "".join(parts) != value.lower():
            raise UsageError(value)
        return str(sum(parse_seconds(part, "ConnectTimeout") for part in parts) or TIMEOUT_S)
    except UsageError:
        raise Wrong(f"Bad configuration option: ConnectTimeout {value}") from None


def _unless_none(value: str) -> str:
    return "" if value.lower() == "none" else value


def jump_settings(target: Target, settings: Settings) -> tuple[str, tuple[str, ...]] | None:
    """Return the last host to jump through, and the lines of its configuration, if any."""
    if not target.jump:
        return None
    *before, last = target.jump.split(",")
    place = parse_location(last if "://" in last else f"ssh://{last}")
    given = (("User", place.user), ("Port", place.port), ("ProxyJump", ",".join(before)))
    return str(place.host), tuple(f"{key} {value}" for key, value in given if value)


def check_sockets(target: Target, settings: Settings) -> None:
    """Raise Wrong where options of a socket are set, and another program or connection makes it."""
    asked = {
        "--congestion": settings.congestion, "--rcvbuf": settings.rcvbuf_bytes,
        "--sndbuf": settings.sndbuf_bytes, "BindAddress": target.bind,
    }  # fmt: skip
    names = " and ".join(name for name, value in asked.items() if value)
    if names and (target.jump or target.proxy_command):
        way = "ProxyJump" if target.jump else "ProxyCommand"
        raise Wrong(f"{names}: not with {way}, which connects in its place")


def connected(target: Target, settings: Settings) -> socket.socket:
    """Connect a socket to the target, with the options that are set. Raises Failed."""
    family = fdpass.FAMILIES.get(target.family, 0)
    try:
        found = socket.getaddrinfo(target.host, target.port, family, socket.SOCK_STREAM)
    except OSError as error:
        raise Failed(f"Could not resolve hostname {target.host}: {error.strerror}") from None
    asked = (target.bind, settings.congestion, settings.rcvbuf_bytes, settings.sndbuf_bytes)
    words = [str(word or "-") for word in asked]
    try:
        made = fdpass.connected(found, target.timeout_s, *words, watched_fd=2)  # type: ignore[arg-type]
    except OSError as error:
        where = f"host {target.host} port {target.port}"
        raise Failed(f"connect to {where}: {error.strerror or error}") from None
    except fdpass.SshIsGone:
        raise Failed("nobody waits for this connection") from None
    sock = socket.socket(fileno=made.detach())
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class _Person:
    """The time that a person has taken to answer prompts."""

    def __init__(self) -> None:
        self._taken_s, self._asked_at_s = 0.0, 0.0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        with self._lock:
            self._asked_at_s = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._taken_s, self._asked_at_s = self._total_s(), 0.0

    def _total_s(self) -> float:
        now_s = time.monotonic()
        return self._taken_s + (now_s - self._asked_at_s if self._asked_at_s else 0.0)

    def taken_s(self) -> float:
        """Return the seconds in all until now."""
        with self._lock:
            return self._total_s()


_person = _Person()


@contextlib.contextmanager
def limited(target: Target) -> Iterator[None]:
    """End this program, in ssh's words, where the login within takes longer than ConnectTimeout.

    The time in which a person is asked is not counted. A library may block for ever in between.
    """
    if target.timeout_s == "none":
        yield
        return
    is_in = threading.Event()
    until_s = time.monotonic() + float(target.timeout_s) - _person.taken_s()

    def watch() -> None:
        while (left_s := until_s + _person.taken_s() - time.monotonic()) > 0:
            if is_in.wait(left_s):
                return
        say(f"connect to host {target.host} port {target.port}: Connection timed out")
        os._exit(FAILED_STATUS)

    threading.Thread(target=watch, name="limit", daemon=True).start()
    try:
        yield
    finally:
        is_in.set()


# --- the terminal


def ask(question: str, is_secret: bool = True) -> str | None:
    """Ask on the terminal; return the person's answer, None where there is none."""
    import getpass  # here: few connections ask

    try:
        if is_secret:
            with open("/dev/tty", "w") as out:
                return getpass.getpass(question, out)
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            terminal.write(question.encode(errors="replace"))
            return terminal.readline().decode(errors="replace").rstrip("\r\n")
    except (OSError, EOFError):
        return None


def prompt(target: Target, question: str, is_secret: bool = True) -> str | None:
    """Ask what a login needs; return None where nobody may be asked. All prompts go this way."""
    if not target.may_prompt:
        return None
    token, _, path = os.environ.get(askpass.SOCKET, "").partition(":")
    with _person.asked():
        if not path:
            return ask(question, is_secret)
        try:
            reply = askpass.ask(path, token, os.getpid(), "", question)
        except OSError:
            return None
    return os.fsdecode(reply[1:]) if reply[:1] == askpass.ANSWER else None


def question(target: Target, text: str, is_echoed: bool) -> str | None:
    """Ask one of the server's own questions (keyboard-interactive), shown as ssh shows it."""
    return prompt(target, f"({target.user}@{target.host}) {text}", is_secret=not is_echoed)


# --- host keys


def judge(target: Target, kind: str, key: bytes, is_other_known: bool) -> None:
    """Judge a key that is not among the known ones. Raises Failed where it is not to be trusted.

    `key` is its wire form (RFC 4253, 6.6). Before this, no secret has been sent.
    """
    if is_other_known:
        raise Failed(
            f"REMOTE HOST IDENTIFICATION HAS CHANGED: {target.key_name} has another {kind} key "
            f"({fingerprint(key)}). Host key verification failed."
        )
    strict = target.strict
    if strict == "ask":
        strict = "accept-new" if _is_accepted(target, kind, key) else "yes"
    if strict == "yes":
        raise Failed(
            f"No {kind} host key is known for {target.key_name}. Host key verification failed."
        )
    line = f"{target.key_name} {kind} {base64.b64encode(key).decode()}"
    _record(target.user_files[0], line)


def fingerprint(key: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _is_accepted(target: Target, kind: str, key: bytes) -> bool:
    question = (
        f"The authenticity of host '{target.key_name}' can't be established.\n"
        f"{kind} key fingerprint is {fingerprint(key)}.\n"
        "Are you sure you want to continue connecting (yes/no/[fingerprint])? "
    )
    answer = prompt(target, question, is_secret=False)
    return (answer or "").strip() in ("yes", fingerprint(key))


def _record(path: str, line: str) -> None:
    """Add a line to known_hosts; a key that cannot be added is trusted this once, as by ssh."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "a") as file:
            file.write(line + "\n")
    except OSError as error:
        print(f"Failed to add the host to {path}: {error.strerror}", file=sys.stderr)


# --- further channels (mux_client.py has the other end)


class Rider:
    """Another program that wants a channel of this connection: what for, and its descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        """Raise OSError, ValueError for what is no rider."""
        self.sock = sock
        data, fds, _, _ = socket.recv_fds(sock, _REQUEST_MAX_BYTES, 3)
        self.fds = fds
        try:
            self.request = Request(*json.loads(data))
        except (TypeError, ValueError):
            self.close()
            raise ValueError("no request") from None
        if len(fds) != 3:
            self.close()
            raise ValueError("no descriptors")

    def answer(self, status: int) -> None:
        with contextlib.suppress(OSError):
            self.sock.sendall(status.to_bytes(4, "big", signed=True))

    def close(self) -> None:
        self.sock.close()
        while self.fds:
            os.close(self.fds.pop())


@contextlib.contextmanager
def listening(path: str) -> Iterator[socket.socket | None]:
    """Listen for riders, in a folder that only the user may enter; None for no path."""
    if not path:
        yield None
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        os.chmod(f"{path}.new", 0o600)
        listener.listen(16)
        os.rename(f"{path}.new", path)  # whoever sees it can connect
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)


# --- the end


def run(serve: Callable[[Settings], int]) -> None:
    """Run the whole program: serve one connection, and end as ssh would."""
    settings = Settings.from_json(sys.argv[1])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # at once
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _end_with_reader()
    _quiet(settings.is_debug)
    try:
        status = serve(settings)
    except Failed as error:
        status = error.status
        say(str(error))
    except Exception as error:  # of the library: a line tells more than a traceback
        if settings.is_debug:
            raise
        status = FAILED_STATUS
        say(f"Connection closed: {type(error).__name__}: {error}")
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(status)  # threads of a library may hang on what is gone


def _quiet(is_debug: bool) -> None:
    """Show what a library logs with -d only; what matters of it is raised, and said in a line."""
    import logging  # here: the libraries have imported it

    if is_debug:
        logging.basicConfig(level=logging.DEBUG)
    else:
        logging.disable(logging.CRITICAL)


def hang_up() -> None:
    """Let who reads the command's output see that it ended, while riders go on."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.close(nothing)


def say(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, (" ".join(line.split()) + "\n").encode(errors="replace"))


def _end_with_reader() -> None:
    """End when nobody reads standard error: whoever started this is gone, perhaps by SIGKILL."""

    def wait() -> None:
        poll = select.poll()
        poll.register(2, 0)
        poll.poll()
        os._exit(FAILED_STATUS)

    threading.Thread(target=wait, daemon=True).start()


def words_of(value: str) -> list[str]:
    """Return the words of a value, of which some may be in quotes."""
    try:
        return shlex.split(value) if '"' in value else value.split()
    except ValueError:
        return [value]
