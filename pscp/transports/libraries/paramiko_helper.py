"""A program that behaves as ssh does and makes one connection with paramiko.

    python3 -c '...; main()' SETTINGS

Not here: what both libraries' programs share (helper.py), what paramiko does not document
(paramiko_internals.py), channels of a connection that the user's program made (external.py).
Read next: external.py.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import paramiko

from pscp.transports.channel import FAILED_STATUS
from pscp.transports.libraries import helper
from pscp.transports.libraries.external import serve_paramiko
from pscp.transports.libraries.helper import HelperError, Target, Wrong
from pscp.transports.libraries.known_hosts import AUTHORITY, REVOKED, HostKeyLine
from pscp.transports.libraries.mux_server import MuxClient, listening
from pscp.transports.libraries.paramiko_internals import Transport
from pscp.transports.ssh_settings import Settings

WINDOW_BYTES = 16 * 1024 * 1024  # paramiko cannot widen it later
PACKET_BYTES = 256 * 1024
_NEVER_S = 24 * 3600.0
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_NOT_VERIFIED = "Host key verification failed."
_ALGORITHMS = {  # keywords of ssh_config(5), and the attributes of paramiko.SecurityOptions
    "ciphers": "ciphers",
    "macs": "digests",
    "kexalgorithms": "kex",
    "hostkeyalgorithms": "key_types",
}


def main() -> None:
    helper.run(_serve)


def _serve(settings: Settings) -> int:
    """Serve a connection: its own channel, and further ones. Return the exit status."""
    transport = connect(settings.host, settings.lines, settings)
    further: list[threading.Thread] = []

    def accept(listener: socket.socket) -> None:  # further channels, until it is closed
        with contextlib.suppress(OSError):
            while True:
                client = MuxClient.accept(listener)
                if client is not None:
                    further.append(
                        threading.Thread(target=_carry, args=(transport, client), daemon=True)
                    )
                    further[-1].start()

    with listening(settings.control) as listener:
        if listener is not None:
            threading.Thread(target=accept, args=(listener,), daemon=True).start()
        if settings.request.text:
            status = serve_paramiko(transport, settings.request, (0, 1, 2), lambda channel: None)
        else:
            transport.join()
            status = FAILED_STATUS
        helper.hang_up()
        for thread in further:
            thread.join()
    transport.close()
    return status


def _carry(transport: paramiko.Transport, client: MuxClient) -> None:
    """Carry a further channel; it ends when the client does."""

    def opened(channel: paramiko.Channel) -> None:
        threading.Thread(target=end_with_client, args=(channel,), daemon=True).start()

    def end_with_client(channel: paramiko.Channel) -> None:
        with contextlib.suppress(OSError):
            client.sock.recv(1)
        channel.close()

    try:
        client.finish(serve_paramiko(transport, client.request, client.fds, opened))
    except HelperError as error:
        client.finish(FAILED_STATUS, error)


# --- the connection


def _config(
    name: str, lines: tuple[str, ...], settings: Settings
) -> tuple[paramiko.SSHConfigDict, Target]:
    """Return what is configured for this host. Raises Wrong."""
    text = [f"Host {name}", *lines]
    try:
        for path in settings.files:
            with open(path, errors="surrogateescape") as file:
                text += ["Host *", *file.read().splitlines()]
        found = paramiko.SSHConfig.from_text("\n".join(text)).lookup(name)
        get = partial(_words, found)
        return found, Target.read(name, settings, getpass.getuser(), get)
    except (OSError, ValueError, ImportError, paramiko.SSHException) as error:
        raise Wrong(f"Bad configuration option: {error}") from None


def _words(found: paramiko.SSHConfigDict, keyword: str) -> list[str]:
    """Return the words of a keyword's value, of which some may be in quotes."""
    value = found.get(keyword.lower())
    if value is None or isinstance(value, list):
        return value or []
    if os.path.exists(value):
        return [value]
    try:
        return shlex.split(value) if '"' in value else value.split()
    except ValueError:
        return [value]


