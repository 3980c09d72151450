"""Connections made by asyncssh and paramiko: programs that behave as ssh does, and channels of a
connection that the user's program has made.

Not here: the settings that such a program gets (../ssh_settings.py). Read next: helper.py.

For other rooms: external (LentChannel, check, place_of).
"""
