"""From a host's name to agents that run there: logins, connections, the agent's start.

Several channels may share one login (control_master.py), and a user's program may bring its own
connection (../calls/external.py). May import sftp/, transports/, endpoint/. Not here: what a
connection is used for (transfer/).
Read next: connections.py.

For other rooms: agent_program (copy_modules, stream_modules), bootstrap (RemoteAgent, shaped),
connections (Admission, ConnectionRequest, Connections), first_login (Ahead, NOTHING_AHEAD, Worth,
idle_s, worth_many), messages (about, named, noting), one_host (OneHost), onward (OnwardChannel,
OnwardOpener), openers (Opener), persistent, spare_logins (IdleConnections).
"""
