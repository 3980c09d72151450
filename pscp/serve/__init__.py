"""pscp-serve: an SSH server for uploads, by SFTP and scp, each user in a folder of their own.

Not here: the command line of pscp-serve (../cli), how pscp itself copies (../transfer).
Read next: settings.py.

For other rooms: account (Account, is_locked), events (Events), landing (sweep), programs (run),
session (Sessions, ciphers), settings (Current, Settings, User, keys_of).
"""
