"""Ways to the far end: one small file each, all with the same few manners (Channel).

Not here: what is said over a channel (../bootstrap.py, ../lane.py).
Read next: openssh.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pscp.channels.openssh import Control, OpenSsh, SshSetup
from pscp.errors import PscpError
from pscp.options import Location, Options

__all__ = ["Channel", "Control", "open_channel", "SshSetup"]


class Channel(Protocol):
    """One byte pipe to a command at the far end: the descriptors of a child process."""

    read_fd: int  # the command's standard output
    write_fd: int  # its standard input
    error_fd: int  # what it, and the way there, say to people
    pid: int  # of the process that encrypts, or of one that hands its channel to that
    control: Control | None  # by which other channels use its connection, or it uses another's
    needs_agent: bool  # is there nothing at its end before an agent is sent?

    def end(self) -> None:
        """End it now, from any thread; whoever reads or writes the descriptors notices."""

    def close(self) -> None:
        """End it and release the descriptors. Idempotent."""

    def explain(self, said: str) -> PscpError:
        """Why it ended, given what it said to people."""

    def lent(self) -> None:
        """A child has the command's descriptors now; here they are closed."""


def open_channel(
    host: Location, options: Options, setup: SshSetup, command: str, may_prompt: bool,
    number: int, control: Control | None, asks: Mapping[str, str] | None = None,
    is_subsystem: bool = False,
) -> Channel:  # fmt: skip
    """Run `command` at the far end. Returns at once; what fails is known when reading ends.

    `number` counts the connections from 0 on: each has its turn of the addresses and processors.
    `asks` is the environment by which its prompts are answered. Without a command it is a
    connection for others to use.
    """
    cpu = options.cpus[number % len(options.cpus)] if options.cpus else None
    argv = setup.argv(host, options, may_prompt, number, control, asks is not None)
    if is_subsystem:
        argv.insert(1, "-s")
    if command:
        argv.append(command)
    else:
        argv.insert(1, "-N")
    return OpenSsh(argv, may_prompt, cpu, control, asks)
