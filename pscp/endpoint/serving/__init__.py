"""The server of a channel: the agent's loop, the frames in and out, an end and its role.

Nothing here reads or writes a file.
Read next: agent.py.

For other rooms: agent (TICK_S), end, frame_server (FrameServer), onward.
"""