def connect(
    name: str, lines: tuple[str, ...], settings: Settings, depth: int = 0
) -> paramiko.Transport:
    """Connect and log in. Raises HelperError."""
    found, target = _config(name, lines, settings)
    helper.check_sockets(target, settings)
    sock = _socket(target, settings, depth)
    try:
        transport = Transport(
            sock, default_window_size=WINDOW_BYTES, default_max_packet_size=PACKET_BYTES
        )
        # paramiko's own limits would count the time of people; helper.limited() does not.
        transport.banner_timeout = transport.handshake_timeout = _NEVER_S
        transport.auth_timeout = _NEVER_S
        known = target.known()
        _choose(transport, [each.kind for each in known if not each.marker], found, settings)
        with helper.limited(target):
            transport.start_client()
            _check_key(transport, target, known)
            _log_in(transport, target, found)
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise _failed(target, error) from None
    transport.set_keepalive(int(found.get("serveraliveinterval", "0")) or 15)
    return transport


def _failed(target: Target, error: Exception) -> HelperError:
    reason = str(error) or type(error).__name__
    if isinstance(error, paramiko.AuthenticationException) and "saw EOF" not in reason:
        return HelperError(f"{target.login}: Permission denied ({reason}).")
    if "acceptable" in reason or "Incompatible" in reason:
        return HelperError(
            f"Unable to negotiate with {target.host}: no matching algorithm: {reason}"
        )
    return HelperError(f"Connection closed by {target.host}: {reason}")


def _socket(
    target: Target, settings: Settings, depth: int
) -> socket.socket | paramiko.Channel | paramiko.ProxyCommand:
    """Return a socket to the target, or a channel or program in its place. Raises HelperError."""
    through = helper.jump_settings(target, depth)
    if through is not None:
        jump = connect(*through, settings, depth + 1)
        try:
            with helper.limited(target):
                there = target.host, target.port
                return jump.open_channel("direct-tcpip", there, ("127.0.0.1", 0))
        except paramiko.SSHException as error:
            message = f"connect to {target.address}: through {target.jump}: {error}"
            raise HelperError(message) from None
    if target.proxy_command:
        return paramiko.ProxyCommand(target.proxy_command)
    return helper.connected(target, settings)


def _choose(
    transport: paramiko.Transport,
    kinds: list[str],
    found: paramiko.SSHConfigDict,
    settings: Settings,
) -> None:
    """Set the algorithms: the user's, else those that are fastest at both ends. Raises Wrong.

    Those of the known host keys, of these `kinds`, come first.
    """
    offered = transport.get_security_options()
    if "ssh-rsa" in kinds:
        kinds += ["rsa-sha2-512", "rsa-sha2-256"]
    offered.key_types = sorted(offered.key_types, key=lambda kind: kind not in kinds)
    if settings.ciphers and "ciphers" not in found:
        wanted = [name for name in settings.ciphers if name in offered.ciphers]
        offered.ciphers = tuple(dict.fromkeys([*wanted, *offered.ciphers]))
    for keyword, name in _ALGORITHMS.items():
        if keyword in found:
            setattr(offered, name, _selected(found[keyword], getattr(offered, name), keyword))
    transport.use_compression(found.get("compression", "no").lower() in ("yes", "true"))


def _selected(value: str, default: tuple[str, ...], keyword: str) -> tuple[str, ...]:
    """Return the algorithms that a value of ssh_config(5) selects, which may begin with +, - or ^.

    Raises Wrong if there are none.
    """
    how, names = (value[0], value[1:]) if value[0] in "+-^" else ("", value)
    listed = names.split(",")
    mine = tuple(name for name in listed if name in default)
    if how == "-":
        return tuple(name for name in default if name not in listed)
    chosen = {"": mine, "^": mine + default, "+": default + mine}[how]
    if not chosen:
        raise Wrong(f"{keyword} {value}: paramiko has none of these")
    return tuple(dict.fromkeys(chosen))


def _check_key(transport: paramiko.Transport, target: Target, known: Sequence[HostKeyLine]) -> None:
    """Check the host's key before any secret is sent. Raises HelperError if it is not trusted."""
    key = transport.get_remote_server_key()
    kind, wire = key.get_name(), key.asbytes()
    markers = {each.marker for each in known}
    found = {each.marker for each in known if each.key == wire}
    if REVOKED in found:
        raise HelperError(f"The {kind} host key of {target.key_name} is revoked. {_NOT_VERIFIED}")
    if "" in found:
        return
    if AUTHORITY in markers and "" not in markers:
        why = f"for {target.key_name} known_hosts has a @cert-authority, which paramiko cannot use"
        raise HelperError(f"{why} (--transport openssh or asyncssh can). {_NOT_VERIFIED}")
    helper.judge(target, kind, wire, "" in markers)


