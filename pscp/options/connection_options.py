"""The options that say how a copy or a stream is sent, how ssh is run, and what is shown of it.

All commands that connect take them, but for those that name others. What a row says is in
copy_options.py.

Not here: bounds that others need too (option_rows.py), how values are read (../ground/values.py).
Read next: option_rows.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pscp.ground.errors import UsageError
from pscp.ground.locations import MAX_PORT
from pscp.ground.values import (
    GIB,
    KIB,
    MIB,
    check_address,
    check_argument,
    check_range,
    parse_cpus,
    parse_kbit_s,
    parse_number,
    parse_ports,
    parse_seconds,
    parse_size,
)
from pscp.options import option_rows as bounds
from pscp.options.option_rows import (
    ALL,
    COPYING,
    Check,
    Flag,
    Group,
    each_of,
    pattern,
    seconds,
    size,
    whole,
)

SENT = Group("how it is sent", ALL)
SSH = Group("how ssh is run", ALL)
SHOWN = Group("what is shown", ALL)
# What makes a connection what it is: the connections of a session are all alike.
OF_A_CONNECTION = (
    "transport", "port", "identities", "config_file", "jump", "ssh_options", "cipher", "compress",
    "address_family", "program", "congestion", "rcvbuf_bytes", "sndbuf_bytes", "bind", "cpus",
)  # fmt: skip

_BUFFER = (4 * KIB, GIB - 1)  # less the kernel raises; Linux doubles it, in an int
_CIPHERS = r"[+^]?[A-Za-z0-9][A-Za-z0-9@._-]*(,[A-Za-z0-9][A-Za-z0-9@._-]*)*"
_CONGESTION = r"[A-Za-z0-9_-]{1,15}"  # TCP_CA_NAME_MAX
_KINDS = ("local", "slurm", "pbs", "lsf", "sge", "oar", "htcondor")  # dask-jobqueue has these
_CLUSTERS = ", ".join(f"{each}:N" for each in _KINDS)
_CLUSTER = rf"(tcp|tls|wss?|ucxx?)://[^\s/]+:[0-9]+|({'|'.join(_KINDS)}):[1-9][0-9]{{0,3}}"
_PERSIST = r"yes|no|(?=.)([0-9]{1,9}[smhdwSMHDW])*([0-9]{1,9})?"  # sshd_config(5), TIME FORMATS


def _check_cluster(what: str, value: object) -> None:
    if not hasattr(value, "submit"):  # a program's client
        pattern(_CLUSTER, "a cluster", f"such as tls://HOST:8786, or {_CLUSTERS}")(what, value)


def _number_or_auto(text: str, what: str) -> int | None:
    if text == "auto":
        return None
    if what.startswith("-c") and "a" <= text[:1] <= "z":
        hint = f"-c is the number of connections; a cipher is chosen with --cipher {text}"
        raise UsageError(f"{what}: {text!r} is not a whole number", hint)
    return parse_number(text, what)


def _count(most: int) -> Check:
    def check(what: str, value: Any) -> None:
        if value == "auto":  # as a command line has it
            raise UsageError(f"{what} must be a whole number, not 'auto'", "None finds it out")
        check_range(what, value, 1, most)

    return check


def _check_jump(what: str, value: str) -> None:
    check_argument(what, value)
    if value.startswith("-"):
        raise UsageError(f'{what}: a jump host cannot start with "-"')


def _check_family(what: str, value: object) -> None:
    if value not in (4, 6):
        raise UsageError(f"{what} must be 4 or 6, not {value!r}")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ConnectionOptions:
    """The fields of Options that are for every command."""

    remote: str = SENT.choice(
        "--remote WAY",
        "what to use at the far end: agent (python3), sftp, or auto (SFTP where no agent can be)",
        ("auto", "agent", "sftp"),
        commands=("pscp-verify", *COPYING),  # a stream is the agent's
    )
    connections: int | None = SENT.value(
        "-c --connections N",
        "the number of connections, or auto (the default)",
        "The number of connections; None: found out while it runs.",
        check=_count(bounds.MAX_CONNECTIONS),
        read=_number_or_auto,
    )
    channels: int | None = SENT.value(
        "--channels M",
        "the number of channels of each connection, or auto (the default)",
        "The number of channels of each connection; None: found out.",
        check=_count(64),  # sshd lets in MaxSessions, by default 10
        read=_number_or_auto,
    )
    block_bytes: int = SENT.value(
        "-b --block-size SIZE",
        "what is read and written at once (1M)",
        default=MIB,
        # Below, the frame headers and calls cost more than the data; a pipe holds no more at once
        # (/proc/sys/fs/pipe-max-size).
        check=size(4 * KIB, MIB),
        read=parse_size,
    )
    chunk_bytes: int | None = SENT.value(
        "--chunk-size SIZE",
        "what is verified and resent as one (4M, less toward the end)",
        read=parse_size,
    )
    limit_kbit_s: int | None = SENT.value(
        "-l --limit RATE",
        "the most to send, in kbit/s; 10M is 10 Mbit/s",
        "The most to send, in kbit/s.",
        check=whole(bounds.MAX_LIMIT_KBIT_S, show="{} kbit/s".format),
        read=lambda text, what: parse_kbit_s(text),
    )
    plane: str = SENT.choice(
        "--plane NAME",
        "what carries the lanes: ssh, or TCP connections beside it with tls, or plain (without any "
        "cipher), or auto (ssh)",
        ("auto", "ssh", "tls", "plain"),
    )
    congestion: str | None = SENT.value(
        "--congestion NAME",
        "the TCP congestion control to use, such as bbr",
        check=pattern(_CONGESTION, "a congestion control"),
    )
    rcvbuf_bytes: int | None = SENT.value(
        "--rcvbuf SIZE",
        "the receive buffer of each connection's socket",
        "The receive buffer of each connection's socket; None: the kernel decides.",
        check=size(*_BUFFER),
        read=parse_size,
    )
    sndbuf_bytes: int | None = SENT.value(
        "--sndbuf SIZE",
        "the send buffer of each connection's socket",
        "The send buffer of each connection's socket; None: the kernel decides.",
        check=size(*_BUFFER),
        read=parse_size,
    )
    bind: tuple[str, ...] = SENT.value(
        "--bind ADDRESS",
        "connect from this address; of several (A,B,...) each in turn",
        "Connect from these addresses of this machine, in turn.",
        check=each_of(check_address),
        read=lambda text, what: text.split(","),
        action="extend",
        default=(),
    )
    cpus: tuple[int, ...] = SENT.value(
        "--cpus LIST",
        "pin each ssh to one of these processors in turn, such as 0,2-5 (the kernel decides)",
        "Pin the ssh processes to these processors, in turn.",
        # CONFIG_NR_CPUS at its largest
        check=each_of(whole(8191, least=0)),
        read=lambda text, what: parse_cpus(text),
        action="store",
        default=(),
    )
    plane_ports: tuple[int, int] = SENT.value(
        "--plane-port PORTS",
        "for --plane, ports to listen on, as 5000-5010 (any)",
        "The first and the last port to listen on for `plane`; (0, 0) for any.",
        check=each_of(whole(MAX_PORT, least=0)),
        read=lambda text, what: parse_ports(text),
        action="store",
        default=(0, 0),
    )
    direct: bool = SENT.flag(
        "--direct",
        "from host to host, have SOURCE's host send the data straight to DEST's, by its own ssh; "
        "else all goes through here (-3)",
        commands=COPYING,
    )
    cluster: str | None = SENT.value(
        "--cluster NAME",
        "have a Dask cluster's workers move, or hash, the bytes: local:N, tls://HOST:PORT, "
        "slurm:N, ... (docs/cluster.md)",
        "The Dask cluster whose workers move the bytes, or a distributed.Client of it.",
        check=_check_cluster,
        commands=(*COPYING, "pscp-verify"),
    )
    cluster_insecure: bool = SENT.flag(
        "--cluster-insecure",
        "let its scheduler be one without TLS",
        commands=(*COPYING, "pscp-verify"),
    )
    window_bytes: int = SENT.value(
        "--window SIZE",
        "memory for a stream's chunks in order (256M)",
        default=256 * MIB,
        check=size(2 * MIB, 64 * GIB),  # two chunks of a stream; it is memory
        commands=("pscp-pipe", "pscp-zfs"),
        read=parse_size,
    )

    transport: str = SSH.choice(
        "--transport NAME",
        "what makes the connections: openssh, asyncssh, paramiko, or auto (openssh where ssh is "
        "installed, else asyncssh)",
        ("auto", "openssh", "asyncssh", "paramiko"),
    )
    port: int | None = SSH.value(
        "-P --port PORT",
        "the port of the far end",
        "The port of the far end; None: ssh_config's.",
        check=whole(MAX_PORT),
        read=parse_number,
    )
    identities: tuple[str, ...] = SSH.value(
        "-i --identity FILE",
        "a private key to log in with",
        "Files with private keys to log in with.",
        check=each_of(check_argument),
        is_path=True,
        default=(),
    )
    config_file: str | None = SSH.path("-F --config FILE", "the ssh_config to use")
    jump: str | None = SSH.value("-J --jump HOST", "go through this host", check=_check_jump)
    ssh_options: tuple[str, ...] = SSH.value(
        "-o --ssh-option KEY=VALUE",
        "as ssh's -o",
        "KEY=VALUE each, as ssh's -o.",
        check=each_of(check_argument),
        default=(),
    )
    timeout_s: int | None = SSH.value(
        "--timeout TIME",
        "how long the host may take to answer (ConnectTimeout of ssh_config, else 30 seconds)",
        check=seconds(bounds.MAX_SECONDS),
        read=parse_seconds,
    )
    retry_for_s: int | None = SSH.value(
        "--retry-for TIME",
        "keep trying for so long (90, 30m, 2h) while the host cannot be reached (pscp-zfs: or a "
        "dataset is busy)",
        "Keep trying for so long while the host cannot be reached, or a dataset is busy; None: a "
        "minute or so.",
        check=seconds(bounds.MAX_SECONDS),
        read=parse_seconds,
    )
    cipher: str | None = SSH.value(
        "--cipher NAME",
        "the cipher to use (the fastest that both ends do well)",
        check=pattern(_CIPHERS, "a cipher", "ssh -Q cipher lists them"),
    )
    compress: bool = SSH.flag("-C --compress", "let ssh compress")
    batch: bool = SSH.flag("-B --batch", "never ask for a password, a passphrase or a host key")
    password_file: str | None = SSH.path(
        "--password-file FILE",
        "what a login asks for is the first line of FILE, which nobody else may be able to "
        "read ($PSCP_PASSWORD_FILE)",
        "Its first line answers what a login asks for; None: $PSCP_PASSWORD_FILE, if it is set.",
    )
    login_once: bool = SSH.flag(
        "--login-once", "log in once, and send everything over that one connection"
    )
    persist: str | None = SSH.value(
        "--persist TIME",
        "keep the connections for so long (90, 10m, 1h30m, yes: without limit) after the last "
        "use, for the next copy to this host with the same options",
        check=pattern(_PERSIST, "a time", "such as 90, 10m, 1h30m, yes or no"),
    )
    address_family: int | None = SSH.row(
        None,
        (Flag("-4 --ipv4", "use IPv4 only", 4), Flag("-6 --ipv6", "use IPv6 only", 6)),
        "4 or 6: use IPv4 or IPv6 only.",
        check=_check_family,
    )
    program: str = SSH.path("-S --program PROGRAM", "run this instead of ssh", default="ssh")

    quiet: bool = SHOWN.flag(
        "-q --quiet",
        "errors only, and JSON or a table if asked for",
        "For the command line: errors only.",
    )
    verbose: bool = SHOWN.flag(
        "-v --verbose",
        "name what is copied, folders too, and what is deleted",
    )
    itemize: bool = SHOWN.flag(
        "-vv --itemize",
        "name each file with what becomes of it; say which hash, cipher and connections are used",
        "For the command line: name each file with what becomes of it, and say how it is sent.",
    )
    debug: bool = SHOWN.flag(
        "-d --debug",
        "show what pscp, ssh and the agents do, with the lane of each",
        "Have ssh say what it does (its -v); the command -d shows that and pscp's own records.",
    )
    progress: str = SHOWN.choice(
        "--progress STYLE",
        "auto (a bar on a terminal), bar, plain, json, or none (not even a closing line)",
        bounds.PROGRESS_STYLES,
    )
    stats: bool = SHOWN.flag(
        "--stats",
        "end with a table of what was counted",
        "For the command line: end with a table of what was counted.",
    )
    log_file: str | None = SHOWN.path(
        "--log-file FILE",
        "write notes, errors, each file copied or deleted and the summary to FILE",
        "For the command line: write notes, errors, each file copied or deleted and the summary to "
        "this file.",
    )
    syslog: bool = SHOWN.flag(
        "--syslog",
        "send notes, errors and the summary to syslog as well",
        "For the command line: send notes, errors and the summary to syslog as well.",
    )
