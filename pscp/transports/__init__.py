"""Ways to the far end, one small file for each. All make a Channel.

Not here: what is said over a channel (../connect/bootstrap.py, ../transfer/lane.py).
Read next: openssh.py, ssh_settings.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pscp.errors import PscpError
from pscp.options import Location, Options
from pscp.transports import openssh, ssh_settings
from pscp.transports.control_sockets import Control
from pscp.transports.openssh import Child, SshSetup
from pscp.transports.ssh_settings import Request, program_argv, ride_argv, settings_of, transport_of

__all__ = [
    "Channel", "Control", "open_channel", "Request", "resolve", "rider_argv", "SshSetup",
    "transport_of",
]  # fmt: skip


class Channel(Protocol):
    """One byte pipe to a command at the far end: the descriptors of a child process."""

    read_fd: int  # the command's standard output
    write_fd: int  # its standard input
    error_fd: int  # what it, and the way there, say to people
    pid: int  # of the process that encrypts, or of one that hands its channel to that
    control: Control | None  # by which other channels use its connection, or it uses another's
    needs_agent: bool  # is there nothing at its end before an agent is sent?

    def end(self) -> None:
        """End the channel, from any thread; whoever reads or writes the descriptors notices."""

    def let_go(self, patience_s: float) -> None:
        """Let a login that nobody needs any more end by itself, for at most so long; then close.

        The far end sees the end of its input. sshd counts a login that is cut as an offence.
        """

    def close(self) -> None:
        """End the channel and close the descriptors. Idempotent."""

    def explain(self, said: str) -> PscpError:
        """Return why the channel ended, given what came on `error_fd`."""
        ...

    def lent(self) -> None:
        """Close the command's descriptors here, since a child has them now."""


def open_channel(
    host: Location, options: Options, setup: SshSetup, request: Request | str, *,
    may_prompt: bool, number: int, control: Control | None, asks: Mapping[str, str] | None = None,
) -> Channel:  # fmt: skip
    """Open a channel for a command, or a subsystem, at the far end.

    Returns at once; what fails is known when reading ends. `number` counts the connections from 0
    on: each has its turn of the addresses and processors. `asks` is the environment by which its
    prompts are answered. Without a command it is a connection for others to use.
    """
    if isinstance(request, str):
        request = Request(request)
    cpu = options.cpus[number % len(options.cpus)] if options.cpus else None
    transport = transport_of(options)
    if transport == "openssh":
        argv = setup.argv(
            host, options, may_prompt=may_prompt, number=number, control=control,
            is_answered=asks is not None,
        )  # fmt: skip
        kind = "-s" if request.is_subsystem else "" if request.text else "-N"
        argv[1:1] = [kind] if kind else []
        argv += [request.text] if request.text else []
        return Child(argv, may_prompt, cpu, control, asks)
    if control is not None and not control.is_master:
        return Child(ride_argv(control.path, request), False, None, control)
    may_ask = asks is not None or (may_prompt and not options.batch)
    settings = settings_of(
        host, options, setup, request, may_prompt=may_ask, number=number, control=control
    )
    return Child(program_argv(transport, settings), may_prompt, cpu, control, asks)


def rider_argv(
    host: Location, options: Options, setup: SshSetup, control: Control, command: str
) -> list[str]:
    """Return the command line of a further channel of a connection, for somebody else to run."""
    if transport_of(options) == "openssh":
        control = Control(control.path, False)
        argv = setup.argv(host, options, may_prompt=False, number=0, control=control)
        return [*argv, command]
    return ride_argv(control.path, Request(command))


def resolve(host: Location, options: Options) -> SshSetup:
    """Return how to connect to this host. Contacts nobody. Raises UsageError."""
    if transport_of(options) == "openssh":
        return openssh.resolve(host, options)
    return ssh_settings.resolve(host, options)
