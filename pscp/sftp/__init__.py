"""SFTP at the far end, where no agent can be: a program here takes the agent's place.

One child process a lane speaks the frames of endpoint/wire.py with the coordinator, as an agent
does, and SFTP version 3 with sshd over a channel. So a copy over SFTP is the same copy.

Nothing else here. Read next: packets.py.
"""
