"""The commands as their man pages and completions see them: parsers, words, values of options.

Not here: the pages (manuals.py), the completions (completions.py).
Read next: manuals.py, completions.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pscp.cli import pipe, run, serve, verify
from pscp.jobs.toml.job import IF_RUNNING
from pscp.options import arguments, zfs_arguments
from pscp.options.options import CHOICES
from pscp.options.zfs_options import PRUNABLE

# What the value of an option may be, by the name of its field.
VALUES = {**CHOICES, "if_running": IF_RUNNING, "prune": PRUNABLE, "reports": run.FORMS}
# What else it is, by its metavar (or its field, where the metavar says little): files, hosts,
# programs, ciphers. Others are for the user to know.
KINDS = {
    "FILE": "file", "KEY": "file", "HOST": "host", "PROGRAM": "program", "cipher": "cipher",
    "KEY=VALUE": "keyword",
}  # fmt: skip
# The keywords of ssh_config(5) that mean something for a copy; `ssh -Q` does not list them.
KEYWORDS = """
AddKeysToAgent AddressFamily BatchMode BindAddress BindInterface CASignatureAlgorithms
CanonicalDomains CanonicalizeFallbackLocal CanonicalizeHostname CanonicalizeMaxDots
CanonicalizePermittedCNAMEs CertificateFile ChannelTimeout CheckHostIP Ciphers Compression
ConnectTimeout ConnectionAttempts FingerprintHash ForwardAgent GSSAPIAuthentication
GSSAPIDelegateCredentials GlobalKnownHostsFile HashKnownHosts HostKeyAlgorithms HostKeyAlias
HostName HostbasedAcceptedAlgorithms HostbasedAuthentication IPQoS IdentitiesOnly IdentityAgent
IdentityFile IgnoreUnknown KbdInteractiveAuthentication KbdInteractiveDevices KexAlgorithms
KnownHostsCommand LogLevel MACs NoHostAuthenticationForLocalhost NumberOfPasswordPrompts
PKCS11Provider PasswordAuthentication Port PreferredAuthentications ProxyCommand ProxyJump
ProxyUseFdpass PubkeyAcceptedAlgorithms PubkeyAuthentication RekeyLimit RequiredRSASize
RevokedHostKeys SecurityKeyProvider SendEnv ServerAliveCountMax ServerAliveInterval SetEnv
StrictHostKeyChecking SyslogFacility TCPKeepAlive UpdateHostKeys User UserKnownHostsFile
VerifyHostKeyDNS VisualHostKey
"""


@dataclass(frozen=True)
class Command:
    """One command of the package."""

    parser: argparse.ArgumentParser
    summary: str  # as apropos(1) lists it
    arguments: str  # "places" (files and HOST:), "hosts", "datasets" (and HOST:), "jobs", "none"
    example: str = ""  # the name of the block in README.md that shows it

    @property
    def name(self) -> str:
        return self.parser.prog

    @property
    def usages(self) -> list[str]:
        """The ways to call it, each with the command's name."""
        ways = str(self.parser.usage).split(", or ")
        return [way if way.startswith(self.name) else f"{self.name} {way}" for way in ways]


def commands() -> list[Command]:
    return [
        Command(
            arguments.make_parser(), "copy files over several SSH connections at once", "places",
            "everyday",
        ),
        Command(
            pipe.make_parser(), "send a stream to a command over several SSH connections", "hosts",
            "pipes",
        ),
        Command(
            run.make_parser(), "run the copies that a file lists: pushes that nobody watches",
            "jobs",
        ),
        Command(
            serve.make_parser(), "take uploads over SSH, each user in an own folder", "none",
        ),
        Command(
            verify.make_parser(), "compare files with a manifest, and repair them", "places",
        ),
        Command(
            zfs_arguments.make_parser(), "replicate ZFS datasets over several SSH connections",
            "datasets", "zfs_readme",
        ),
    ]  # fmt: skip


def groups(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[argparse.Action]]]:
    """The groups of options, each with its title; what is not shown in --help is left out."""
    for group in parser._action_groups:
        shown = [each for each in group._group_actions if each.help != argparse.SUPPRESS]
        if shown:
            yield str(group.title), shown


def options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [each for _, group in groups(parser) for each in group if each.option_strings]


def value_of(action: argparse.Action) -> str:
    """What stands for the option's value, or values; empty for a flag."""
    if action.nargs == 0:
        return ""
    named = action.metavar or action.dest.upper()
    return " ".join(named) if isinstance(named, tuple) else named


def values_of(action: argparse.Action) -> tuple[str, ...]:
    """The values that an option takes, where there are few; none for a flag."""
    return tuple(VALUES.get(action.dest, ())) if action.nargs != 0 else ()


def meaning_of(action: argparse.Action, value: str) -> str:
    """What the option's help says of this value in brackets behind it; empty for nothing."""
    found = re.search(rf"\b{re.escape(value)} \(([^()]*)\)", str(action.help))
    return found[1] if found else ""


def kind_of(action: argparse.Action) -> str:
    """One of those that KINDS names, or empty."""
    return KINDS.get(action.dest) or KINDS.get(value_of(action), "")
