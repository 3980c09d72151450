"""Connections made by asyncssh and paramiko: programs that behave as ssh does, and channels of a
connection that the user's program has made.

Not here: the settings that such a program gets (../ssh_settings.py). Read next: helper.py.

For other rooms: asyncssh_server_internals (Channel, Connection, DATA_BYTES, REQUEST_BYTES,
Requests, SSHReader, SSHWriter, ScpArguments, ScpSink, ScpSource, ServerFiles, StreamSession,
channel, is_behind, room, scp_error), external (LentChannel, check, closed, place_of).
"""
