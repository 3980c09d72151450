"""SFTP at the far end, where no agent can be: a program here takes the agent's place.

One child process for each lane exchanges the frames of endpoint/frames/wire.py with the
coordinator, as an agent does, and SFTP version 3 with sshd over a channel. So a copy over SFTP is
the same copy. A module has the name of the one in endpoint/ that does the same step: agent.py,
source.py, sink.py, tree.py, listings.py, placing.py, fence.py, leftovers.py, mirror.py, moving.py,
protocol/files.py, protocol/paths.py. There are the protocol, digests and destination.py besides.

May import transports/, endpoint/.

Nothing else here. Read next: protocol/packets.py.

For other rooms: channel (SftpChannel), tree (list_folder).
"""