# --- the login


def _log_in(transport: paramiko.Transport, target: Target, found: paramiko.SSHConfigDict) -> None:
    """Log in as ssh does: by keys, then by answers of a person. Raises AuthenticationException."""

    def may(keyword: str) -> bool:
        return found.get(keyword, "yes").lower() in ("yes", "true")

    try:
        transport.auth_none(target.user)
        return
    except paramiko.BadAuthenticationType as error:
        methods = list(error.allowed_types)
    left = list(methods)
    if "publickey" in left and may("pubkeyauthentication"):
        left = _try_keys(transport, target, found) or methods
    if transport.is_authenticated():
        return
    user = target.user
    if "keyboard-interactive" in left and may("kbdinteractiveauthentication"):
        answers = partial(_answers, target)
        _try_answers(transport, target, lambda _: transport.auth_interactive(user, answers))
    if not transport.is_authenticated() and "password" in left and may("passwordauthentication"):

        def by_password(attempt: int) -> None:
            password = helper.ask_password(target, is_again=attempt > 0)
            if password is None:
                raise _NoAnswer
            transport.auth_password(user, password, fallback=False)

        _try_answers(transport, target, by_password)
    if not transport.is_authenticated():
        raise paramiko.AuthenticationException(",".join(methods))


def _try_keys(
    transport: paramiko.Transport, target: Target, found: paramiko.SSHConfigDict
) -> list[str]:
    """Try the keys; return the methods that the server wants after one that it accepted."""
    for key in _keys(target, found):
        try:
            return list(transport.auth_publickey(target.user, key))
        except paramiko.AuthenticationException:
            continue
    return []


def _keys(target: Target, found: paramiko.SSHConfigDict) -> Iterator[paramiko.PKey]:
    """Yield the SSH agent's keys, then those in files, the encrypted ones last."""
    agent = found.get("identityagent", "SSH_AUTH_SOCK")
    if agent not in ("SSH_AUTH_SOCK", "none"):
        os.environ["SSH_AUTH_SOCK"] = os.path.expanduser(agent)
    paths = found.get("identityfile") or [f"~/.ssh/{name}" for name in _DEFAULT_KEYS]
    files = [path for path in map(os.path.expanduser, paths) if os.path.isfile(path)]
    is_only = found.get("identitiesonly", "no").lower() in ("yes", "true")
    if agent != "none" and "SSH_AUTH_SOCK" in os.environ:
        wanted = {_public(path) for path in files}
        for key in paramiko.Agent().get_keys():
            if not is_only or key.get_base64() in wanted:
                yield key
    encrypted = []
    for path in files:
        try:
            yield paramiko.PKey.from_path(path)
        except (paramiko.PasswordRequiredException, TypeError):
            encrypted.append(path)
        except (paramiko.SSHException, ValueError, OSError) as error:
            helper.say(f'Load key "{path}": {error}')
    for path in encrypted:
        if (key := helper.decrypted(target, path, partial(_read_key, path))) is not None:
            yield key


def _public(path: str) -> str:
    try:
        with open(path if path.endswith(".pub") else f"{path}.pub") as file:
            return file.read().split()[1]
    except (OSError, IndexError, ValueError):
        return ""


def _read_key(path: str, passphrase: str) -> paramiko.PKey | None:
    try:  # its annotation says str, and a str would be refused
        return paramiko.PKey.from_path(path, passphrase.encode())
    except (paramiko.SSHException, ValueError):
        return None


class _NoAnswer(Exception):
    """Nobody answers a prompt."""


def _answers(
    target: Target, title: str, instructions: str, questions: Sequence[tuple[str, bool]]
) -> list[str]:
    given = helper.answers(target, questions)
    if given is None:
        raise _NoAnswer
    return given


def _try_answers(
    transport: paramiko.Transport, target: Target, log_in: Callable[[int], object]
) -> None:
    """Log in by a person's answers; `log_in` gets the number of the attempt, from 0 on."""
    with contextlib.suppress(_NoAnswer):
        for attempt in range(target.tries if target.may_prompt else 0):
            try:
                log_in(attempt)
                return
            except paramiko.AuthenticationException:
                if not transport.is_active():  # the server closed the connection
                    raise
