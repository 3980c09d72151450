"""Which program connects, what it is to run, and the settings of asyncssh's and paramiko's.

The user's options become lines of ssh_config(5) for that host, read before the files: the first
value wins, as with ssh. What a library cannot do is refused here, before anybody is contacted.

Not here: what the programs do with it (libraries/asyncssh_helper.py, libraries/paramiko_helper.py),
ssh's command line (openssh.py). Read next: libraries/helper.py.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import NamedTuple

from pscp.ground.errors import UsageError
from pscp.ground.locations import Location
from pscp.options.options import Options
from pscp.transports import socket_options
from pscp.transports.control_sockets import Control
from pscp.transports.openssh import SshSetup

# The keywords of ssh_config(5) that a library, or the program around it, obeys.
_BOTH = (
    "AddressFamily", "BatchMode", "BindAddress", "Ciphers", "Compression", "ConnectTimeout",
    "GlobalKnownHostsFile", "HostKeyAlgorithms", "HostKeyAlias", "HostName", "IdentitiesOnly",
    "IdentityAgent", "IdentityFile", "KbdInteractiveAuthentication", "KexAlgorithms", "MACs",
    "NumberOfPasswordPrompts", "PasswordAuthentication", "Port",
    "ProxyCommand", "ProxyJump", "PubkeyAuthentication", "ServerAliveInterval",
    "StrictHostKeyChecking", "TCPKeepAlive", "User", "UserKnownHostsFile",
)  # fmt: skip
KEYWORDS: dict[str, tuple[str, ...]] = {
    "asyncssh": (
        *_BOTH, "CASignatureAlgorithms", "CertificateFile", "GSSAPIAuthentication",
        "GSSAPIDelegateCredentials", "GSSAPIKeyExchange", "PKCS11Provider",
        "PreferredAuthentications", "RekeyLimit", "SendEnv", "ServerAliveCountMax", "SetEnv",
    ),
    "paramiko": _BOTH,
}  # fmt: skip
# To ignore these would be to trust another key, or to connect in another way, than is configured.
REFUSED = ("BindInterface", "KnownHostsCommand", "ProxyUseFdpass", "RevokedHostKeys")

_AES = ("aes128-ctr", "aes192-ctr", "aes256-ctr", "aes128-cbc", "aes192-cbc", "aes256-cbc")
_GCM = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
CIPHERS: dict[str, tuple[str, ...]] = {
    "asyncssh": ("chacha20-poly1305@openssh.com", *_GCM, *_AES),
    "paramiko": (*_GCM, *_AES),
}

_OPTION = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.+)")
_USER_CONFIG = ("~/.ssh/config", "/etc/ssh/ssh_config")


class Request(NamedTuple):
    """A command to run in a channel, or a subsystem such as sftp (RFC 4254, 6.5)."""

    text: str
    is_subsystem: bool = False


class Settings(NamedTuple):
    """The settings for the program of a connection; no secret is among them."""

    host: str  # as the user typed it
    lines: tuple[str, ...]  # of ssh_config(5), for this host
    files: tuple[str, ...]  # further configuration, read after the lines
    request: Request
    may_prompt: bool
    ciphers: tuple[str, ...]  # preferred, unless the user has configured some
    control: str  # the path of the socket for further channels; "": there are none
    congestion: str
    rcvbuf_bytes: int  # 0: the kernel decides
    sndbuf_bytes: int
    is_debug: bool

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Settings:
        found = json.loads(text)
        for name in ("lines", "files", "ciphers"):
            found[name] = tuple(found[name])
        return cls(**{**found, "request": Request(*found["request"])})


def transport_of(options: Options) -> str:
    """Return the transport: --transport, or for auto openssh if there is an ssh, else asyncssh."""
    if options.transport != "auto":
        return options.transport
    # As shutil.which(), whose import would delay the first ssh.
    paths = (os.path.join(folder, "ssh") for folder in os.get_exec_path())
    has_ssh = any(os.path.isfile(path) and os.access(path, os.X_OK) for path in paths)
    return "openssh" if options.program != "ssh" or has_ssh else "asyncssh"


def resolve(host: Location, options: Options) -> SshSetup:
    """Return the setup of a library's connections. Raises UsageError for what it cannot do."""
    transport = transport_of(options)
    if options.program != "ssh":
        raise _refused("-S", transport, "it is the name of an ssh program")
    if options.config_file not in (None, "none") and not os.path.isfile(str(options.config_file)):
        raise UsageError(f"-F {options.config_file}: no such file")
    for name in (options.cipher or "").lstrip("+^-").split(","):
        if name and name not in CIPHERS[transport]:
            known = ", ".join(CIPHERS[transport])
            raise UsageError(f"{name}: {transport} has no such cipher", f"it has {known}")
    for key, value in _pairs(options):
        if key.lower() not in map(str.lower, KEYWORDS[transport]):
            raise _refused(f"-o {key}", transport, "--transport openssh knows all of ssh_config(5)")
        if key.lower() == "port" and not value.isdecimal():
            raise UsageError(f"-o Port={value}: that is no port")
    return SshSetup(
        ciphers_are_ours=not options.cipher,
        route=socket_options.Route(proxy=f"ProxyJump {options.jump}" if options.jump else ""),
        offered=CIPHERS[transport],
    )


