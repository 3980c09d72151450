"""The direct plane: lanes over sockets of their own, past SSH.

Sent where the agent is to take direct lanes. Not here: the frames (../frames/wire.py).
Read next: direct.py.

For other rooms: congestion (Choice, LiveSocket, Sending), direct, gate, link.
"""
