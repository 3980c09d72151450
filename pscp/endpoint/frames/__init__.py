"""Frames and what every room stands on: digests, failures as data, system calls.

Not here: which request is in a frame (../asking/requests.py).
Read next: wire.py, then session.py.

For other rooms: failures, hashes, session, system, wire.
"""
