"""A stream at either end, and its command at the far one.

Sent with a stream's first question. Not here: files (../writing/sink.py).
Read next: stream.py.

For other rooms: machine (Machine), stream (Cutter, Reorder, SLOT_BYTES), stream_server,
stream_states (Input, Output).
"""
