"""The commands: all that knows argv, terminals and exit codes. One module a command.

May import everything of the package. Nothing else imports a command.
Not here: what a command does (calls/api.py, and the rooms below it).
Read next: start.py, copy.py.

For other rooms: start (pscp).
"""