# asyncssh looks for liboqs and libnettle as it is loaded. Where ldconfig(8) knows none, ctypes asks
# gcc and ld, in vain: 0.1 s of each login, and a temporary file that a signal would leave there.
_BEFORE_LOADING = {
    "asyncssh": "import ctypes.util as c; c._findLib_gcc = c._findLib_ld = lambda name: None; ",
    "paramiko": "",
}


def program_argv(transport: str, settings: Settings) -> list[str]:
    """Return the command line of a connection's program.

    Raises UsageError if its library is not installed.
    """
    from pscp.ground.libraries import check_installed  # here: ssh needs nothing of this

    check_installed(transport, before=f"--transport {transport}: ")
    start = (
        "import sys; sys.path.append(sys.argv.pop(1)); "
        f"{_BEFORE_LOADING[transport]}"
        f"from pscp.transports.libraries.{transport}_helper import main; main()"
    )
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    return [sys.executable or "python3", "-P", "-c", start, package, settings.to_json()]


def mux_client_argv(path: str, request: Request) -> list[str]:
    """Return the command line of a further channel of the connection with this socket."""
    program = os.path.join(os.path.dirname(__file__), "mux_client.py")
    words = (path, request.text, "yes" if request.is_subsystem else "no")
    return [sys.executable or "python3", "-I", "-S", program, *words]


def _refused(what: str, transport: str, hint: str) -> UsageError:
    return UsageError(f"{what}: not with --transport {transport}", hint)


def _pairs(options: Options) -> list[tuple[str, str]]:
    """Return the keywords and values of -o. Raises UsageError for another syntax."""
    found = []
    for option in options.ssh_options:
        match = _OPTION.fullmatch(option)
        if match is None:
            raise UsageError(f"-o {option}: not KEYWORD=VALUE", "see ssh_config(5)")
        found.append((match[1], match[2].strip()))
    return found


def _config_lines(host: Location, options: Options, number: int) -> tuple[str, ...]:
    """Return the user's options as lines of ssh_config(5)."""
    given: list[tuple[str, object]] = [("ConnectTimeout", options.timeout_s), *_pairs(options)]
    for path in options.identities:
        if '"' in path or "\\" in path:
            raise UsageError(f'{path}: a quote or a "\\" cannot be in the name of an identity here')
        given.append(("IdentityFile", f'"{path}"'))
    given += [("Ciphers", options.cipher), ("ProxyJump", options.jump), ("User", host.user)]
    given += [("Port", host.port or options.port), ("BindAddress", options.address(number))]
    given += [("Compression", "yes" if options.compress else "")]
    given += [("AddressFamily", {4: "inet", 6: "inet6"}.get(options.address_family or 0))]
    return tuple(f"{key} {value}" for key, value in given if value)


def settings_of(
    host: Location,
    options: Options,
    setup: SshSetup,
    request: Request,
    *,
    may_prompt: bool,
    number: int,
    control: Control | None,
) -> Settings:
    """Return the settings for a connection; `number` counts the connections from 0."""
    ciphers = setup.ciphers().split(",") if setup.ciphers_are_ours else []
    files = _USER_CONFIG if options.config_file is None else (options.config_file,)
    expanded = (os.path.expanduser(file) for file in files if file != "none")
    return Settings(
        host=str(host.host),
        lines=_config_lines(host, options, number),
        files=tuple(file for file in expanded if os.path.isfile(file)),
        request=request,
        may_prompt=may_prompt,
        ciphers=tuple(name for name in ciphers if name in CIPHERS[transport_of(options)]),
        control=control.path if control is not None and control.is_master else "",
        congestion=options.congestion or "",
        rcvbuf_bytes=options.rcvbuf_bytes or 0,
        sndbuf_bytes=options.sndbuf_bytes or 0,
        is_debug=options.debug,
    )
