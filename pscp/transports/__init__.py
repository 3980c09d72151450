"""Ways to the far end: OpenSSH, and the libraries asyncssh and paramiko. Each makes a Channel.

Not here: what is sent over a channel (../connect/agent_program.py, ../transfer/lanes/lane.py).
Read next: channel.py, openssh.py, ssh_settings.py.

For other rooms: Channel, Control, Request, SFTP, SshSetup, askpass, channel (AGENT, FAILED_STATUS,
Kind, Pipes), control_sockets, direct (PlainChannel, TlsPump), fdpass, further_channel_argv,
mux_protocol (MuxMaster, process_of), open_channel, openssh (Child, WRONG_STATUS, error_of,
last_line, lines_of, reap, user_words), receive_window (FIRST_BYTES, Window, is_due, round_trip_s),
remote_command (PYTHONS, STARTED, command), resolve, socket_options, ssh_settings (REFUSED, Request,
Settings), transport_of.
"""

from __future__ import annotations

from collections.abc import Mapping

from pscp.ground.locations import Location
from pscp.options.options import Options
from pscp.transports import openssh, socket_options, ssh_settings
from pscp.transports.channel import Channel
from pscp.transports.control_sockets import Control, ended_with_us
from pscp.transports.openssh import Child, SshSetup
from pscp.transports.ssh_settings import Request, mux_client_argv, program_argv, transport_of

__all__ = [
    "SFTP", "Channel", "Control", "Request", "SshSetup", "open_channel", "resolve", "transport_of",
]  # fmt: skip
SFTP = Request("sftp", True)


def open_channel(
    host: Location,
    options: Options,
    setup: SshSetup,
    request: Request | str,
    *,
    may_prompt: bool,
    number: int,
    control: Control | None,
    asks: Mapping[str, str] | None = None,
) -> Channel:
    """Open a channel for a command, or a subsystem, at the far end.

    Returns at once; a failure shows when reading ends. With the request "" the connection is only
    for further channels. `number` counts the connections from 0, and so chooses an address and a
    processor. `asks` is the environment by which prompts are answered.
    """
    if isinstance(request, str):
        request = Request(request)
    cpu = options.cpu(number)
    transport = transport_of(options)
    if control is not None and control.is_kept:
        from pscp.transports.mux_channel import MuxChannel, sent_environment  # few copies have one

        return MuxChannel(control, request, sent_environment(setup.send_env, setup.set_env))
    if transport == "openssh":
        program, *words = setup.argv(
            host,
            options,
            may_prompt=may_prompt,
            number=number,
            control=control,
            is_answered=asks is not None,
        )
        kind = ["-s"] if request.is_subsystem else [] if request.text else ["-N"]
        environment = dict(asks or {})
        if control is not None and not (request.text or control.persist or setup.route.proxy):
            kind += ended_with_us(program, control.path)
            # It runs that, and reads no file of the user's; a proxy's command is for their own.
            environment["SHELL"] = "/bin/sh"
        argv = [program, *kind, *words, *([request.text] if request.text else [])]
        return _logging_in(Child(argv, may_prompt, cpu, control, environment=environment), setup)
    if control is not None and not control.is_master:
        return Child(mux_client_argv(control.path, request), False, None, control)
    may_ask = asks is not None or (may_prompt and not options.batch)
    settings = ssh_settings.settings_of(
        host, options, setup, request, may_prompt=may_ask, number=number, control=control
    )
    argv = program_argv(transport, settings)
    return _logging_in(Child(argv, may_prompt, cpu, control, environment=asks), setup)


def _logging_in(channel: Channel, setup: SshSetup) -> Channel:
    """Return the channel; hasten its login, unless it is another's, or goes through a proxy."""
    if not setup.route.proxy and (channel.control is None or channel.control.is_master):
        try:
            socket_options.hasten(channel)
        except BaseException:  # a signal: nobody has the channel yet
            channel.close()
            raise
    return channel


def further_channel_argv(
    host: Location, options: Options, setup: SshSetup, control: Control, command: str
) -> list[str]:
    """Return the command line of a process that runs `command` on an existing connection."""
    if transport_of(options) == "openssh":
        control = Control(control.path, False)
        argv = setup.argv(host, options, may_prompt=False, number=0, control=control)
        return [*argv, command]
    return mux_client_argv(control.path, Request(command))


def resolve(host: Location, options: Options) -> SshSetup:
    """Find out how to connect to this host. Contacts nobody. Raises UsageError."""
    if transport_of(options) == "openssh":
        return openssh.resolve(host, options)
    return ssh_settings.resolve(host, options)
