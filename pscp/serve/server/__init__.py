"""The processes of pscp-serve: their settings, who is let in, and what is told of them.

Not here: what a user may do once logged in (the room above this folder).
Read next: config.py, logins.py.

For other rooms: config (load, unready), process (prepared), status.
"""
